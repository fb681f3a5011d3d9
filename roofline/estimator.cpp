#include "roofline/estimator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/families/config_reader.h"
#include "model/methods/placement.h"

namespace kvcast::roofline {
namespace {

bool is_plain(const std::vector<MethodSpec>& methods) {
  return methods.empty() || (methods.size() == 1 && methods[0].name == "plain");
}

void compare(Estimate& e, const Estimate& plain) {
  e.ttft_speedup = plain.ttft_s / e.ttft_s;
  e.tpot_speedup = plain.tpot_s / e.tpot_s;
  e.kv_cache_ratio = e.kv_cache_bytes / plain.kv_cache_bytes;
}

double tokens_of(const DesignPoint& point) {
  return static_cast<double>(point.batch) * static_cast<double>(point.prompt_len);
}

/// By kind: large and small micro-batches, or full steps of an engine and what is left over.
using ByKind = std::array<double, 2>;

/// The steps of a prompt on their way through a pipeline's stages, one behind the other.
class PromptFlow {
 public:
  struct Step {
    std::size_t kind;
    double from_mean = 0;  ///< Forecaster::PromptStep::from_mean
  };
  explicit PromptFlow(std::vector<Step> steps)
      : steps_(std::move(steps)), arrived_s_(steps_.size()) {}

  /// Through a stage, each full step of a prompt longer than the last by `growth_s`, and on to the
  /// next.
  void pass(const ByKind& stage_s, double growth_s, const ByKind& hop_s) {
    double free_s = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      const double step_s = stage_s[step.kind] + step.from_mean * growth_s;
      free_s = std::max(free_s, arrived_s_[i]) + step_s;
      arrived_s_[i] = free_s + hop_s[step.kind];
      busy_s_ += step_s;
    }
  }
  double seconds() const { return arrived_s_.back(); }
  double busy_s() const { return busy_s_; }

 private:
  std::vector<Step> steps_;
  std::vector<double> arrived_s_;
  double busy_s_ = 0;
};

/// Of a step after the prompt, in all stages.
struct StepTime {
  double way_s = 0;      ///< of one micro-batch, with its messages
  double slowest_s = 0;  ///< the longest that a stage takes for all of them
  double busy_s = 0;     ///< of all stages

  /// A stage more: one micro-batch and its message, and all of them.
  void add(double part_s, double all_s) {
    way_s += part_s;
    slowest_s = std::max(slowest_s, all_s);
    busy_s += all_s;
  }
  double seconds() const { return std::max(way_s, slowest_s); }
};

/// The share of `stages` times `seconds` in which a stage has nothing to do.
double bubble(double busy_s, std::size_t stages, double seconds) {
  return 1 - busy_s / (static_cast<double>(stages) * seconds);
}

/// Adds what `devices` of a stage count and hold, from forecasts of its whole batch and of a large
/// and a small micro-batch. `in_steps`: prompts are read in the engine's own steps.
void add_stage(Estimate& sum, const Forecast& all, const Forecast& large, const Forecast& small,
               const MicroBatches& parts, bool in_steps, double devices) {
  const auto num_large = static_cast<double>(parts.num_large());
  const auto num_small = static_cast<double>(parts.num_small);
  sum.prefill_flops += devices * all.prefill_flops;
  sum.prefill_bytes +=
      devices * (in_steps ? all.prefill_bytes
                          : num_large * large.prefill_bytes + num_small * small.prefill_bytes);
  sum.decode_flops_per_token += devices * all.decode_flops_per_token;
  sum.decode_bytes_per_token += devices * large.decode_bytes_per_token;
  sum.weight_bytes += devices * all.weight_bytes;
  sum.kv_cache_bytes += devices * all.kv_cache_bytes;
  sum.weight_bytes_per_device = std::max(sum.weight_bytes_per_device, all.weight_bytes);
  sum.kv_cache_bytes_per_device = std::max(sum.kv_cache_bytes_per_device, all.kv_cache_bytes);
  // Activations are those of a micro-batch.
  const double activations = large.peak_memory_bytes - large.weight_bytes - large.kv_cache_bytes;
  sum.peak_memory_bytes =
      std::max(sum.peak_memory_bytes, all.weight_bytes + all.kv_cache_bytes + activations);
  sum.ttft_bound = all.ttft_bound;
  sum.tpot_bound = large.tpot_bound;
  sum.bound = all.bound;
  // The first stage works for the helper models.
  for (std::size_t k = 0; k < num_ttft_parts; ++k) {
    sum.ttft_parts_s[k] += num_large * large.ttft_parts_s[k] + num_small * small.ttft_parts_s[k];
  }
}

/// Of one device -> of as many as do the same.
Estimate of_devices(const Forecast& f, double devices) {
  Estimate e{f};
  e.devices = static_cast<std::uint64_t>(devices);
  e.weight_bytes_per_device = f.weight_bytes;
  e.kv_cache_bytes_per_device = f.kv_cache_bytes;
  for (double* sum : {&e.prefill_flops, &e.prefill_bytes, &e.decode_flops_per_token,
                      &e.decode_bytes_per_token, &e.weight_bytes, &e.kv_cache_bytes}) {
    *sum *= devices;
  }
  return e;
}

}  // namespace

Count bytes_to_next_stage(const Graph& graph, std::size_t nodes) {
  Count bytes;
  for (const Node& node : graph.nodes().first(std::min(nodes, graph.nodes().size()))) {
    if (std::holds_alternative<Send>(node.op)) bytes += graph.tensor(node.output()).bytes();
  }
  return bytes;
}

CollectiveCurve hop_to_next_stage(const Configuration& c, std::uint64_t stage) {
  const Parallelism& p = c.parallelism;
  if (c.interconnect == nullptr) {
    throw Error(to_string(p), "no platform that joins the devices",
                "--platform NAME, or hardware whose node is known");
  }
  return c.interconnect->point_to_point(stage * p.of_stage(), (stage + 1) % p.pp * p.of_stage(),
                                        c.mode);
}

std::uint64_t all_devices(const Configuration& c) {
  const std::optional<Placement> placement = find_placement(c.methods);
  return checked_multiply(placement ? placement->ranks : 1, c.parallelism.devices());
}

void check_platform(const Configuration& c) {
  if (c.interconnect == nullptr) return;
  const std::uint64_t devices = all_devices(c);
  if (devices <= c.interconnect->devices()) return;
  const std::optional<Placement> placement = find_placement(c.methods);
  const bool has_ranks = placement && placement->ranks > 1;
  // Without what else the placement is to do.
  throw Error(has_ranks ? "method " + placement->method.substr(0, placement->method.find(','))
                        : to_string(c.parallelism),
              fmt::format("{} of {} devices", c.interconnect->name(), c.interconnect->devices()),
              fmt::format("a platform of at least {}", devices));
}

std::shared_ptr<const Interconnect> interconnect_of(const Configuration& c, const Catalog& catalog,
                                                    const std::string& platform) {
  const std::uint64_t devices = all_devices(c);
  const bool chain = c.parallelism.is_one() && platform.empty();
  if (devices == 1 || chain) return nullptr;
  return find_interconnect(catalog, platform, c.hardware, devices);
}

std::uint64_t used_micro_batches(const Configuration& c, std::uint64_t batch) {
  return std::min(c.micro_batches, divided_up(batch, c.parallelism.dp));
}

Rates rates_of(const Configuration& c) {
  const WeightTypes& weights = c.lowering.weights;
  const bool of_experts = weights.main == DType::MXFP4 && !weights.rules.empty();
  if (of_experts && layers_with_experts(c.architecture.decoder) == 0) {
    throw Error("--weight-dtype " + weights.text, c.architecture.name + ", which has no experts",
                "a model with experts, which alone are stored in mxfp4");
  }
  const Parallelism& p = c.parallelism;
  Rates rates = make_rates(c.hardware, c.lowering, c.mode, c.engine);
  if (p.of_stage() > 1 && c.mode == Mode::Calibrated) wait_for_others(c.hardware, rates);
  rates.collectives = {c.interconnect, c.engine.collectives, c.mode,
                       c.mode == Mode::Calibrated ? c.engine.collective_wait : Seconds{}};
  check_platform(c);
  try {
    if (c.interconnect != nullptr) c.interconnect->checked_library(c.engine.collectives);
  } catch (const Error& e) {
    throw Error("engine " + c.engine.name + ": collectives", e);
  }
  return rates;
}

Recordings record_for(const Configuration& c, const std::optional<DevicePlace>& place) {
  RecordOptions options{.logits = c.logits, .find_model = c.find_model, .place = place};
  Recordings r{record(c.architecture, c.methods, c.lowering, options), {}};
  // Methods that choose tokens or fill caches ahead keep the prompt in one piece.
  const bool in_pieces = c.engine.prefill_tokens > 0 && !c.architecture.encoder_decoder &&
                         !r.whole.whole_prompt && r.whole.helpers().empty() && !r.whole.selection &&
                         r.whole.prompt_slots == Count(symbol::prompt_len);
  options.chunked = true;
  if (in_pieces) r.chunk = record(c.architecture, c.methods, c.lowering, options);
  return r;
}

Estimator::Stages Estimator::make_stages(const Configuration& c) const {
  const Parallelism& p = c.parallelism;
  check_parallelism(c.architecture, p);
  if (c.micro_batches > 1 && p.is_one()) {
    throw Error("--micro-batches", "one device", "--tp, --pp, --ep or --dp above 1");
  }
  const Rates rates = rates_of(c);
  Stages stages;
  for (std::uint64_t stage = 0; stage < p.pp; ++stage) {
    const std::uint64_t device = stage * p.of_stage();
    std::optional<DevicePlace> place;
    if (!p.is_one()) place = DevicePlace{p, device, c.stage_layers, false};
    Recordings r = record_for(c, place);
    Forecaster forecaster(r.whole, c.lowering, rates, r.chunk_or_null());
    stages.push_back({std::move(r), std::move(forecaster)});
    if (stage + 1 == p.pp) break;
    Stage& made = stages.back();
    made.hop = hop_to_next_stage(c, stage);
    made.hop_bytes = bytes_to_next_stage(made.recordings.whole.prefill());
  }
  return stages;
}

Estimator::Estimator(const Configuration& c)
    : architecture_(c.architecture),
      parallelism_(c.parallelism),
      micro_batches_(c.micro_batches),
      stages_(make_stages(c)) {
  if (!parallelism_.is_one()) whole_ = record_for(c).whole;
  if (is_plain(c.methods)) return;
  Configuration plain = c;
  plain.methods = {};
  plain_ = make_stages(plain);
}

std::vector<Forecast> Estimator::Stage::at(std::span<const DesignPoint> points, bool exact) const {
  std::vector<Forecast> forecasts(points.size());
  if (!exact) {
    forecaster.sweep(points, forecasts);
  } else {
    for (std::size_t i = 0; i < points.size(); ++i) forecasts[i] = forecaster.at(points[i]);
  }
  return forecasts;
}

void Estimator::overlap(const Stage& stage, std::span<const DesignPoint> points,
                        std::span<Forecast> whole) const {
  std::vector<DesignPoint> large(points.begin(), points.end());
  std::vector<DesignPoint> small = large;
  bool even = true;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const MicroBatches micro(points[i].batch, micro_batches_);
    large[i].batch = micro.large;
    small[i].batch = micro.small();
    even = even && micro.num_small == 0;
  }
  const std::vector<Forecast> of_large = stage.at(large, false);
  const std::vector<Forecast> of_small = even ? of_large : stage.at(small, false);
  const HostTimes& host = rates().host;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const MicroBatches micro(points[i].batch, micro_batches_);
    if (micro.number == 1) continue;
    Forecast& f = whole[i];
    const Forecast& part = of_large[i];
    const auto sum = [&](auto of_part) {
      return static_cast<double>(micro.num_large()) * of_part(part, large[i]) +
             static_cast<double>(micro.num_small) * of_part(of_small[i], small[i]);
    };
    const auto meet = [&](double parts_s, double messages_s, double& all_s, double& waiting_s) {
      const double working_s = parts_s - messages_s;
      waiting_s = std::max(0.0, messages_s - working_s);
      all_s = working_s + waiting_s;
    };
    const auto prompt_of = [&](const Forecast& read, const DesignPoint& p) {
      return read.ttft_s - host.before_s(tokens_of(p));
    };
    using P = const DesignPoint&;
    const double request_s = host.before_s(tokens_of(points[i]));
    meet(sum(prompt_of), sum([](const Forecast& x, P) { return x.communication_s; }), f.ttft_s,
         f.communication_s);
    meet(sum([](const Forecast& x, P) { return x.tpot_s; }),
         sum([](const Forecast& x, P) { return x.tpot_communication_s; }), f.tpot_s,
         f.tpot_communication_s);
    const double prompt_s = prompt_of(part, large[i]);
    for (std::size_t k = 0; k < num_ttft_parts; ++k) {
      f.ttft_parts_s[k] = part.ttft_parts_s[k] * f.ttft_s / prompt_s;
    }
    double& base_s = f.ttft_parts_s[static_cast<std::size_t>(TtftPart::Base)];
    base_s += request_s - host.before_s(tokens_of(large[i])) * f.ttft_s / prompt_s;
    f.ttft_s += request_s;
    f.prefill_bytes = sum([](const Forecast& x, P) { return x.prefill_bytes; });
    f.decode_bytes_per_token = part.decode_bytes_per_token;
    f.ttft_bound = f.communication_s > 0 ? Bound::Link : part.ttft_work_bound;
    f.tpot_bound = f.tpot_communication_s > 0 ? Bound::Link : part.tpot_work_bound;
    const double steps_s = static_cast<double>(points[i].output_len - 1) * f.tpot_s;
    f.bound = f.ttft_s > steps_s ? f.ttft_bound : f.tpot_bound;
  }
}

void Estimator::pipelined(const Stages& stages, std::span<const DesignPoint> points, bool exact,
                          std::span<Estimate> rows) const {
  const std::size_t n = points.size();
  const auto of_stage = static_cast<double>(parallelism_.of_stage());
  const HostTimes& host = rates().host;
  // An engine with a limit of tokens reads the prompts in its own steps.
  const bool in_steps = stages[0].recordings.chunk.has_value();
  std::vector<MicroBatches> parts;
  std::vector<DesignPoint> large(points.begin(), points.end());
  std::vector<DesignPoint> small = large;
  // Sizes of what is handed on, by kind.
  std::vector<std::array<DesignPoint, 2>> handed_on(n);
  std::vector<PromptFlow> prompts;
  std::vector<StepTime> steps(n);
  // If messages took no time: what they cost is the difference.
  std::vector<PromptFlow> computed_prompts;
  std::vector<StepTime> computed_steps(n);
  bool cuts = false;
  bool even = true;
  for (std::size_t i = 0; i < n; ++i) {
    const MicroBatches& m =
        parts.emplace_back(points[i].batch, micro_batches_ > 0 ? micro_batches_ : stages.size());
    large[i].batch = m.large;
    small[i].batch = m.small();
    cuts = cuts || m.large != points[i].batch;
    even = even && m.num_small == 0;
    std::vector<PromptFlow::Step> flow(m.number, {1});
    std::fill_n(flow.begin(), m.num_large(), PromptFlow::Step{0});
    handed_on[i] = {large[i], small[i]};
    if (in_steps) {
      flow.clear();
      for (const Forecaster::PromptStep& s : stages[0].forecaster.prompt_steps(points[i])) {
        flow.push_back({s.kind, s.from_mean});
        handed_on[i][s.kind] = {s.batch, s.tokens, 1};
      }
    }
    prompts.emplace_back(std::move(flow));
    computed_prompts.push_back(prompts.back());
  }
  std::fill(rows.begin(), rows.end(), Estimate{});
  for (const Stage& stage : stages) {
    const std::vector<Forecast> of_all = stage.at(points, exact);
    const std::vector<Forecast> of_large = cuts ? stage.at(large, exact) : of_all;
    const std::vector<Forecast> of_small = even ? of_large : stage.at(small, exact);
    const auto hop_s = [&stage](std::uint64_t batch, std::uint64_t tokens) {
      if (!stage.hop) return 0.0;
      const SymbolValues at = stage.recordings.whole.symbols.resolve({batch, tokens, tokens});
      return stage.hop->at(static_cast<double>(stage.hop_bytes.at(at)));
    };
    for (std::size_t i = 0; i < n; ++i) {
      const Forecast& all = of_all[i];
      const Forecast& part = of_large[i];
      const std::array<DesignPoint, 2>& sizes = handed_on[i];
      const ByKind hops_s{hop_s(sizes[0].batch, sizes[0].prompt_len),
                          hop_s(sizes[1].batch, sizes[1].prompt_len)};
      const ByKind of_parts_s{part.ttft_s - host.before_s(tokens_of(large[i])),
                              of_small[i].ttft_s - host.before_s(tokens_of(small[i]))};
      const ByKind stage_s = in_steps ? all.prompt_step_s : of_parts_s;
      prompts[i].pass(stage_s, all.prompt_growth_s, hops_s);
      ByKind waits_s{part.communication_s, of_small[i].communication_s};
      for (std::size_t kind = 0; in_steps && kind < 2; ++kind) {  // by the tokens of a step
        waits_s[kind] = all.communication_s * tokens_of(sizes[kind]) / tokens_of(points[i]);
      }
      computed_prompts[i].pass({stage_s[0] - waits_s[0], stage_s[1] - waits_s[1]},
                               all.prompt_growth_s, {});
      const auto of_all_parts = [&](double large_s, double small_s) {
        return static_cast<double>(parts[i].num_large()) * large_s +
               static_cast<double>(parts[i].num_small) * small_s;
      };
      steps[i].add(part.tpot_s + hop_s(large[i].batch, 1),
                   of_all_parts(part.tpot_s, of_small[i].tpot_s));
      const double part_s = part.tpot_s - part.tpot_communication_s;
      computed_steps[i].add(
          part_s, of_all_parts(part_s, of_small[i].tpot_s - of_small[i].tpot_communication_s));
      Estimate& sum = rows[i];
      add_stage(sum, all, part, of_small[i], parts[i], in_steps, of_stage);
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    Estimate& sum = rows[i];
    const double prompt_s = prompts[i].seconds();
    sum.devices = parallelism_.devices();
    sum.ttft_s = host.before_s(tokens_of(points[i])) + prompt_s;
    double& base_s = sum.ttft_parts_s[static_cast<std::size_t>(TtftPart::Base)];
    base_s = 0;
    base_s = sum.ttft_s - std::accumulate(sum.ttft_parts_s.begin(), sum.ttft_parts_s.end(), 0.0);
    sum.tpot_s = steps[i].seconds();
    sum.communication_s = prompt_s - computed_prompts[i].seconds();
    sum.tpot_communication_s = sum.tpot_s - computed_steps[i].seconds();
    sum.prefill_bubble = bubble(prompts[i].busy_s(), stages.size(), prompt_s);
    sum.decode_bubble = bubble(steps[i].busy_s, stages.size(), sum.tpot_s);
    sum.fits = sum.peak_memory_bytes <= rates().memory_capacity_bytes;
  }
}

void Estimator::forecast(const Stages& stages, std::span<const DesignPoint> points, bool exact,
                         std::span<Estimate> rows) const {
  std::vector<DesignPoint> own(points.begin(), points.end());
  for (DesignPoint& p : own) {
    if (p.batch > 0) p.batch = divided_up(p.batch, parallelism_.dp);
  }
  if (stages.size() > 1) {
    pipelined(stages, own, exact, rows);
  } else {
    std::vector<Forecast> forecasts = stages[0].at(own, exact);
    if (micro_batches_ > 1) overlap(stages[0], own, forecasts);
    const auto devices = static_cast<double>(parallelism_.devices());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = of_devices(forecasts[i], devices);
  }
  if (parallelism_.is_one()) return;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    // A step makes a token of each sequence, padded ones included.
    const double tokens = static_cast<double>(own[i].batch) / static_cast<double>(points[i].batch);
    rows[i].decode_flops_per_token *= tokens;
    rows[i].decode_bytes_per_token *= tokens;
  }
}

Estimate Estimator::at(const DesignPoint& point) const {
  check_prompt_length(recording(), point.prompt_len);
  Estimate e;
  forecast(stages_, {&point, 1}, true, {&e, 1});
  if (plain_.empty()) return e;
  Estimate plain;
  forecast(plain_, {&point, 1}, true, {&plain, 1});
  compare(e, plain);
  return e;
}

void Estimator::sweep(std::span<const DesignPoint> points, std::span<Estimate> rows) const {
  KVCAST_ASSERT(points.size() == rows.size());
  if (recording().selection) {
    for (const DesignPoint& p : points) check_prompt_length(recording(), p.prompt_len);
  }
  forecast(stages_, points, false, rows);
  if (plain_.empty()) return;
  std::vector<Estimate> plain(points.size());
  forecast(plain_, points, false, plain);
  for (std::size_t i = 0; i < rows.size(); ++i) compare(rows[i], plain[i]);
}

std::vector<BreakdownRow> Estimator::breakdown(const DesignPoint& point) const {
  DesignPoint own = point;
  own.batch = divided_up(point.batch, parallelism_.dp);
  const bool overlaps = stages_.size() == 1 && micro_batches_ > 1 && own.batch > 1;
  if (overlaps) own.batch = MicroBatches(own.batch, micro_batches_).large;
  std::vector<BreakdownRow> rows;
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    for (BreakdownRow& row : stages_[stage].forecaster.breakdown(own)) {
      if (stages_.size() > 1) row.pass += fmt::format(" of stage {}", stage);
      if (overlaps) row.pass += " of a micro-batch";
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::vector<std::string> context_warnings(const Architecture& a, const DesignPoint& p,
                                          std::uint64_t contexts) {
  std::vector<std::string> lines;
  const auto over = [&](std::uint64_t tokens, std::uint64_t limit, std::string_view what) {
    if (limit == 0 || tokens <= contexts * limit) return;
    lines.push_back(fmt::format("{} of {} tokens is longer than the context of {} ({} positions)",
                                what, tokens, a.name, limit));
  };
  if (a.encoder_decoder) {
    over(p.prompt_len,
         a.max_source_positions > 0 ? a.max_source_positions : a.max_position_embeddings,
         "encoder length");
    if (a.max_source_positions > 0) over(1 + p.output_len, a.max_position_embeddings, "output");
  } else {
    over(p.prompt_len + p.output_len, a.max_position_embeddings,
         p.output_len == 0 ? "a sequence" : "prompt and output");
  }
  return lines;
}

std::string replica_warning(std::uint64_t batch, std::uint64_t dp) {
  if (batch < dp) {
    return fmt::format("{} of {} replicas have no sequence of their own and are taken to have one",
                       dp - batch, dp);
  }
  if (batch % dp == 0) return "";
  return fmt::format(
      "{} sequences do not divide evenly among {} replicas: each is taken to have {}", batch, dp,
      divided_up(batch, dp));
}

std::vector<std::string> Estimator::warnings(const DesignPoint& p) const {
  std::vector<std::string> lines = config_warnings(architecture_);
  const std::vector<std::string> contexts = context_warnings(architecture_, p);
  lines.insert(lines.end(), contexts.begin(), contexts.end());
  const std::string replicas = replica_warning(p.batch, parallelism_.dp);
  if (!replicas.empty()) lines.push_back(replicas);
  const auto& missing = rates().missing_factors;
  lines.insert(lines.end(), missing.begin(), missing.end());
  return lines;
}

}  // namespace kvcast::roofline
