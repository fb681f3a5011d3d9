// Steps of training beside what the machine can do: an optimizer's step of the shape of a published
// model, in each grade of recomputation, as a share of the rate of multiply-adds that its cores had
// in the meantime; and in turns with it the same step of PyTorch.
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/clock_meter.h"
#include "bench/command_output.h"
#include "bench/guarded.h"
#include "bench/shapes.h"
#include "model/base/stopwatch.h"
#include "model/graph/work.h"
#include "model/io/weights/catalog.h"
#include "model/train/trainer.h"

namespace kvcast::train {
namespace {

struct Options {
  std::string model = "smollm2-135m";
  std::size_t seq_len = 512;
  std::uint64_t batch = 8;
  std::uint64_t micro_batches = 1;
  std::uint64_t loss_chunks = 1;
  std::vector<std::string> recompute{"none", "selective", "full"};
  std::string python;  ///< with torch and transformers; empty: no peer
  int repeats = 5;
  int threads = 0;
};

/// Seconds of PyTorch's step.
double pytorch_step_s(const Options& o, int threads) {
  return std::stod(output_of(fmt::format(
      "'{}' '{}' '{}' {} {} {}", o.python, KVCAST_SOURCE_DIR "/bench/pytorch_training.py",
      Catalog(KVCAST_SOURCE_DIR "/data").find("models", "model", o.model).string(), o.batch,
      o.seq_len, threads)));
}

void measure(const Checkpoint& checkpoint, const Options& o, Recompute recompute, int threads) {
  TrainSettings settings;
  settings.batch = o.batch;
  settings.micro_batches = o.micro_batches;
  settings.recompute = recompute;
  settings.loss_chunks = o.loss_chunks;
  Trainer trainer(checkpoint, {}, settings);
  const std::uint64_t tokens = o.batch * o.seq_len;
  TokenWindows text(execute::made_up_prompt(tokens + 1, checkpoint.architecture().vocab_size),
                    o.seq_len, 1);
  trainer.step(text);  // compiles kernels, touches memory

  const double flops =
      static_cast<double>(o.micro_batches) *
      static_cast<double>(trainer.recording().hardware_flops.at(
          trainer.recording().symbols.resolve({o.batch / o.micro_batches, o.seq_len, 0})));

  execute::ClockMeter meter;
  std::vector<double> seconds;
  std::vector<double> shares;
  std::vector<double> of_peer;
  std::vector<double> speedups;
  for (int i = 0; i < o.repeats; ++i) {
    meter.restart();
    const Stopwatch watch;
    trainer.step(text);
    seconds.push_back(watch.seconds());
    shares.push_back(flops / seconds.back() / (threads * meter.mean()));
    if (o.python.empty() || recompute != Recompute::None) continue;
    of_peer.push_back(pytorch_step_s(o, threads));
    speedups.push_back(of_peer.back() / seconds.back());
  }
  const double step = median(seconds);
  std::printf(
      "%-15s %4zu x %-5zu recompute %-9s %8.3f s/step %8.1f tok/s %7.1f GFLOP/s %6.1f %% of FMA "
      "rate\n",
      checkpoint.architecture().name.c_str(), static_cast<std::size_t>(o.batch), o.seq_len,
      std::string(name(recompute)).c_str(), step, static_cast<double>(tokens) / step,
      flops / step / 1e9, 100 * median(shares));
  if (!of_peer.empty()) {
    std::printf("%-15s PyTorch %37.3f s/step %8.1f tok/s, kvcast %.2f x\n", "", median(of_peer),
                static_cast<double>(tokens) / median(of_peer), median(speedups));
  }
  std::fflush(stdout);
}

void run(const Options& o) {
  if (o.batch % o.micro_batches != 0) {
    throw Error("--micro-batches", std::to_string(o.micro_batches),
                "a divisor of the batch, " + std::to_string(o.batch));
  }
  if (!o.python.empty() && o.micro_batches > 1) {
    throw Error("--pytorch", std::to_string(o.micro_batches) + " micro-batches", "1");
  }
  const int threads = execute::use_threads(o.threads);
  std::printf("%d threads, median of %d steps, random fp32 weights\n", threads, o.repeats);
  const Checkpoint checkpoint(load_model(Catalog(KVCAST_SOURCE_DIR "/data"), o.model), 1);
  for (const std::string& grade : o.recompute) {
    measure(checkpoint, o, parse_recompute(grade), threads);
  }
}

}  // namespace
}  // namespace kvcast::train

int main(int argc, char** argv) {
  kvcast::train::Options o;
  CLI::App app("steps of training beside what the machine can do");
  app.add_option("--model", o.model, "of the catalog; random weights");
  app.add_option("--seq-len", o.seq_len, "tokens of a sequence")->check(CLI::PositiveNumber);
  app.add_option("--batch", o.batch, "sequences of a step")->check(CLI::PositiveNumber);
  app.add_option("--micro-batches", o.micro_batches, "")->check(CLI::PositiveNumber);
  app.add_option("--loss-chunks", o.loss_chunks,
                 "parts of each sequence in the loss, not PyTorch's")
      ->check(CLI::PositiveNumber);
  app.add_option("--recompute", o.recompute, "none, selective or full; repeatable");
  app.add_option("--pytorch", o.python,
                 "a Python with torch and transformers, a peer of the grade none");
  app.add_option("--repeats", o.repeats, "steps")->check(CLI::PositiveNumber);
  app.add_option("--threads", o.threads, "")->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  return kvcast::run_guarded(argv[0], [&] { kvcast::train::run(o); });
}
