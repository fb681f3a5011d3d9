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

/// The caches when some values are kept too (appendix G).
struct Kept {
  Value keys;                 ///< [batch, rows, G·hd], as they were kept
  std::optional<Value> rest;  ///< [batch, rows, hidden_size - G·hd], values
};

Value per_head(Recorder& r, std::string_view label, const Heads& heads, Value x, Value weight,
               bool transposed) {
  return r.head_linear(label, {heads.num_attention_heads, heads.num_key_value_heads, transposed}, x,
                       weight);
}

/// Attention to the rows of one cache, which are keys and values or give them by a weight [G·hd,
/// features]. The weights multiply the queries and the sums over tokens, not every row (the paper's
/// option 2). `keys` are the rows as scores need them.
Value attend_to_rows(Recorder& r, Recorder::Attention a, const std::string& site, Value q,
                     Value keys, Value rows, std::optional<Value> key_weight,
                     std::optional<Value> value_weight) {
  const Heads heads = a.heads;
  const std::uint64_t width = r.info(rows).shape.back().constant();
  if (key_weight) {
    q = per_head(r, site + "key", heads, q, *key_weight, true);
    a.heads = {heads.num_attention_heads, 1, width};
  }
  a.num_value_heads = value_weight ? 1 : heads.num_key_value_heads;
  a.value_dim = value_weight ? width : heads.head_dim;
  a.shares_heads = true;
  const Value o = r.attention(a, q, keys, rows);
  return value_weight ? per_head(r, site + "value", heads, o, *value_weight, false) : o;
}

class SelfAttention {
 public:
  SelfAttention(const AttentionSite& site, const Reading& reading)
      : s_(site),
        r_(site.r),
        heads_(site.layer.heads),
        features_(kv_features(site.layer.heads)),
        rope_(site.layer.rope != nullptr),
        decodes_(site.tokens() == Count(1)),
        reading_(reading),
        held_(reading.unrotates && rope_ ? site.past : site.held()) {}

  Value key_cache() const {
    const Kept kept = keep_keys();
    const Value q = query();
    const std::uint64_t hidden = s_.architecture.hidden_size;
    const Value w = weight("key_value", features_);
    const bool sparse = reading_.threshold > 0;
    const bool norms_last = rope_ && norms_rotated(s_.stack.query_key_norm);
    const bool sums_rows = decodes_ && reading_.optimized && !kept.rest && !norms_last;
    if (sums_rows && (!reading_.unrotates || sparse)) {
      Recorder::Attention a = settings(q, kept.keys);
      if (rope_) (reading_.unrotates ? a.unrotates_values : a.key_rope) = s_.layer.rope;
      return attend_to_rows(r_, a, "", q, normed(kept.keys), kept.keys, {}, w);
    }
    Value unrotated = kept.keys;
    Value keys = kept.keys;
    if (reading_.unrotates && rope_) {
      unrotated = r_.rope("unrotate", keys, heads_.num_key_value_heads, heads_.head_dim,
                          s_.layer.rope, 0, true);
    } else {
      keys = s_.rotate_key(normed(keys), 0);
    }
    if (sums_rows) return attend_to_rows(r_, settings(q, keys), "", q, keys, unrotated, {}, w);
    Value values = r_.linear("value", unrotated, w);
    if (kept.rest) {
      const Value part = r_.linear("value", *kept.rest, weight("rest_value", hidden - features_));
      values = r_.binary("value", Function::Add, values, part);
    }
    return s_.attend(q, keys, values, held_);
  }

  Value value_cache() const {
    const Value rows = r_.linear("value", s_.x, weight("value", s_.architecture.hidden_size));
    const Value values = keep("values", rows, features_);
    const Value q = query();
    const Value w = weight("value_key", features_);
    if (decodes_ && reading_.optimized && !rope_ && !normalizes_keys(s_.stack)) {
      return attend_to_rows(r_, settings(q, values), "", q, values, values, w, {});
    }
    const Value keys = r_.linear("key", values, w, key_bias());
    return s_.attend(q, s_.rotate_key(normed(keys), 0), values, held_);
  }

  Value input_cache() const {
    const std::uint64_t hidden = s_.architecture.hidden_size;
    const Value inputs = keep("inputs", s_.x, hidden);
    const Value q = query();
    const Value key = weight("key", hidden);
    const Value value = weight("value", hidden);
    const bool sums_rows = decodes_ && reading_.optimized;
    const bool as_they_are = !rope_ && !normalizes_keys(s_.stack);
    if (sums_rows && as_they_are) {
      return attend_to_rows(r_, settings(q, inputs), "", q, inputs, inputs, key, value);
    }
    const Value keys = s_.rotate_key(normed(r_.linear("key", inputs, key, key_bias())), 0);
    if (sums_rows) return attend_to_rows(r_, settings(q, keys), "", q, keys, inputs, {}, value);
    return s_.attend(q, keys, r_.linear("value", inputs, value), held_);
  }

 private:
  Recorder::Attention settings(Value q, Value rows) const {
    const Count queries = r_.info(q).shape[1];
    const Count keys = r_.info(rows).shape[1];
    Recorder::Attention a = s_.attention(queries, keys, held_);
    a.threshold = reading_.threshold;
    if (a.threshold > 0 && a.mask.window > 0)
      a.additive_mask = r_.causal_mask(a.mask, queries, keys);
    return a;
  }
  /// "NAME.PART.weight" [G·hd, in]
  Value weight(const std::string& part, const Count& in) const {
    return r_.weight(s_.name + "." + part + ".weight", {features_, in});
  }
  /// Rotated by its place among the cached rows: scores know distances only.
  Value query() const { return s_.rotate_query(s_.query(), rope_ ? held_ : s_.past); }
  std::optional<Value> key_bias() const {
    if (!keeps_key_bias(s_.stack, s_.layer)) return {};
    return r_.weight(s_.name + ".key.bias", {features_});
  }
  Value keep(const std::string& part, Value rows, std::uint64_t features) const {
    const Value before = held_ == s_.held()
                             ? s_.cache(part, held_, features)
                             : r_.cache(s_.name + "." + part, {s_.batch(), held_, features});
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
      const std::uint64_t width = hidden - features_;
      const Value w = r_.weight(s_.name + ".rest.weight", {width, hidden});
      kept.rest = keep("rest", r_.linear("rest", s_.x, w), width);
    }
    return kept;
  }
  /// The keys' own norm, applied after the cache: a normalised key has lost its length.
  Value normed(Value keys) const {
    return normed_heads(r_, s_.stack, s_.name, "key", keys, heads_.num_key_value_heads);
  }

  const AttentionSite& s_;
  Recorder& r_;
  const Heads& heads_;
  std::uint64_t features_;
  bool rope_;
  bool decodes_;
  Reading reading_;
  Count held_;  ///< rows in the cache before the pass; those that are turned back must be all
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

/// Cross-attention over one cache, whose rows serve as keys and values at once.
CrossMethod cross_attention(const std::vector<LayerCaches>& layers, const Reading& reading) {
  const CrossMethod plain = plain_cross_attention();
  const auto weight = [](const CrossSite& s, const std::string& part, const Count& in) {
    return s.r.weight(s.name + "." + part + ".weight", {kv_features(s.layer().heads), in});
  };
  CrossMethod m;
  m.cache = [=](const CrossSite& s, const std::vector<CrossCache>& before) {
    const CacheForm form = layers[s.index].cross;
    if (form == CacheForm::KeysAndValues) return plain.cache(s, before);
    const bool inputs = form == CacheForm::Inputs;
    for (std::size_t i = 0; i < before.size(); ++i) {
      // The encoder's states and the first layer's keys serve all layers.
      if ((inputs || form == CacheForm::FirstKeys) && layers[i].cross == form) return before[i];
    }
    const std::uint64_t hidden = s.architecture.hidden_size;
    const std::string part = form == CacheForm::Values ? "cross_value" : "cross_key";
    const Value rows =
        s.cache(inputs ? "decoder.cross_inputs" : s.name + "." + part + "s",
                inputs ? hidden : kv_features(s.layer().heads), "cache_cross", [&](Value states) {
                  return inputs ? states : s.r.linear(part, states, weight(s, part, hidden));
                });
    return CrossCache{rows, rows};
  };
  m.attend = [=](const CrossSite& s, Value x, const CrossCache& kept) {
    const CacheForm form = layers[s.index].cross;
    if (form == CacheForm::KeysAndValues) return plain.attend(s, x, kept);
    const Value rows = kept.keys;
    const Count width = s.r.info(rows).shape.back();
    const Value q =
        s.project("query", x, query_features(s.layer().heads), s.architecture.decoder.query_bias);
    // The weights that make keys and values of the rows; empty: the rows are those.
    const bool keys = form == CacheForm::Keys || (form == CacheForm::FirstKeys && s.index == 0);
    const bool values = form == CacheForm::Values;
    const std::string to_keys = keys ? "" : values ? "cross_value_key" : "cross_key";
    const std::string to_values = values ? "" : keys ? "cross_key_value" : "cross_value";
    Recorder::Attention a = s.attention();
    if (!reading.optimized) {
      const auto all = [&](const std::string& part) {
        return part.empty() ? rows : s.r.linear(part, rows, weight(s, part, width));
      };
      const Value v = all(to_values);
      return s.r.attention(a, q, all(to_keys), v);
    }
    a.threshold = reading.threshold;
    const auto weight_of = [&](const std::string& part) {
      return part.empty() ? std::nullopt : std::optional(weight(s, part, width));
    };
    const std::optional<Value> key_weight = weight_of(to_keys);
    return attend_to_rows(s.r, a, "cross_", q, rows, rows, key_weight, weight_of(to_values));
  };
  return m;
}

/// Some attention's decode step reads one cache row by row.
bool uses_threshold(const Architecture& a, const std::vector<LayerCaches>& layers) {
  const bool keys_as_they_are = a.decoder.position != Position::Rope && !normalizes_keys(a.decoder);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].cross != CacheForm::KeysAndValues || layers[i].self == CacheForm::Inputs)
      return true;
    if (layers[i].self == CacheForm::Keys && !keeps_some_values(a, i)) return true;
    if (layers[i].self == CacheForm::Values && keys_as_they_are) return true;
  }
  return false;
}

void apply_slim(const MethodSpec& spec, Plan& plan) {
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
  const Reading reading{word_option(spec, "order", {"optimized", "unoptimized"}) == "optimized",
                        word_option(spec, "rope", {"read", "unrotate"}) == "unrotate",
                        threshold.empty() ? 0 : fraction_option(spec, "threshold")};
  if (reading.unrotates && normalizes_keys(plan.model.decoder)) {
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
  plan.cross = cross_attention(layers, reading);
}

}  // namespace

/// Slim attention: half of the cache, or less, computed back into all of it.
/// Source: Graef, Wasielewski and Clapp 2025 (arXiv:2503.05840): section 2 (kcache), section 3
/// (right inverse, xcache), section 4 (encdec1, encdec2), appendices C (vcache), G (grouped heads),
/// H (hybrid).
Method slim() {
  std::vector<Exclusion> excludes = needs_own_keys();
  excludes.push_back(needs_no_states("expected one whose layers all cache keys and values"));
  return {
      "slim",
      MethodKind::Cache,
      "option=kcache|vcache|xcache|encdec1|encdec2|hybrid|auto[,order=unoptimized]"
      "[,rope=unrotate][,threshold=F]: caches only keys, values or inputs and recomputes the rest "
      "(Slim attention)",
      {"option", "order", "rope", "threshold"},
      apply_slim,
      "slim",
      excludes};
}

}  // namespace kvcast
