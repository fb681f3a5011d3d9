/// Models and rates that the tests of parallel prefill share.
#pragma once

#include <string>

#include "model/catalog.h"
#include "roofline/hardware.h"
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

}  // namespace kvcast::search
