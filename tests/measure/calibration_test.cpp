#include "measure/calibration.h"

#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "measure/calibration_bench.h"
#include "model/base/error.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::measure {
using namespace roofline;
namespace {

Sourced measured(double value) { return {value, Source::Measured, "kvcast calibrate", "by hand"}; }

/// Made-up figures, all different.
Calibration made_up() {
  Calibration c;
  c.date = "2026-01-31T12:00:00Z";
  c.processor = "a processor";
  c.threads = 2;
  Hardware& hw = c.hardware;
  hw.description = "a machine";
  hw.kind = "cpu";
  hw.peak_flops_per_second[DType::FP32] = measured(230e9);
  hw.vector_flops_per_second = measured(231e9);
  hw.memory_bandwidth = measured(33e9);
  hw.memory_capacity = measured(25e9);
  hw.on_chip_memory_capacity = measured(32 << 20);
  hw.on_chip_memory_bandwidth = measured(101e9);
  hw.operator_latency = measured(2.5e-6);
  hw.elementwise_latency = measured(1.5e-6);
  hw.product_latency = measured(3.5e-6);
  hw.host_operator_latency = measured(0);
  hw.matrix_rate[DType::FP32] = measured(0.91);
  hw.tiled_attention_rate[DType::FP32] = measured(0.62);
  hw.decode_attention_rate[DType::FP32] = measured(0.53);
  hw.decode_attention_bandwidth = measured(0.74);
  hw.tiled_attention_bandwidth = measured(0.15);
  hw.memory_bandwidth_factor = measured(0.95);
  hw.overlap = measured(0.4);
  hw.lockstep = measured(0.97);
  c.measurements = {{"FMA", "FLOP/s", {1, 2, 3}}};
  return c;
}

}  // namespace

TEST_CASE("calibration: the file that is written reads back as the hardware that was measured") {
  const TestFolder folder;
  const auto path = folder / "m.json";
  std::ofstream(path) << to_json(made_up(), "m");
  const Hardware hw = read_hardware(path);
  CHECK(hw.name == "m");
  CHECK(hw.peak_flops_per_second.at(DType::FP32).value == near(230e9));
  CHECK(hw.vector_flops_per_second.value == near(231e9));
  CHECK(hw.memory_bandwidth.value == near(33e9));
  CHECK(hw.memory_capacity.value == near(25e9));
  CHECK(hw.on_chip_memory_capacity.value == near(32 << 20));
  CHECK(hw.on_chip_memory_bandwidth->value == near(101e9));
  CHECK(hw.operator_latency.value == near(2.5e-6));
  CHECK(hw.elementwise_latency->value == near(1.5e-6));
  CHECK(hw.product_latency->value == near(3.5e-6));
  CHECK(hw.host_operator_latency.value == 0);
  CHECK(hw.matrix_rate.at(DType::FP32).value == 0.91);
  CHECK(hw.tiled_attention_rate.at(DType::FP32).value == 0.62);
  CHECK(hw.decode_attention_rate.at(DType::FP32).value == 0.53);
  CHECK(hw.decode_attention_bandwidth->value == 0.74);
  CHECK(hw.tiled_attention_bandwidth->value == 0.15);
  CHECK(hw.memory_bandwidth_factor->value == 0.95);
  CHECK(hw.overlap->value == 0.4);
  CHECK(hw.overlap->source == Source::Measured);
  CHECK(hw.lockstep->value == 0.97);
}

TEST_CASE("calibration: a file of a version to come is refused before its new entries are") {
  const TestFolder folder;
  const auto path = folder / "m.json";
  nlohmann::json j = nlohmann::json::parse(to_json(made_up(), "m"));
  CHECK(j.at("calibration").at("version") == calibration_version);
  const auto read = [&] {
    std::ofstream(path) << j;
    return read_hardware(path);
  };
  CHECK_NOTHROW(read());
  j["calibration"].erase("version");
  CHECK_NOTHROW(read());
  j["calibration"]["version"] = calibration_version + 1;
  j["factors"]["warp_drive"] = 1;
  CHECK_THROWS_WITH_AS(
      read(), doctest::Contains("/calibration/version: got 3, expected at most 2: a newer kvcast"),
      Error);
}

TEST_CASE("calibration: unrest is how far the medians of the two halves are apart, or scatter") {
  const Measurement still{"a", "s", {2, 2, 2, 2}};
  CHECK(still.unrest() == 0);
  const Measurement drifting{"b", "s", {1, 1, 3, 3}};  // medians 1 and 3, of all 2
  CHECK(drifting.median() == 2);
  CHECK(drifting.unrest() == 1);
  // Both halves have the median 2, which is between the 6th and the 11th of the 16: 1 and 3.
  const Measurement scattered{"c", "s", {1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3}};
  CHECK(scattered.unrest() == 0.5);
  CHECK(scattered.unrest() > settled);
  // 1 to 16: the 6th is 6 and the 11th 11, the median 8.5; those of the halves are 8 and 9.
  const Measurement even{"d", "s", {1, 13, 3, 15, 5, 9, 7, 11, 2, 14, 4, 16, 6, 10, 8, 12}};
  CHECK(even.unrest() == near(2.5 / 8.5));
  Calibration c = made_up();
  c.measurements = {still, drifting};
  CHECK(c.noisiest().name == "b");
}

TEST_CASE("calibration: ranks in lockstep are as fast as the slowest of each step") {
  // Means 1.5, 0.75 and 5 seconds; all wait for 2, 1 and 7.
  CHECK(lockstep({{2, 1, 3}, {1, 0.5, 7}}) == near((1.5 + 0.75 + 5) / (2 + 1 + 7)));
  CHECK(lockstep({{2, 1, 3}, {2, 1, 3}, {2, 1, 3}}) == 1);
  // Each rank alone takes as long as the others: it is in the single steps that they wait.
  CHECK(lockstep({{1, 3}, {3, 1}}) == near(4.0 / 6));
}

TEST_CASE("calibration: times of arithmetic are as they were at one clock") {
  // 6 FLOPs while the machine did 2, 1 and 4 FLOP/s: three, six and one and a half seconds are the
  // same kernel, at 2 FLOP/s.
  Samples s{"product", "FLOP/s", {6, 0, 0}, {3, 6, 1.5}, true, {2, 1, 4}};
  s.scale_to(2);
  CHECK(s.seconds == std::vector<double>{3, 3, 3});
  CHECK(s.measurement().unrest() == 0);
  CHECK(s.measurement().median() == 2);
  s.scale_to(1);  // has been done
  CHECK(s.seconds == std::vector<double>{3, 3, 3});
}

}  // namespace kvcast::measure
