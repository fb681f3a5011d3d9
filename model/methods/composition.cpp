#include <algorithm>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/methods/method.h"

namespace kvcast {
namespace {

/// Why a method that drops tokens does not fit a model with states.
constexpr const char* states_see_all_tokens =
    "expected one that caches keys and values of all tokens: a token that is dropped would leave "
    "no trace in a state, and cannot be put into it later";

const Exclusion shared_keys{
    Trait::SharedKeys,
    "methods {methods}: got the model {model}, where layers read the keys and values of others, "
    "expected one whose layers all have keys and values of their own"};

}  // namespace

void apply_methods(std::vector<MethodSpec> methods, Plan& plan) {
  plan.methods = to_string(methods);
  std::stable_sort(methods.begin(), methods.end(), [](const MethodSpec& a, const MethodSpec& b) {
    return find_method(a.name).kind < find_method(b.name).kind;
  });
  for (const MethodSpec& spec : methods) {
    const Method& method = find_method(spec.name);
    plan.exclude(method.excludes);
    method.apply(spec, plan);
    if (plan.chunked && plan.whole_prompt) {
      throw Error("method " + spec.name, "a prompt in chunks", "the whole prompt in one piece");
    }
  }
}

bool Plan::has(Trait trait) const {
  switch (trait) {
    case Trait::OwnAttention: return attention.has_value();
    case Trait::SharedKeys: return shares_key_values(model.decoder);
    case Trait::LacksWeights: return !model.converted_for.empty();
    case Trait::ChosenTokens: return selection.has_value();
    case Trait::ReusedCache: return selection && selection->reused;
    case Trait::TokensPerLayer: return token_flow.has_value();
    case Trait::Latents:
      return std::any_of(model.decoder.layers.begin(), model.decoder.layers.end(),
                         [](const LayerShape& layer) { return layer.latent.has_value(); });
    case Trait::States: return has_states(model.decoder);
    case Trait::LayerInputs: return model.decoder.altup.has_value();
  }
  KVCAST_ASSERT(false);
  return {};
}

void Plan::exclude(const std::vector<Exclusion>& exclusions) const {
  for (const Exclusion& e : exclusions) {
    if (!has(e.trait)) continue;
    throw Error(fmt::format(fmt::runtime(e.reason), fmt::arg("methods", methods),
                            fmt::arg("model", model.name)));
  }
}

void Plan::choose_tokens(TokenSelection chosen) {
  const Stack& s = model.decoder;
  if (model.encoder_decoder || s.position == Position::Alibi) {
    throw Error("methods " + methods, "the model " + model.name,
                "a decoder-only model with rotary or learned positions");
  }
  if (s.position == Position::Rope || has_windows(s)) {
    exclude(
        {{Trait::OwnAttention,
          "methods {methods} cannot be combined: kept tokens keep their positions, and the cache "
          "method rotates by places in the cache"}});
  }
  if (has_windows(s) && chosen.keep < 1) {
    not_spread.emplace_back(
        methods,
        "which drops tokens before layers with windows or chunks: those go by the tokens' "
        "positions, which ranks do not send");
  }
  exclude({needs_no_states(states_see_all_tokens)});
  given_positions = true;
  if (steps && chosen.reused) {
    throw Error("methods " + methods, "a cache that is reused",
                "one that the steps of a server fill");
  }
  if (steps && chosen.keep < 1 && has_windows(s)) {
    throw Error("methods " + methods + " in steps of a server",
                "the model " + model.name + ", whose windows or chunks go by the tokens' positions",
                "one whose layers see all tokens");
  }
  // A step's tokens are chosen already.
  whole_prompt = !steps;
  if (!steps) prompt_tokens = kept_tokens(symbols, prompt_tokens, chosen);
  selection = chosen;
}

void Plan::let_flow(TokenFlow flow) {
  exclude(
      {{Trait::OwnAttention,
        "methods {methods} cannot be combined: one selects tokens for each layer, the other "
        "replaces the attention"},
       shared_keys,
       {Trait::LayerInputs,
        "methods {methods}: got the model {model}, whose layers each read an input of their own "
        "for every token, expected one whose layers read the states of the layer below alone"},
       needs_no_states(states_see_all_tokens)});
  token_flow = std::move(flow);
}

Architecture Plan::named_model(const std::string& name) const {
  if (!find_model) throw Error("the model '" + name + "' that a method names cannot be looked up");
  return find_model(name);
}

Exclusion needs_unshared_keys() { return shared_keys; }

std::vector<Exclusion> needs_own_keys() { return {shared_keys, needs_keys_and_values()}; }

Exclusion needs_keys_and_values() {
  return {
      Trait::Latents,
      "methods {methods}: got the model {model}, which caches latents, expected one that caches "
      "keys and values"};
}

Exclusion needs_no_states(const std::string& why) {
  return {Trait::States,
          "methods {methods}: got the model {model}, whose layers keep states, " + why};
}

Exclusion reads_with_own_weights() {
  return {
      Trait::LacksWeights,
      "methods {methods} cannot be combined: the base model selects the prompt tokens itself, with "
      "projections that slim attention has removed; name another model as its speculator"};
}

}  // namespace kvcast
