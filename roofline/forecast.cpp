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

Forecaster::Forecaster(const Recording& recording, const Lowering& lowering, const Rates& rates)
    : symbols_(recording.symbols),
      cuts_vary_(symbols_.kv_len_breakpoints_vary()),
      prompt_slots_(recording.prompt_slots),
      prefill_groups_(fold(recording.prefill(), lowering)),
      decode_groups_(fold(recording.decode(), lowering)),
      prefill_(prefill_groups_, rates),
      decode_(decode_groups_, rates),
      exact_kv_cache_bytes_(recording.kv_cache_bytes),
      weight_bytes_(static_cast<double>(recording.weight_bytes.at({}))) {
  kv_cache_bytes_ = memory_.add(recording.kv_cache_bytes);
  for (const Graph* graph : {&recording.prefill(), &recording.decode()}) {
    for (const Count& peak : kvcast::activation_peaks(*graph)) {
      activation_peaks_.push_back(memory_.add(peak));
    }
  }
  for (const RecordedPass& pass : recording.helpers()) {
    if (pass.steps == 0) continue;
    std::vector<OpGroup> groups = fold(pass.graph, lowering);
    StepCost step(groups, rates);
    std::optional<StepCost> predictor = predictor_of(groups, rates);
    Helper helper{pass.name,
                  pass.part,
                  std::move(groups),
                  std::move(step),
                  std::move(predictor),
                  pass.tokens,
                  pass.first_kv_len,
                  pass.steps,
                  memory_.add(pass.cache_bytes),
                  {}};
    for (const Count& peak : kvcast::activation_peaks(pass.graph)) {
      helper.activation_peaks.push_back(memory_.add(peak));
    }
    helpers_.push_back(std::move(helper));
  }
}

SymbolValues Forecaster::values_at(const DesignPoint& p, std::uint64_t kv_len) const {
  return symbols_.resolve({p.batch, p.prompt_len, kv_len});
}

std::uint64_t Forecaster::prompt_slots(const DesignPoint& p) const {
  if (prompt_slots_ == Count(symbol::prompt_len)) return p.prompt_len;
  return prompt_slots_.at(values_at(p, 1));
}

std::vector<std::uint64_t> Forecaster::range_ends(const DesignPoint& p) const {
  std::vector<std::uint64_t> ends;
  if (symbols_.has_derived()) ends = symbols_.kv_len_breakpoints(values_at(p, 1));
  ends.push_back(~std::uint64_t{0});
  return ends;
}

struct Forecaster::Scratch {
  using KvLens = std::array<std::uint64_t, lanes>;

  explicit Scratch(const Symbols& s) : symbols(s), values(s.size()) {
    for (StepPoint* p : {&prefill, &first, &last, &end}) p->symbols.resize(s.size());
  }

  /// Symbol values of the block's points at the given cache lengths.
  void set(StepPoint& target, std::span<const DesignPoint> points, const KvLens& kv_len) {
    for (std::size_t i = 0; i < lanes; ++i) {
      // Unused lanes repeat the first point, so that no lane divides by zero.
      const std::size_t source = i < points.size() ? i : 0;
      const DesignPoint& p = points[source];
      target.symbols[symbol::batch.id].v[i] = static_cast<double>(p.batch);
      target.symbols[symbol::prompt_len.id].v[i] = static_cast<double>(p.prompt_len);
      target.symbols[symbol::kv_len.id].v[i] = static_cast<double>(kv_len[source]);
      if (!symbols.has_derived()) continue;
      values[symbol::batch.id] = p.batch;
      values[symbol::prompt_len.id] = p.prompt_len;
      values[symbol::kv_len.id] = kv_len[source];
      symbols.resolve(values);
      for (std::size_t s = symbol::num_free; s < values.size(); ++s) {
        target.symbols[s].v[i] = static_cast<double>(values[s]);
      }
    }
  }

  const Symbols& symbols;
  SymbolValues values;
  StepPoint prefill;
  StepPoint first;
  StepPoint last;
  StepPoint end;
  KvLens first_kv_len{};
  KvLens last_kv_len{};
  StepTotals helpers;  ///< sums over all of them
  std::array<Lanes, num_ttft_parts> parts;
  Lanes helper_caches;
  Lanes cache;
  Lanes activations;
};

/// The mean over the steps from s.first_kv_len to s.last_kv_len. Costs are affine in the cache
/// length between the ends of sliding windows: each such range is averaged on its own and weighted
/// by its steps.
StepTotals Forecaster::mean_step(const StepCost& step, std::span<const DesignPoint> points,
                                 Scratch& s) const {
  std::vector<std::vector<std::uint64_t>> ends;  // most points share them
  std::array<std::size_t, lanes> ends_of{};
  for (std::size_t i = 0; i < points.size(); ++i) {
    const bool differs = cuts_vary_ && i > 0 && points[i].prompt_len != points[i - 1].prompt_len;
    if (ends.empty() || differs) ends.push_back(range_ends(points[i]));
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

/// Sums of all passes before the prefill, and the memory that they need.
void Forecaster::add_helpers(std::span<const DesignPoint> points, Scratch& s) const {
  s.helpers = {};
  s.parts = {};
  s.helper_caches = s.activations = {};
  for (const Helper& helper : helpers_) {
    Lanes steps;  // none where it has no tokens
    for (std::size_t i = 0; i < points.size(); ++i) {
      const SymbolValues values = values_at(points[i], 1);
      s.first_kv_len[i] = helper.first_kv_len.at(values);
      s.last_kv_len[i] = s.first_kv_len[i] + helper.steps - 1;
      steps.v[i] = helper.tokens.at(values) > 0 ? static_cast<double>(helper.steps) : 0;
    }
    StepTotals step = mean_step(helper.step, points, s);
    const Lanes on_device = step.seconds;
    step.pace(helper.step.host_seconds());
    Lanes predictor_on_device;
    if (helper.predictor) predictor_on_device = mean_step(*helper.predictor, points, s).seconds;
    s.set(s.end, points, s.last_kv_len);
    memory_.evaluate_monomials(s.end.symbols, s.end.monomials);
    const Lanes cache = memory_.evaluate(helper.cache_bytes, s.end.monomials);
    std::vector<Lanes> peaks;
    for (const Polynomial peak : helper.activation_peaks) {
      peaks.push_back(memory_.evaluate(peak, s.end.monomials));
    }
    s.helpers.add(step, steps);
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (steps.v[i] == 0) continue;
      const double seconds = steps.v[i] * step.seconds.v[i];
      const double predictor = seconds * predictor_on_device.v[i] / on_device.v[i];
      s.parts[index(helper.part)].v[i] += seconds - predictor;
      s.parts[index(TtftPart::Predictor)].v[i] += predictor;
      s.helper_caches.v[i] += cache.v[i];
      for (const Lanes& peak : peaks) {
        s.activations.v[i] = std::max(s.activations.v[i], peak.v[i]);
      }
    }
  }
}

/// Cache and activations at the end of the output, when the last token is in the cache too.
void Forecaster::peak_memory(std::span<const DesignPoint> points, Scratch& s) const {
  Scratch::KvLens end{};
  for (std::size_t i = 0; i < points.size(); ++i) {
    end[i] = s.first_kv_len[i] - 1 + points[i].output_len;
  }
  s.set(s.end, points, end);
  memory_.evaluate_monomials(s.end.symbols, s.end.monomials);
  s.cache = memory_.evaluate(kv_cache_bytes_, s.end.monomials);
  for (const Polynomial peak : activation_peaks_) {
    const Lanes candidate = memory_.evaluate(peak, s.end.monomials);
    for (std::size_t i = 0; i < lanes; ++i) {
      s.activations.v[i] = std::max(s.activations.v[i], candidate.v[i]);
    }
  }
}

void Forecaster::evaluate_block(std::span<const DesignPoint> points, std::span<Forecast> rows,
                                Scratch& s) const {
  Scratch::KvLens unused;  // prefill has no cache length
  unused.fill(1);
  s.set(s.prefill, points, unused);
  StepTotals prefill = prefill_.at(s.prefill);
  prefill.pace(prefill_.host_seconds());
  add_helpers(points, s);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::uint64_t slots = prompt_slots(points[i]);
    s.first_kv_len[i] = slots + 1;
    s.last_kv_len[i] = slots + decode_steps(points[i]);
  }
  StepTotals decode = mean_step(decode_, points, s);
  decode.pace(decode_.host_seconds());
  peak_memory(points, s);

  for (std::size_t i = 0; i < points.size(); ++i) {
    Forecast& f = rows[i];
    std::array<double, num_bounds> ttft_by{};
    std::array<double, num_bounds> tpot_by{};
    std::array<double, num_bounds> request_by{};
    f.ttft_s = s.helpers.seconds.v[i] + prefill.seconds.v[i];
    for (std::size_t part = 0; part < num_ttft_parts; ++part) {
      f.ttft_parts_s[part] = s.parts[part].v[i];
    }
    f.ttft_parts_s[index(TtftPart::Base)] = prefill.seconds.v[i];
    f.tpot_s = decode.seconds.v[i];
    const double later_tokens = static_cast<double>(points[i].output_len - 1);
    for (std::size_t b = 0; b < num_bounds; ++b) {
      ttft_by[b] = prefill.by_bound[b].v[i] + s.helpers.by_bound[b].v[i];
      tpot_by[b] = decode.by_bound[b].v[i];
      request_by[b] = ttft_by[b] + later_tokens * tpot_by[b];
    }
    const double batch = static_cast<double>(points[i].batch);
    f.ttft_bound = largest(ttft_by);
    f.tpot_bound = largest(tpot_by);
    f.bound = largest(request_by);
    f.prefill_flops = s.helpers.flops.v[i] + prefill.flops.v[i];
    f.prefill_bytes = s.helpers.bytes.v[i] + prefill.bytes.v[i];
    f.decode_flops_per_token = decode.flops.v[i] / batch;
    f.decode_bytes_per_token = decode.bytes.v[i] / batch;
    f.kv_cache_bytes = s.cache.v[i];
    f.weight_bytes = weight_bytes_;
    f.peak_memory_bytes = weight_bytes_ + s.cache.v[i] + s.helper_caches.v[i] + s.activations.v[i];
    f.fits = f.peak_memory_bytes <= rates().memory_capacity_bytes;
  }
}

void Forecaster::sweep(std::span<const DesignPoint> points, std::span<Forecast> rows) const {
  KVCAST_ASSERT(points.size() == rows.size());
  Scratch scratch(symbols_);
  for (std::size_t i = 0; i < points.size(); i += lanes) {
    const std::size_t n = std::min(lanes, points.size() - i);
    evaluate_block(points.subspan(i, n), rows.subspan(i, n), scratch);
  }
}

Forecast Forecaster::at(const DesignPoint& point) const {
  if (point.batch == 0 || point.prompt_len == 0 || point.output_len == 0) {
    throw Error("a design point", "a batch, prompt or output of 0", "at least 1 of each");
  }
  // The exact counts first: they throw where a double would silently round.
  const std::uint64_t slots = prompt_slots(point);
  const SymbolValues values = values_at(point, checked_add(slots, 1));
  const Work prefill = total_work(prefill_groups_);
  std::uint64_t flops = prefill.flops.at(values);
  std::uint64_t bytes = prefill.bytes().at(values);
  for (const Helper& helper : helpers_) {
    if (helper.tokens.at(values) == 0) continue;
    const Work work = total_work(helper.groups);
    for (std::uint64_t step = 0; step < helper.steps; ++step) {
      const SymbolValues at = values_at(point, helper.first_kv_len.at(values) + step);
      flops = checked_add(flops, work.flops.at(at));
      bytes = checked_add(bytes, work.bytes().at(at));
    }
  }
  const std::uint64_t end = checked_add(slots, point.output_len);
  const std::uint64_t cache = exact_kv_cache_bytes_.at(values_at(point, end));
  Forecast f;
  sweep({&point, 1}, {&f, 1});
  f.prefill_flops = static_cast<double>(flops);
  f.prefill_bytes = static_cast<double>(bytes);
  f.kv_cache_bytes = static_cast<double>(cache);
  return f;
}

std::vector<BreakdownRow> Forecaster::breakdown(const DesignPoint& point) const {
  std::vector<BreakdownRow> rows;
  const std::uint64_t first = prompt_slots(point) + 1;
  const SymbolValues prefill_values = values_at(point, first);
  const SymbolValues decode_values = values_at(point, first + (decode_steps(point) - 1) / 2);
  const auto add = [&](const std::string& pass, const std::vector<OpGroup>& groups,
                       const SymbolValues& values, std::uint64_t steps = 1) {
    Seconds device;
    std::uint64_t operators = 0;
    for (const OpGroup& g : groups) {
      const OpTime t = time_of(g, rates(), values);
      const std::uint64_t count = g.count * steps;
      rows.push_back({pass, g, t, count, static_cast<double>(count) * t.total});
      device += rows.back().total;
      operators += count;
    }
    const Seconds host = static_cast<double>(operators) * rates().host_operator_latency;
    const Seconds idle{paced_seconds(device.value, host.value) - device.value};
    if (idle.value == 0) return;
    OpTime waiting;
    waiting.total = idle;
    waiting.bound = Bound::Latency;
    OpGroup issue;
    issue.phase = "host";
    issue.label = "issue";
    issue.op = "host";
    rows.push_back({pass, issue, waiting, operators, idle});
  };
  for (const Helper& helper : helpers_) {
    if (helper.tokens.at(prefill_values) == 0) continue;
    const std::uint64_t middle = helper.first_kv_len.at(prefill_values) + (helper.steps - 1) / 2;
    add(helper.name, helper.groups, values_at(point, middle), helper.steps);
  }
  add("prefill", prefill_groups_, prefill_values);
  add("decode", decode_groups_, decode_values);
  return rows;
}

}  // namespace kvcast::roofline
