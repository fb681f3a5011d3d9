/// What the benchmarks of the executor share.
#pragma once

#include <vector>

#include "model/base/order_statistics.h"
#include "model/execute/generate.h"

namespace kvcast::execute {

/// A prompt without meaning: of encoder-decoder models the encoder's input, and one decoder token.
inline Request made_up_request(const Architecture& a, std::uint64_t prompt_len,
                               std::uint64_t output_len) {
  Request r;
  if (!a.encoder_decoder) {
    r.tokens = {made_up_prompt(prompt_len, a.vocab_size)};
  } else {
    r.tokens = {{0}};
    if (a.num_mel_bins > 0) {
      r.features.assign(2 * prompt_len * a.num_mel_bins, 0.1F);
    } else {
      r.encoder_tokens = {made_up_prompt(prompt_len, a.vocab_size)};
    }
  }
  r.output_len = output_len;
  return r;
}

}  // namespace kvcast::execute
