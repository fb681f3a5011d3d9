// Time to first token of methods: each method's speed-up over plain beside the forecast one, the
// methods in turns. Random weights, whose values do not matter to what a shape costs.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/guarded.h"
#include "bench/turns.h"
#include "model/base/error.h"
#include "model/execute/batch_order.h"
#include "model/execute/machine_probe.h"
#include "model/graph/work.h"
#include "model/io/weights/catalog.h"
#include "roofline/forecast.h"

namespace kvcast::execute {
namespace {

struct Options {
  std::string model = "openelm-270m";
  std::vector<std::string> methods{"plain"};
  std::size_t batch = 1;
  std::uint64_t prompt_len = 1024;
  std::string hardware;
  bool operators = false;
  int repeats = 5;
  int uncounted = 1;
  int threads = 0;
};

/// The operators of a pass, those of one name together.
void print_operators(const std::string& pass, const std::vector<roofline::BreakdownRow>& rows,
                     const Graph& graph, const std::vector<double>& seconds) {
  struct Sum {
    double measured = 0, forecast = 0, flops = 0, bytes = 0;
  };
  std::map<std::string, Sum> sums;
  for (std::size_t n = 0; n < seconds.size(); ++n) {
    sums[std::string(name(graph.nodes()[n].op))].measured += seconds[n];
  }
  for (const roofline::BreakdownRow& row : rows) {
    if (row.pass != pass) continue;
    const auto count = static_cast<double>(row.count);
    Sum& sum = sums[row.group.op];
    sum.forecast += row.total.value;
    sum.flops += count * static_cast<double>(row.time.flops.count);
    sum.bytes += count * static_cast<double>(row.time.bytes.count);
  }
  for (const auto& [op, sum] : sums) {
    std::fprintf(stderr, "  %-20s %-16s %9.2f ms, forecast %9.2f ms, %7.1f GFLOP/s %6.1f GB/s\n",
                 pass.c_str(), op.c_str(), sum.measured * 1e3, sum.forecast * 1e3,
                 sum.flops / sum.measured / 1e9, sum.bytes / sum.measured / 1e9);
  }
}

/// One method, loaded.
class Prefill {
 public:
  Prefill(const Options& o, const Catalog& catalog, const Checkpoint& checkpoint,
          const roofline::Hardware& hardware, const std::string& method)
      : options_(o),
        session_(checkpoint, {.methods = parse_methods(method),
                              .open =
                                  [&catalog](const std::string& name) {
                                    return Checkpoint(load_model(catalog, name), 2);
                                  }}),
        forecaster_(session_.recording(), session_lowering(session_.options()),
                    roofline::make_rates(hardware, session_lowering(session_.options()),
                                         roofline::Mode::Calibrated)),
        method_(method) {
    const std::vector<TokenId> all =
        made_up_prompt(o.batch * o.prompt_len, session_.architecture().vocab_size);
    for (std::size_t b = 0; b < o.batch; ++b) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(b * o.prompt_len);
      request_.tokens.emplace_back(first, first + static_cast<std::ptrdiff_t>(o.prompt_len));
    }
    if (runs_one_by_one(session_, request_)) {
      throw Error(method, "a batch that runs one after another", "one that runs together");
    }
  }

  Turn turn() const {
    return {method_, forecaster_.at({options_.batch, options_.prompt_len, 1}).ttft_s,
            [this] { return session_.run(request_).ttft_s; }};
  }

  /// Of one run, helper passes and prefill, on stderr.
  void print_profile() const {
    const Generation run = session_.run(request_);
    const Recording& recording = session_.recording();
    const auto rows = forecaster_.breakdown({options_.batch, options_.prompt_len, 1});
    std::fprintf(stderr, "%s: %.4g s\n", method_.c_str(), run.ttft_s);
    for (std::size_t i = 0; i < recording.helpers().size(); ++i) {
      print_operators(recording.helpers()[i].name, rows, recording.helpers()[i].graph,
                      run.profile.helpers_s[i]);
    }
    print_operators("prefill", rows, recording.prefill(), run.profile.prefill_s);
  }

 private:
  const Options& options_;
  Session session_;
  roofline::Forecaster forecaster_;
  std::string method_;
  Request request_;
};

void run(const Options& o) {
  const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  const roofline::Hardware hardware = roofline::load_hardware(catalog, o.hardware);
  const Checkpoint checkpoint(load_model(catalog, o.model), 1);
  const int threads = use_threads(o.threads);
  std::fprintf(stderr, "%d threads, FMA %.1f GFLOP/s, read %.1f GB/s\n", threads,
               measure_fma_rate() / 1e9, measure_read_bandwidth() / 1e9);
  std::vector<std::unique_ptr<Prefill>> prefills;
  std::vector<Turn> turns;
  for (const std::string& method : o.methods) {
    prefills.push_back(std::make_unique<Prefill>(o, catalog, checkpoint, hardware, method));
    turns.push_back(prefills.back()->turn());
  }
  take_turns(turns, o.uncounted);
  for (Turn& turn : turns) turn.seconds.clear();
  {
    ClockMeter meter;
    take_turns(turns, o.repeats, &meter);
  }
  std::printf(
      "model,method,batch,prompt_len,rounds,measured_ttft_s,predicted_ttft_s,measured_speedup,"
      "predicted_speedup,relative_error,speedup_at_one_clock,relative_error_at_one_clock\n");
  print_speedups(turns, [&](const std::string& method) {
    // A method's options are separated by commas.
    const std::string cell = method.find(',') == std::string::npos ? method : '"' + method + '"';
    return fmt::format("{},{},{},{},{}", o.model, cell, o.batch, o.prompt_len, o.repeats);
  });
  if (!o.operators) return;
  for (const auto& prefill : prefills) prefill->print_profile();
}

}  // namespace
}  // namespace kvcast::execute

int main(int argc, char** argv) {
  kvcast::execute::Options o;
  CLI::App app("time to first token of methods");
  app.add_option("--model", o.model, "of the catalog");
  app.add_option("--method", o.methods, "the first one is what the others are held against")
      ->delimiter('\n');  // commas are a method's own
  app.add_option("--batch", o.batch, "")->check(CLI::PositiveNumber);
  app.add_option("--prompt-len", o.prompt_len, "")->check(CLI::PositiveNumber);
  app.add_option("--hardware", o.hardware, "a calibrated file of this machine")->required();
  app.add_option("--repeats", o.repeats, "rounds")->check(CLI::PositiveNumber);
  app.add_option("--uncounted", o.uncounted, "rounds before them")->check(CLI::NonNegativeNumber);
  app.add_option("--threads", o.threads, "")->check(CLI::NonNegativeNumber);
  app.add_flag("--operators", o.operators, "then one run of each by operator, on stderr");
  CLI11_PARSE(app, argc, argv);
  return kvcast::run_guarded(argv[0], [&] { kvcast::execute::run(o); });
}
