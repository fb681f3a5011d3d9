/// Models, kernels, rates and configurations that the tests of forecasts share.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "model/io/weights/catalog.h"
#include "roofline/estimator.h"

namespace kvcast {

inline constexpr Lowering fused{};
inline constexpr Lowering eager{Kernels::Eager, Kernels::Eager, DType::FP16, DType::FP16,
                                DType::FP16};

inline const Catalog& catalog() {
  static const Catalog c(std::string(KVCAST_SOURCE_DIR) + "/data");
  return c;
}

/// 3 layers, hidden 48, 6 heads over 3, head_dim 8, MLP 20, vocabulary 51; `patch`: what differs.
inline Architecture tiny(const std::string& patch = "{}") {
  nlohmann::json config =
      nlohmann::json::parse(R"({"model_type": "llama", "hidden_size": 48, "vocab_size": 51,
    "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 20})");
  config.merge_patch(nlohmann::json::parse(patch));
  return read_config(config, "tiny", "tiny.json");
}

/// Every rate class at `flops` FLOP/s, every bandwidth class at `bytes` bytes/s; the chip and the
/// memory hold all.
inline roofline::Rates flat_rates(double flops, double bytes, double latency = 0) {
  roofline::Rates r;
  r.flops_per_second.fill({flops});
  r.bytes_per_second.fill({bytes});
  r.operator_latency = {latency};
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
