#include "cli/validate/validate_serving.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/estimate/serving_axes.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/result.h"
#include "measure/measure_matrix.h"
#include "measure/serving_run.h"
#include "model/base/error.h"
#include "model/base/order_statistics.h"
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

/// Steps between two looks at the clock, and how long a look takes: about ten samples of the probe,
/// a twentieth of the time of eight steps of the smallest models that are validated.
constexpr std::uint64_t steps_of_a_look = 8;
constexpr double look_s = 0.01;

/// The scheduler with as many blocks as the run has.
std::string with_blocks(const std::string& scheduler, const std::string& blocks) {
  const std::string name = scheduler.empty() ? "vllm-v1" : scheduler;
  return fmt::format("{}{}num_blocks={}", name, name.find(':') == std::string::npos ? ":" : ",",
                     parse_token_count(blocks, "--num-blocks"));
}

struct Measured {
  ServingTimes times;
  double fma_rate = 0;  ///< FLOP/s on all threads, before its steps and between them
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Of one metric's forecasts, without their signs.
struct Errors {
  std::vector<double> all;
  std::vector<double> at_clock;  ///< of the forecasts for the clock of each run

  void add(double error, double error_at_clock) {
    all.push_back(std::abs(error));
    at_clock.push_back(std::abs(error_at_clock));
  }
};

class Bench {
 public:
  Bench(const ValidateOptions& o, const ServingFlags& flags, const Globals& globals,
        const std::string& method, const std::string& scheduler)
      : flags_(flags),
        scheduler_(with_blocks(scheduler, flags.blocks)),
        checkpoint_(measure::has_weights(o.model)
                        ? Checkpoint(o.model)
                        : Checkpoint(load_model(globals.catalog(), o.model), 1)) {
    const Catalog catalog = globals.catalog();
    configuration_.architecture = checkpoint_.architecture();
    configuration_.methods = parse_methods(method);
    configuration_.hardware = roofline::load_hardware(catalog, o.hardware);
    configuration_.find_model = find_model_in(catalog);
    options_.methods = configuration_.methods;
    options_.open = [catalog](const std::string& name) {
      return measure::has_weights(name) ? Checkpoint(name)
                                        : Checkpoint(load_model(catalog, name), 2);
    };
    configuration_.lowering = execute::session_lowering(options_);
    server_ = server_on(configuration_.hardware);
  }

  const roofline::Hardware& hardware() const { return configuration_.hardware; }
  ServingTimes forecast(double rate) { return forecast(server_, rate); }
  /// On the same machine with another clock.
  ServingTimes forecast_at_clock(double rate, double share) {
    return forecast(server_on(roofline::at_clock(hardware(), share)), rate);
  }
  /// Steps one after another: the time until the next request arrives is skipped.
  Measured run(double rate) {
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
    std::vector<double> fma_rates{execute::measure_fma_rate()};
    std::uint64_t done = 0;
    simulate::ServingWatch watch;
    watch.on_finished = [&](const simulate::Sequence& q) { steps->ended(q); };
    watch.on_step = [&](const simulate::ServedStep&) {
      if (++done % steps_of_a_look != 0) return;
      fma_rates.push_back(execute::measure_fma_rate(look_s));
      steps->idle(0);  // the look is in no step
    };
    const ServingTimes times = serve(setup, rate, watch);
    return {times, kvcast::median(fma_rates)};
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
  simulate::ModelServer server_on(const roofline::Hardware& hardware) const {
    roofline::Configuration c = configuration_;
    c.hardware = hardware;
    return simulate::make_model_server(c, scheduler_, "--scheduler");
  }
  ServingTimes forecast(const simulate::ModelServer& server, double rate) {
    simulate::ServingSetup setup;
    setup.servers = server.servers;
    return serve(setup, rate);
  }
  ServingTimes serve(simulate::ServingSetup& setup, double rate,
                     const simulate::ServingWatch& watch = {}) {
    const auto requests = flags_.workload.open(rate);
    setup.servers.settings.request_block_tokens = requests->block_tokens();
    return simulate::serve(setup, *requests, {}, watch);
  }

  const ServingFlags& flags_;
  std::string scheduler_;
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
  own.workload.check(globals, true);
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
  std::map<std::string, Errors> errors;
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
        const Measured run = bench.run(rate);
        const double clock = run.fma_rate / bench.hardware().vector_flops_per_second.value;
        const ServingTimes at_clock = bench.forecast_at_clock(rate, clock);
        for (const Metric& metric : metrics) {
          const double p = metric.of(predicted);
          const double m = metric.of(run.times);
          if (m == 0) continue;
          const double error_at_clock = metric.of(at_clock) / m - 1;
          rows.push_back({{"method", method},
                          {"scheduler", scheduler},
                          {"load", load},
                          {"rate", rate},
                          {"metric", metric.name},
                          {"predicted", p},
                          {"measured", m},
                          {"relative_error", p / m - 1},
                          {"clock", clock},
                          {"relative_error_at_clock", error_at_clock}});
          errors[metric.name].add(p / m - 1, error_at_clock);
        }
        bar.draw(++done, 0, methods.size() * schedulers.size() * loads.size(), watch.seconds());
      }
    }
  }
  ordered_json summary = ordered_json::object();
  for (const auto& [metric, of_metric] : errors) {
    summary[metric] = {{"rows", of_metric.all.size()},
                       {"mape", mean(of_metric.all)},
                       {"worst", *std::max_element(of_metric.all.begin(), of_metric.all.end())},
                       {"mape_at_clock", mean(of_metric.at_clock)}};
  }
  // What a narrow terminal cuts comes last.
  const std::vector<Column> columns{{"scheduler", "scheduler"},
                                    {"load", "load", in("{:.2g}")},
                                    {"rate", "rate", in("{:.4g}")},
                                    {"metric", "metric"},
                                    {"predicted", "predicted", in("{:.4g}")},
                                    {"measured", "measured", in("{:.4g}")},
                                    {"error", "relative_error", in_signed_percent},
                                    {"clock", "clock", in("{:.2f}")},
                                    {"at clock", "relative_error_at_clock", in_signed_percent},
                                    {"method", "method"}};
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
    text += fmt::format(
        "{}: mean error {:.1f} %, worst {:.1f} %, at the clock of each run {:.1f} %, {} rows\n",
        metric, 100 * s["mape"].get<double>(), 100 * s["worst"].get<double>(),
        100 * s["mape_at_clock"].get<double>(), s["rows"].get<std::size_t>());
  }
  print_text(text);
}

}  // namespace kvcast::cli
