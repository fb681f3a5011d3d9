/// Models and rates that the tests of parallel prefill share.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "model/io/weights/catalog.h"
#include "roofline/hardware.h"
#include "search/runahead.h"
#include "simulate/layer_times.h"

namespace kvcast::search {

inline constexpr Lowering fused{};
inline constexpr Lowering eager{Kernels::Eager, Kernels::Eager, DType::FP16, DType::FP16,
                                DType::FP16};

inline const Catalog& test_catalog() {
  static const Catalog c(std::string(KVCAST_SOURCE_DIR) + "/data");
  return c;
}

/// On an A100.
inline simulate::LayerTimes layer_times(const std::string& model, const Lowering& lowering) {
  const roofline::Hardware hardware = roofline::load_hardware(test_catalog(), "a100-80gb");
  return simulate::LayerTimes(load_model(test_catalog(), model), {}, lowering,
                              make_rates(hardware, lowering, roofline::Mode::Calibrated));
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
