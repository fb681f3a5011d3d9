#include "measure/calibration.h"

#include <cmath>
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "measure/calibration_bench.h"
#include "model/base/error.h"
#include "roofline/hardware_fields.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::measure {
using namespace roofline;
namespace {

double size_of(Unit unit) {
  switch (unit) {
    case Unit::Share: return 0.01;
    case Unit::Seconds: return 1e-7;
    case Unit::Bytes: return 1 << 20;  // as files have them
    case Unit::FlopsPerSecond:
    case Unit::BytesPerSecond: break;
  }
  return 1e9;
}

/// Made-up figures, all different: shares from 0.31 on.
Calibration made_up() {
  Calibration c;
  c.date = "2026-01-31T12:00:00Z";
  c.processor = "a processor";
  c.threads = 2;
  c.hardware.description = "a machine";
  c.hardware.kind = "cpu";
  double count = 30;
  for (const Field& field : hardware_fields()) {
    field.set(c.hardware, DType::FP32,
              {++count * size_of(field.unit), Source::Measured, "kvcast calibrate", "by hand"});
  }
  c.measurements = {{"FMA", "FLOP/s", {1, 2, 3}}};
  return c;
}

}  // namespace

TEST_CASE("calibration: the file that is written reads back as the hardware that was measured") {
  const TestFolder folder;
  const auto path = folder / "m.json";
  const Calibration c = made_up();
  std::ofstream(path) << to_json(c, "m");
  const Hardware hw = read_hardware(path);
  CHECK(hw.name == "m");
  for (const Field& field : hardware_fields()) {
    CAPTURE(field.path());
    const Sourced* read = field.find(hw, DType::FP32);
    REQUIRE(read != nullptr);
    CHECK(read->value == near(field.find(c.hardware, DType::FP32)->value));
    CHECK(read->source == Source::Measured);
  }
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
      read(), doctest::Contains("/calibration/version: got 4, expected at most 3: a newer kvcast"),
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

TEST_CASE("calibration: a narrow type's loads are what arithmetic leaves of its products' time") {
  // Of a weight and row 2 FLOPs at 8 FLOP/s, 4 bytes in fp32 at 4 bytes/s: 0.25 + 1 s. In 1 byte,
  // at half of fp32's bytes a second, 1.25 / 4 * 2 = 0.625 s, of which 0.375 are loads.
  const Formula fp32{8, 4, 1};
  const CalibrationBench::WeightReads reads{
      DType::FP8, execute::Arithmetic::FP32, 1, {"", "", {0.5}}};
  CHECK(stored_rate(reads, fp32, 8) == near(1 / 0.375));
  CHECK(stored_rate(reads, fp32, 16) == near(1 / 0.5));  // faster arithmetic leaves more
  CHECK(std::isinf(stored_rate(reads, fp32, 3)));        // 0.667 s of arithmetic
  // Where all loads hide behind arithmetic or the other way round, the longer one is the time.
  CHECK(stored_rate(reads, {8, 4, 0}, 8) == near(1 / 0.5));  // fp32 1 s, 1 byte 0.5 s
}

TEST_CASE("calibration: more rows never take less time, whatever the noise") {
  std::vector<roofline::FactorAt> shares;
  add_share(shares, 1, 0.04);
  add_share(shares, 2, 0.0743);
  add_share(shares, 4, 0.1505);  // 4 / 0.1505 < 2 / 0.0743
  add_share(shares, 8, 0.2);
  CHECK(shares[1].value == 0.0743);
  CHECK(shares[2].value < 0.1486);
  CHECK(shares[2].value > 0.147);
  CHECK(shares[3].value == 0.2);
}

TEST_CASE("calibration: ranks in lockstep are as fast as the slowest of each step") {
  // Means 1.5, 0.75 and 5 seconds; all wait for 2, 1 and 7.
  const auto of_itself = [](const std::vector<std::vector<double>>& seconds) {
    return lockstep(seconds, seconds);
  };
  CHECK(of_itself({{2, 1, 3}, {1, 0.5, 7}}) == near((1.5 + 0.75 + 5) / (2 + 1 + 7)));
  CHECK(of_itself({{2, 1, 3}, {2, 1, 3}, {2, 1, 3}}) == 1);
  // Each rank alone takes as long as the others: it is in the single steps that they wait.
  CHECK(of_itself({{1, 3}, {3, 1}}) == near(4.0 / 6));
  // Ranks that share a memory take longer together than 1.5 and 0.75 seconds alone.
  CHECK(lockstep({{2, 1}, {1, 0.5}}, {{3, 2}, {2, 2}}) == near((1.5 + 0.75) / (3 + 2)));
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
