/// A model of the catalog on an A100, as the tests of estimates want it.
#pragma once

#include <string>

#include "model/io/weights/catalog.h"
#include "roofline/estimator.h"

namespace kvcast::roofline {

inline Configuration a100_configuration(const std::string& model, const std::string& methods,
                                        Kernels kernels = Kernels::Fused) {
  static const Catalog catalog(std::string(KVCAST_SOURCE_DIR) + "/data");
  Configuration c;
  c.architecture = load_model(catalog, model);
  c.methods = parse_methods(methods);
  c.lowering.attention = c.lowering.elementwise = kernels;
  c.hardware = load_hardware(catalog, "a100-80gb");
  c.find_model = [](const std::string& name) { return load_model(catalog, name); };
  return c;
}

}  // namespace kvcast::roofline
