#include <memory>
#include <string>

#include "model/base/error.h"
#include "model/methods/prompt_scores.h"
#include "model/methods/token_revival.h"

namespace kvcast {
namespace {

/// Horton et al. 2024 (arXiv:2410.08391), section 5: pruning between 30 % and 90 % of the depth.
constexpr double default_from = 0.3;
constexpr double default_to = 0.9;

struct Retention {
  double begin = 1;
  double end = 1;
  double from = default_from;
  double to = default_to;

  /// The share of the tokens that layer i of n sees, taken at the middle of its depth.
  double at(std::size_t i, std::size_t n) const {
    const double depth = (static_cast<double>(i) + 0.5) / static_cast<double>(n);
    if (depth < from || i == 0) return 1;  // nothing has been attended to before the first layer
    if (depth >= to) return end;
    return begin + (end - begin) * (depth - from) / (to - from);
  }
};

void apply_lazyllm(const MethodSpec& spec, Plan& plan) {
  check_prunable(spec.name, plan.model);
  const Retention retention{fraction_option(spec, "begin"), fraction_option(spec, "end"),
                            fraction_option(spec, "from", default_from),
                            fraction_option(spec, "to", default_to)};
  if (retention.begin < retention.end) {
    throw Error("method lazyllm: options begin and end",
                std::to_string(retention.begin) + " and " + std::to_string(retention.end),
                "end at most begin: layers only drop tokens");
  }
  if (retention.from >= retention.to) {
    throw Error("method lazyllm: options from and to",
                std::to_string(retention.from) + " and " + std::to_string(retention.to),
                "from below to");
  }
  check_scores(spec.name, "the model", plan.model, retention.end);
  plan.whole_prompt = true;
  plan.given_positions = true;
  const std::size_t layers = plan.model.decoder.layers.size();
  std::vector<double> shares;
  for (std::size_t i = 0; i < layers; ++i) {
    // A layer with a window has not seen most tokens: none are dropped above it.
    const Stack& stack = plan.model.decoder;
    const bool may_drop = i == 0 || is_scored(stack, stack.layers[i - 1]);
    shares.push_back(may_drop ? retention.at(i, layers) : shares.back());
  }
  const double revived = share_option(spec, "revive", 0);
  prune_progressively(
      plan, shares,
      {.first_step = share_option(spec, "revive_first", revived), .later_steps = revived});
  plan.not_spread.emplace_back(
      spec.name,
      "whose layers select tokens by the prompt's last one, which another rank reads; expected a "
      "method that drops the same tokens in all layers");
}

}  // namespace

/// Progressive token pruning: from some depth on each layer sees fewer of the tokens, those that
/// the last token attended to most in the layer below, mean over heads; layers with windows choose
/// none where others see all tokens. Decode steps choose anew
/// among all tokens, those included that prefill or earlier steps have dropped: see
/// token_revival.h. Source: Fu et al. 2024 (LazyLLM, arXiv:2407.14057), sections 3 and 4, with the
/// linear retention of Horton et al. 2024 (arXiv:2410.08391), section 5.
Method lazyllm() {
  return {"lazyllm",
          MethodKind::Prompt,
          "begin=F,end=F[,from=F,to=F,revive=F,revive_first=F]: later layers read fewer prompt "
          "tokens; each decode step selects again (LazyLLM)",
          {"begin", "end", "from", "to", "revive", "revive_first"},
          apply_lazyllm,
          "lazyllm:begin=0.8,end=0.4,from=0.2,to=0.9"};
}

}  // namespace kvcast
