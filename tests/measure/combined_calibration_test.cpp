#include "measure/combined_calibration.h"

#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "roofline/hardware_writer.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::measure {
using namespace roofline;
namespace {

Sourced measured(double value) { return {value, Source::Measured, "kvcast calibrate", "by hand"}; }

/// Products at half of `peak`, memory at a quarter of `bandwidth`.
Hardware device(double peak, double bandwidth, double overlap) {
  Hardware hw;
  hw.name = "m";
  hw.description = "a machine";
  hw.kind = "cpu";
  hw.peak_flops_per_second[DType::FP32] = measured(peak);
  hw.vector_flops_per_second = measured(peak);
  hw.memory_bandwidth = measured(bandwidth);
  hw.memory_capacity = measured(16e9);
  hw.on_chip_memory_capacity = measured(1 << 25);
  hw.operator_latency = measured(1e-6 * overlap);
  hw.host_operator_latency = measured(0);
  hw.matrix_rate[DType::FP32] = measured(0.5);
  hw.memory_bandwidth_factor = measured(0.25);
  hw.overlap = measured(overlap);
  hw.lockstep = measured(1 - overlap / 10);
  return hw;
}

std::filesystem::path written(const TestFolder& folder, const std::string& name, const Hardware& hw,
                              std::uint64_t version = 1) {
  nlohmann::ordered_json j = hardware_entries(hw);
  j["calibration"] = {{"date", name + "'s"}, {"threads", 2}};
  if (version > 1) j["calibration"]["version"] = version;
  const std::filesystem::path path = folder.path() / name;
  std::ofstream(path) << j.dump(2);
  return path;
}

}  // namespace

TEST_CASE("combine: medians are of rates, and shares are of the median peak") {
  const TestFolder folder;
  Hardware odd = device(100e9, 60e9, 0.7);
  odd.matrix_rate[DType::FP32] = measured(0.8);  // 80 GFLOP/s
  odd.memory_bandwidth_factor = measured(0.1);   // 6 GB/s
  const std::vector<std::filesystem::path> files{
      written(folder, "a.json", device(200e9, 20e9, 0.5)),  // 100 GFLOP/s, 5 GB/s
      written(folder, "b.json", odd),
      written(folder, "c.json", device(120e9, 40e9, 0.2))};  // 60 GFLOP/s, 10 GB/s
  const CombinedCalibration c = combine_calibrations(files);
  std::ofstream(folder / "all.json") << to_json(c, "all", files);
  const Hardware hw = read_hardware(folder / "all.json");
  CHECK(hw.name == "all");
  CHECK(hw.peak_flops_per_second.at(DType::FP32).value == near(120e9));
  CHECK(hw.matrix_rate.at(DType::FP32).value == near(80.0 / 120).epsilon(1e-4));
  CHECK(hw.memory_bandwidth.value == near(40e9));
  CHECK(hw.memory_bandwidth_factor->value == near(6.0 / 40));
  CHECK(hw.overlap->value == near(0.5));
  CHECK(hw.lockstep->value == near(0.95));
  CHECK(hw.operator_latency.value == near(0.5e-6));
  CHECK(hw.memory_capacity.value == 16e9);
  CHECK(hw.memory_bandwidth.reference == "median of 3 calibrations, the first: kvcast calibrate");
  const nlohmann::json j = nlohmann::json::parse(std::ifstream(folder / "all.json"));
  CHECK(j["calibration"]["date"] == "a.json's");
  CHECK(j["calibration"]["threads"] == 2);
  REQUIRE(j["calibration"]["combined"].size() == 3);
  CHECK(j["calibration"]["combined"][1] ==
        nlohmann::json({{"file", "b.json"}, {"date", "b.json's"}}));
  const nlohmann::json& peak = j["calibration"]["numbers"][0];
  CHECK(peak["name"] == "peak_flops_per_second.fp32");
  CHECK(peak["low"] == 100e9);
  CHECK(peak["high"] == 200e9);

  const CombinedCalibration two = combine_calibrations({files[0], files[2]});
  CHECK(two.hardware.memory_bandwidth.value == near(30e9));
  CHECK(two.hardware.memory_bandwidth_factor->value == near(0.25));
}

TEST_CASE("combine: rates by length are combined at each length, of which all have the same") {
  const TestFolder folder;
  const auto file = [&](const std::string& name, double bandwidth, std::vector<FactorAt> points) {
    Hardware hw = device(100e9, bandwidth, 0.5);
    hw.softmax_bandwidth = measured(0.5);
    hw.softmax_bandwidth->by_length = std::move(points);
    return written(folder, name, hw);
  };
  // 2, 12 and 6 GB/s at 10; 3, 16 and 9 at 20; the median peak is 30 GB/s.
  const std::vector<std::filesystem::path> files{file("a.json", 20e9, {{10, 0.1}, {20, 0.15}}),
                                                 file("b.json", 40e9, {{10, 0.3}, {20, 0.4}}),
                                                 file("c.json", 30e9, {{10, 0.2}, {20, 0.3}})};
  const CombinedCalibration c = combine_calibrations(files);
  REQUIRE(c.hardware.softmax_bandwidth->by_length.size() == 2);
  CHECK(c.hardware.softmax_bandwidth->by_length[0].length == 10);
  CHECK(c.hardware.softmax_bandwidth->by_length[0].value == near(6.0 / 30));
  CHECK(c.hardware.softmax_bandwidth->by_length[1].value == near(9.0 / 30));
  CHECK(c.hardware.softmax_bandwidth->reference ==
        "median of 3 calibrations, the first: kvcast calibrate");
  const auto other = file("d.json", 20e9, {{10, 0.1}, {30, 0.2}});
  CHECK_THROWS_WITH_AS(combine_calibrations({files[0], other}),
                       doctest::Contains("factors.softmax_bandwidth at 20"), Error);
}

TEST_CASE("combine: what is not of one machine is refused in one line") {
  const TestFolder folder;
  const auto a = written(folder, "a.json", device(1e9, 1e9, 0.5));
  const auto says = [&](const std::vector<std::filesystem::path>& files, const char* words) {
    CHECK_THROWS_WITH_AS(combine_calibrations(files), doctest::Contains(words), Error);
  };
  says({a}, "got 1 file, expected two hardware files or more");
  says({a, folder.path() / "." / "a.json"}, "twice");
  Hardware other = device(1e9, 1e9, 0.5);
  other.description = "one thread of it";
  says({a, written(folder, "b.json", other)}, "'one thread of it'");
  other = device(1e9, 1e9, 0.5);
  other.memory_capacity = measured(8e9);
  says({a, written(folder, "c.json", other)}, "memory_capacity of 8000000000 bytes");
  other = device(1e9, 1e9, 0.5);
  other.product_latency = measured(1e-6);
  says({a, written(folder, "d.json", other)}, "latency.product");
  other = device(1e9, 1e9, 0.5);
  other.overlap.reset();
  says({a, written(folder, "e.json", other)}, "factors.overlap");
  says({a, folder / "none.json"}, "none.json");
  const auto later = written(folder, "f.json", device(1e9, 1e9, 0.5), 2);
  says({a, later}, "f.json: got a calibration of version 2, expected version 1, as ");
}

}  // namespace kvcast::measure
