#include "reports/sweep/stored_validations.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "roofline/hardware.h"
#include "tests/test_folder.h"

namespace kvcast::reports {
namespace {

namespace fs = std::filesystem;

std::optional<double> ttft_bound(measure::ValidationStore store, const Catalog& catalog) {
  const Lowering lowering{.attention = Kernels::Eager,
                          .weights = DType::FP32,
                          .activations = DType::FP32,
                          .cache = DType::FP32};
  const auto bars = store.bars({.hardware = roofline::load_hardware(catalog, "m2-pro-cpu"),
                                .methods = "plain",
                                .lowering = lowering},
                               {64, 59, 1});
  if (!bars.ttft) return {};
  return bars.ttft->error;
}

}  // namespace

TEST_CASE("stored validations: what is kept is what a new store has, until a file changes") {
  const fs::path data = fs::path(KVCAST_SOURCE_DIR) / "data";
  const TestFolder folder;
  fs::create_directory(folder / "models");
  fs::copy(data / "hardware", folder / "hardware", fs::copy_options::recursive);
  fs::copy(data / "validation", folder / "validation", fs::copy_options::recursive);
  const Catalog catalog(folder.path());
  const std::vector<std::string> devices{"m2-pro-cpu"};
  const auto kept = [&] { return ttft_bound(stored_validations(catalog, devices), catalog); };

  const std::optional<double> anew = ttft_bound({catalog, devices}, catalog);
  REQUIRE(anew.has_value());
  CHECK(kept() == anew);
  CHECK(kept() == anew);
  // The rows of other devices count less closely, or not at all.
  const fs::path file = folder.path() / "validation" / "openelm_m2_pro.json";
  fs::remove(file);
  CHECK(kept() != anew);
  CHECK(kept() == ttft_bound({catalog, devices}, catalog));
  fs::copy(data / "validation" / "openelm_m2_pro.json", file);
  CHECK(kept() == anew);
}

}  // namespace kvcast::reports
