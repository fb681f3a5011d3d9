#include "model/base/error.h"
#include "model/methods/method.h"

namespace kvcast {

/// Random token pruning, the baseline of KV Prediction (Horton et al. 2024, arXiv:2410.08391,
/// section 5): the base model sees ceil(keep · prompt_len) tokens at their original positions.
/// Sequence b of a batch, counted from 0, draws with seed + b: copies of one prompt keep different
/// tokens, and any of them can be drawn again alone.
Method random_prune() {
  return {"random-prune",
          MethodKind::Prompt,
          "keep=F[,seed=N]: the model reads a random share F of the prompt tokens (sequence b uses "
          "seed N+b)",
          {"keep", "seed"},
          [](const MethodSpec& spec, Plan& plan) {
            if (plan.model.encoder_decoder) {
              throw Error("method random-prune", "the encoder-decoder model " + plan.model.name,
                          "a decoder-only model: an encoder's tokens are no prompt");
            }
            const double keep = fraction_option(spec, "keep");
            if (keep == 1) return;
            plan.choose_tokens({.keep = keep, .seed = whole_option(spec, "seed", 0, 0)});
          },
          "random-prune:keep=0.5"};
}

}  // namespace kvcast
