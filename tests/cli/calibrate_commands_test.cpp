#include <string>

#include "tests/cli/program.h"
#include "tests/near.h"

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
  write(folder / "a100.csv", text);
  return folder.file("a100.csv");
}

}  // namespace

TEST_CASE("calibrate: imported micro-benchmarks become a hardware file that forecasts use") {
  const TestFolder folder;
  const std::string output = folder.file("mine.json");
  check_contains(run_well("calibrate --hardware a100-80gb --import " + file_with(folder, a100()) +
                          " --output " + output)
                     .output,
                 {"156 TFLOP/s", "1.5 TB/s"});
  const json hw = run_json("hardware show --json " + output);
  CHECK(hw.at("name") == "mine");
  const json written = json::parse(contents(output));
  CHECK(written.at("factors").at("matrix_rate").at("fp16").at("value") == 0.5);
  CHECK(written.at("factors").at("memory_bandwidth").at("source") == "measured");
  CHECK(written.at("calibration").at("device") == "An A100");
  // Large products at half of the peak: 2·7e9·4096 FLOPs a prompt take 0.35 s at least.
  const json e =
      run_json("estimate --json --model llama-7b --prompt-len 4096 --hardware " + output);
  const double products = 2 * 6.6e9 * 4096 / 156e12;  // 6.6e9 weights in products
  CHECK(e.at("ttft_s") > products);
  CHECK(e.at("ttft_s") < 2 * products);
}

// Only that it is measured: this machine may be as noisy as it likes.
TEST_CASE(
    "calibrate: --quick measures this machine in --rounds rounds, and its file says when and how") {
  const TestFolder folder;
  const std::string output = folder.file("here.json");
  CHECK(contains(
      run_well("calibrate --quick --rounds 1 --force --threads 1 --output " + output).output,
      "streaming read"));
  const json written = json::parse(contents(output));
  const json& how = written.at("calibration");
  CHECK(how.at("threads") == 1);
  CHECK(how.at("date").get<std::string>().size() == std::string("2026-01-31T12:00:00Z").size());
  CHECK_FALSE(how.at("processor").get<std::string>().empty());
  // Products in other arithmetic, beside those in fp32.
  const auto median = [&](const std::string& name) {
    for (const json& m : how.at("measurements")) {
      if (m.at("name") == name) return m.at("median").get<double>();
    }
    FAIL("no measurement " << name);
    return 0.0;
  };
  const json hw = run_json("hardware show --json " + output);
  for (const std::string type : {"bf16", "int8"}) {
    const json& peaks = hw.at("peak_flops_per_second");
    const double ratio = median("products in " + type) / median("products in fp32");
    CHECK(peaks.at(type).get<double>() ==
          near(ratio * peaks.at("fp32").get<double>()).epsilon(1e-3));  // digits of the file
  }
  const std::string run =
      "estimate --quiet --json --model smollm2-135m --dtype fp32 --engine kvcast --hardware " +
      output;
  const json fp32 = run_json(run);
  const json bf16 = run_json(run + " --arithmetic bf16");
  CHECK(fp32.at("arithmetic") == "fp32");
  CHECK(bf16.at("arithmetic") == "bf16");
  const bool faster = median("products in bf16") > median("products in fp32");
  CHECK((bf16.at("ttft_s") < fp32.at("ttft_s")) == faster);
  for (const json& m : how.at("measurements")) {
    CAPTURE(m.dump());
    CHECK(m.at("low") <= m.at("median"));
    CHECK(m.at("median") <= m.at("high"));
    // A round has three short steps of attention.
    const bool is_step =
        m.at("name") == "decode attention" || m.at("name") == "decode attention, slim K-cache";
    CHECK(m.at("rounds") == (is_step ? 3 : 1));
  }
  CHECK(how.at("matrix_rates").size() > 10);
  for (const auto& [type, share] : written.at("factors").at("weight_bandwidth").items()) {
    CAPTURE(type);
    CHECK(share.at("by_length").at("lengths") == json{1});
    CHECK(share.at("by_length").at("values") == json{share.at("value")});
  }
  CHECK_FALSE(written.at("factors").contains("lockstep"));  // of one process
  const json e = run_json(
      "estimate --json --model smollm2-135m --dtype fp32 --prompt-len 64 --hardware " + output);
  CHECK(e.at("ttft_s") > 0);
  CHECK(e.at("rests_on") == json{"measured"});

  // Products of a few rows are forecast no faster than the file's own measurements of them. Slower
  // they may be where these were disturbed: more rows never take less time.
  const std::string probe = folder.file("config.json");
  std::ofstream(probe) << R"({"model_type": "llama", "hidden_size": 1536, "num_hidden_layers": 3,
      "num_attention_heads": 24, "num_key_value_heads": 24, "intermediate_size": 4224,
      "vocab_size": 8192, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
      "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu"})";
  const double weights = 3 * (4 * 1536.0 * 1536 + 3 * 1536.0 * 4224) + 8192 * 1536.0;
  for (const int rows : {2, 4, 8, 16, 32}) {
    CAPTURE(rows);
    const json sums =
        run_json("estimate --json --breakdown --dtype fp32 --prompt-len 63 --batch " +
                 std::to_string(rows) + " --model " + probe + " --hardware " + output);
    double seconds = 0;
    for (const json& row : sums.at("breakdown")) {
      const bool counts = row.at("pass") == "decode" && row.at("operator") == "linear";
      if (counts) seconds += row.at("seconds").get<double>();
    }
    const double measured = 2 * rows * weights / median("linear " + std::to_string(rows) + " rows");
    CHECK(seconds > 0.97 * measured);
  }
}

TEST_CASE("calibrate: noisy imports are refused unless forced") {
  const TestFolder folder;
  const std::string output = folder.file("mine.json");
  const std::string command = "calibrate --hardware a100-80gb --import " +
                              file_with(folder, a100("0.8,1.3")) + " --output " + output;
  check_refused(command, "too noisy: matmul fp16 4096x4096x4096 ... 50 %", 1);
  CHECK_FALSE(fs::exists(output));
  CHECK(contains(run_well(command + " --force").errors, "50 %"));
  CHECK(fs::exists(output));
}

TEST_CASE(
    "calibrate: --combine takes the medians of calibrations, shows them, and measures nothing") {
  const TestFolder folder;
  const std::string import = "calibrate --hardware a100-80gb --import ";
  const std::string half = folder.file("half.json");
  const std::string third = folder.file("third.json");
  run_well(import + file_with(folder, a100()) + " --output " + half);
  std::string slower = a100();
  slower.replace(slower.find("156e12"), 6, "104e12");  // a third of the peak
  run_well(import + file_with(folder, slower) + " --output " + third);
  const std::string both = folder.file("both.json");
  const std::string combine = "calibrate --combine " + half + " " + third + " --output " + both;
  CHECK(contains(run_well(combine).output, "130 TFLOP/s"));  // of 156 and 104
  const json written = json::parse(contents(both));
  CHECK(written.at("factors").at("matrix_rate").at("fp16").at("value") ==
        near(130.0 / 312).epsilon(1e-4));
  check_refused(combine + " --quick", "--combine");
  check_refused("calibrate --combine " + half + " " + third + " --output " + third,
                "third.json, which --combine reads");
  check_refused("calibrate --combine " + half + " --output " + both, "two hardware files or more");
}

}  // namespace kvcast::cli
