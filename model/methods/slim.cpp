#include <algorithm>

#include "model/base/error.h"
#include "model/config/slim_forms.h"
#include "model/methods/method.h"

namespace kvcast {
namespace {

/// How one decode step reads what is kept.
struct Reading {
  /// The sum over tokens first, then the product with the weight (the paper's option 2); else keys
  /// or values of all tokens are computed anew.
  bool optimized = true;
  /// Keys are kept rotated and turned back to compute values; else they are rotated on reading.
  bool unrotates = false;
  /// Probabilities below it count as none, 0: all count (decode steps).
  double threshold = 0;
};

/// A product of two parts when some values are kept beside the keys (appendix G).
struct Kept {
  Value keys;                 ///< [batch, rows, G·hd], as they were kept
  std::optional<Value> rest;  ///< [batch, rows, hidden_size - G·hd], values
};

Value per_head(Recorder& r, std::string_view label, const Heads& heads, Value x, Value weight,
               bool transposed) {
  return r.head_linear(label, {heads.num_attention_heads, heads.num_key_value_heads, transposed}, x,
                       weight);
}

/// Attention whose queries are as wide as `wide`, one key head of all features for all of them.
Recorder::Attention over_all_features(Recorder::Attention a, const Count& wide) {
  a.heads.num_key_value_heads = 1;
  a.heads.head_dim = wide.constant();
  a.shares_heads = true;
  return a;
}

/// The values' heads when each sums the rows of a whole cache.
void sum_whole_rows(Recorder::Attention& a, const Count& wide) {
  a.num_value_heads = 1;
  a.value_dim = wide.constant();
  a.shares_heads = true;
}

class SelfAttention {
 public:
  SelfAttention(const AttentionSite& site, const Reading& reading)
      : s_(site),
        r_(site.r),
        heads_(site.layer.heads),
        features_(kv_features(site.layer.heads)),
        rope_(site.stack.position == Position::Rope),
        decodes_(site.tokens() == Count(1)),
        reading_(reading) {}

  Value key_cache() const {
    const Kept kept = keep_keys();
    const Value q = s_.rotate_query(s_.query(), s_.past);
    const std::uint64_t hidden = s_.architecture.hidden_size;
    const Value w = weight("key_value", features_);
    const bool sparse = reading_.threshold > 0;
    if (decodes_ && reading_.optimized && !kept.rest && (!reading_.unrotates || sparse)) {
      Recorder::Attention a = settings(q, kept.keys);
      sum_whole_rows(a, features_);
      if (rope_) (reading_.unrotates ? a.unrotates_values : a.key_rope) = s_.stack.rope;
      const Value sums = r_.attention(a, q, normed(kept.keys), kept.keys);
      return per_head(r_, "value", heads_, sums, w, false);
    }
    Value unrotated = kept.keys;
    Value keys = kept.keys;
    if (reading_.unrotates && rope_) {
      unrotated = r_.rope("unrotate", keys, heads_.num_key_value_heads, heads_.head_dim,
                          s_.stack.rope, 0, true);
    } else {
      keys = s_.rotate_key(normed(keys), 0);
    }
    if (decodes_ && reading_.optimized && !kept.rest) {
      Recorder::Attention a = settings(q, keys);
      sum_whole_rows(a, features_);
      return per_head(r_, "value", heads_, r_.attention(a, q, keys, unrotated), w, false);
    }
    Value values = r_.linear("value", unrotated, w);
    if (kept.rest) {
      const Value part = r_.linear("value", *kept.rest, weight("rest_value", hidden - features_));
      values = r_.binary("value", Function::Add, values, part);
    }
    return s_.attend(q, keys, values, s_.past);
  }

  Value value_cache() const {
    const Value rows = r_.linear("value", s_.x, weight("value", s_.architecture.hidden_size));
    const Value values = keep("values", rows, features_);
    const Value q = s_.rotate_query(s_.query(), s_.past);
    const Value w = weight("value_key", features_);
    if (decodes_ && reading_.optimized && !rope_ && !s_.stack.query_key_norm) {
      Recorder::Attention a = over_all_features(settings(q, values), features_);
      a.num_value_heads = heads_.num_key_value_heads;
      a.value_dim = heads_.head_dim;
      return r_.attention(a, per_head(r_, "key", heads_, q, w, true), values, values);
    }
    const Value keys = r_.linear("key", values, w, key_bias());
    return s_.attend(q, s_.rotate_key(normed(keys), 0), values, s_.past);
  }

  Value input_cache() const {
    const std::uint64_t hidden = s_.architecture.hidden_size;
    const Value inputs = keep("inputs", s_.x, hidden);
    const Value q = s_.query();
    const Value key = weight("key", hidden);
    const Value value = weight("value", hidden);
    if (decodes_ && reading_.optimized) {
      Recorder::Attention a = over_all_features(settings(q, inputs), hidden);
      const Value u = per_head(r_, "key", heads_, q, key, true);
      return per_head(r_, "value", heads_, r_.attention(a, u, inputs, inputs), value, false);
    }
    return s_.attend(q, r_.linear("key", inputs, key), r_.linear("value", inputs, value), s_.past);
  }

 private:
  Recorder::Attention settings(Value q, Value rows) const {
    const Count queries = r_.info(q).shape[1];
    const Count keys = r_.info(rows).shape[1];
    Recorder::Attention a = s_.attention(queries, keys, s_.past);
    a.threshold = reading_.threshold;
    if (a.threshold > 0 && a.mask.window > 0)
      a.additive_mask = r_.causal_mask(a.mask, queries, keys);
    return a;
  }
  /// "NAME.PART.weight" [G·hd, in]
  Value weight(const std::string& part, const Count& in) const {
    return r_.weight(s_.name + "." + part + ".weight", {features_, in});
  }
  /// Without rotary embeddings a key's bias adds the same to all scores of a query.
  std::optional<Value> key_bias() const {
    if (!rope_ || !s_.stack.key_bias) return {};
    return r_.weight(s_.name + ".key.bias", {features_});
  }
  Value keep(const std::string& part, Value rows, const Count& features) const {
    const Value before = r_.cache(s_.name + "." + part, {s_.batch(), s_.past, features});
    const Value all = r_.append(before, rows, "cache_" + part);
    r_.output(all);
    return all;
  }
  Kept keep_keys() const {
    const std::uint64_t hidden = s_.architecture.hidden_size;
    Value rows = r_.linear("key", s_.x, weight("key", hidden), key_bias());
    if (reading_.unrotates) rows = s_.rotate_key(rows, s_.past);
    Kept kept{keep("keys", rows, features_), {}};
    if (features_ < hidden) {
      const Count width = hidden - features_;
      const Value w = r_.weight(s_.name + ".rest.weight", {width, hidden});
      kept.rest = keep("rest", r_.linear("rest", s_.x, w), width);
    }
    return kept;
  }
  /// The keys' own norm, which is taken after the cache: a normalised key has lost its length.
  Value normed(Value keys) const {
    if (!s_.stack.query_key_norm) return keys;
    return r_.head_norm("key_norm", s_.stack.norm_eps, s_.name + ".key_norm", keys,
                        heads_.num_key_value_heads);
  }

  const AttentionSite& s_;
  Recorder& r_;
  const Heads& heads_;
  std::uint64_t features_;
  bool rope_;
  bool decodes_;
  Reading reading_;
};

Value self_attention(const AttentionSite& s, CacheForm kind, const Reading& reading) {
  const SelfAttention attention(s, reading);
  switch (kind) {
    case CacheForm::Keys: return attention.key_cache();
    case CacheForm::Values: return attention.value_cache();
    case CacheForm::Inputs: return attention.input_cache();
    default: return plain_attention(s);
  }
}

/// Cross-attention over one cache, which is keys and values at once.
class CrossAttention {
 public:
  CrossAttention(std::vector<LayerCaches> layers, const Reading& reading)
      : layers_(std::move(layers)), reading_(reading), plain_(plain_cross_attention()) {}

  CrossCache fill(const CrossSite& s, Value states, const std::vector<CrossCache>& before) const {
    const CacheForm kind = layers_[s.index].cross;
    if (kind == CacheForm::KeysAndValues) return plain_.fill(s, states, before);
    if (const std::optional<CrossCache> shared = shared_cache(s, before)) return *shared;
    Value rows = states;
    if (kind != CacheForm::Inputs) {
      const bool values = kind == CacheForm::Values;
      rows = project(s, values ? "value" : "key", states, s.architecture.hidden_size);
    }
    const Value empty = cache(s, s.r.info(states).shape[0], 0);
    const Value all = s.r.append(empty, rows, "cache_cross");
    s.r.output(all);
    return {all, all};
  }

  CrossCache read(const CrossSite& s, const Count& batch, const Count& length,
                  const std::vector<CrossCache>& before) const {
    if (layers_[s.index].cross == CacheForm::KeysAndValues)
      return plain_.read(s, batch, length, before);
    if (const std::optional<CrossCache> shared = shared_cache(s, before)) return *shared;
    const Value all = cache(s, batch, length);
    return {all, all};
  }

  Value attend(const CrossSite& s, Value x, const CrossCache& kept) const {
    const CacheForm kind = layers_[s.index].cross;
    if (kind == CacheForm::KeysAndValues) return plain_.attend(s, x, kept);
    const Heads& heads = s.layer().heads;
    const Value rows = kept.keys;
    const Count width = s.r.info(rows).shape.back();
    const Value q = s.project("query", x, query_features(heads), s.architecture.decoder.query_bias);
    // Keys as they lie in the cache, or from it by a weight; and values likewise.
    std::string from_key = "cross_key";
    std::string from_value = "cross_value";
    if (kind == CacheForm::Keys || (kind == CacheForm::FirstKeys && s.index == 0)) {
      from_key.clear();
      from_value = "cross_key_value";
    } else if (kind == CacheForm::Values) {
      from_key = "cross_value_key";
      from_value.clear();
    }
    Recorder::Attention a = s.attention();
    a.threshold = reading_.optimized ? reading_.threshold : 0;
    if (!reading_.optimized) {
      const auto all = [&](const std::string& part) {
        if (part.empty()) return rows;
        return s.r.linear(part, rows, weight(s, part, width));
      };
      return s.r.attention(a, q, all(from_key), all(from_value));
    }
    Value u = q;
    if (!from_key.empty()) {
      a = over_all_features(a, width);
      u = per_head(s.r, "cross_key", heads, q, weight(s, from_key, width), true);
    }
    if (from_value.empty()) {
      a.num_value_heads = heads.num_key_value_heads;
      a.value_dim = heads.head_dim;
      return s.r.attention(a, u, rows, rows);
    }
    sum_whole_rows(a, width);
    return per_head(s.r, "cross_value", heads, s.r.attention(a, u, rows, rows),
                    weight(s, from_value, width), false);
  }

 private:
  static Value weight(const CrossSite& s, const std::string& part, const Count& in) {
    return s.r.weight(s.name + "." + part + ".weight", {kv_features(s.layer().heads), in});
  }
  static Value project(const CrossSite& s, const std::string& part, Value x, const Count& in) {
    return s.r.linear("cross_" + part, x, weight(s, "cross_" + part, in));
  }
  /// The encoder's states and the first layer's keys serve all layers.
  std::optional<CrossCache> shared_cache(const CrossSite& s,
                                         const std::vector<CrossCache>& before) const {
    const CacheForm kind = layers_[s.index].cross;
    if (kind != CacheForm::Inputs && kind != CacheForm::FirstKeys) return {};
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (layers_[i].cross == kind) return before[i];
    }
    return {};
  }
  Value cache(const CrossSite& s, const Count& batch, const Count& rows) const {
    switch (layers_[s.index].cross) {
      case CacheForm::Inputs:
        return s.r.cache("decoder.cross_inputs", {batch, rows, s.architecture.hidden_size});
      case CacheForm::Values: return s.cache("cross_values", batch, rows);
      default: return s.cache("cross_keys", batch, rows);
    }
  }

  std::vector<LayerCaches> layers_;
  Reading reading_;
  CrossMethod plain_;
};

bool one_of_two(const MethodSpec& spec, std::string_view key, const std::string& yes,
                const std::string& no) {
  const std::string word = text_option(spec, key, yes);
  if (word == yes || word == no) return word == yes;
  throw Error("method slim: option " + std::string(key), "'" + word + "'", yes + " or " + no);
}

/// Some attention's decode step reads one cache row by row.
bool uses_threshold(const Architecture& a, const std::vector<LayerCaches>& layers) {
  const bool keys_as_they_are = a.decoder.position != Position::Rope && !a.decoder.query_key_norm;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].cross != CacheForm::KeysAndValues || layers[i].self == CacheForm::Inputs)
      return true;
    if (layers[i].self == CacheForm::Keys && !keeps_some_values(a, i)) return true;
    if (layers[i].self == CacheForm::Values && keys_as_they_are) return true;
  }
  return false;
}

void apply(const MethodSpec& spec, Plan& plan) {
  const std::string option = text_option(spec, "option", "auto");
  const std::vector<LayerCaches> layers = slim_layers(plan.model, option);
  if (!plan.model.converted_for.empty() && layer_caches(plan.model) != layers) {
    throw Error("method slim: option " + option,
                plan.model.name + ", which was converted to other forms", "option=auto");
  }
  if (plan.model.converted_for.empty()) {
    plan.conversion = "kvcast convert slim";
    plan.model.origin.clear();
  }
  plan.model.converted_for = spec.name;
  for (std::size_t i = 0; i < layers.size(); ++i) plan.model.decoder.layers[i].caches = layers[i];
  const std::string threshold = text_option(spec, "threshold", "");
  const Reading reading{one_of_two(spec, "order", "optimized", "unoptimized"),
                        !one_of_two(spec, "rope", "read", "unrotate"),
                        threshold.empty() ? 0 : fraction_option(spec, "threshold")};
  if (reading.unrotates && plan.model.decoder.query_key_norm) {
    throw Error("method slim: option rope=unrotate", plan.model.name + ", which normalises keys",
                "rope=read: a normalised key has lost its length");
  }
  if (reading.threshold > 0 && !(reading.optimized && uses_threshold(plan.model, layers))) {
    throw Error("method slim: option threshold",
                reading.optimized ? plan.model.name : "order=unoptimized",
                "a form whose decoding sums whole rows of one cache");
  }
  if (folds_biases(plan.model)) plan.model.decoder.attention_output_bias = true;
  plan.attention = [=](const AttentionSite& s) {
    return self_attention(s, layers[s.index].self, reading);
  };
  const CrossAttention cross(layers, reading);
  plan.cross.fill = [=](const CrossSite& s, Value states, const std::vector<CrossCache>& before) {
    return cross.fill(s, states, before);
  };
  plan.cross.read = [=](const CrossSite& s, const Count& batch, const Count& length,
                        const std::vector<CrossCache>& before) {
    return cross.read(s, batch, length, before);
  };
  plan.cross.attend = [=](const CrossSite& s, Value x, const CrossCache& kept) {
    return cross.attend(s, x, kept);
  };
}

}  // namespace

/// Slim attention: half of the cache, or less, computed back into all of it.
/// Source: Graef, Wasielewski and Clapp 2025 (arXiv:2503.05840): section 2 (kcache), section 3
/// (right inverse, xcache), section 4 (encdec1, encdec2), appendices C (vcache), G (grouped heads),
/// H (hybrid).
Method slim() {
  return {"slim",
          MethodKind::Cache,
          "option=kcache|vcache|xcache|encdec1|encdec2|hybrid|auto[,order=unoptimized]"
          "[,rope=unrotate][,threshold=F]: keeps keys, values or inputs and computes the rest",
          {"option", "order", "rope", "threshold"},
          apply,
          "slim",
          {needs_own_keys()}};
}

}  // namespace kvcast
