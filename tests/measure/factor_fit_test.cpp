#include "measure/factor_fit.h"

#include <cmath>
#include <fstream>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "model/base/error.h"
#include "tests/near.h"
#include "tests/source_catalog.h"
#include "tests/test_folder.h"

namespace kvcast::measure {
namespace {

/// Rows whose measured times are what `truth` forecasts, times `factor`.
Validation rows_of(const roofline::Hardware& truth, double factor = 1) {
  std::string text = "model,hardware,batch,prompt_len,output_len,ttft_s,tpot_s\n";
  for (const int batch : {1, 8}) {
    for (const int prompt_len : {128, 1024, 4096}) {
      text += fmt::format("llama-7b,{},{},{},16,1,1\n", truth.name, batch, prompt_len);
    }
  }
  Validation v = validate(parse_measurements(text, "m"), catalog(), {});
  Devices devices{{truth.name, truth}};
  predict(v.cases, devices);
  for (ValidationCase& c : v.cases) c.measured = factor * c.predicted;
  return v;
}

TEST_CASE("fit: times that a device's own factors made give these factors back") {
  roofline::Hardware truth = roofline::load_hardware(catalog(), "a100-80gb");
  truth.matrix_rate.at(DType::FP16).value = 0.5;
  truth.memory_bandwidth_factor->value = 0.6;
  truth.operator_latency.value = 7e-6;
  const Validation v = rows_of(truth);
  const std::vector<std::string> names{"matrix_rate", "memory_bandwidth", "operator_latency"};
  const FactorFit fit = fit_factors(v.cases, v.devices, names);
  REQUIRE(fit.factors.size() == 3);
  CHECK(fit.factors[0].name == "matrix_rate.fp16");
  CHECK(fit.factors[0].after == near(0.5).epsilon(1e-4));
  CHECK(fit.factors[1].after == near(0.6).epsilon(1e-4));
  CHECK(fit.factors[2].after == near(7e-6).epsilon(1e-3));
  CHECK(fit.before.mape > 0.05);
  CHECK(fit.after.worst < 1e-4);
}

TEST_CASE("fit: a factor stays at its peak, and the fit says so") {
  const roofline::Hardware hw = roofline::load_hardware(catalog(), "a100-80gb");
  Validation v = rows_of(hw, 0.2);  // five times as fast as the device
  std::erase_if(v.cases, [](const ValidationCase& c) { return c.metric != Metric::Tpot; });
  const std::vector<std::string> names{"memory_bandwidth"};
  const FactorFit fit = fit_factors(v.cases, v.devices, names);
  CHECK(fit.factors[0].after == near(1));
  CHECK(fit.factors[0].at_limit);
}

TEST_CASE("fit: a hardware file with the fitted factors reads back, each with its source") {
  roofline::Hardware truth = roofline::load_hardware(catalog(), "a100-80gb");
  truth.matrix_rate.at(DType::FP16).value = 0.5;
  const Validation v = rows_of(truth);
  const std::vector<std::string> names{"matrix_rate", "operator_latency"};
  const FactorFit fit = fit_factors(v.cases, v.devices, names);
  const TestFolder folder;
  std::ofstream(folder / "mine.json") << fitted_hardware_json(
      catalog().root() / "hardware" / "a100-80gb.json", fit, "mine", "12 rows of m");
  const roofline::Hardware read = roofline::read_hardware(folder / "mine.json");
  CHECK(read.name == "mine");
  const roofline::Sourced& rate = read.matrix_rate.at(DType::FP16);
  CHECK(rate.value == near(0.5).epsilon(1e-3));
  CHECK(rate.source == roofline::Source::Fitted);
  CHECK(rate.reference == "kvcast validate --fit, to 12 rows of m");
  CHECK(read.operator_latency.source == roofline::Source::Fitted);
  CHECK(read.memory_bandwidth.value == truth.memory_bandwidth.value);
  // A file that extends another has all of it, so that it stands alone.
  std::ofstream(folder / "node.json") << fitted_hardware_json(
      catalog().root() / "hardware" / "a100-80gb-kvr-node.json", fit, "node", "m");
  CHECK(roofline::read_hardware(folder / "node.json").memory_capacity.value ==
        truth.memory_capacity.value);
}

TEST_CASE("fit: factors by length keep their proportions") {
  const roofline::Hardware start = roofline::load_hardware(catalog(), "a100-80gb");
  roofline::Hardware truth = start;
  roofline::Sourced& rate = *truth.product_bandwidth;
  REQUIRE(rate.by_length.size() > 1);
  rate.value *= 0.8;
  for (roofline::FactorAt& at : rate.by_length) at.value *= 0.8;
  const Validation v = rows_of(truth);
  const std::vector<std::string> names{"product_bandwidth"};
  const FactorFit fit = fit_factors(v.cases, v.devices, names);
  CHECK(fit.factors[0].after == near(rate.value).epsilon(1e-3));
  const TestFolder folder;
  std::ofstream(folder / "mine.json")
      << fitted_hardware_json(catalog().root() / "hardware" / "a100-80gb.json", fit, "mine", "m");
  const roofline::Hardware read = roofline::read_hardware(folder / "mine.json");
  const auto& fitted = read.product_bandwidth->by_length;
  REQUIRE(fitted.size() == rate.by_length.size());
  for (std::size_t i = 0; i < fitted.size(); ++i) {
    CHECK(fitted[i].value == near(rate.by_length[i].value).epsilon(1e-3));
  }
  CHECK(read.softmax_bandwidth->by_length == start.softmax_bandwidth->by_length);
}

TEST_CASE("fit: what cannot be fitted is named") {
  const Validation v = rows_of(roofline::load_hardware(catalog(), "a100-80gb"));
  const auto refused = [&](const std::vector<ValidationCase>& cases,
                           const std::vector<std::string>& names, const char* part) {
    CAPTURE(part);
    CHECK_THROWS_WITH_AS(fit_factors(cases, v.devices, names), doctest::Contains(part), Error);
  };
  refused(v.cases, {"matrix_rat"}, "did you mean 'matrix_rate'?");
  refused(v.cases, {"matrix_rate.fp17"}, "fp17");
  refused(v.cases, {"matrix_rate", "matrix_rate.fp16"}, "twice");
  refused(v.cases, {"softmax_bandwidth"}, "no chosen row depends on softmax_bandwidth");
  refused({}, {"matrix_rate"}, "no rows");
  refused({v.cases[0]}, {"matrix_rate", "memory_bandwidth"}, "2 factors and 1 rows");
  std::vector<ValidationCase> mixed = v.cases;
  mixed.back().row.hardware = "h200";
  refused(mixed, {"matrix_rate"}, "rows of one device");
}

}  // namespace
}  // namespace kvcast::measure
