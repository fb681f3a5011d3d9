#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "tests/cli/program.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

constexpr const char* columns =
    "device,kind,driver,software,date,benchmark,dtype,shape,flops,bytes,median_s,q1_s,q3_s,"
    "repeats\n";

/// Half of the A100's fp16 peak of 312 TFLOP/s, and 1500 of its 2039 GB/s.
std::string a100(const std::string& quartiles = "0.99,1.01") {
  const std::string run = "An A100,gpu,535.1,PyTorch 2.4,2026-01-31T12:00:00Z,";
  return columns + run + "matmul,fp16,4096x4096x4096,156e12,1,1," + quartiles + ",20\n" + run +
         "copy,fp16,1,0,1500e9,1,0.99,1.01,20\n";
}

std::string file_with(const TestFolder& folder, const std::string& text) {
  std::ofstream(folder / "a100.csv") << text;
  return (folder / "a100.csv").string();
}

}  // namespace

TEST_CASE("calibrate: imported micro-benchmarks become a hardware file that forecasts use") {
  const TestFolder folder;
  const std::string output = (folder / "mine.json").string();
  const ProgramResult r = run_program("calibrate --hardware a100-80gb --import " +
                                      file_with(folder, a100()) + " --output " + output);
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  CHECK(r.output.find("156 TFLOP/s") != std::string::npos);
  CHECK(r.output.find("1.5 TB/s") != std::string::npos);
  const nlohmann::json hw = run_json("hardware show --json " + output);
  CHECK(hw.at("name") == "mine");
  const nlohmann::json written = nlohmann::json::parse(std::ifstream(output));
  CHECK(written.at("factors").at("matrix_rate").at("fp16").at("value") == 0.5);
  CHECK(written.at("factors").at("memory_bandwidth").at("source") == "measured");
  CHECK(written.at("calibration").at("device") == "An A100");
  // Large products at half of the peak: 2·7e9·4096 FLOPs a prompt take 0.35 s at least.
  const nlohmann::json e =
      run_json("estimate --json --model llama-7b --prompt-len 4096 --hardware " + output);
  const double products = 2 * 6.6e9 * 4096 / 156e12;  // 6.6e9 weights in products
  CHECK(e.at("ttft_s") > products);
  CHECK(e.at("ttft_s") < 2 * products);
}

// Only that it is measured: this machine may be as noisy as it likes.
TEST_CASE("calibrate: --quick measures this machine, and its file says when and how") {
  const TestFolder folder;
  const std::string output = (folder / "here.json").string();
  const ProgramResult r = run_program("calibrate --quick --force --threads 1 --output " + output);
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  CHECK(r.output.find("streaming read") != std::string::npos);
  const nlohmann::json written = nlohmann::json::parse(std::ifstream(output));
  const nlohmann::json& how = written.at("calibration");
  CHECK(how.at("threads") == 1);
  CHECK(how.at("date").get<std::string>().size() == std::string("2026-01-31T12:00:00Z").size());
  CHECK_FALSE(how.at("processor").get<std::string>().empty());
  for (const nlohmann::json& m : how.at("measurements")) {
    CAPTURE(m.dump());
    CHECK(m.at("low") <= m.at("median"));
    CHECK(m.at("median") <= m.at("high"));
    CHECK(m.at("rounds") >= 3);
  }
  CHECK(how.at("matrix_rates").size() > 10);
  CHECK_FALSE(written.at("factors").contains("lockstep"));  // of one process
  const nlohmann::json e = run_json(
      "estimate --json --model smollm2-135m --dtype fp32 --prompt-len 64 --hardware " + output);
  CHECK(e.at("ttft_s") > 0);
  CHECK(e.at("rests_on") == nlohmann::json{"measured"});
}

TEST_CASE("calibrate: noisy imports are refused unless forced") {
  const TestFolder folder;
  const std::string output = (folder / "mine.json").string();
  const std::string command = "calibrate --hardware a100-80gb --import " +
                              file_with(folder, a100("0.8,1.3")) + " --output " + output;
  const ProgramResult refused = run_program(command);
  CHECK(refused.status == 1);
  CHECK(refused.errors.find("too noisy: matmul fp16 4096x4096x4096") != std::string::npos);
  CHECK(refused.errors.find("50 %") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(output));
  const ProgramResult forced = run_program(command + " --force");
  CHECK(forced.status == 0);
  CHECK(forced.errors.find("50 %") != std::string::npos);
  CHECK(std::filesystem::exists(output));
}

TEST_CASE("calibrate: what does not go together is refused") {
  const TestFolder folder;
  const std::string csv = file_with(folder, a100());
  const std::string output = " --output " + (folder / "mine.json").string();
  check_refused("calibrate --hardware a100-80gb" + output, "--import");
  check_refused("calibrate --quick --import " + csv + output, "--quick");
  check_refused("calibrate --import /nowhere.csv" + output, "/nowhere.csv");
  check_refused("calibrate --import " + csv + output, "--hardware");  // no fp32, no sizes
  check_refused("calibrate --hardware m2-pro-cpu --import " + csv + output, "a gpu");
  check_refused("calibrate --hardware a100-80bg --import " + csv + output, "a100-80gb");
  check_refused("calibrate --hardware a100-80gb --import " + csv + " --output /nowhere/mine.json",
                "/nowhere");
  check_refused("calibrate --hardware a100-80gb --import " + csv + " --output " + csv,
                "a100.csv, which --import reads");
  const std::string device = (folder / "device.json").string();
  std::filesystem::copy_file(KVCAST_SOURCE_DIR "/data/hardware/a100-80gb.json", device);
  check_refused("calibrate --hardware " + device + " --import " + csv + " --output " + device,
                "device.json, which --hardware reads");
}

TEST_CASE(
    "calibrate: --combine takes the medians of calibrations, shows them, and measures nothing") {
  const TestFolder folder;
  const std::string import = "calibrate --hardware a100-80gb --import ";
  const std::string half = (folder / "half.json").string();
  const std::string third = (folder / "third.json").string();
  REQUIRE(run_program(import + file_with(folder, a100()) + " --output " + half).status == 0);
  std::string slower = a100();
  slower.replace(slower.find("156e12"), 6, "104e12");  // a third of the peak
  REQUIRE(run_program(import + file_with(folder, slower) + " --output " + third).status == 0);
  const std::string both = (folder / "both.json").string();
  const std::string combine = "calibrate --combine " + half + " " + third + " --output " + both;
  const ProgramResult r = run_program(combine);
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  CHECK(r.output.find("130 TFLOP/s") != std::string::npos);  // of 156 and 104
  const nlohmann::json written = nlohmann::json::parse(std::ifstream(both));
  CHECK(written.at("factors").at("matrix_rate").at("fp16").at("value") ==
        near(130.0 / 312).epsilon(1e-4));
  check_refused(combine + " --quick", "--combine");
  check_refused("calibrate --combine " + half + " " + third + " --output " + third,
                "third.json, which --combine reads");
  check_refused("calibrate --combine " + half + " --output " + both, "two hardware files or more");
}

}  // namespace kvcast::cli
