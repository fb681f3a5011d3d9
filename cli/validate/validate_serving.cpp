#include "cli/validate/validate_serving.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/estimate/serving_axes.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/result.h"
#include "measure/measure_matrix.h"
#include "measure/serving_run.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/execute/machine_probe.h"
#include "reports/sweep/sweep_spec.h"
#include "simulate/serving/model_server.h"

namespace kvcast::cli {
namespace {

using simulate::ServingTimes;

/// A metric that is compared.
struct Metric {
  const char* name;
  double (*of)(const ServingTimes&);
};
constexpr Metric metrics[]{
    {"mean_ttft_s", [](const ServingTimes& t) { return t.ttft_s.mean; }},
    {"p95_ttft_s", [](const ServingTimes& t) { return t.ttft_s.p95; }},
    {"mean_tpot_s", [](const ServingTimes& t) { return t.tpot_s.mean; }},
    {"p95_tpot_s", [](const ServingTimes& t) { return t.tpot_s.p95; }},
    {"output_token_throughput", [](const ServingTimes& t) { return t.output_token_throughput; }},
};

/// The scheduler with as many blocks as the run has.
std::string with_blocks(const std::string& scheduler, const std::string& blocks) {
  const std::string name = scheduler.empty() ? "vllm-v1" : scheduler;
  return fmt::format("{}{}num_blocks={}", name, name.find(':') == std::string::npos ? ":" : ",",
                     parse_token_count(blocks, "--num-blocks"));
}

class Bench {
 public:
  Bench(const ValidateOptions& o, const ServingFlags& flags, const Globals& globals,
        const std::string& method, const std::string& scheduler)
      : flags_(flags),
        checkpoint_(measure::has_weights(o.model)
                        ? Checkpoint(o.model)
                        : Checkpoint(load_model(globals.catalog(), o.model), 1)) {
    const Catalog catalog = globals.catalog();
    configuration_.architecture = checkpoint_.architecture();
    configuration_.methods = parse_methods(method);
    configuration_.hardware = roofline::load_hardware(catalog, o.hardware);
    configuration_.find_model = [catalog](const std::string& name) {
      return load_model(catalog, name);
    };
    options_.methods = configuration_.methods;
    options_.open = [catalog](const std::string& name) {
      return measure::has_weights(name) ? Checkpoint(name)
                                        : Checkpoint(load_model(catalog, name), 2);
    };
    configuration_.lowering = execute::session_lowering(options_);
    server_ = simulate::make_model_server(configuration_, with_blocks(scheduler, flags.blocks),
                                          "--scheduler");
  }

  ServingTimes forecast(const std::optional<double>& rate) {
    simulate::ServingSetup setup;
    setup.servers = server_.servers;
    return serve(setup, rate);
  }
  /// Steps one after another: the time until the next request arrives is skipped.
  ServingTimes run(double rate) {
    simulate::SchedulerSettings s = server_.servers.settings;
    // Caches of windows or methods have room for the whole prompt.
    const std::function<std::uint64_t(std::uint64_t)> rows = std::exchange(s.cache_rows, {});
    std::uint64_t states = 0;
    if (has_states(checkpoint_.architecture().decoder)) {
      s.cache_rows = [rows](std::uint64_t tokens) { return std::max(tokens, rows(tokens)); };
      const std::uint64_t blocks_of_one = (rows(1) + s.block_size - 1) / s.block_size;
      states = std::min(s.max_num_seqs, s.num_blocks / blocks_of_one);
    }
    s.request_block_tokens = flags_.workload.open(rate)->block_tokens();
    execute::StepSession session(checkpoint_, options_, {s.num_blocks, s.block_size, states});
    const auto steps = std::make_shared<measure::ExecutedSteps>(session, s, false);
    simulate::ServingSetup setup;
    setup.servers = {s, steps, 1};
    return serve(setup, rate, [&](const simulate::Sequence& q) { steps->ended(q); });
  }
  /// Requests a second when all come at once.
  double saturation() {
    WorkloadFlags all = flags_.workload;
    all.arrivals = "burst";
    const auto requests = all.open();
    simulate::ServingSetup setup;
    setup.servers = server_.servers;
    setup.servers.settings.request_block_tokens = requests->block_tokens();
    return simulate::serve(setup, *requests).request_throughput;
  }

 private:
  ServingTimes serve(simulate::ServingSetup& setup, const std::optional<double>& rate,
                     const std::function<void(const simulate::Sequence&)>& ended = {}) {
    const auto requests = flags_.workload.open(rate);
    setup.servers.settings.request_block_tokens = requests->block_tokens();
    simulate::ServingWatch watch;
    watch.on_finished = ended;
    return simulate::serve(setup, *requests, {}, watch);
  }

  const ServingFlags& flags_;
  Checkpoint checkpoint_;
  roofline::Configuration configuration_;
  execute::SessionOptions options_;
  simulate::ModelServer server_;
};

}  // namespace

void ServingFlags::add_to(Command c) {
  c.add("--serving", serving,
        "run a workload on this machine (--model, --method LIST) and forecast it (--hardware)");
  c.add("--scheduler LIST", schedulers, "--serving: schedulers separated by ';' [vllm-v1]")
      .allow_extra_args(false);
  c.add("--load LIST", loads,
        "--serving: rates, as shares of the forecast requests a second when all come at once");
  c.add("--num-blocks N", blocks, "--serving: blocks of the cache");
  workload.add_to(c);
  c.need({"--scheduler", "--load", "--num-blocks", "--requests", "--arrivals", "--prompt-lens",
          "--output-lens", "--prefixes", "--num-requests", "--seed"},
         {"--serving"});
}

void validate_serving(const ValidateOptions& o, const ServingFlags& flags, const Globals& globals) {
  if (o.model.empty() || o.hardware.empty()) {
    throw Error(
        "--serving: needs --model and --hardware HW.json of this machine, written by "
        "kvcast calibrate");
  }
  ServingFlags own = flags;
  if (own.workload.arrivals.empty()) own.workload.arrivals = "poisson:rate=1";
  own.workload.check();
  const std::vector<double> loads = parse_rates(own.loads, "--load");
  const std::vector<std::string> methods = o.method.empty()
                                               ? std::vector<std::string>{"plain"}
                                               : reports::parse_method_words(o.method, "--method");
  const std::vector<std::string> schedulers =
      own.schedulers.empty()
          ? std::vector<std::string>{"vllm-v1"}
          : reports::parse_method_words(fmt::format("{}", fmt::join(own.schedulers, ";")),
                                        "--scheduler");
  const int threads = execute::use_threads(o.threads);
  std::deque<Bench> benches;  // all are made before the first one runs: what cannot be is said now
  for (const std::string& method : methods) {
    for (const std::string& scheduler : schedulers) {
      benches.emplace_back(o, own, globals, method, scheduler);
    }
  }
  auto next = benches.begin();
  ordered_json rows = ordered_json::array();
  std::map<std::string, std::vector<double>> errors;
  ProgressBar bar(globals.quiet);
  const Stopwatch watch;
  std::uint64_t done = 0;
  for (const std::string& method : methods) {
    for (const std::string& scheduler : schedulers) {
      Bench& bench = *next++;
      const double saturation = bench.saturation();
      for (const double load : loads) {
        const double rate = load * saturation;
        const ServingTimes predicted = bench.forecast(rate);
        const ServingTimes measured = bench.run(rate);
        for (const Metric& metric : metrics) {
          const double p = metric.of(predicted);
          const double m = metric.of(measured);
          if (m == 0) continue;
          rows.push_back({{"method", method},
                          {"scheduler", scheduler},
                          {"load", load},
                          {"rate", rate},
                          {"metric", metric.name},
                          {"predicted", p},
                          {"measured", m},
                          {"relative_error", p / m - 1}});
          errors[metric.name].push_back(std::abs(p / m - 1));
        }
        bar.draw(++done, 0, methods.size() * schedulers.size() * loads.size(), watch.seconds());
      }
    }
  }
  ordered_json summary = ordered_json::object();
  for (const auto& [metric, all] : errors) {
    double sum = 0;
    for (const double e : all) sum += e;
    summary[metric] = {{"rows", all.size()},
                       {"mape", sum / static_cast<double>(all.size())},
                       {"worst", *std::max_element(all.begin(), all.end())}};
  }
  const std::vector<Column> columns{{"method", "method"},
                                    {"scheduler", "scheduler"},
                                    {"load", "load", in("{:.2g}")},
                                    {"rate", "rate", in("{:.4g}")},
                                    {"metric", "metric"},
                                    {"predicted", "predicted", in("{:.4g}")},
                                    {"measured", "measured", in("{:.4g}")},
                                    {"error", "relative_error", in_signed_percent}};
  if (!o.csv.empty()) write_rows_csv(csv_target(o.csv), columns, rows);
  if (o.json) {
    return print_json({{"model", o.model},
                       {"threads", threads},
                       {"workload", own.workload.in_words()},
                       {"rows", rows},
                       {"summary", summary}});
  }
  std::string text = table_text(columns, rows) + "\n";
  for (const auto& [metric, s] : summary.items()) {
    text += fmt::format("{}: mean error {:.1f} %, worst {:.1f} %, {} rows\n", metric,
                        100 * s["mape"].get<double>(), 100 * s["worst"].get<double>(),
                        s["rows"].get<std::size_t>());
  }
  print_text(text);
}

}  // namespace kvcast::cli
