#include "roofline/estimator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

using namespace kvcast;
using namespace kvcast::roofline;

namespace {

bool mentions(const std::vector<std::string>& lines, const std::string& word) {
  for (const std::string& line : lines) {
    if (line.find(word) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("estimator: a method is measured against plain at the same point") {
  const Estimator plain(a100_configuration("pythia-160m", "plain"));
  const Estimator pruned(a100_configuration("pythia-160m", "random-prune:keep=0.25"));
  const DesignPoint p{4, 1024, 64};
  const Estimate base = plain.at(p);
  const Estimate e = pruned.at(p);
  CHECK(base.ttft_speedup == 1);
  CHECK(base.kv_cache_ratio == 1);
  CHECK(e.ttft_speedup == base.ttft_s / e.ttft_s);
  CHECK(e.tpot_speedup == base.tpot_s / e.tpot_s);
  CHECK(e.ttft_speedup > 1);
  // 256 of 1024 prompt tokens, and the 64 of the output
  CHECK(e.kv_cache_ratio == near((256.0 + 64) / (1024 + 64)));
}

TEST_CASE("estimator: keeping every token gains nothing, exactly") {
  const Estimate e =
      Estimator(a100_configuration("pythia-160m", "random-prune:keep=1")).at({4, 99, 9});
  CHECK(e.ttft_speedup == 1);
  CHECK(e.tpot_speedup == 1);
  CHECK(e.kv_cache_ratio == 1);
}

TEST_CASE("estimator: a sweep gives each point what it gets alone") {
  for (const std::string methods : {"plain", "random-prune:keep=0.25"}) {
    const Estimator estimator(a100_configuration("pythia-160m", methods));
    std::vector<DesignPoint> points;
    for (std::uint64_t i = 0; i < 100; ++i) points.push_back({1 + i % 4, 1 + 13 * i, 1 + i});
    std::vector<Estimate> rows(points.size());
    estimator.sweep(points, rows);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Estimate e = estimator.at(points[i]);
      CHECK(rows[i].ttft_s == e.ttft_s);
      CHECK(rows[i].tpot_s == e.tpot_s);
      CHECK(rows[i].ttft_speedup == e.ttft_speedup);
      CHECK(rows[i].kv_cache_ratio == e.kv_cache_ratio);
    }
  }
}

TEST_CASE("estimator: outputs of a prompt and batches that take turns get what each gets alone") {
  // Prompts of several outputs share their passes, and operators that are alike at all points of a
  // block are evaluated once; 70 prompts and 150 points fill more than one block of both.
  for (const std::string model : {"openelm-270m", "qwen3-30b-a3b", "gemma2-2b"}) {
    const Estimator estimator(a100_configuration(model, "plain"));
    std::vector<DesignPoint> points;
    for (std::uint64_t prompt = 1; prompt <= 70; ++prompt) {
      for (const std::uint64_t output : {1u, 100u}) points.push_back({8, 97 * prompt, output});
    }
    for (std::uint64_t output = 1; output <= 150; ++output) points.push_back({2, 500, output});
    for (std::uint64_t batch = 1; batch <= 9; ++batch) points.push_back({batch, 500, 9});
    std::vector<Estimate> rows(points.size());
    estimator.sweep(points, rows);
    for (std::size_t i = 0; i < points.size(); ++i) {
      CAPTURE(i);
      const Estimate alone = estimator.at(points[i]);
      CHECK(rows[i].ttft_s == alone.ttft_s);
      CHECK(rows[i].tpot_s == alone.tpot_s);
      CHECK(rows[i].bound == alone.bound);
      CHECK(rows[i].peak_memory_bytes == alone.peak_memory_bytes);
    }
  }
}

TEST_CASE("estimator: a request longer than the model's context is answered with a warning") {
  const Estimator pythia(a100_configuration("pythia-160m", "plain"));  // 2048 positions
  CHECK_FALSE(mentions(pythia.warnings({1, 2000, 48}), "longer than the context"));
  CHECK(mentions(pythia.warnings({1, 2000, 49}), "2049 tokens is longer than the context"));
  const Estimator whisper(a100_configuration("whisper-tiny", "plain"));  // 1500 frames, 448 tokens
  CHECK_FALSE(mentions(whisper.warnings({1, 1500, 447}), "longer"));
  CHECK(mentions(whisper.warnings({1, 1501, 100}), "encoder length of 1501"));
  CHECK(mentions(whisper.warnings({1, 1500, 448}), "output of 449"));
}

TEST_CASE("estimator: a factor that nobody measured is a warning; the speed of light needs none") {
  Configuration c = a100_configuration("pythia-160m", "plain");
  CHECK(Estimator(c).warnings({1, 10, 10}).empty());
  c.hardware.memory_bandwidth_factor.reset();
  CHECK(mentions(Estimator(c).warnings({1, 10, 10}), "memory_bandwidth"));
  c.mode = Mode::SpeedOfLight;
  CHECK(Estimator(c).warnings({1, 10, 10}).empty());
}

TEST_CASE("estimator: methods that do not fit the model, or dtypes the device, are refused") {
  CHECK_THROWS_AS(Estimator(a100_configuration("t5-small", "random-prune:keep=0.5")), Error);
  Configuration c = a100_configuration("pythia-160m", "plain");
  c.hardware.peak_flops_per_second.clear();
  CHECK_THROWS_AS(Estimator{c}, Error);
}

// The decoder's six layers of Whisper base read one cache of 1500 rows of 512 fp16 numbers: each is
// charged a sixth of it as long as it stays in the A100's 40 MB.
TEST_CASE(
    "estimator: a cache that all layers read is read from memory once while it fits on chip") {
  const Estimator e(a100_configuration("whisper-base", "slim:option=encdec2"));
  const std::uint64_t states = std::uint64_t{1500} * 512 * 2;
  const auto spared = [&](std::uint64_t batch) {
    std::uint64_t largest = 0;
    for (const BreakdownRow& row : e.breakdown({batch, 1500, 4})) {
      if (row.pass == "decode") largest = std::max(largest, row.time.bytes_hit_on_chip.count);
    }
    return largest;
  };
  CHECK(spared(1) == states * 5 / 6);
  CHECK(spared(20) == 20 * states * 5 / 6);
  CHECK(spared(40) == 0);
}

TEST_CASE("estimator: of a shared cache no more is spared than a window lets a layer read") {
  const Estimator e(a100_configuration("mistral-7b", "mlkv:layers=1,heads=1"));
  const DesignPoint p{1, 32000, 1};
  double decode = 0;
  for (const BreakdownRow& row : e.breakdown(p)) {
    CHECK(row.time.bytes_hit_on_chip.count <= row.time.bytes.count);
    if (row.pass == "decode") decode += row.total.value;
  }
  Estimate swept;
  e.sweep({&p, 1}, {&swept, 1});
  CHECK(decode == near(swept.tpot_s).epsilon(1e-6));
  CHECK(swept.tpot_speedup > 1);
}

// TinyLlama-1.1B: 22 layers of 32 heads, and the same 32000 words as Llama 2.
TEST_CASE("estimator: passes before the prefill add their time, work and memory") {
  const DesignPoint p{1, 2000, 10};
  const std::string method = "specprefill:keep=0.25,speculator=tinyllama-1.1b,lookahead=4";
  const Estimator estimator(a100_configuration("llama-2-7b", method));
  const Estimate e = estimator.at(p);
  const Estimate speculator =
      Estimator(a100_configuration("tinyllama-1.1b", "plain")).at({1, 2000, 4});
  const Estimate base = Estimator(a100_configuration("llama-2-7b", "plain")).at({1, 500, 10});
  // 3 later tokens of the speculator; scores of 4 queries are less than a hundredth of that.
  const double flops =
      speculator.prefill_flops + 3 * speculator.decode_flops_per_token + base.prefill_flops;
  CHECK(e.prefill_flops > flops);
  CHECK(e.prefill_flops < 1.01 * flops);
  const double seconds = speculator.ttft_s + 3 * speculator.tpot_s + base.ttft_s;
  CHECK(e.ttft_s > seconds);
  CHECK(e.ttft_s < 1.05 * seconds);
  CHECK(e.tpot_s == near(base.tpot_s).epsilon(1e-3));
  CHECK(e.kv_cache_bytes == base.kv_cache_bytes);
  CHECK(e.weight_bytes == base.weight_bytes + speculator.weight_bytes);
  // The speculator's cache of 2003 tokens and its 4 queries stay: 22 layers, 4 KV heads of 64.
  const double speculator_cache = 22 * 2.0 * (2 * 4 * 64 * 2003 + 2048 * 4);
  CHECK(e.peak_memory_bytes >= e.weight_bytes + e.kv_cache_bytes + speculator_cache);

  double ttft = 0;
  std::vector<std::string> passes;
  for (const BreakdownRow& row : estimator.breakdown(p)) {
    if (passes.empty() || passes.back() != row.pass) passes.push_back(row.pass);
    if (row.pass != "decode") ttft += row.total.value;
  }
  CHECK(passes ==
        std::vector<std::string>{"speculator prefill", "look-ahead", "score", "prefill", "decode"});
  CHECK(ttft == near(e.ttft_s).epsilon(1e-3));
}

TEST_CASE("estimator: a sweep over speculative points gives each what it gets alone") {
  const Estimator estimator(a100_configuration(
      "llama-2-7b", "specprefill:keep=0.3,speculator=tinyllama-1.1b,lookahead=3,chunk=32"));
  std::vector<DesignPoint> points;
  for (std::uint64_t prompt = 32; prompt < 10000; prompt = 3 * prompt + 5) {
    points.push_back({1 + prompt % 3, prompt, 7});
  }
  std::vector<Estimate> rows(points.size());
  estimator.sweep(points, rows);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Estimate alone = estimator.at(points[i]);
    CHECK(rows[i].ttft_s == alone.ttft_s);
    CHECK(rows[i].prefill_flops == near(alone.prefill_flops).epsilon(1e-12));
    CHECK(rows[i].peak_memory_bytes == alone.peak_memory_bytes);
  }
}

TEST_CASE("estimator: measured loads of experts say what is read, and correct nothing twice") {
  const auto with_loads = [](const std::function<double(int)>& load) {
    Configuration c = a100_configuration("qwen3-30b-a3b", "plain");
    std::vector<double> probabilities;
    double all = 0;
    for (int i = 0; i < 128; ++i) all += load(i);
    for (int i = 0; i < 128; ++i) probabilities.push_back(8 * load(i) / all);
    for (LayerShape& layer : c.architecture.decoder.layers) {
      layer.experts->probabilities = probabilities;
    }
    return Estimator(c).at({16, 1000, 2});
  };
  const Estimate usual = Estimator(a100_configuration("qwen3-30b-a3b", "plain")).at({16, 1000, 2});
  const Estimate alike = with_loads([](int) { return 1.0; });
  // What was counted for this model on text: 65 experts have nine tenths of the tokens.
  const auto text = [](int i) { return std::pow(75, -(i + 0.5) / 128); };
  const Estimate uneven = with_loads(text);
  CHECK(alike.decode_bytes_per_token == usual.decode_bytes_per_token);
  // Without loads seconds are those of text.
  CHECK(uneven.tpot_s == near(usual.tpot_s).epsilon(0.01));
  CHECK(alike.tpot_s > 1.1 * usual.tpot_s);
  // 48 layers, three matrices 2048 x 768 in 16 bits. Loads that are close count as their mean.
  double all = 0;
  for (int i = 0; i < 128; ++i) all += text(i);
  double read = 0;
  for (int i = 0; i < 128; ++i) read += 48 * (1 - std::pow(1 - 8 * text(i) / all, 16));
  const double fewer = 48 * 128 * (1 - std::pow(15.0 / 16, 16)) - read;
  const double expert = 3.0 * 2048 * 768 * 2;
  const double saved = 16 * (alike.decode_bytes_per_token - uneven.decode_bytes_per_token) / expert;
  CHECK(std::abs(saved - fewer) < 0.001 * read);
}
