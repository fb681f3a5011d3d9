/// Models, kernels, rates and configurations that the tests of forecasts share.
#pragma once

#include <string>

#include "roofline/estimator.h"
#include "tests/model/tiny_models.h"

namespace kvcast {

inline const Lowering fused{};
inline const Lowering eager{Kernels::Eager, Kernels::Eager, DType::FP16, DType::FP16, DType::FP16};

/// Every rate class at `flops` FLOP/s, every bandwidth class at `bytes` bytes/s; the chip and the
/// memory hold all.
inline roofline::Rates flat_rates(double flops, double bytes, double latency = 0) {
  roofline::Rates r;
  r.flops_per_second.fill({flops});
  r.bytes_per_second.fill({bytes});
  r.latency.fill({latency});
  r.on_chip_bytes = r.memory_capacity_bytes = 1e30;
  return r;
}

inline roofline::Rates a100_rates(const Lowering& lowering) {
  return roofline::make_rates(roofline::load_hardware(catalog(), "a100-80gb"), lowering,
                              roofline::Mode::Calibrated);
}

/// A model of the catalog on an A100.
inline roofline::Configuration a100_configuration(const std::string& model,
                                                  const std::string& methods,
                                                  Kernels kernels = Kernels::Fused) {
  roofline::Configuration c;
  c.architecture = load_model(catalog(), model);
  c.methods = parse_methods(methods);
  c.lowering.attention = c.lowering.elementwise = kernels;
  c.hardware = roofline::load_hardware(catalog(), "a100-80gb");
  c.find_model = [](const std::string& name) { return load_model(catalog(), name); };
  return c;
}

}  // namespace kvcast
