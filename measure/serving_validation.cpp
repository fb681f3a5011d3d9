#include "measure/serving_validation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "measure/closed_loop.h"
#include "measure/engine_match.h"
#include "measure/model_match.h"
#include "measure/served_requests.h"
#include "model/base/error.h"
#include "roofline/engine.h"
#include "roofline/interconnect.h"
#include "simulate/serving/serving_scenario.h"

namespace kvcast::measure {
namespace {

using simulate::Sequence;
using simulate::ServingRequest;

/// "rtx-pro-6000-blackwell" -> "rtx-pro-6000": the longest name that the word begins with.
std::string device_name(const std::string& word, const Catalog& catalog) {
  const std::vector<std::string> names = catalog.names("hardware");
  for (std::string part = word; !part.empty();
       part.erase(std::min(part.size(), part.find_last_of('-')))) {
    if (std::find(names.begin(), names.end(), part) != names.end()) return part;
    if (part.find('-') == std::string::npos) break;
  }
  throw Error(not_in_catalog("hardware", word, names));
}

/// What became of one request.
struct Answered {
  double arrival_s = 0;
  double waited_s = 0;  ///< for its turn to be tokenised, and for a step
  double first_token_s = 0;
  double last_token_s = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t output_tokens = 0;
};

/// Of one of the pooled runs.
struct Served {
  std::vector<Answered> answered;
  simulate::ServingTimes times;
  double from_s = 0;  ///< of the time that rates are taken over
  double to_s = 0;
};

double percentile(std::vector<double> values, double percent) {
  std::sort(values.begin(), values.end());
  const double place = percent / 100 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

double value_of(std::vector<double> values, const std::optional<double>& percent) {
  if (values.empty()) throw Error("no request has this value");
  if (percent) return percentile(std::move(values), *percent);
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

/// Keeps what is answered after all of the clients' first requests and while all clients send.
void keep_steady(std::uint64_t users, Served& s) {
  std::vector<Answered>& all = s.answered;
  std::sort(all.begin(), all.end(),
            [](const Answered& a, const Answered& b) { return a.arrival_s < b.arrival_s; });
  const std::size_t first = std::min<std::size_t>(users, all.size() - 1);
  s.from_s = 0;
  for (std::size_t i = 0; i < first; ++i) s.from_s = std::max(s.from_s, all[i].last_token_s);
  s.to_s = all.back().arrival_s;
  std::erase_if(all, [&](const Answered& a) {
    return a.last_token_s <= s.from_s || a.last_token_s > s.to_s;
  });
  if (all.empty()) throw Error("no request is answered while all clients send");
}

/// A run's server, once set up, under any requests.
class Simulation {
 public:
  Simulation(ServedRun& run, const Catalog& catalog, const std::filesystem::path& traces)
      : run_(run), traces_(traces) {
    roofline::Configuration c = configuration_of(run, catalog);
    if (run.sends_text) c.engine.host.token.value += tokeniser_s;
    const std::string scheduler = scheduler_text(run, c);
    server_ = simulate::make_model_server(c, scheduler, "scheduler", run.memory_share);
    const simulate::SchedulerSettings& s = server_.servers.settings;
    facts_ = {c.architecture.name,
              c.hardware.name,
              c.engine.name,
              c.engine.version,
              std::string(simulate::name(s.policy)),
              s.num_blocks,
              s.max_num_seqs,
              s.max_num_batched_tokens};
  }

  /// All pooled runs.
  void run() {
    double waiting = 0;
    double all = 0;
    for (std::uint64_t i = 0; i < run_.workload.pooled_runs; ++i) {
      served_.push_back(serve(i, {}));
      const simulate::ServingTimes& t = served_.back().times;
      facts_.requests += t.finished;
      facts_.peak_running = std::max(facts_.peak_running, t.counts.peak_running);
      facts_.preemptions += t.counts.preemptions;
      for (const Answered& a : served_.back().answered) {
        waiting += a.waited_s;
        all += a.last_token_s - a.arrival_s;
      }
    }
    facts_.waiting_share = waiting / all;
  }

  double predicted(const ServedFigure& f) {
    if (f.quantity == ServedQuantity::MaxRate) return max_rate();
    switch (f.quantity) {
      case ServedQuantity::Ttft:
      case ServedQuantity::Tpot:
      case ServedQuantity::E2e: return value_of(pooled(f.quantity), f.percentile);
      case ServedQuantity::Itl: return itl(f.percentile);
      case ServedQuantity::Makespan:
      case ServedQuantity::RequestRate:
      case ServedQuantity::OutputTokenRate:
      case ServedQuantity::TokenRate: {
        std::vector<double> of_runs;
        for (const Served& s : served_) of_runs.push_back(of_run(f.quantity, s));
        return percentile(of_runs, 50);
      }
      case ServedQuantity::MaxRate: break;
    }
    KVCAST_ASSERT(false);
    return 0;
  }
  const ServedFacts& facts() const { return facts_; }

 private:
  Served serve(std::uint64_t number, const std::optional<double>& rate) {
    ServedRequests r = served_requests(run_.workload, traces_, number, rate);
    simulate::ServingSetup setup;
    setup.servers = server_.servers;
    setup.servers.settings.request_block_tokens = r.block_tokens;
    if (run_.workload.arrivals) setup.closed_loop = simulate::closed_loop(*run_.workload.arrivals);
    if (run_.fits_longest_prompt) {
      std::uint64_t& budget = setup.servers.settings.max_num_batched_tokens;
      for (const ServingRequest& request : r.requests) {
        budget = std::max(budget, request.prompt_tokens + setup.servers.settings.max_num_seqs);
      }
      facts_.max_num_batched_tokens = budget;
    }
    Served s;
    std::uint64_t rejected = 0;
    std::string why;
    simulate::ServingWatch watch;
    watch.on_finished = [&](const Sequence& q) {
      simulate::StepClock& clock = *setup.servers.clock;
      const double seen_s = q.request.arrival_s + clock.tokenising_seconds(q.request) +
                            clock.seconds_before(q.request);
      s.answered.push_back({q.request.arrival_s, q.scheduled_s.value_or(q.first_token_s) - seen_s,
                            q.first_token_s, q.last_token_s, q.request.prompt_tokens,
                            q.request.output_tokens});
    };
    watch.on_rejected = [&](const ServingRequest&, const std::string& reason) {
      if (rejected++ == 0) why = reason;
    };
    const std::uint64_t all = r.requests.size();
    simulate::RequestList source(std::move(r.requests), r.block_tokens);
    s.times = simulate::serve(setup, source, {}, watch);
    if (rejected > 0)
      throw Error(fmt::format("{} of {} requests are refused: {}", rejected, all, why));
    s.to_s = s.times.duration_s;
    if (run_.workload.steady) keep_steady(run_.workload.arrivals->users, s);
    return s;
  }

  std::vector<double> pooled(ServedQuantity quantity) const {
    std::vector<double> values;
    for (const Served& s : served_) {
      for (const Answered& a : s.answered) {
        if (quantity == ServedQuantity::Ttft) values.push_back(a.first_token_s - a.arrival_s);
        if (quantity == ServedQuantity::E2e) values.push_back(a.last_token_s - a.arrival_s);
        if (quantity == ServedQuantity::Tpot && a.output_tokens > 1) {
          values.push_back((a.last_token_s - a.first_token_s) /
                           static_cast<double>(a.output_tokens - 1));
        }
      }
    }
    return values;
  }

  double itl(const std::optional<double>& percent) const {
    if (served_.size() > 1) throw Error("gaps between tokens of several runs are not pooled");
    const simulate::Latency& l = served_.front().times.itl_s;
    // Tokens of a row of steps come together, and what is between them is not counted.
    const auto in_row = static_cast<double>(server_.servers.settings.num_scheduler_steps);
    if (!percent) return in_row * l.mean;
    if (*percent == 50) return in_row * l.p50;
    for (const auto& [known, value] :
         {std::pair{90.0, l.p90}, std::pair{95.0, l.p95}, std::pair{99.0, l.p99}}) {
      if (*percent != known) continue;
      if (in_row > 1) throw Error("the tail of gaps between rows of steps is not forecast");
      return value;
    }
    throw Error("gaps between tokens are forecast at p50, p90, p95 and p99");
  }

  static double of_run(ServedQuantity quantity, const Served& s) {
    if (quantity == ServedQuantity::Makespan) return s.times.duration_s;
    double tokens = 0;
    double outputs = 0;
    for (const Answered& a : s.answered) {
      tokens += static_cast<double>(a.prompt_tokens + a.output_tokens);
      outputs += static_cast<double>(a.output_tokens);
    }
    const double seconds = s.to_s - s.from_s;
    if (quantity == ServedQuantity::TokenRate) return tokens / seconds;
    if (quantity == ServedQuantity::OutputTokenRate) return outputs / seconds;
    return static_cast<double>(s.answered.size()) / seconds;
  }

  /// The rate before the first one of the grid that fails.
  double max_rate() {
    const RateGrid& grid = *run_.grid;
    double best = 0;
    const int last = static_cast<int>(std::lround((grid.last - grid.first) / grid.step));
    for (int i = 0; i <= last; ++i) {
      const double rate = grid.first + i * grid.step;
      const Served s = serve(0, rate);
      const auto missed = static_cast<std::uint64_t>(std::count_if(
          s.answered.begin(), s.answered.end(),
          [&](const Answered& a) { return a.last_token_s - a.arrival_s >= grid.limit_s; }));
      facts_.requests += s.answered.size();
      if (missed > grid.may_miss) break;
      best = rate;
    }
    facts_.waiting_share = 1;
    if (best == 0) throw Error("even the lowest rate of the grid fails");
    return best;
  }

  ServedRun& run_;
  const std::filesystem::path& traces_;
  simulate::ModelServer server_;
  ServedFacts facts_;
  std::vector<Served> served_;
};

}  // namespace

roofline::Configuration configuration_of(const ServedRun& run, const Catalog& catalog) {
  roofline::Configuration c;
  c.architecture = load_model(catalog, ModelMatch(catalog).find(run.model, 0));
  c.find_model = find_model_in(catalog);
  c.hardware = roofline::load_hardware(catalog, device_name(run.hardware, catalog));
  c.methods = parse_methods(run.method);
  Lowering& l = c.lowering;
  l.activations = l.cache = DType::BF16;
  l.weights = parse_weight_types(run.weight_dtype);
  if (run.weight_dtype == "fp8") l.activations = DType::FP8;
  if (run.fp8_cache) l.cache = DType::FP8;
  c.engine = roofline::load_engine(
      catalog, EngineMatch(catalog).find(run.engine, run.engine_version, run.engine_version));
  if (run.eager) c.engine.graphs = roofline::Graphs::None;
  if (!run.host_version.empty()) {
    c.engine.host = roofline::load_engine(catalog, c.engine.name + ":" + run.host_version).host;
    c.engine.host.request = {};  // no server, no HTTP
  }
  roofline::apply(c.engine, true, true, l);
  c.parallelism.tp = run.tp;
  if (run.tp > 1) c.interconnect = roofline::find_interconnect(catalog, "", c.hardware, run.tp);
  return c;
}

std::string scheduler_text(const ServedRun& run, const roofline::Configuration& c) {
  using simulate::Policy;
  Policy policy = simulate::default_policy(c.engine);
  std::map<std::string, std::string> options = run.scheduler;
  // Its chunks fill steps behind decode steps, under one budget, as Sarathi-Serve's.
  if (run.chunked_v0 && policy == Policy::VllmV0) {
    const simulate::SchedulerSettings own = simulate::default_settings(policy, c);
    options.emplace("max_num_seqs", std::to_string(own.max_num_seqs));
    policy = Policy::Sarathi;
  }
  if (run.num_blocks > 0) {
    // vLLM V1 keeps block 0.
    const std::uint64_t own = policy == Policy::VllmV1 ? 1 : 0;
    options["num_blocks"] = std::to_string(run.num_blocks - own);
  }
  // A row says "no prefix caching" of schedulers that never share a prefix, too.
  const char* const caching = "prefix_caching";
  if (const auto o = options.find(caching);
      o != options.end() && o->second == "false" && !simulate::reads_setting(policy, caching)) {
    options.erase(o);
  }
  return simulate::scheduler_text(policy, options);
}

ServingValidation validate_serving(std::vector<ServedRun> runs, const Catalog& catalog,
                                   const std::filesystem::path& traces,
                                   const std::function<void(std::size_t)>& on_progress) {
  ServingValidation v;
  v.runs = std::move(runs);
  v.facts.resize(v.runs.size());
  for (std::size_t i = 0; i < v.runs.size(); ++i) {
    ServedRun& run = v.runs[i];
    std::optional<Simulation> simulation;
    // Returns why it cannot be done; empty: it was.
    const auto attempt = [](const auto& what) -> std::string {
      try {
        what();
        return {};
      } catch (const Error& e) {
        if (e.fault() == Fault::Run) throw;
        return e.what();
      }
    };
    const bool is_grid = run.grid.has_value();
    std::string reason = run.unusable;
    if (reason.empty()) {
      reason = attempt([&] {
        simulation.emplace(run, catalog, traces);
        if (!is_grid) simulation->run();
      });
    }
    for (const ServedFigure& f : run.figures) {
      std::string why = reason.empty() ? f.unusable : reason;
      ServedCase c{i, f, 0};
      if (why.empty()) why = attempt([&] { c.predicted = simulation->predicted(f); });
      if (why.empty()) {
        v.cases.push_back(std::move(c));
      } else {
        v.unmatched.push_back({f.place, f.id, why});
      }
    }
    if (simulation) v.facts[i] = simulation->facts();
    if (on_progress) on_progress(i + 1);
  }
  return v;
}

}  // namespace kvcast::measure
