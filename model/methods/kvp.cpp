#include "model/methods/kvp.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/config/kv_predictor.h"
#include "model/config/layer_pruning.h"
#include "model/methods/method.h"
#include "model/methods/prompt_scores.h"

namespace kvcast {
namespace {

/// The base with layers pruned to the shares of the paper's Table 4. Any other name is a model's.
struct PrunedName {
  std::string_view name;
  double keep;
};
constexpr PrunedName pruned_names[]{{"lp-0.75", 0.75}, {"lp-0.50", 0.50}, {"lp-0.25", 0.25}};

const PrunedName* find_pruned(std::string_view name) {
  const auto* const found = std::find_if(std::begin(pruned_names), std::end(pruned_names),
                                         [&](const PrunedName& p) { return p.name == name; });
  return found == std::end(pruned_names) ? nullptr : found;
}

const NamePrefixes auxiliary_names{std::string(kvp_auxiliary_prefix),
                                   std::string(kvp_auxiliary_prefix)};
const NamePrefixes predictor_names{std::string(kvp_predictor_prefix), ""};

Architecture find_auxiliary(const MethodSpec& spec, const Plan& plan) {
  const std::string name = text_option(spec, "auxiliary", "");
  if (name.empty()) {
    throw Error(
        "method kvp: option 'auxiliary' is missing; expected auxiliary=MODEL, lp-0.75, "
        "lp-0.50 or lp-0.25");
  }
  const PrunedName* const pruned = find_pruned(name);
  if (pruned == nullptr) return plan.named_model(name);
  return prune_layers(plan.model, retained_layers(plan.model.num_hidden_layers(), pruned->keep));
}

/// The predictor's, which must be the one that `map` names if it names one.
LayerMap find_map(const MethodSpec& spec, const Architecture& base, const Architecture& auxiliary) {
  const std::string word = text_option(spec, "map", "");
  if (!word.empty() && word != "code" && word != "paper") {
    throw unknown_name("map", word, {"code", "paper"});
  }
  const std::string predictor = text_option(spec, "predictor", "");
  const LayerMap named = predictor.empty() || !word.empty()
                             ? read_layer_map(word.empty() ? "code" : word, base, auxiliary)
                             : LayerMap();
  if (predictor.empty()) return named;
  const std::string place = (std::filesystem::path(predictor) / "config.json").string();
  const PredictorConfig config = read_predictor_config(read_json_file(place), place);
  check_predictor(config, predictor, base, auxiliary);
  if (!word.empty() && named != config.map) {
    throw Error(predictor, "a predictor fitted with another layer map", "map=" + word);
  }
  return config.map;
}

/// What a pass over the auxiliary and the linear maps needs to know.
struct Prediction {
  Architecture auxiliary;  ///< its needed layers
  LayerMap map;
  Count tokens;
  bool selected = false;  ///< they have positions of their own
  Logits logits = Logits::None;
};

/// One base layer's cache from its auxiliary layer's keys and values, as projected, of tokens at
/// these positions or, without any, the first ones.
void predict_layer(Recorder& r, const Architecture& base, std::size_t index, Value keys,
                   Value values, const std::optional<Value>& positions) {
  const Stack& stack = base.decoder;
  const Heads& heads = stack.layers[index].heads;
  const std::string name = "layers." + std::to_string(index);
  const std::uint64_t features = kv_features(heads);
  r.enter(std::string(predictor_phase), static_cast<int>(index));
  r.use(predictor_names);
  const auto map = [&](const std::string& part, Value x) {
    const std::string weights = name + "." + part;
    const Value w = r.weight(weights + ".weight", {features, r.info(x).shape.back()});
    return r.linear("predict_" + part, x, w, r.weight(weights + ".bias", {features}));
  };
  Value k = map("key", keys);
  const Value v = map("value", values);
  r.use({});
  if (stack.query_key_norm) {
    k = r.head_norm("key_norm", stack.norm_eps, name + ".key_norm", k, heads.num_key_value_heads);
  }
  if (stack.position == Position::Rope) {
    k = r.rope("key_rope", k, heads.num_key_value_heads, heads.head_dim, stack.rope, 0, false,
               positions);
  }
  const auto store = [&](const std::string& part, Value rows) {
    const Value empty = r.cache(name + "." + part, {r.info(rows).shape[0], 0, features});
    r.output(r.append(empty, rows, "cache_" + part));
  };
  store("keys", k);
  store("values", v);
}

/// The auxiliary reads the prompt; as soon as a layer has its keys and values, those of the base
/// layers that it serves are predicted. It keeps no cache.
void record_prediction(Recorder& r, const Architecture& base, const Prediction& p) {
  Pass pass;
  pass.batch = symbol::batch;
  pass.tokens = p.tokens;
  pass.logits = p.logits;
  pass.given_positions = p.selected;
  std::optional<Value> base_positions;
  if (p.selected && base.decoder.position == Position::Rope) {
    r.use({});
    base_positions = r.input("positions", {pass.batch, pass.tokens}, DType::FP32);
    r.use(auxiliary_names);
  }
  pass.attention = [&](const AttentionSite& s) {
    const Value q = s.rotate_query(s.query(), 0);
    const Value keys = s.projected_key();
    const Value values = s.value();
    for (std::size_t i = 0; i < p.map.size(); ++i) {
      if (p.map[i] == s.index) predict_layer(r, base, i, keys, values, base_positions);
    }
    r.use(auxiliary_names);
    r.enter("layers", static_cast<int>(s.index));
    return s.attend(q, s.rotate_key(s.normed_key(keys), 0), values, 0);
  };
  record_decoder(r, p.auxiliary, pass);
}

/// Training and likelihoods: every prompt token attends to predicted keys and values alone, its own
/// among them; later tokens to their own too.
Value attend_to_predicted(const AttentionSite& s) {
  if (s.tokens() != Count(symbol::prompt_len)) return plain_attention(s);
  const Value q = s.rotate_query(s.query(), 0);
  const Value k = s.cache("keys", s.tokens());
  return s.attend(q, k, s.cache("values", s.tokens()), 0);
}

void apply(const MethodSpec& spec, Plan& plan) {
  const Architecture base = plan.model;
  Architecture auxiliary = find_auxiliary(spec, plan);
  check_pair(base, auxiliary);
  const LayerMap map = find_map(spec, base, auxiliary);
  const std::string mode = text_option(spec, "mode", "prompt");
  if (mode != "prompt" && mode != "likelihood") {
    throw unknown_name("mode", mode, {"prompt", "likelihood"});
  }
  const bool likelihood = mode == "likelihood";
  // The base reads one token of the prompt: logits of the others are the auxiliary's, as in the
  // released program (apple/corenet, kv_prediction.py: merge_outputs).
  const bool reads_out = plan.logits == Logits::All && !likelihood;
  if (likelihood) {
    plan.exclude({{Trait::ChosenTokens,
                   "method kvp: mode=likelihood does not compose with a method that prunes the "
                   "prompt: dropped tokens have no likelihood"}});
  }
  if (plan.selection) {
    check_prunable(spec.name, auxiliary);
    check_windows(spec.name, auxiliary, plan.selection->keep);
  }

  plan.whole_prompt = true;
  const Count read = likelihood ? plan.prompt_tokens : plan.prompt_tokens - 1;
  if (likelihood) {
    plan.attention = attend_to_predicted;
  } else {
    plan.prompt_past = read;
    plan.prompt_tokens = 1;
  }
  const std::string name = text_option(spec, "auxiliary", "");
  plan.helper_models.push_back(
      {std::string(kvp_auxiliary_prefix), name, auxiliary,
       is_pruned_auxiliary(name) ? HelperWeights::BaseLayers : HelperWeights::Checkpoint});
  Architecture maps;
  maps.name = "KV prediction's linear maps (option predictor=FOLDER, see 'kvcast convert kvp')";
  maps.vocab_size = base.vocab_size;
  plan.helper_models.push_back({std::string(kvp_predictor_prefix),
                                text_option(spec, "predictor", ""), maps, HelperWeights::Tensors});

  const bool selected = plan.selection.has_value();
  Prediction prediction{std::move(auxiliary), map, read, selected,
                        reads_out ? Logits::All : Logits::None};
  // Layers above those that a base layer needs are not run: nobody reads what they compute.
  if (!reads_out) prediction.auxiliary.decoder.layers.resize(needed_layers(map));
  PlannedPass planned;
  planned.pass.name = "auxiliary";
  planned.pass.part = TtftPart::Auxiliary;
  planned.pass.prefixes = auxiliary_names;
  planned.pass.reads = selected ? HelperTokens::Kept : HelperTokens::Prompt;
  if (reads_out) planned.pass.result = HelperResult::PromptLogits;
  planned.pass.tokens = read;
  planned.record = [prediction](Recorder& r, const Plan& whole) {
    record_prediction(r, whole.model, prediction);
  };
  plan.helpers.push_back(std::move(planned));
  plan.not_spread.emplace_back(
      spec.name,
      "none that predicts the cache: the base then reads one token, which cannot be spread");
}

}  // namespace

bool is_pruned_auxiliary(std::string_view name) { return find_pruned(name) != nullptr; }

/// KV Prediction: the base's cache of all tokens but the last comes from an auxiliary model that
/// reads them. Where a method has chosen the prompt's tokens, those are all there are: the
/// auxiliary reads the kept ones at their own positions, and the base the last of them. Source:
/// Horton et al. 2024 (arXiv:2410.08391), section 3; apple/corenet, kv_prediction.py.
Method kvp() {
  const std::string other_cache =
      "method kvp does not compose with a method of the kind 'cache': it predicts each layer's own "
      "keys, rotated, and its values, and such a method keeps something else";
  return {"kvp",
          MethodKind::Source,
          "auxiliary=MODEL|lp-0.75|lp-0.50|lp-0.25[,predictor=PATH][,map=code|paper]"
          "[,mode=likelihood]: an auxiliary model reads the prompt, linear maps make the cache",
          {"auxiliary", "predictor", "map", "mode"},
          apply,
          "kvp:auxiliary=lp-0.50",
          {{Trait::OwnAttention, other_cache},
           {Trait::SharedKeys, other_cache},
           {Trait::LacksWeights, other_cache},
           {Trait::ReusedCache,
            "method kvp does not compose with specprefill's reuse=kept: both fill the base's cache "
            "of the kept tokens, one with predictions, the other with the speculator's own"},
           {Trait::TokensPerLayer,
            "method kvp does not compose with lazyllm: of a predicted prompt the base reads the "
            "last token alone, which leaves its layers no tokens to drop"}}};
}

}  // namespace kvcast
