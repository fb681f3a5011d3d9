/// Models and rates that the tests of parallel prefill share.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "search/runahead.h"
#include "simulate/layer_times.h"
#include "tests/roofline/test_models.h"

namespace kvcast::search {

/// On an A100.
inline simulate::LayerTimes layer_times(const std::string& model, const Lowering& lowering) {
  return {load_model(catalog(), model), {}, lowering, a100_rates(lowering)};
}

/// A device on which FLOPs take time alone, and attention's other ones than those of products.
inline roofline::Rates arithmetic(double flops, double attention_flops) {
  roofline::Rates rates = flat_rates(flops, 1e30);
  for (const RateClass attention : {RateClass::BatchedMatrix, RateClass::TiledAttention}) {
    rates.flops_per_second[static_cast<std::size_t>(attention)] = {attention_flops};
  }
  return rates;
}

/// The best of all partitions of `prompt_len` tokens.
inline double best_of_all(const Runahead& r, std::uint64_t prompt_len, std::size_t ranks) {
  double best = std::numeric_limits<double>::infinity();
  RunaheadScratch scratch;
  Partition parts;
  const auto fill = [&](const auto& self, std::uint64_t left) -> void {
    if (parts.size() + 1 == ranks) {
      parts.push_back(left);
      best = std::min(best, r.ttft_s(parts, scratch));
      parts.pop_back();
      return;
    }
    for (std::uint64_t c = 1; c + (ranks - parts.size() - 1) <= left; ++c) {
      parts.push_back(c);
      self(self, left - c);
      parts.pop_back();
    }
  };
  fill(fill, prompt_len);
  return best;
}

}  // namespace kvcast::search
