#include "model/methods/kvp.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/config/kv_predictor.h"
#include "model/config/layer_pruning.h"
#include "model/methods/prompt_scores.h"

namespace kvcast {
namespace {

/// The base with layers pruned to the shares of the paper's Table 4. Any other name is a model's.
const std::map<std::string, double, std::less<>> pruned_auxiliaries{
    {"lp-0.75", 0.75}, {"lp-0.50", 0.50}, {"lp-0.25", 0.25}};

const NamePrefixes auxiliary_names{"auxiliary.", "auxiliary."};
const NamePrefixes predictor_names{std::string(predictor_prefix), ""};

Architecture find_auxiliary(const MethodSpec& spec, const Plan& plan) {
  const std::string name = text_option(spec, "auxiliary", "");
  if (name.empty()) {
    throw Error(
        "method kvp: option 'auxiliary' is missing; expected auxiliary=MODEL, lp-0.75, "
        "lp-0.50 or lp-0.25");
  }
  const auto pruned = pruned_auxiliaries.find(name);
  if (pruned == pruned_auxiliaries.end()) return plan.named_model(name);
  return prune_layers(plan.model, retained_layers(plan.model.num_hidden_layers(), pruned->second));
}

/// The input of a pass over the auxiliary and the linear maps.
struct Prediction {
  Architecture auxiliary;  ///< its needed layers
  LayerMap map;
  Count tokens;
  bool selected = false;  ///< they have positions of their own
  double share = 1;       ///< of the prompt's tokens that the selected ones are
  Logits logits = Logits::None;
};

/// One base layer's cache from its auxiliary layer's projected keys and values, of tokens at these
/// positions or, without any, from position 0 on. Of layers with latents: from the projected part
/// of the key that is rotated, and the projected latent before its norm.
void predict_layer(Recorder& r, const Architecture& base, std::size_t index, Value keys,
                   Value values, const std::optional<Value>& positions) {
  const Stack& stack = base.decoder;
  const LayerShape& layer = stack.layers[index];
  const Heads& heads = layer.heads;
  const std::string name = "layers." + std::to_string(index);
  r.enter(std::string(predictor_phase), static_cast<int>(index));
  r.use(predictor_names);
  const auto map = [&](const std::string& part, PredictedPart of, Value x) {
    const std::string weights = name + "." + part;
    const std::uint64_t features = predicted_features(layer, of);
    const Value w = r.weight(weights + ".weight", {features, r.info(x).shape.back()});
    return r.linear("predict_" + part, x, w, r.weight(weights + ".bias", {features}));
  };
  Value k = map("key", PredictedPart::Keys, keys);
  const Value v = map("value", PredictedPart::Values, values);
  r.use({});
  const auto store = [&](const std::string& part, Value rows) {
    const std::vector<Count>& shape = r.info(rows).shape;
    const Value empty = r.cache(name + "." + part, {shape[0], 0, shape[2]});
    r.output(r.append(empty, rows, "cache_" + part));
  };
  if (layer.latent) {
    const Value latent = normed_latent(r, name, v);
    k = r.rope("key_rope", k, 1, layer.latent->rope_dim, layer.rope, 0, false, positions);
    store("latents", r.join_heads("join_latent", {1}, latent, k));
    return;
  }
  k = normed_heads(r, stack, name, "key", k, heads.num_key_value_heads);
  k = rotated_heads(r, stack, layer, name, "key", k, heads.num_key_value_heads, 0, positions);
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
  const bool keeps_tokens = has_windows(base.decoder) && p.share < 1;
  if (p.selected && (base.decoder.position == Position::Rope || keeps_tokens)) {
    r.use({});
    base_positions = r.input("positions", {pass.batch, pass.tokens}, DType::FP32);
    if (keeps_tokens) {
      const Value empty = r.state("kept_tokens", {pass.batch, 0, 1}, DType::FP32);
      r.output(r.append(empty, *base_positions, "cache_kept_tokens"));
    }
    r.use(auxiliary_names);
  }
  if (p.share < 1) {
    pass.kept = KeptTokens{.share = p.share, .earlier = KeptTokens::Earlier::None};
  }
  pass.attention = [&](const AttentionSite& s) {
    const auto predict = [&](Value keys, Value values) {
      for (std::size_t i = 0; i < p.map.size(); ++i) {
        if (p.map[i] == s.index) predict_layer(r, base, i, keys, values, base_positions);
      }
      r.use(auxiliary_names);
      r.enter("layers", static_cast<int>(s.index));
    };
    if (s.layer.latent) {
      LatentRows own;
      own.uncached = true;
      own.projected = [&](Value latent, Value key_rope) { predict(key_rope, latent); };
      return latent_attention(s, own);
    }
    const Value q = s.rotate_query(s.query(), 0);
    const Value keys = s.projected_key();
    const Value values = s.value();
    predict(keys, values);
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

void apply_kvp(const MethodSpec& spec, Plan& plan) {
  const Architecture base = plan.model;
  Architecture auxiliary = find_auxiliary(spec, plan);
  check_pair(base, auxiliary);
  const LayerMap map = predictor_map(spec, base, auxiliary);
  const std::string mode = word_option(spec, "mode", {"prompt", "likelihood", "training"});
  const bool likelihood = mode != "prompt";
  // The base reads one token of the prompt: logits of the others are the auxiliary's, as in the
  // released program (apple/corenet, kv_prediction.py: merge_outputs).
  // In training those of all tokens are learned too.
  const bool reads_out = mode == "training" || (plan.logits == Logits::All && !likelihood);
  if (likelihood) {
    plan.exclude({{Trait::Latents, "method kvp: mode=" + mode +
                                       " cannot read the model {model}, which caches latents: its "
                                       "tokens attend to the row that they add themselves"},
                  {Trait::ChosenTokens, "method kvp: mode=" + mode +
                                            " cannot be combined with a method that prunes the "
                                            "prompt: dropped tokens have no likelihood"}});
  }
  if (plan.selection) {
    check_prunable(spec.name, auxiliary);
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
  const bool is_pruned = pruned_auxiliaries.contains(name);
  plan.helper_models.push_back({auxiliary_names.weights, name, auxiliary,
                                is_pruned ? HelperWeights::BaseLayers : HelperWeights::Checkpoint});
  Architecture maps;
  maps.name = "KV prediction's linear maps (option predictor=FOLDER, see 'kvcast convert kvp')";
  maps.vocab_size = base.vocab_size;
  plan.helper_models.push_back(
      {predictor_names.weights, text_option(spec, "predictor", ""), maps, HelperWeights::Tensors});

  const bool selected = plan.selection.has_value();
  Prediction prediction{std::move(auxiliary),
                        map,
                        read,
                        selected,
                        plan.selection ? plan.selection->keep : 1,
                        reads_out ? Logits::All : Logits::None};
  // Layers above the last one that a base layer needs are not run.
  if (!reads_out) prediction.auxiliary.decoder.layers.resize(needed_layers(map));
  plan.helpers.push_back({{.name = "auxiliary",
                           .part = TtftPart::Auxiliary,
                           .prefixes = auxiliary_names,
                           .reads = selected ? HelperTokens::Kept : HelperTokens::Prompt,
                           .result = reads_out ? HelperResult::PromptLogits : HelperResult::Nothing,
                           .tokens = read},
                          [prediction](Recorder& r, const Plan& whole) {
                            record_prediction(r, whole.model, prediction);
                          }});
  plan.not_spread.emplace_back(
      spec.name,
      "which leaves the base model one token to read; one token cannot be spread over ranks");
}

}  // namespace

LayerMap predictor_map(const MethodSpec& spec, const Architecture& base,
                       const Architecture& auxiliary) {
  const bool is_named = !text_option(spec, "map", "").empty();
  const std::string word = word_option(spec, "map", {"code", "paper"});
  const std::string predictor = text_option(spec, "predictor", "");
  LayerMap named;
  if (predictor.empty() || is_named) named = read_layer_map(word, base, auxiliary);
  if (predictor.empty()) return named;
  const std::string place = (std::filesystem::path(predictor) / "config.json").string();
  const PredictorConfig config = read_predictor_config(read_json_file(place), place);
  check_predictor(config, predictor, base, auxiliary);
  if (is_named && named != config.map) {
    throw Error(predictor, "a predictor fitted with another layer map", "map=" + word);
  }
  return config.map;
}

/// KV Prediction: the base's cache of all tokens but the last comes from an auxiliary model that
/// reads them. Where a method has chosen the prompt's tokens, those are all there are: the
/// auxiliary reads the kept ones at their own positions, and the base the last of them. Source:
/// Horton et al. 2024 (arXiv:2410.08391), section 3; apple/corenet, kv_prediction.py.
Method kvp() {
  const std::string other_cache =
      "method kvp cannot be combined with a method that changes the KV cache: it predicts the "
      "rotated keys and the values of each layer, and such a method caches something else";
  return {
      "kvp",
      MethodKind::Source,
      "auxiliary=MODEL|lp-0.75|lp-0.50|lp-0.25[,predictor=PATH][,map=code|paper]"
      "[,mode=likelihood|training]: an auxiliary model reads the prompt; linear maps turn its KV "
      "cache into "
      "the base model's (KV Prediction)",
      {"auxiliary", "predictor", "map", "mode"},
      apply_kvp,
      "kvp:auxiliary=lp-0.50",
      {needs_no_states("which would need a predictor of their own"),
       {Trait::OwnAttention, other_cache},
       {Trait::SharedKeys,
        "method kvp cannot be combined with a method that changes the KV cache, or read a model "
        "like {model}, where layers read the keys and values of others: it predicts the keys and "
        "values of each layer"},
       {Trait::LacksWeights, other_cache},
       {Trait::ReusedCache,
        "method kvp cannot be combined with specprefill's reuse=kept: both fill the base "
        "model's cache of the kept tokens"},
       {Trait::TokensPerLayer,
        "method kvp cannot be combined with lazyllm: the base model reads only the last token "
        "of a predicted prompt, so its layers have no tokens to drop"}}};
}

}  // namespace kvcast
