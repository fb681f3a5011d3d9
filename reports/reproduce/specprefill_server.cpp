#include "reports/reproduce/specprefill_server.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/random.h"
#include "model/io/files/csv_table.h"
#include "model/record/recording.h"
#include "reports/reproduce/reproduce.h"
#include "roofline/server_step.h"
#include "simulate/serving/model_server.h"

namespace kvcast::reports {
namespace {

using roofline::Configuration;
using roofline::ServerStep;
using simulate::ServingRequest;

/// Both models run on the same devices, in eager mode: no pass is a CUDA graph.
Configuration configuration(const ServingExperiment& e, const std::string& model) {
  Configuration c;
  c.architecture = load_model(e.catalog, model);
  c.find_model = find_model_in(e.catalog);
  c.hardware = roofline::load_hardware(e.catalog, e.setting("hardware"));
  c.engine = roofline::load_engine(e.catalog, e.setting("engine"));
  c.engine.graphs = roofline::Graphs::None;
  for (roofline::EngineValue& v : c.engine.values) {
    if (v.key == "scheduler.memory_share") v.value = e.setting("memory_share");
  }
  c.lowering = {Kernels::Fused, Kernels::Fused, DType::BF16, DType::BF16, DType::BF16};
  roofline::apply(c.engine, true, true, c.lowering);
  c.parallelism.tp = e.whole("tp");
  if (!c.parallelism.is_one()) {
    c.interconnect =
        roofline::find_interconnect(e.catalog, "", c.hardware, c.parallelism.devices());
  }
  return c;
}

/// Llama-3.1-405B-Instruct-FP8: fp8 weights and operands of their products; results, messages and
/// cache have 16 bits.
Configuration base_configuration(const ServingExperiment& e, const std::string& model) {
  Configuration c = configuration(e, model);
  if (model == e.setting("fp8_model")) {
    c.lowering.weights = parse_weight_types("fp8-channel");
    c.lowering.operands = DType::FP8;
  }
  return c;
}

void set_arrivals(std::vector<ServingRequest>& requests, double gap_s) {
  double now = 0;
  for (ServingRequest& r : requests) r.arrival_s = now += gap_s;
}

/// The same order on every machine.
void shuffle(std::vector<ServingRequest>& requests, std::uint64_t seed) {
  Random random(seed, 0);
  for (std::size_t i = requests.size(); i > 1; --i) {
    std::swap(requests[i - 1], requests[random.below(static_cast<std::uint32_t>(i))]);
  }
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].id = i;
}

}  // namespace

ServingExperiment::ServingExperiment(const Catalog& from) : catalog(from) {
  const Published published(catalog);
  const CsvTable table = published.read("specprefill_serving_settings.csv");
  std::map<std::string, std::map<std::string, double>> of_category;
  for (const CsvRow& row : table.rows()) {
    const std::string& of = row.text("of");
    if (of == "all") {
      settings[row.text("setting")] = row.text("value");
    } else {
      of_category[of][row.text("setting")] = row.number("value");
    }
  }
  slack_s = std::stod(setting("slack_s"));
  misses_allowed = whole("misses_allowed");

  const CsvTable workload = published.read("specprefill_serving_workload.csv");
  for (const CsvRow& row : workload.rows()) {
    const std::string& name = row.text("category");
    if (categories.empty() || categories.back().name != name) {
      const auto& values = of_category[name];
      const auto value = [&](const char* key) {
        const auto found = values.find(key);
        if (found == values.end()) {
          throw Error(table.name(), "no '" + std::string(key) + "' of " + name, "one");
        }
        return found->second;
      };
      ServingCategory c{name, value("timeout_s"), value("keep"), row.text("sent_as") == "chat", {},
                        {}};
      const double step = value("qps_step");
      const auto steps =
          static_cast<std::size_t>(std::llround((value("last_qps") - value("first_qps")) / step));
      for (std::size_t i = 0; i <= steps; ++i) {
        c.qps.push_back(value("first_qps") + static_cast<double>(i) * step);
      }
      categories.push_back(std::move(c));
    }
    ServingRequest request;
    request.prompt_tokens = row.whole("prompt_tokens");
    request.output_tokens = row.whole("max_output_tokens");
    auto& requests = categories.back().requests;
    requests.insert(requests.end(), row.whole("requests"), request);
  }
  for (ServingCategory& c : categories) shuffle(c.requests, whole("seed"));
}

const ServingCategory& ServingExperiment::category(const std::string& name) const {
  std::vector<std::string> names;
  for (const ServingCategory& c : categories) {
    if (c.name == name) return c;
    names.push_back(c.name);
  }
  throw unknown_name("category", name, names);
}

const std::string& ServingExperiment::setting(const std::string& name) const {
  const auto found = settings.find(name);
  if (found != settings.end()) return found->second;
  throw Error("specprefill_serving_settings.csv", "no '" + name + "'", "one");
}

std::uint64_t ServingExperiment::whole(const std::string& name) const {
  return static_cast<std::uint64_t>(std::stoull(setting(name)));
}

/// For each batch of prompts the speculator runs first, in the same step: the prompts, and a token
/// of each for every further look-ahead. The first device gathers its keys and scores them; the
/// base model then reads the kept tokens, and its decode steps see those alone. The scheduler knows
/// nothing of it and has blocks for all tokens.
/// Source: Jingyu6/speculative_prefill c1d6bd3, speculative_prefill/vllm_patch/worker.
class ServedCase::Clock : public simulate::StepClock {
 public:
  Clock(const ServingExperiment& e, const ServingCase& served, double keep)
      : base_(base_configuration(e, served.base_model)) {
    if (!served.prunes) return;
    chunk_ = e.whole("chunk");
    keep_ = keep;
    look_ahead_ = served.look_ahead.value_or(e.whole("look_ahead"));
    const std::string& speculator = e.setting("speculator");
    const Configuration c = configuration(e, speculator);
    speculator_.emplace(c);
    const roofline::Link& link = c.hardware.links.at("nvlink");
    const std::string method =
        fmt::format("specprefill:speculator={},keep={},lookahead={},chunk={},pool={}", speculator,
                    keep, look_ahead_, chunk_, e.whole("pool"));
    scoring_ = record(load_model(e.catalog, served.base_model), parse_methods(method), c.lowering,
                      {.find_model = c.find_model});
    score_.emplace(scoring_.pass("score").graph, c.lowering,
                   roofline::in_pass(speculator_->rates(), false));
    // Keys are half of what the speculator caches of a token on each device.
    const double others = static_cast<double>(c.parallelism.tp - 1);
    gather_latency_s_ = c.parallelism.is_one() ? 0 : link.latency.value;
    gather_token_s_ = others * speculator_->cache_bytes_per_token() / 2 / link.bandwidth.value;
  }

  const ServerStep& base() const { return base_; }
  const ServerStep* speculator() const { return speculator_ ? &*speculator_ : nullptr; }

  double seconds(std::span<const simulate::ScheduledPart> parts) override {
    std::vector<std::uint64_t> prompts;
    for (const simulate::ScheduledPart& part : parts) {
      const simulate::Sequence& s = *part.sequence;
      if (part.decodes) {
        base_.add_decode(s.known - s.request.prompt_tokens + kept(s.request.prompt_tokens));
      } else {
        prompts.push_back(part.tokens);
        base_.add_prompt({kept(part.tokens), 0});
      }
    }
    return (prompts.empty() || !speculator_ ? 0 : speculating_s(prompts)) + base_.take().value;
  }
  double prompt_step_s(const std::vector<std::uint64_t>& prompts) {
    for (const std::uint64_t tokens : prompts) base_.add_prompt({kept(tokens), 0});
    return (speculator_ ? speculating_s(prompts) : 0) + base_.take().value;
  }
  double seconds_before(const ServingRequest& r) override {
    const roofline::HostTimes& host = base_.rates().host;
    return host.request.value + static_cast<double>(r.prompt_tokens) * host.token.value;
  }

 private:
  /// Of the chunks, the share rounded up; the last one, which may be shorter, counts as whole.
  std::uint64_t kept(std::uint64_t tokens) const {
    if (!speculator_) return tokens;
    const double chunks = std::ceil(static_cast<double>(tokens) / static_cast<double>(chunk_));
    return std::min(tokens, chunk_ * static_cast<std::uint64_t>(std::ceil(chunks * keep_)));
  }

  double speculating_s(const std::vector<std::uint64_t>& prompts) {
    for (const std::uint64_t tokens : prompts) speculator_->add_prompt({tokens, 0});
    double seconds = speculator_->take().value;
    for (std::uint64_t i = 1; i < look_ahead_; ++i) {
      for (const std::uint64_t tokens : prompts) speculator_->add_decode(tokens + i);
      seconds += speculator_->take().value;
    }
    for (const std::uint64_t tokens : prompts) {
      double device_s = 0;
      const SymbolValues values = scoring_.symbols.resolve({1, tokens, tokens});
      score_->part_seconds(std::span<const std::uint64_t>(values), {&device_s, 1});
      seconds += roofline::paced_seconds(device_s, score_->host_seconds()) + gather_latency_s_ +
                 gather_token_s_ * static_cast<double>(tokens);
    }
    return seconds;
  }

  ServerStep base_;
  std::optional<ServerStep> speculator_;
  Recording scoring_;
  std::optional<roofline::StepCost> score_;  ///< of one prompt, on one device
  std::uint64_t chunk_ = 1;
  std::uint64_t look_ahead_ = 1;
  double keep_ = 1;
  double gather_latency_s_ = 0;
  double gather_token_s_ = 0;
};

ServedCase::ServedCase(const ServingExperiment& e, const ServingCase& served)
    : experiment_(e),
      category_(e.category(served.category)),
      misses_allowed_(served.times * e.misses_allowed),
      clock_(std::make_shared<Clock>(e, served, served.keep.value_or(category_.keep))) {
  for (std::size_t i = 0; i < served.times; ++i) {
    requests_.insert(requests_.end(), category_.requests.begin(), category_.requests.end());
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    requests_[i].id = i;
    if (served.shortest_outputs) requests_[i].output_tokens = 1;
  }
  std::string scheduler = "vllm-v0";
  char separator = ':';
  for (const char* key : {"max_model_len", "max_num_seqs", "max_num_batched_tokens"}) {
    scheduler += fmt::format("{}{}={}", std::exchange(separator, ','), key, e.setting(key));
  }
  simulate::ModelServer server = simulate::make_model_server(
      base_configuration(e, served.base_model), scheduler, "the paper's scheduler");
  setup_.servers = std::move(server.servers);
  setup_.servers.clock = clock_;
  if (const ServerStep* const speculator = clock_->speculator()) {
    // What is left beside both models' weights is shared out block by block.
    simulate::SchedulerSettings& s = setup_.servers.settings;
    const double room =
        server.memory.block_bytes * static_cast<double>(s.num_blocks) - speculator->weight_bytes();
    const double block = server.memory.block_bytes +
                         static_cast<double>(s.block_size) * speculator->cache_bytes_per_token();
    if (room < block) throw Error(served.base_model, "no room for a cache", "more devices");
    s.num_blocks = static_cast<std::uint64_t>(room / block);
  }
}

ServedCase::~ServedCase() = default;

std::vector<ServedCase::Latency> ServedCase::serve(std::vector<ServingRequest> requests,
                                                   double gap_s) {
  set_arrivals(requests, gap_s);
  std::vector<Latency> latencies;
  simulate::ServingWatch watch;
  watch.on_finished = [&](const simulate::Sequence& s) {
    latencies.push_back(
        {s.first_token_s - s.request.arrival_s, s.last_token_s - s.request.arrival_s});
  };
  simulate::RequestList source(std::move(requests));
  simulate::serve(setup_, source, {}, watch);
  KVCAST_ASSERT(latencies.size() == requests_.size());
  return latencies;
}

ServedPoint ServedCase::at(double qps) {
  ServedPoint p;
  p.qps = qps;
  std::size_t succeeded = 0;
  for (const Latency& latency : serve(requests_, 1 / qps)) {
    if (latency.last >= category_.timeout_s + experiment_.slack_s) {
      ++p.missed;
      continue;
    }
    ++succeeded;
    p.mean_s += latency.last;
  }
  if (succeeded > 0) p.mean_s /= static_cast<double>(succeeded);
  p.holds = p.missed <= misses_allowed_;
  return p;
}

ServedCurve ServedCase::curve() {
  ServedCurve curve;
  for (const double qps : category_.qps) {
    curve.points.push_back(at(qps));
    if (!curve.points.back().holds) {
      curve.first_failed_qps = qps;
      break;
    }
    curve.last_good_qps = qps;
  }
  return curve;
}

std::optional<double> ServedCase::highest_qps(const ServedCurve& curve) {
  double low = curve.last_good_qps;
  double high = curve.first_failed_qps;
  constexpr double at_once = 1e6;  // all within the first step
  if (high == 0 && at(at_once).holds) return {};
  for (double qps = low; qps > 0 && high == 0;) {
    qps *= 2;
    (at(qps).holds ? low : high) = qps;
  }
  constexpr double precision = 0.01;
  const double distance = (high - low) * precision;
  while (high - low > distance) {
    const double qps = (low + high) / 2;
    (at(qps).holds ? low : high) = qps;
  }
  return low;
}

double ServedCase::ttft_alone_s() {
  // Longer than any request takes.
  const double gap_s = 10 * (category_.timeout_s + experiment_.slack_s);
  std::vector<ServingRequest> requests = requests_;
  for (ServingRequest& r : requests) r.output_tokens = 1;
  double sum = 0;
  const std::vector<Latency> latencies = serve(std::move(requests), gap_s);
  for (const Latency& latency : latencies) sum += latency.first;
  return sum / static_cast<double>(latencies.size());
}

double ServedCase::prompt_step_s(const std::vector<std::uint64_t>& prompts) {
  return clock_->prompt_step_s(prompts);
}

std::uint64_t ServedCase::cache_tokens() const {
  const simulate::SchedulerSettings& s = setup_.servers.settings;
  return s.num_blocks * s.block_size;
}

}  // namespace kvcast::reports
