#include "measure/benchmark_import.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "model/base/error.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::measure {
namespace {

constexpr const char* header =
    "device,kind,driver,software,date,benchmark,dtype,shape,flops,bytes,median_s,q1_s,q3_s,"
    "repeats\n";
constexpr const char* run = "A Card,gpu,535.1,PyTorch 2.4,2026-01-31T12:00:00Z,";

/// A made-up card. Products: 50, 60 and 80 TFLOP/s in fp16, 10 in fp32. Batched: 40 and 20, whose
/// harmonic mean is 2/(1/40 + 1/20) = 80/3. Attention: 30 at 1024 tokens, 45 at 8192. Copies: 900
/// and 700 GB/s; element-wise 500; softmax 400. Kernels: 3 and 8 us.
const std::string card = std::string(header) +                                              //
                         run + "memory_capacity,,,0,40e9,,,,\n" +                           //
                         run + "on_chip_memory,,,0,41943040,,,,\n" +                        //
                         run + "matmul,fp16,1x1x1,50e12,1,1,0.99,1.01,20\n" +               //
                         run + "matmul,fp16,2x1x1,120e12,1,2,1.98,2.02,20\n" +              //
                         run + "matmul,fp16,3x1x1,40e12,1,0.5,0.49,0.51,20\n" +             //
                         run + "matmul,fp32,1x1x1,10e12,1,1,0.99,1.01,20\n" +               //
                         run + "batched_matmul,fp16,a,40e12,1,1,0.99,1.01,20\n" +           //
                         run + "batched_matmul,fp16,b,40e12,1,2,1.98,2.02,20\n" +           //
                         run + "attention,fp16,1x32x1024x128,3e12,1,0.1,0.099,0.101,9\n" +  //
                         run + "attention,fp16,1x32x8192x128,9e12,1,0.2,0.199,0.201,9\n" +  //
                         run + "copy,fp16,1,0,900e9,1,0.99,1.01,20\n" +                     //
                         run + "copy,fp16,2,0,1400e9,2,1.99,2.01,20\n" +                    //
                         run + "elementwise,fp16,1,0,500e9,1,0.99,1.01,20\n" +              //
                         run + "softmax,fp32,1,0,400e9,1,0.99,1.01,20\n" +                  //
                         run + "small_kernel,fp32,64,0,512,3e-6,2.9e-6,3.1e-6,50\n" +       //
                         run + "host_operator,fp32,64,0,512,8e-6,7.9e-6,8.1e-6,50\n";

class File {
 public:
  explicit File(const std::string& text) { std::ofstream(path()) << text; }
  std::filesystem::path path() const { return folder_ / "card.csv"; }

 private:
  TestFolder folder_;
};

std::string refusal(const std::string& text, const roofline::Hardware* base = nullptr) {
  const File file(text);
  return message_of([&] { import_benchmarks(file.path(), base); });
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

roofline::Hardware datasheet() {
  roofline::Hardware hw;
  hw.name = "a-card";
  hw.kind = "gpu";
  hw.peak_flops_per_second[DType::FP16] = {100e12, roofline::Source::Datasheet, "a sheet", ""};
  hw.peak_flops_per_second[DType::FP32] = {20e12, roofline::Source::Datasheet, "a sheet", ""};
  hw.vector_flops_per_second = {20e12, roofline::Source::Datasheet, "a sheet", ""};
  hw.memory_bandwidth = {1000e9, roofline::Source::Datasheet, "a sheet", ""};
  hw.memory_capacity = {48e9, roofline::Source::Datasheet, "a sheet", ""};
  hw.on_chip_memory_capacity = {40 << 20, roofline::Source::Datasheet, "a sheet", ""};
  hw.links["nvlink"] = {{300e9, roofline::Source::Datasheet, "a sheet", ""},
                        {5e-6, roofline::Source::Measured, "someone", ""}};
  return hw;
}

}  // namespace

TEST_CASE("import: factors are shares of the datasheet's peaks") {
  const File file(card);
  const roofline::Hardware base = datasheet();
  const ImportedBenchmarks imported = import_benchmarks(file.path(), &base);
  const roofline::Hardware& hw = imported.hardware;
  CHECK(hw.peak_flops_per_second.at(DType::FP16).value == 100e12);
  CHECK(hw.matrix_rate.at(DType::FP16).value == near(0.6));  // of 50, 60 and 80
  CHECK(hw.matrix_rate.at(DType::FP32).value == near(0.5));
  CHECK(hw.batched_matrix_rate.at(DType::FP16).value == near(0.8 / 3));
  CHECK(hw.tiled_attention_rate.at(DType::FP16).value == near(0.45));
  CHECK(hw.memory_bandwidth_factor->value == near(0.8));
  CHECK(hw.elementwise_bandwidth->value == near(0.5));
  CHECK(hw.softmax_bandwidth->value == near(0.4));
  CHECK(hw.operator_latency.value == near(3e-6));
  CHECK(hw.host_operator_latency.value == near(8e-6));
  CHECK(hw.memory_capacity.value == 48e9);
  CHECK(hw.links.at("nvlink").bandwidth.value == 300e9);
  CHECK(hw.matrix_rate.at(DType::FP16).source == roofline::Source::Measured);
  CHECK(hw.matrix_rate.at(DType::FP16).reference ==
        "card.csv of 2026-01-31T12:00:00Z, PyTorch 2.4, driver 535.1");
}

TEST_CASE("import: rows of several lengths give rates by length") {
  const roofline::Hardware base = datasheet();
  using Points = std::vector<roofline::FactorAt>;
  {
    const File file(card);  // one softmax, prompts of 1024 and 8192 tokens at 30 and 45 TFLOP/s
    const roofline::Hardware hw = import_benchmarks(file.path(), &base).hardware;
    CHECK(hw.softmax_bandwidth->by_length.empty());
    CHECK(hw.tiled_attention_rate.at(DType::FP16).by_length == Points{{1024, 0.3}, {8192, 0.45}});
  }
  // 200, 300 and 100 GB/s at 2048, whose median counts, and 380 at 4096; rows of 4097 at 900 would
  // be faster than those.
  const std::string rows = run + std::string("softmax,fp32,1x2048,0,200e9,1,0.99,1.01,20\n") +  //
                           run + "softmax,fp32,2x2048,0,300e9,1,0.99,1.01,20\n" +               //
                           run + "softmax,fp32,3x2048,0,100e9,1,0.99,1.01,20\n" +               //
                           run + "softmax,fp32,1x4097,0,900e9,1,0.99,1.01,20\n" +               //
                           run + "softmax,fp32,1x4096,0,380e9,1,0.99,1.01,20\n" +               //
                           run + "softmax,fp32,8x,0,400e9,1,0.99,1.01,20\n";
  const std::string one = run + std::string("softmax,fp32,1,0,400e9,1,0.99,1.01,20\n");
  const File file(replaced(card, one, rows));
  const roofline::Hardware hw = import_benchmarks(file.path(), &base).hardware;
  CHECK(hw.softmax_bandwidth->value == near(0.34));
  const Points& points = hw.softmax_bandwidth->by_length;
  CHECK(points == Points{{2048, 0.2}, {4096, 0.38}});
  CHECK(hw.softmax_bandwidth->note ==
        "6 rows of softmax; lengths 4097 took no longer than shorter ones and are left out");
  const TestFolder folder;
  std::ofstream(folder / "mine.json") << to_json(import_benchmarks(file.path(), &base), "mine");
  CHECK(roofline::read_hardware(folder / "mine.json").softmax_bandwidth->by_length == points);
  // At one length faster than the memory can be, though not in the middle.
  std::string fast = rows;
  fast.replace(fast.find("900e9"), 5, "1900e9");
  const std::string message = refusal(replaced(card, one, fast), &base);
  CAPTURE(message);
  CHECK(message.find("softmax at 4097") != std::string::npos);
  CHECK(message.find("of the peak") != std::string::npos);
}

// A made-up device: products take 5 us and the longer of their loads (80 % of 2e12 bytes/s) and of
// their arithmetic (75 % of 3e14 FLOP/s) with half of the loads; decode attention 12 us and its
// cache at 90 %.
TEST_CASE("import: kernels of all sizes are fitted together") {
  roofline::Hardware base =
      roofline::load_hardware(Catalog(KVCAST_SOURCE_DIR "/data"), "a100-80gb");
  base.peak_flops_per_second.at(DType::FP16).value = 3e14;
  base.memory_bandwidth.value = 2e12;
  std::string rows = card.substr(0, card.find(run + std::string("matmul")));
  const auto add = [&](const std::string& benchmark, const std::string& shape, double flops,
                       double bytes, double s) {
    rows += fmt::format("{}{},fp16,{},{},{},{},{},{},9\n", run, benchmark, shape, flops, bytes, s,
                        s, s);
  };
  for (const double m : {1., 8., 64., 128., 256., 512., 1024., 4096., 8192.}) {
    for (const double n : {4096., 16384.}) {
      const double k = 8192;
      const double bytes = 2 * (m * k + n * k + m * n);
      const double loads = bytes / 1.6e12;
      add("matmul", fmt::format("{}x{}x{}", m, n, k), 2 * m * n * k, bytes,
          5e-6 + std::max(loads, 2 * m * n * k / 2.25e14 + loads / 2));
    }
  }
  for (const double batch : {1., 8., 64.}) {
    for (const double keys : {128., 512., 1024., 8192.}) {
      const double cache = batch * keys * 8 * 128 * 2 * 2;
      const double own = batch * 32 * 128 * 2 * 2;  // query and result
      add("decode_attention", fmt::format("{}x32x8x{}x128", batch, keys),
          4 * batch * 32 * keys * 128, cache, 12e-6 + (cache + own) / 1.8e12);
    }
  }
  rows += run + std::string("small_kernel,fp32,64,0,512,3e-6,2.9e-6,3.1e-6,50\n");
  const File file(rows);
  const roofline::Hardware hw = import_benchmarks(file.path(), &base).hardware;
  CHECK(hw.matrix_rate.at(DType::FP16).value == near(0.75).epsilon(1e-3));
  CHECK(hw.product_bandwidth->value == near(0.8).epsilon(1e-3));
  CHECK(hw.product_overlap->value == near(0.5).epsilon(1e-3));
  CHECK(hw.product_latency->value == near(5e-6).epsilon(1e-2));
  CHECK(hw.decode_attention_bandwidth->value == near(0.9).epsilon(1e-3));
  CHECK(hw.decode_attention_latency->value == near(12e-6).epsilon(1e-3));
  CHECK(hw.product_latency->source == roofline::Source::Measured);
}

TEST_CASE("import: the catalog's A40 has what its micro-benchmarks give") {
  const std::filesystem::path data = KVCAST_SOURCE_DIR "/data";
  const roofline::Hardware a40 = roofline::read_hardware(data / "hardware/a40.json");
  const roofline::Hardware made =
      import_benchmarks(data / "measurements/vidur_a40.csv", &a40).hardware;
  CHECK(a40.elementwise_bandwidth->value == near(made.elementwise_bandwidth->value).epsilon(1e-4));
  // The middle ones of 63 products and of 9 additions: 1024x57344x8192 in 8.5275 ms at a peak of
  // 149.7 TFLOP/s, and three times 4096x8192 numbers of two bytes in 348 us at 696 GB/s.
  CHECK(made.matrix_rate.at(DType::FP16).value ==
        near(2.0 * 1024 * 57344 * 8192 / 8.5275e-3 / 149.7e12).epsilon(1e-3));
  CHECK(a40.elementwise_bandwidth->value ==
        near(3.0 * 2 * 4096 * 8192 / 348e-6 / 696e9).epsilon(1e-3));
}

TEST_CASE("import: without a datasheet the best rates are the peaks") {
  const File file(card);
  const roofline::Hardware hw = import_benchmarks(file.path(), nullptr).hardware;
  CHECK(hw.kind == "gpu");
  CHECK(hw.peak_flops_per_second.at(DType::FP16).value == near(80e12));
  CHECK(hw.matrix_rate.at(DType::FP16).value == near(0.75));
  CHECK(hw.vector_flops_per_second.value == near(10e12));
  CHECK(hw.memory_bandwidth.value == near(900e9));
  CHECK(hw.memory_bandwidth_factor->value == near(800.0 / 900));
  CHECK(hw.memory_capacity.value == 40e9);
  CHECK(hw.on_chip_memory_capacity.value == 41943040);
}

TEST_CASE("import: the file that is written reads back, with its provenance") {
  const File file(card);
  const roofline::Hardware base = datasheet();
  const TestFolder folder;
  std::ofstream(folder / "mine.json") << to_json(import_benchmarks(file.path(), &base), "mine");
  const roofline::Hardware hw = roofline::read_hardware(folder / "mine.json");
  CHECK(hw.name == "mine");
  CHECK(hw.description == "A Card, as measured (PyTorch 2.4)");
  CHECK(hw.peak_flops_per_second.at(DType::FP16).source == roofline::Source::Datasheet);
  CHECK(hw.peak_flops_per_second.at(DType::FP16).value == 100e12);
  CHECK(hw.batched_matrix_rate.at(DType::FP16).value == near(0.2667));
  CHECK(hw.links.at("nvlink").latency.value == near(5e-6));
  CHECK(hw.operator_latency.value == near(3e-6));
}

TEST_CASE("import: the script writes the columns and benchmarks that are read") {
  std::ifstream file(KVCAST_SOURCE_DIR "/tools/gpu_microbenchmarks.py");
  const std::string script{std::istreambuf_iterator<char>(file), {}};
  std::string columns = header;
  std::erase(columns, '\n');
  for (std::size_t begin = 0; begin < columns.size();) {
    const std::size_t end = std::min(columns.find(',', begin), columns.size());
    const std::string quoted = '"' + columns.substr(begin, end - begin) + '"';
    CAPTURE(quoted);
    CHECK(script.find(quoted) != std::string::npos);
    begin = end + 1;
  }
  for (const char* benchmark :
       {"matmul", "batched_matmul", "attention", "copy", "elementwise", "softmax", "small_kernel",
        "host_operator", "memory_capacity", "on_chip_memory"}) {
    CAPTURE(benchmark);
    CHECK(script.find('"' + std::string(benchmark) + '"') != std::string::npos);
  }
}

TEST_CASE("import: the noisiest row is the one whose times spread most") {
  const File file(replaced(card, "1,0.99,1.01,20\n", "1,0.8,1.3,20\n"));
  const ImportedBenchmarks imported = import_benchmarks(file.path(), nullptr);
  CHECK(imported.noisiest().shape == "1x1x1");
  CHECK(imported.noisiest().spread() == near(0.5));
}

TEST_CASE("import: a bad file is refused in one line that says where") {
  const auto refused = [](const std::string& text, const std::string& part,
                          const roofline::Hardware* base = nullptr) {
    const std::string message = refusal(text, base);
    CAPTURE(message);
    CAPTURE(part);
    CHECK(message.find(part) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  };
  refused("", "card.csv");
  refused(header, "no rows");
  const std::string changes[][3] = {{"q3_s", "q4_s", "no column 'q3_s'"},
                                    {"repeats\n", "repeats,more\n", ":2"},
                                    {"matmul,fp16", "matmull,fp16", "matmul"},
                                    {"matmul,fp16", "matmul,fp17", "fp17"},
                                    {"50e12,1,1,", "50e12,1,0,", "above zero"},
                                    {"50e12,1,1,", "-50e12,1,1,", "above zero"},
                                    {"50e12,1,1,", "50e12,1,nan,", ":4"},
                                    {"1,0.99,1.01,20", "1,1.02,1.01,20", "quartiles"},
                                    {"2x1x1", "1x1x1", "again"}};
  for (const auto& [what, with, part] : changes) refused(replaced(card, what, with), part);
  refused(card + replaced(run, "A Card", "B Card") + "copy,fp16,9,0,9e9,1,1,1,5\n",
          "A Card as in the first row");
  const roofline::Hardware base = datasheet();
  refused(replaced(card, "40e12,1,0.5,0.49,0.51", "900e12,1,0.5,0.49,0.51") + run +
              "matmul,fp16,4x1x1,900e12,1,1,1,1,5\n" + run + "matmul,fp16,5x1x1,900e12,1,1,1,1,5\n",
          "of the peak", &base);
  refused(card + run + "matmul,bf16,1x1x1,1e12,1,1,1,1,5\n", "no peak", &base);
  refused(
      replaced(replaced(card, "copy,fp16,1", "softmax,fp16,8"), "copy,fp16,2", "softmax,fp16,9"),
      "no copy row");
}

}  // namespace kvcast::measure
