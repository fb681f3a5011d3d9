#include "measure/closed_loop.h"

#include <algorithm>

namespace kvcast::measure {
roofline::Forecast in_closed_loop(
    const std::function<roofline::Forecast(const roofline::DesignPoint&)>& at,
    const roofline::DesignPoint& size) {
  roofline::Forecast f = at(size);
  if (size.batch == 1) return f;
  const double others = static_cast<double>(size.batch - 1);
  const double steps = static_cast<double>(size.output_len) - 1;
  const double decode_s = f.tpot_s;
  // What decoders add to a prompt's step: what a long cache costs them over a short one.
  const double attention_s = std::max(0.0, decode_s - at({size.batch, 1, 2}).tpot_s);
  const double prompt_s = at({1, size.prompt_len, 1}).ttft_s + attention_s;
  double ttft_s = prompt_s;
  double tpot_s = decode_s;
  // Both rest on the cycle, and the cycle on both; it converges at once, as prompts are the smaller
  // part of it.
  for (int i = 0; i < 20; ++i) {
    const double decoding_s = std::max(steps, 1.0) * tpot_s;
    const double cycle_s = ttft_s + decoding_s;
    const double joining = others * decoding_s / cycle_s;
    if (steps > 0) tpot_s = decode_s + joining / steps * std::max(0.0, prompt_s - decode_s);
    const double load = std::min(0.95, others * prompt_s / cycle_s);
    const double queue_s = load / (2 * (1 - load)) * prompt_s;
    ttft_s = decode_s + queue_s + prompt_s;
  }
  f.tpot_s = tpot_s;
  f.ttft_s = ttft_s;
  return f;
}

}  // namespace kvcast::measure
