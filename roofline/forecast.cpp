#include "roofline/forecast.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "model/base/error.h"

namespace kvcast::roofline {
namespace {

constexpr std::size_t index(TtftPart part) { return static_cast<std::size_t>(part); }

Bound largest(const std::array<double, num_bounds>& seconds) {
  const auto it = std::max_element(seconds.begin(), seconds.end());
  return static_cast<Bound>(it - seconds.begin());
}

Bound largest_work(std::array<double, num_bounds> seconds) {
  seconds[static_cast<std::size_t>(Bound::Link)] = 0;
  return largest(seconds);
}

std::optional<StepCost> predictor_of(const std::vector<OpGroup>& groups, const Rates& rates) {
  std::vector<OpGroup> predictor;
  std::copy_if(groups.begin(), groups.end(), std::back_inserter(predictor),
               [](const OpGroup& g) { return g.phase == predictor_phase; });
  if (predictor.empty()) return {};
  return StepCost(predictor, rates);
}

std::uint64_t decode_steps(const DesignPoint& p) {
  return std::max<std::uint64_t>(p.output_len, 2) - 1;
}

}  // namespace

Forecaster::Forecaster(const Recording& recording, const Lowering& lowering, const Rates& rates,
                       const Recording* chunk)
    : symbols_(recording.symbols),
      cuts_vary_(symbols_.kv_len_breakpoints_vary()),
      context_(recording.model.max_position_embeddings),
      prompt_slots_(recording.prompt_slots),
      decode_(compile(recording.pass(decode_name), lowering, rates)),
      exact_kv_cache_bytes_(recording.kv_cache_bytes),
      weight_bytes_(static_cast<double>(recording.weight_bytes.at({}))) {
  for (const RecordedPass& pass : recording.helpers()) {
    if (pass.steps > 0) prompt_.push_back(compile(pass, lowering, rates));
  }
  Memory of_decode = memory_;
  prompt_.push_back(compile(recording.pass(prefill_name), lowering, rates));
  if (chunk != nullptr) {
    chunk_symbols_ = chunk->symbols;
    memory_ = {};
    chunk_ = compile(chunk->pass(prefill_name), lowering, rates);
    chunk_->memory = std::move(memory_);
    memory_ = std::move(of_decode);  // no pass reads the whole prompt
  }
  memory_.cache_bytes = polynomials_.add(recording.kv_cache_bytes);
}

Forecaster::Pass Forecaster::compile(const RecordedPass& recorded, const Lowering& lowering,
                                     const Rates& rates) {
  std::vector<OpGroup> groups = fold(recorded.graph, lowering);
  const bool decodes = recorded.tokens == Count(1);
  StepCost step(groups, in_pass(rates, decodes));
  std::optional<StepCost> predictor = predictor_of(groups, step.rates());
  Pass pass{{.name = recorded.name,
             .part = recorded.part,
             .tokens = recorded.tokens,
             .steps = recorded.steps,
             .first_kv_len = recorded.first_kv_len},
            std::move(groups),
            std::move(step),
            std::move(predictor),
            {}};
  pass.memory.cache_bytes = polynomials_.add(recorded.cache_bytes);
  Memory& memory = recorded.part == TtftPart::Base ? memory_ : pass.memory;
  for (const Count& peak : kvcast::activation_peaks(recorded.graph)) {
    memory.activation_peaks.push_back(polynomials_.add(peak));
  }
  return pass;
}

SymbolValues Forecaster::values_at(const DesignPoint& p, std::uint64_t kv_len) const {
  return symbols_.resolve({p.batch, p.prompt_len, kv_len});
}

void Forecaster::evaluate(const Count& count, std::span<const DesignPoint> points,
                          std::span<std::uint64_t> values) const {
  const bool is_prompt_len = count == Count(symbol::prompt_len);  // most are, in large sweeps
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (is_prompt_len) {
      values[i] = points[i].prompt_len;
    } else if (count.is_constant()) {
      values[i] = count.constant();
    } else {
      values[i] = count.at(values_at(points[i], 1));
    }
  }
}

std::vector<std::uint64_t> Forecaster::range_ends(const DesignPoint& p, std::uint64_t last) const {
  std::vector<std::uint64_t> ends;
  if (symbols_.has_derived()) ends = symbols_.kv_len_breakpoints(values_at(p, 1), last);
  ends.push_back(~std::uint64_t{0});
  return ends;
}

struct Forecaster::Scratch {
  using KvLens = std::array<std::uint64_t, lanes>;

  /// With room for the values of `room` symbols.
  Scratch(const Symbols& s, std::size_t room) : symbols(s) {
    for (StepPoint* p : {&first, &last, &end}) p->symbols.resize(room);
  }

  /// Symbol values of the block's points at the given cache lengths.
  void set(StepPoint& target, std::span<const DesignPoint> points,
           std::span<const std::uint64_t, lanes> kv_len) {
    for (std::size_t i = 0; i < lanes; ++i) {
      // Unused lanes repeat the first point, so that no lane divides by zero.
      const std::size_t source = i < points.size() ? i : 0;
      const DesignPoint& p = points[source];
      target.symbols[symbol::batch.id].v[i] = static_cast<double>(p.batch);
      target.symbols[symbol::prompt_len.id].v[i] = static_cast<double>(p.prompt_len);
      target.symbols[symbol::kv_len.id].v[i] = static_cast<double>(kv_len[source]);
    }
    static_assert(sizeof(Lanes) == lanes * sizeof(double));
    symbols.resolve({target.symbols.front().v.data(), target.symbols.size() * lanes}, lanes);
  }

  const Symbols& symbols;
  StepPoint first;
  StepPoint last;
  StepPoint end;
  KvLens first_kv_len{};
  KvLens last_kv_len{};
  StepTotals prompt;  ///< sums over the passes up to the first token
  std::array<Lanes, num_ttft_parts> parts;
  std::array<Lanes, 2> prompt_steps;  ///< Forecast::prompt_step_s
  Lanes prompt_growth;                ///< Forecast::prompt_growth_s
  Lanes helper_caches;
  Lanes activations;
};

/// The mean over the steps from s.first_kv_len to s.last_kv_len. Costs are affine in the cache
/// length between the ends of sliding windows: each such range is averaged on its own and weighted
/// by its steps.
StepTotals Forecaster::mean_step(const StepCost& step, std::span<const DesignPoint> points,
                                 Scratch& s) const {
  const std::size_t n = points.size();
  if (std::equal(s.first_kv_len.begin(), s.first_kv_len.begin() + n, s.last_kv_len.begin())) {
    s.set(s.first, points, s.first_kv_len);
    return step.at(s.first);  // one step each
  }
  const std::uint64_t longest = *std::max_element(s.last_kv_len.begin(), s.last_kv_len.begin() + n);
  std::vector<std::vector<std::uint64_t>> ends;  // most points share them
  std::array<std::size_t, lanes> ends_of{};
  for (std::size_t i = 0; i < points.size(); ++i) {
    const bool differs = cuts_vary_ && i > 0 && points[i].prompt_len != points[i - 1].prompt_len;
    if (ends.empty() || differs) ends.push_back(range_ends(points[i], longest));
    ends_of[i] = ends.size() - 1;
  }
  StepTotals mean{};
  Scratch::KvLens next = s.first_kv_len;
  for (bool all_done = false; !all_done;) {
    // Each point's next range; points without one left are evaluated too, and count nothing.
    Scratch::KvLens first = s.first_kv_len;
    Scratch::KvLens last = s.first_kv_len;
    Lanes steps;
    all_done = true;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (next[i] > s.last_kv_len[i]) continue;
      const std::vector<std::uint64_t>& cuts = ends[ends_of[i]];
      first[i] = next[i];
      last[i] = std::min(s.last_kv_len[i], *std::lower_bound(cuts.begin(), cuts.end(), next[i]));
      steps.v[i] = static_cast<double>(last[i] - first[i] + 1);
      next[i] = last[i] + 1;
      all_done &= next[i] > s.last_kv_len[i];
    }
    s.set(s.first, points, first);
    s.set(s.last, points, last);
    const StepTotals range = step.mean(s.first, s.last, steps);
    for (std::size_t i = 0; i < points.size(); ++i) {
      steps.v[i] /= static_cast<double>(s.last_kv_len[i] - s.first_kv_len[i] + 1);
    }
    mean.add(range, steps);
  }
  return mean;
}

/// Sums over the passes up to the first token, and the memory that helper passes need.
void Forecaster::add_prompt(std::span<const DesignPoint> points, Scratch& s,
                            Scratch& of_chunks) const {
  s.prompt = {};
  s.parts = {};
  s.prompt_steps = {};
  s.prompt_growth = {};
  s.helper_caches = s.activations = {};
  Lanes request;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double tokens =
        static_cast<double>(points[i].batch) * static_cast<double>(points[i].prompt_len);
    request.v[i] = rates().host.before_s(tokens);
  }
  s.prompt.wait(request);
  s.parts[index(TtftPart::Base)] = request;
  const Lanes host_s = host_step(points);
  for (const Pass& pass : prompt_) {
    const bool is_helper = pass.recorded.part != TtftPart::Base;
    if (!is_helper && chunk_) {
      add_chunks(points, of_chunks, s);
      continue;
    }
    Scratch::KvLens tokens;
    tokens.fill(1);
    if (is_helper) evaluate(pass.recorded.tokens, points, tokens);
    evaluate(pass.recorded.first_kv_len, points, s.first_kv_len);
    Lanes steps;  // none where a helper has no tokens
    for (std::size_t i = 0; i < points.size(); ++i) {
      s.last_kv_len[i] = s.first_kv_len[i] + pass.recorded.steps - 1;
      steps.v[i] = tokens[i] > 0 ? static_cast<double>(pass.recorded.steps) : 0;
    }
    StepTotals step = mean_step(pass.step, points, s);
    const Lanes on_device = step.seconds;
    step.pace(pass.step.host_seconds());
    step.wait(host_s);
    s.prompt.add(step, steps);
    Lanes predictor;
    if (pass.predictor) predictor = mean_step(*pass.predictor, points, s).seconds;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (steps.v[i] == 0) continue;
      const double all = steps.v[i] * step.seconds.v[i];
      const double predicting = pass.predictor ? all * predictor.v[i] / on_device.v[i] : 0;
      s.parts[index(pass.recorded.part)].v[i] += all - predicting;
      s.parts[index(TtftPart::Predictor)].v[i] += predicting;
    }
    if (!is_helper) continue;
    const Lanes cache = add_memory(pass.memory, points, s.last_kv_len, steps, s);
    for (std::size_t i = 0; i < points.size(); ++i) s.helper_caches.v[i] += cache.v[i];
  }
}

Lanes Forecaster::host_step(std::span<const DesignPoint> points) const {
  const HostTimes& host = rates().host;
  Lanes seconds;
  for (std::size_t i = 0; i < points.size(); ++i) {
    seconds.v[i] = host.step.value + static_cast<double>(points[i].batch) * host.sequence.value;
  }
  return seconds;
}

std::array<Forecaster::PrefillSteps, 2> Forecaster::prefill_steps(const DesignPoint& p) const {
  std::uint64_t most = rates().prefill_tokens;
  if (rates().prefill_at_least_context) most = std::max(most, context_);
  if (!rates().cuts_prompts) most = std::max(most, p.prompt_len);
  const std::uint64_t length = p.prompt_len;
  if (length <= most) {
    const std::uint64_t batch = std::min(p.batch, most / length);
    const std::uint64_t rest = p.batch % batch;
    return {
        {{{batch, length, 1}, length, length, 1, p.batch / batch},
         {{std::max<std::uint64_t>(rest, 1), length, 1}, length, length, 1, rest > 0 ? 1u : 0u}}};
  }
  const std::uint64_t chunks = length / most;
  const std::uint64_t rest = length % most;
  return {{{{1, most, 1}, most, chunks * most, chunks, p.batch},
           {{1, std::max<std::uint64_t>(rest, 1), 1}, length, length, 1, rest > 0 ? p.batch : 0}}};
}

std::vector<Forecaster::PromptStep> Forecaster::prompt_steps(const DesignPoint& point) const {
  std::vector<PromptStep> steps;
  if (!chunk_) return steps;
  const std::array<PrefillSteps, 2> parts = prefill_steps(point);
  const auto add = [&](std::size_t kind) {
    const PrefillSteps& p = parts[kind];
    for (std::uint64_t chunk = 0; chunk < p.chunks; ++chunk) {
      steps.push_back({p.size.batch, p.size.prompt_len, p.first_kv_len + chunk * p.size.prompt_len,
                       kind, static_cast<double>(chunk) - static_cast<double>(p.chunks - 1) / 2});
    }
  };
  const bool after_each = parts[1].times == parts[0].times;
  for (std::uint64_t i = 0; i < parts[0].times; ++i) {
    add(0);
    if (after_each) add(1);
  }
  if (!after_each && parts[1].times > 0) add(1);  // once, for the last of the prompts
  return steps;
}

/// The prompt's steps. Their costs are taken to be affine in what is in the cache before them.
void Forecaster::add_chunks(std::span<const DesignPoint> points, Scratch& s, Scratch& sums) const {
  s.activations = sums.activations;
  for (std::size_t part = 0; part < 2; ++part) {
    std::array<DesignPoint, lanes> sizes;
    Scratch::KvLens first{};
    Scratch::KvLens last{};
    Lanes chunks;
    Lanes steps;
    chunks.v.fill(1);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const PrefillSteps p = prefill_steps(points[i])[part];
      sizes[i] = p.size;
      first[i] = p.first_kv_len;
      last[i] = p.last_kv_len;
      chunks.v[i] = static_cast<double>(p.chunks);
      steps.v[i] = static_cast<double>(p.chunks * p.times);
    }
    const std::span<const DesignPoint> of_step(sizes.data(), points.size());
    s.set(s.first, of_step, first);
    s.set(s.last, of_step, last);
    add_memory(chunk_->memory, of_step, last, steps, s);
    const auto in_time = [&](StepTotals totals) {
      totals.pace(chunk_->step.host_seconds());
      totals.wait(host_step(of_step));
      return totals;
    };
    const StepTotals step = in_time(chunk_->step.mean(s.first, s.last, chunks));
    if (std::any_of(chunks.v.begin(), chunks.v.end(), [](double number) { return number > 1; })) {
      const StepTotals longest = in_time(chunk_->step.at(s.last));
      for (std::size_t i = 0; i < points.size(); ++i) {
        const double after_middle = (chunks.v[i] - 1) / 2;
        if (after_middle == 0) continue;
        sums.prompt_growth.v[i] = (longest.seconds.v[i] - step.seconds.v[i]) / after_middle;
      }
    }
    sums.prompt.add(step, steps);
    for (std::size_t i = 0; i < points.size(); ++i) {
      sums.parts[index(TtftPart::Base)].v[i] += steps.v[i] * step.seconds.v[i];
      sums.prompt_steps[part].v[i] = steps.v[i] > 0 ? step.seconds.v[i] : 0;
    }
  }
  sums.activations = s.activations;
}

/// Raises the peak of activations to that of a pass at these cache lengths, and returns its cache.
/// Both are 0 where it has no `steps`.
Lanes Forecaster::add_memory(const Memory& memory, std::span<const DesignPoint> points,
                             std::span<const std::uint64_t, lanes> kv_len, const Lanes& steps,
                             Scratch& s) const {
  s.set(s.end, points, kv_len);
  polynomials_.evaluate_monomials(s.end.symbols, s.end.values.monomials);
  Lanes cache = polynomials_.evaluate(memory.cache_bytes, s.end.values.monomials);
  for (std::size_t i = 0; i < lanes; ++i) cache.v[i] = steps.v[i] > 0 ? cache.v[i] : 0;
  for (const Polynomial peak : memory.activation_peaks) {
    const Lanes candidate = polynomials_.evaluate(peak, s.end.values.monomials);
    for (std::size_t i = 0; i < lanes; ++i) {
      if (steps.v[i] > 0) s.activations.v[i] = std::max(s.activations.v[i], candidate.v[i]);
    }
  }
  return cache;
}

void Forecaster::evaluate_block(std::span<const DesignPoint> points,
                                std::span<const std::size_t> prompts, const Lanes& of_prompts,
                                std::span<Forecast> rows, Scratch& s) const {
  for (std::size_t i = 0; i < points.size(); ++i) s.activations.v[i] = of_prompts.v[prompts[i]];
  evaluate(prompt_slots_, points, s.first_kv_len);
  Scratch::KvLens end{};  // of the output, when the last token is in the cache too
  Lanes steps;
  for (std::size_t i = 0; i < points.size(); ++i) {
    end[i] = s.first_kv_len[i] + points[i].output_len;
    steps.v[i] = static_cast<double>(decode_steps(points[i]));
    s.last_kv_len[i] = s.first_kv_len[i] + decode_steps(points[i]);
    ++s.first_kv_len[i];
  }
  StepTotals decode = mean_step(decode_.step, points, s);
  decode.pace(decode_.step.host_seconds());
  decode.wait(host_step(points));
  const Lanes cache = add_memory(memory_, points, end, steps, s);

  for (std::size_t i = 0; i < points.size(); ++i) {
    Forecast& f = rows[i];
    const std::size_t prompt = prompts[i];
    std::array<double, num_bounds> ttft_by{};
    std::array<double, num_bounds> tpot_by{};
    std::array<double, num_bounds> request_by{};
    f.ttft_s = s.prompt.seconds.v[prompt];
    for (std::size_t part = 0; part < num_ttft_parts; ++part) {
      f.ttft_parts_s[part] = s.parts[part].v[prompt];
    }
    for (std::size_t kind = 0; kind < f.prompt_step_s.size(); ++kind) {
      f.prompt_step_s[kind] = s.prompt_steps[kind].v[prompt];
    }
    f.prompt_growth_s = s.prompt_growth.v[prompt];
    f.tpot_s = decode.seconds.v[i];
    f.communication_s = s.prompt.collectives.v[prompt];
    f.tpot_communication_s = decode.collectives.v[i];
    const double later_tokens = static_cast<double>(points[i].output_len - 1);
    for (std::size_t b = 0; b < num_bounds; ++b) {
      ttft_by[b] = s.prompt.by_bound[b].v[prompt];
      tpot_by[b] = decode.by_bound[b].v[i];
      request_by[b] = ttft_by[b] + later_tokens * tpot_by[b];
    }
    const double batch = static_cast<double>(points[i].batch);
    f.ttft_bound = largest(ttft_by);
    f.tpot_bound = largest(tpot_by);
    f.bound = largest(request_by);
    f.ttft_work_bound = largest_work(ttft_by);
    f.tpot_work_bound = largest_work(tpot_by);
    f.prefill_flops = s.prompt.flops.v[prompt];
    f.prefill_bytes = s.prompt.bytes.v[prompt];
    f.decode_flops_per_token = decode.flops.v[i] / batch;
    f.decode_bytes_per_token = decode.bytes.v[i] / batch;
    f.kv_cache_bytes = cache.v[i];
    f.weight_bytes = weight_bytes_;
    f.peak_memory_bytes =
        weight_bytes_ + cache.v[i] + s.helper_caches.v[prompt] + s.activations.v[i];
    f.fits = f.peak_memory_bytes <= rates().memory_capacity_bytes;
  }
}

void Forecaster::sweep(std::span<const DesignPoint> points, std::span<Forecast> rows) const {
  KVCAST_ASSERT(points.size() == rows.size());
  const std::size_t room = std::max(symbols_.size(), chunk_symbols_.size());
  Scratch scratch(symbols_, room);
  Scratch of_chunks(chunk_symbols_, room);
  std::vector<DesignPoint> prompts;
  std::vector<std::size_t> prompt_of;  // each point
  for (std::size_t begin = 0; begin < points.size(); begin += prompt_of.size()) {
    prompts.clear();
    prompt_of.clear();
    for (const DesignPoint& p : points.subspan(begin)) {
      const bool known = !prompts.empty() && p.batch == prompts.back().batch &&
                         p.prompt_len == prompts.back().prompt_len;
      if (!known && prompts.size() == lanes) break;
      if (!known) prompts.push_back(p);
      prompt_of.push_back(prompts.size() - 1);
    }
    add_prompt(prompts, scratch, of_chunks);
    const Lanes activations = scratch.activations;
    for (std::size_t i = 0; i < prompt_of.size(); i += lanes) {
      const std::size_t n = std::min(lanes, prompt_of.size() - i);
      evaluate_block(points.subspan(begin + i, n), std::span(prompt_of).subspan(i, n), activations,
                     rows.subspan(begin + i, n), scratch);
    }
  }
}

Forecast Forecaster::at(const DesignPoint& point) const {
  if (point.batch == 0 || point.prompt_len == 0 || point.output_len == 0) {
    throw Error("a design point", "a batch, prompt or output of 0", "at least 1 of each");
  }
  // The exact counts first: they throw where a double would silently round.
  const SymbolValues values = values_at(point, 1);
  std::uint64_t flops = 0;
  std::uint64_t bytes = 0;
  for (const Pass& pass : prompt_) {
    if (pass.recorded.tokens.at(values) == 0) continue;
    const Work work = total_work(pass.groups);
    for (std::uint64_t step = 0; step < pass.recorded.steps; ++step) {
      const SymbolValues at = values_at(point, pass.recorded.first_kv_len.at(values) + step);
      flops = checked_add(flops, work.flops.at(at));
      bytes = checked_add(bytes, work.bytes().at(at));
    }
  }
  const std::uint64_t end = checked_add(prompt_slots_.at(values), point.output_len);
  const std::uint64_t cache = exact_kv_cache_bytes_.at(values_at(point, end));
  Forecast f;
  sweep({&point, 1}, {&f, 1});
  if (!chunk_) {
    f.prefill_flops = static_cast<double>(flops);
    f.prefill_bytes = static_cast<double>(bytes);
  }
  f.kv_cache_bytes = static_cast<double>(cache);
  return f;
}

BreakdownRow host_row(std::string pass, const char* label, std::uint64_t count, Seconds all) {
  OpTime waiting;
  waiting.total = all;
  waiting.bound = Bound::Latency;
  OpGroup issue;
  issue.phase = "host";
  issue.label = label;
  issue.op = "host";
  return {std::move(pass), std::move(issue), waiting, count, all};
}

std::vector<BreakdownRow> Forecaster::breakdown(const DesignPoint& point) const {
  std::vector<BreakdownRow> rows;
  const auto add_host = [&](const std::string& pass, const char* label, std::uint64_t count,
                            Seconds all) {
    if (all.value != 0) rows.push_back(host_row(pass, label, count, all));
  };
  const SymbolValues values = values_at(point, 1);
  // `steps` like steps at the sizes `at`.
  const auto add = [&](const Pass& pass, const DesignPoint& size, const SymbolValues& at,
                       std::uint64_t steps) {
    const Rates& of_pass = pass.step.rates();
    Seconds device;
    std::uint64_t operators = 0;
    for (const OpGroup& g : pass.groups) {
      const OpTime t = time_of(g, of_pass, at);
      const std::uint64_t count = g.count * steps;
      rows.push_back({pass.recorded.name, g, t, count, static_cast<double>(count) * t.total});
      device += rows.back().total;
      operators += count;
    }
    const Seconds host = static_cast<double>(operators) * of_pass.host_operator_latency;
    add_host(pass.recorded.name, "issue", operators,
             Seconds{paced_seconds(device.value, host.value) - device.value});
    add_host(pass.recorded.name, "step", steps,
             Seconds{static_cast<double>(steps) * host_step({&size, 1}).v[0]});
  };
  const auto add_steps = [&](const Pass& pass, std::uint64_t first_kv_len, std::uint64_t all_steps,
                             std::uint64_t steps) {
    add(pass, point, values_at(point, first_kv_len + (all_steps - 1) / 2), steps);
  };
  const double tokens = static_cast<double>(point.batch) * static_cast<double>(point.prompt_len);
  add_host(std::string(prefill_name), "request", 1, Seconds{rates().host.before_s(tokens)});
  for (const Pass& pass : prompt_) {
    const std::uint64_t steps = pass.recorded.steps;
    if (pass.recorded.part == TtftPart::Base && chunk_) {
      for (const PrefillSteps& p : prefill_steps(point)) {
        if (p.times == 0) continue;
        const std::uint64_t middle = p.first_kv_len + (p.last_kv_len - p.first_kv_len) / 2;
        const SymbolValues at = chunk_symbols_.resolve({p.size.batch, p.size.prompt_len, middle});
        add(*chunk_, p.size, at, p.chunks * p.times);
      }
      continue;
    }
    if (pass.recorded.tokens.at(values) == 0) continue;
    add_steps(pass, pass.recorded.first_kv_len.at(values), steps, steps);
  }
  add_steps(decode_, prompt_slots_.at(values) + 1, decode_steps(point), 1);
  return rows;
}

}  // namespace kvcast::roofline
