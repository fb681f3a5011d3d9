#include "measure/closed_loop.h"

#include <doctest/doctest.h>

#include "tests/near.h"

namespace kvcast::measure {
namespace {

/// Prompts take `prompt_s` each; a decode step 1 s, and 1/8 s more where the prompt is not 1 token.
roofline::Forecast steps(const roofline::DesignPoint& size, double prompt_s) {
  roofline::Forecast f;
  f.ttft_s = prompt_s * static_cast<double>(size.batch);
  f.tpot_s = size.prompt_len == 1 ? 1 : 1.125;
  return f;
}

TEST_CASE("closed loop: a token waits for the prompts of the other clients") {
  const auto at = [](const roofline::DesignPoint& size) { return steps(size, 4); };
  const roofline::Forecast f = in_closed_loop(at, {3, 10, 11});
  // A prompt's step: 4 s, and 1/8 s of the decoders' attention, instead of a decode step. Of the
  // two others' prompts in a cycle, the share of the decoding falls among its 10 tokens.
  const double cycle_s = f.ttft_s + 10 * f.tpot_s;
  const double joining = 2 * 10 * f.tpot_s / cycle_s;
  CHECK(f.tpot_s == near(1.125 + joining / 10 * (4.125 - 1.125)));
  // A prompt waits for the step that runs, and half a prompt where the others keep the device busy.
  const double load = 2 * 4.125 / cycle_s;
  CHECK(f.ttft_s == near(1.125 + load / (2 * (1 - load)) * 4.125 + 4.125));
}

TEST_CASE("closed loop: one client, and prompts as short as a step, wait for nobody") {
  const auto long_prompts = [](const roofline::DesignPoint& size) { return steps(size, 4); };
  CHECK(in_closed_loop(long_prompts, {1, 10, 11}) == steps({1, 10, 11}, 4));
  const auto short_prompts = [](const roofline::DesignPoint& size) { return steps(size, 0.5); };
  CHECK(in_closed_loop(short_prompts, {3, 10, 11}).tpot_s == 1.125);
  CHECK(in_closed_loop(short_prompts, {3, 10, 1}).tpot_s == 1.125);  // no step at all
}

}  // namespace
}  // namespace kvcast::measure
