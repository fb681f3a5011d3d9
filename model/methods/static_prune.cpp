#include <cmath>
#include <string>

#include "model/base/error.h"
#include "model/methods/prompt_scores.h"

namespace kvcast {
namespace {

/// Horton et al. 2024 (arXiv:2410.08391), section 5: the first 25 % of the layers.
constexpr double default_probe = 0.25;

/// The model's first layers, `share` of them rounded up.
Architecture first_layers(Architecture a, double share) {
  const auto layers = static_cast<double>(a.decoder.layers.size());
  a.decoder.layers.resize(static_cast<std::size_t>(std::ceil(share * layers)));
  return a;
}

void apply_static_prune(const MethodSpec& spec, Plan& plan) {
  check_prunable(spec.name, plan.model);
  const double probe = fraction_option(spec, "probe", default_probe);
  check_scores(spec.name, "the probed layers of", first_layers(plan.model, probe),
               fraction_option(spec, "keep"));
  const NamePrefixes prefixes{"", "probe."};
  plan.choose_tokens({.keep = fraction_option(spec, "keep")});
  plan.helpers.push_back({{.name = "probe",
                           .part = TtftPart::Probe,
                           .prefixes = prefixes,
                           .reads = HelperTokens::Prompt,
                           .tokens = symbol::prompt_len},
                          [=](Recorder& r, const Plan& p) {
                            Pass pass{symbol::batch, symbol::prompt_len};
                            pass.logits = Logits::None;
                            pass.keeps_all_rows = true;  // the scores read them
                            pass.attention = [](const AttentionSite& s) {
                              return attend_and_keep_query(s, keys_cached_attention, 0);
                            };
                            record_decoder(r, first_layers(p.model, probe), pass);
                          }});
  plan_importance(plan, prefixes, 1, 0,
                  [=](const Plan& whole) { return first_layers(whole.model, probe); });
}

}  // namespace

/// Static token pruning, the baseline of KV Prediction (Horton et al. 2024, arXiv:2410.08391,
/// section 5): the model's first layers read the whole prompt, and the model then reads, from its
/// first layer on, the tokens that the prompt's last one attended to most. The paper does not say
/// how importance combines layers and heads; here it is the largest, as in Speculative Prefill.
Method static_prune() {
  return {
      "static-prune",
      MethodKind::Prompt,
      "keep=F[,probe=P]: the model reads the share F of the prompt tokens, those that its first "
      "layers (a share P) attend to most",
      {"keep", "probe"},
      apply_static_prune,
      "static-prune:keep=0.5,probe=0.5",
      {reads_with_own_weights()}};
}

}  // namespace kvcast
