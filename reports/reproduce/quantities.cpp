#include "reports/reproduce/quantities.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>

#include "measure/engine_match.h"
#include "model/base/error.h"
#include "model/config/layer_pruning.h"
#include "model/graph/work.h"
#include "model/record/recording.h"
#include "roofline/estimator.h"

namespace kvcast::reports {
namespace {

using roofline::DesignPoint;

/// "DEVICE eager dtype=fp32": how something runs. `eager` is of all kernels, `attention=` and
/// `elementwise=` of one kind; `dtype=` is the type of weights, activations and cache, or one of
/// them: `cache=fp8`; `logits=all`.
struct Setting {
  std::string device;  ///< empty: none is needed
  Lowering lowering;
  Logits logits = Logits::Last;
  bool says_attention = false;
  bool says_elementwise = false;
  bool chunked = false;  ///< the prompt's first part is in the cache already

  explicit Setting(const std::string& text) {
    Lowering& l = lowering;
    for (const std::string& word : words_of(text)) {
      const std::size_t equals = std::min(word.find('='), word.size());
      const std::string key = word.substr(0, equals);
      const std::string value = word.substr(std::min(equals + 1, word.size()));
      const bool all = key == "dtype";
      if (key == "chunked") {
        chunked = true;
      } else if (value.empty() && key != "eager") {
        device = word;
      }
      if (key == "eager") l.attention = l.elementwise = Kernels::Eager;
      if (key == "attention") l.attention = parse_kernels(value);
      if (key == "elementwise") l.elementwise = parse_kernels(value);
      says_attention |= key == "eager" || key == "attention";
      says_elementwise |= key == "eager" || key == "elementwise";
      if (key == "logits") logits = parse_logits(value);
      if (all || key == "weights") l.weights = parse_dtype(value);
      if (all || key == "activations") l.activations = parse_dtype(value);
      if (all || key == "cache") l.cache = parse_dtype(value);
    }
  }
};

std::vector<MethodSpec> methods_of(const std::string& text) {
  return text.empty() ? std::vector<MethodSpec>{} : parse_methods(text);
}

/// Architectures and recordings by what they were asked for.
class Models {
 public:
  /// `engine`: of all estimates; empty: each one's own.
  Models(const Catalog& catalog, std::string engine)
      : catalog_(catalog), engine_(std::move(engine)), engine_match_(catalog) {}

  const Architecture& load(const std::string& description) {
    return remembered(architectures_, description,
                      [&] { return load_described(catalog_, description); });
  }

  const Recording& recorded(const std::string& setting, const std::string& model,
                            const std::string& method) {
    return remembered(recordings_, {setting, model, method}, [&] {
      const Setting s(setting);
      return record(
          load(model), methods_of(method), s.lowering,
          {.logits = s.logits, .chunked = s.chunked, .find_model = find_model_in(catalog_)});
    });
  }

  const roofline::Estimate& estimate(const std::string& setting, const std::string& model,
                                     const std::string& method, const DesignPoint& p,
                                     const std::string& engine) {
    const std::string& name = engine_.empty() ? engine : engine_;
    const Estimates::key_type key{setting,      model,        method, p.batch,
                                  p.prompt_len, p.output_len, name};
    return remembered(estimates_, key, [&] {
      const Setting s(setting);
      roofline::Configuration c;
      c.architecture = load(model);
      c.methods = methods_of(method);
      c.lowering = s.lowering;
      c.engine = roofline::load_engine(catalog_, name);
      apply(c.engine, !s.says_attention, !s.says_elementwise, c.lowering);
      c.logits = s.logits;
      c.hardware = roofline::load_hardware(catalog_, s.device);
      c.find_model = find_model_in(catalog_);
      return roofline::Estimator(c).at(p);
    });
  }

  std::string engine(const std::string& name, const std::string& version,
                     const std::string& month) const {
    return engine_match_.find(name, version, month);
  }
  const Catalog& catalog() const { return catalog_; }

 private:
  using Estimates = std::map<std::tuple<std::string, std::string, std::string, std::uint64_t,
                                        std::uint64_t, std::uint64_t, std::string>,
                             roofline::Estimate>;

  const Catalog& catalog_;
  std::string engine_;
  measure::EngineMatch engine_match_;
  std::map<std::string, Architecture> architectures_;
  std::map<std::tuple<std::string, std::string, std::string>, Recording> recordings_;
  Estimates estimates_;
};

using Property = std::uint64_t (*)(const Architecture&);

const LayerShape& first_layer(const Architecture& a) { return a.decoder.layers.front(); }

const std::map<std::string, Property>& properties() {
  static const std::map<std::string, Property> all{
      {"num_hidden_layers", [](const Architecture& a) { return a.num_hidden_layers(); }},
      {"hidden_size", [](const Architecture& a) { return a.hidden_size; }},
      {"intermediate_size", [](const Architecture& a) { return first_layer(a).intermediate_size; }},
      {"vocab_size", [](const Architecture& a) { return a.vocab_size; }},
      {"head_dim", [](const Architecture& a) { return first_layer(a).heads.head_dim; }},
      {"num_attention_heads",
       [](const Architecture& a) { return first_layer(a).heads.num_attention_heads; }},
      {"num_key_value_heads",
       [](const Architecture& a) { return first_layer(a).heads.num_key_value_heads; }},
      {"max_position_embeddings", [](const Architecture& a) { return a.max_position_embeddings; }},
      {"max_source_positions", [](const Architecture& a) { return a.max_source_positions; }},
  };
  return all;
}

/// Weights, cache and the peak of activations in a decode step.
double decode_memory(const Recording& r, std::uint64_t batch, std::uint64_t kv_len) {
  const SymbolValues values = r.symbols.resolve({batch, 1, kv_len});
  std::uint64_t activations = 0;
  for (const Count& peak : activation_peaks(r.decode())) {
    activations = std::max(activations, peak.at(values));
  }
  return static_cast<double>(r.weight_bytes.at({})) +
         static_cast<double>(r.kv_cache_bytes.at(values)) + static_cast<double>(activations);
}

void add_recorded(const std::shared_ptr<Models>& models, Quantities& all) {
  // (setting, model[, method])
  const auto recorded = [models](const QuantityArguments& a) -> const Recording& {
    return models->recorded(a.word(0), a.word(1), a.word_or_none(2));
  };
  all["parameters"] = [models](const QuantityArguments& a) {
    if (a.size() == 1) return Count(count_parameters(models->load(a.word(0))));
    return Count(models->recorded("", a.word(0), a.word(1)).parameters);
  };
  all["kv_cache_bytes_per_token"] = [recorded](const QuantityArguments& a) {
    return recorded(a).kv_cache_bytes_per_token;
  };
  all["cross_cache_bytes_per_token"] = [recorded](const QuantityArguments& a) {
    return recorded(a).cross_cache_bytes_per_token;
  };
  // (setting, model, method, batch, cached tokens)
  all["kv_cache_bytes"] = [recorded](const QuantityArguments& a) {
    const Recording& r = recorded(a);
    return Count(r.kv_cache_bytes.at(r.symbols.resolve({a.whole(3), 1, a.whole(4)})));
  };
  // (setting, model, labels): of the plain prefill's nodes
  all["labelled_flops"] = [models](const QuantityArguments& a) {
    const Graph& prefill = models->recorded(a.word(0), a.word(1), "").prefill();
    const std::vector<std::string> labels = words_of(a.word(2));
    Count flops;
    for (const Node& node : prefill.nodes()) {
      const bool meant = std::find(labels.begin(), labels.end(), node.label) != labels.end();
      if (meant) flops += work(prefill, node).flops;
    }
    return flops;
  };
  // (bytes of memory, setting, model, method, cached tokens, batches that were tried ...): 0 where
  // none fits
  all["largest_batch"] = [models](const QuantityArguments& a) {
    const Recording& r = models->recorded(a.word(1), a.word(2), a.word(3));
    std::uint64_t largest = 0;
    for (std::size_t i = 5; i < a.size(); ++i) {
      if (decode_memory(r, a.whole(i), a.whole(4)) <= a.number(0)) largest = a.whole(i);
    }
    return Count(largest);
  };
}

void add_estimated(const std::shared_ptr<Models>& models, Quantities& all) {
  // (setting, model, method, batch, prompt, output[, engine, version, month])
  const auto estimate = [models](const QuantityArguments& a) -> const roofline::Estimate& {
    return models->estimate(
        a.word(0), a.word(1), a.word(2), {a.whole(3), a.whole(4), a.whole(5)},
        models->engine(a.word_or_none(6), a.word_or_none(7), a.word_or_none(8)));
  };
  all["ttft_s"] = [estimate](const QuantityArguments& a) { return estimate(a).ttft_s; };
  all["tpot_s"] = [estimate](const QuantityArguments& a) { return estimate(a).tpot_s; };
  all["ttft_bound"] = [estimate](const QuantityArguments& a) {
    return std::string(name(estimate(a).ttft_bound));
  };
}

void add_hardware(const std::shared_ptr<Models>& models, Quantities& all) {
  const auto device = [models](const QuantityArguments& a) {
    return roofline::load_hardware(models->catalog(), a.word(0));
  };
  all["memory_capacity"] = [device](const QuantityArguments& a) {
    return device(a).memory_capacity.value;
  };
  all["memory_bandwidth"] = [device](const QuantityArguments& a) {
    return device(a).memory_bandwidth.value;
  };
  // (device, dtype)
  all["peak_flops_per_second"] = [device](const QuantityArguments& a) {
    const roofline::Hardware hw = device(a);
    const auto peak = hw.peak_flops_per_second.find(parse_dtype(a.word(1)));
    if (peak == hw.peak_flops_per_second.end()) {
      throw Error(a.place(), a.word(0) + " with no " + a.word(1) + " peak", "a device with one");
    }
    return peak->second.value;
  };
}

}  // namespace

const FormulaValue& QuantityArguments::at(std::size_t index) const {
  if (index >= size()) {
    throw Error(place_, std::to_string(size()) + " arguments of a quantity", "more");
  }
  return values_[index];
}

const std::string& QuantityArguments::word(std::size_t index) const {
  const std::string* const word = std::get_if<std::string>(&at(index));
  if (word == nullptr) throw Error(place_, "a number", "a word in quotes");
  return *word;
}

std::string QuantityArguments::word_or_none(std::size_t index) const {
  return index < size() ? word(index) : "";
}

std::uint64_t QuantityArguments::whole(std::size_t index) const {
  return static_cast<std::uint64_t>(number(index));
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Architecture load_described(const Catalog& catalog, const std::string& description) {
  std::vector<std::string> words = words_of(description);
  if (words.empty()) throw Error("no model; expected a name");
  const std::string name = words.front();
  std::vector<ConfigOverride> overrides;
  std::string kept;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (equals == std::string::npos) {
      kept = words[i].starts_with("lp-") ? words[i].substr(3) : "";
    } else {
      overrides.push_back({words[i].substr(0, equals), words[i].substr(equals + 1)});
    }
  }
  const Architecture whole = load_model(catalog, name, overrides);
  if (kept.empty()) return whole;
  return prune_layers(whole, retained_layers(whole.num_hidden_layers(), std::stod(kept)));
}

void add_model_quantities(const Catalog& catalog, const std::string& engine, Quantities& all) {
  const auto models = std::make_shared<Models>(catalog, engine);
  for (const auto& [name, property] : properties()) {
    all[name] = [models, of = property](const QuantityArguments& a) {
      return Count(of(models->load(a.word(0))));
    };
  }
  add_recorded(models, all);
  add_estimated(models, all);
  add_hardware(models, all);
  all["ceil"] = [](const QuantityArguments& a) {
    return Count(static_cast<std::uint64_t>(std::ceil(a.number(0))));
  };
  // (count, batch, prompt, cached tokens)
  all["at"] = [](const QuantityArguments& a) {
    return Count(a.count(0).at(Symbols().resolve({a.whole(1), a.whole(2), a.whole(3)})));
  };
  all["max"] = [](const QuantityArguments& a) {
    return a.number(0) < a.number(1) ? a.at(1) : a.at(0);
  };
}

Quantities make_quantities(const Catalog& catalog, const std::string& engine) {
  Quantities all;
  add_model_quantities(catalog, engine, all);
  add_kvp_quantities(catalog, all);
  add_kvr_quantities(catalog, all);
  add_slim_quantities(catalog, all);
  add_specprefill_quantities(catalog, all);
  return all;
}

}  // namespace kvcast::reports
