#include <iostream>

#include "roofline/estimator.h"

int main() {
  const kvcast::Catalog catalog(KVCAST_DATA_DIR);
  kvcast::roofline::Configuration c;
  c.architecture = kvcast::load_model(catalog, "llama-7b");
  c.hardware = kvcast::roofline::load_hardware(catalog, "a100-80gb");
  std::cout << kvcast::roofline::Estimator(c).at({.prompt_len = 4096}).ttft_s << " s\n";
}
