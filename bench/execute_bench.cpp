// How far the executor is from what the machine can do, for the shapes of published models with
// random weights. Every run stands between two measurements of the machine, since a shared host
// changes speed within seconds: prefill as a share of the multiply-add rate, decoding as a share of
// the rate at which memory is read.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/guarded.h"
#include "bench/shapes.h"
#include "model/execute/machine_probe.h"
#include "model/graph/work.h"
#include "model/io/weights/catalog.h"

namespace kvcast::execute {
namespace {

struct Shape {
  const char* model;
  std::vector<std::size_t> prompts;
  std::size_t output_len;  ///< 1: no decoding
};

const std::vector<Shape> shapes{
    {"smollm2-135m", {128, 512, 1024}, 33},
    {"tinyllama-1.1b", {128, 512, 1024}, 17},
    {"pythia-410m", {128, 512}, 17},
    {"openelm-450m", {128, 512}, 17},
    {"t5-base", {512}, 1},
    {"whisper-base", {1500}, 17},
};

struct Options {
  std::vector<std::string> models;
  int repeats = 5;
  int threads = 0;
};

/// FLOPs of the matrix products of a pass: projections, convolutions, q·k and p·v of visible pairs.
double matrix_flops(const Graph& graph, std::span<const std::uint64_t> values) {
  double flops = 0;
  for (const Node& node : graph.nodes()) {
    if (rate_class(node.op) == RateClass::Matrix) {
      flops += static_cast<double>(work(graph, node).flops.at(values));
    }
    if (const auto* a = std::get_if<TiledAttention>(&node.op)) {
      const Heads& h = a->heads;
      flops += 4.0 * static_cast<double>(h.num_attention_heads * h.head_dim) *
               static_cast<double>(
                   (graph.tensor(node.inputs[0]).shape[0] * a->visible_pairs).at(values));
    }
  }
  return flops;
}

void measure(const Session& session, std::size_t prompt, std::size_t output_len, int repeats) {
  const Architecture& a = session.architecture();
  const Request request = made_up_request(a, prompt, output_len);
  const Recording& recording = session.recording();
  const std::uint64_t start = request.tokens[0].size();
  const auto values = recording.symbols.resolve({1, prompt, start});
  const double flops = matrix_flops(recording.prefill(), values);
  const std::uint64_t middle = start + output_len / 2;
  const double bytes = static_cast<double>(
      total_work(recording.decode()).bytes().at(recording.symbols.resolve({1, prompt, middle})));

  session.run(request);  // compiles kernels, touches memory
  std::vector<double> prefill;
  std::vector<double> prefill_share;
  std::vector<double> decode;
  std::vector<double> decode_share;
  double fma = measure_fma_rate();
  double read = measure_read_bandwidth();
  for (int i = 0; i < repeats; ++i) {
    const Generation g = session.run(request);
    const double fma_after = measure_fma_rate();
    const double read_after = measure_read_bandwidth();
    prefill.push_back(g.ttft_s);
    prefill_share.push_back(flops / g.ttft_s / ((fma + fma_after) / 2));
    decode.push_back(g.tpot_s);
    if (g.tpot_s > 0) decode_share.push_back(bytes / g.tpot_s / ((read + read_after) / 2));
    fma = fma_after;
    read = read_after;
  }
  const double seconds = median(prefill);
  std::printf("%-15s pp%-5zu %9.1f tok/s %8.1f GFLOP/s %6.1f %% of FMA peak %6.1f GFLOP/s\n",
              a.name.c_str(), prompt, static_cast<double>(prompt) / seconds, flops / seconds / 1e9,
              100 * median(prefill_share), fma / 1e9);
  if (!decode_share.empty()) {
    const double step = median(decode);
    std::printf("%-15s tg%-5zu %9.1f tok/s %8.1f GB/s    %6.1f %% of read rate %5.1f GB/s\n",
                a.name.c_str(), output_len - 1, 1 / step, bytes / step / 1e9,
                100 * median(decode_share), read / 1e9);
  }
  std::fflush(stdout);
}

void run(const Options& o) {
  std::printf("%d threads, median of %d runs, random fp32 weights\n", use_threads(o.threads),
              o.repeats);
  const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  for (const Shape& shape : shapes) {
    const bool wanted = o.models.empty() ||
                        std::find(o.models.begin(), o.models.end(), shape.model) != o.models.end();
    if (!wanted) continue;
    const Checkpoint checkpoint(load_model(catalog, shape.model), 1);
    const Session session(checkpoint, {});
    for (const std::size_t prompt : shape.prompts) {
      // Decoding is measured once, after the middle prompt.
      const bool decodes = prompt == shape.prompts[shape.prompts.size() / 2];
      measure(session, prompt, decodes ? shape.output_len : 1, o.repeats);
    }
  }
}

}  // namespace
}  // namespace kvcast::execute

int main(int argc, char** argv) {
  kvcast::execute::Options o;
  CLI::App app("the executor beside what the machine can do");
  app.add_option("--model", o.models, "only these of the models");
  app.add_option("--repeats", o.repeats, "")->check(CLI::PositiveNumber);
  app.add_option("--threads", o.threads, "")->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  return kvcast::run_guarded(argv[0], [&] { kvcast::execute::run(o); });
}
