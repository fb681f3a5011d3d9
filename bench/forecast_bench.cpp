// Design points a second, the cost of recording, and a cold `kvcast estimate`.
#include <cstdlib>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "roofline/estimator.h"

namespace {

using namespace kvcast;
using namespace kvcast::roofline;

Configuration configuration(const std::string& model, Kernels kernels,
                            const std::string& engine = "ideal") {
  const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  Configuration c;
  c.architecture = load_model(catalog, model);
  c.hardware = load_hardware(catalog, "a100-80gb");
  c.lowering.attention = c.lowering.elementwise = kernels;
  c.engine = load_engine(catalog, engine);
  apply(c.engine, false, false, c.lowering);
  return c;
}

/// 10 batches x 1000 prompt lengths x 10 output lengths, all different.
std::vector<DesignPoint> grid() {
  std::vector<DesignPoint> points;
  for (std::uint64_t batch = 1; batch <= 10; ++batch) {
    for (std::uint64_t prompt = 1; prompt <= 1000; ++prompt) {
      for (std::uint64_t output = 1; output <= 10; ++output) {
        points.push_back({batch, 16 * prompt, 64 * output});
      }
    }
  }
  return points;
}

void sweep_points(benchmark::State& state, const std::string& model, Kernels kernels,
                  const std::string& engine = "ideal") {
  const Estimator estimator(configuration(model, kernels, engine));
  const std::vector<DesignPoint> points = grid();
  std::vector<Estimate> rows(points.size());
  for (auto _ : state) {
    estimator.sweep(points, rows);
    benchmark::DoNotOptimize(rows.data());
  }
  state.counters["points"] = static_cast<double>(points.size());
  state.counters["points/s"] = benchmark::Counter(static_cast<double>(points.size()),
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

void record_and_compile(benchmark::State& state, const std::string& model, Kernels kernels) {
  const Configuration c = configuration(model, kernels);
  for (auto _ : state) {
    const Estimator estimator(c);
    benchmark::DoNotOptimize(&estimator);
  }
}

void cold_estimate(benchmark::State& state, const std::string& arguments) {
  const std::string command =
      std::string(KVCAST_PROGRAM) + " estimate --quiet " + arguments + " >/dev/null";
  for (auto _ : state) {
    if (std::system(command.c_str()) != 0) state.SkipWithError("kvcast estimate failed");
  }
}

}  // namespace

BENCHMARK_CAPTURE(sweep_points, llama_7b_tiled, "llama-7b", Kernels::Fused);
BENCHMARK_CAPTURE(sweep_points, llama_7b_eager, "llama-7b", Kernels::Eager);
BENCHMARK_CAPTURE(sweep_points, llama_405b_tiled, "llama-3.1-405b", Kernels::Fused);
BENCHMARK_CAPTURE(sweep_points, gemma2_9b_tiled, "gemma2-9b", Kernels::Fused);
BENCHMARK_CAPTURE(sweep_points, openelm_3b_tiled, "openelm-3b", Kernels::Fused);
BENCHMARK_CAPTURE(sweep_points, whisper_large_v3_tiled, "whisper-large-v3", Kernels::Fused);
BENCHMARK_CAPTURE(sweep_points, llama_7b_vllm, "llama-7b", Kernels::Fused, "vllm");
BENCHMARK_CAPTURE(sweep_points, qwen3_30b_tiled, "qwen3-30b-a3b", Kernels::Fused);
BENCHMARK_CAPTURE(sweep_points, gpt_oss_120b_tiled, "gpt-oss-120b", Kernels::Fused);
BENCHMARK_CAPTURE(sweep_points, deepseek_v3_tiled, "deepseek-v3", Kernels::Fused);
BENCHMARK_CAPTURE(record_and_compile, llama_7b_tiled, "llama-7b", Kernels::Fused)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(record_and_compile, llama_405b_eager, "llama-3.1-405b", Kernels::Eager)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(cold_estimate, llama_7b_tiled, "--model llama-7b --hardware a100-80gb")
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(cold_estimate, llama_405b_eager,
                  "--model llama-3.1-405b --hardware h200 --attention eager")
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
