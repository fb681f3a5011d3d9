#include "roofline/step_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "model/base/error.h"

// The inner loops below run over `lanes` points; on x86 they are compiled for several vector widths
// and the widest that the processor has is taken. Fused multiply-add contraction is off for the
// whole project, so all of them give the same digits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define KVCAST_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define KVCAST_VECTOR_CLONES
#endif

#if defined(__GNUC__)
#define KVCAST_INLINE inline __attribute__((always_inline))
#else
#define KVCAST_INLINE inline
#endif

namespace kvcast::roofline {
namespace {

/// mean of max(c, m) over n equally spaced points from the first to the last, c and m affine and
/// crossing between them.
double mean_of_crossing(double c0, double m0, double c1, double m1, double n) {
  const double d0 = c0 - m0;
  const double d1 = c1 - m1;
  if (d0 * d1 >= 0 || n < 2) return (std::max(c0, m0) + std::max(c1, m1)) / 2;
  // mean(m) + mean(max(c - m, 0)); the positive part is an arithmetic series on one side.
  const double step = std::abs((d1 - d0) / (n - 1));
  const double largest = std::max(d0, d1);
  const double positive = std::floor(largest / step) + 1;
  const double sum = positive * largest - step * positive * (positive - 1) / 2;
  return (m0 + m1) / 2 + sum / n;
}

/// The numbers of a Value: one, or one for each lane.
template <typename Value>
constexpr std::size_t width = sizeof(Value) / sizeof(double);
KVCAST_INLINE double* numbers(double& value) { return &value; }
KVCAST_INLINE const double* numbers(const double& value) { return &value; }
KVCAST_INLINE double* numbers(Lanes& value) { return value.v.data(); }
KVCAST_INLINE const double* numbers(const Lanes& value) { return value.v.data(); }

template <typename Value>
KVCAST_INLINE void evaluate_into(Value& out, const Polynomials::Term* terms, Polynomial p,
                                 const Value* monomials) {
  constexpr std::size_t strip = std::min<std::size_t>(width<Value>, 16);  // sums in registers
  for (std::size_t begin = 0; begin < width<Value>; begin += strip) {
    std::array<double, strip> sum{};
    for (std::uint32_t t = p.begin; t < p.end; ++t) {
      const double* x = numbers(monomials[terms[t].monomial]) + begin;
      const double coefficient = terms[t].coefficient;
      for (std::size_t i = 0; i < strip; ++i) sum[i] += coefficient * x[i];
    }
    std::copy(sum.begin(), sum.end(), numbers(out) + begin);
  }
}

/// Which bytes of an operator the on-chip memory decides about, at one point.
struct OnChip {
  bool reread = false;         ///< its broadcast operand was pushed out
  bool sharing = false;        ///< its shared cache tensor is there
  bool intermediates = false;  ///< its intermediates are there
};

/// Operators of one length share this, so a step evaluates it once for all of them.
template <typename Value>
KVCAST_INLINE void evaluate_into(Slowdown<Value>& out, const Polynomials::Term* terms,
                                 const CompiledLengthEffect& e, const Value* monomials) {
  Value lengths;
  Value counts;
  evaluate_into(lengths, terms, e.length, monomials);
  evaluate_into(counts, terms, e.groups, monomials);
  const double* length = numbers(lengths);
  const double* groups = numbers(counts);
  const bool grouped = !e.effect.groups.is_zero();
  double* compute = numbers(out.compute);
  double* memory = numbers(out.memory);
  for (std::size_t i = 0; i < width<Value>; ++i) {
    if (i > 0 && length[i] == length[i - 1] && groups[i] == groups[i - 1]) {  // often all the same
      compute[i] = compute[i - 1];
      memory[i] = memory[i - 1];
      continue;
    }
    const double rows = grouped ? length[i] / groups[i] : length[i];
    const double fewer = e.effect.uneven_loads.at(rows);
    compute[i] = 1 / e.effect.flops.at(rows * fewer);
    memory[i] = 1 / (fewer * e.effect.bytes.at(rows * fewer));
  }
}

/// What operators are evaluated with: the terms of all polynomials, and values at the points.
template <typename Value>
struct Evaluated {
  const Polynomials::Term* terms;
  const Value* monomials;
  const Slowdown<Value>* slowdowns;

  Evaluated(const Polynomials::Term* t, const Value* m, const Slowdown<Value>* s)
      : terms(t), monomials(m), slowdowns(s) {}
  Evaluated(const Polynomials::Term* t, const StepValues<Value>& values)
      : terms(t), monomials(values.monomials.data()), slowdowns(values.slowdowns.data()) {}
};

/// The two roofs of an operator: seconds of its arithmetic and of its loads and stores.
template <typename Value>
KVCAST_INLINE void roof_times(const StepEntry& e, const Evaluated<Value>& at, double on_chip_bytes,
                              Value& compute_s, Value& memory_s, OnChip* found = nullptr) {
  const Polynomials::Term* const terms = at.terms;
  const Value* const monomials = at.monomials;
  constexpr std::size_t n = width<Value>;
  evaluate_into(compute_s, terms, e.compute_s, monomials);
  evaluate_into(memory_s, terms, e.memory_s, monomials);
  double* compute = numbers(compute_s);
  double* memory = numbers(memory_s);
  for (const OnChipHit& s : e.on_chip_hits) {
    Value sizes;
    evaluate_into(sizes, terms, s.bytes, monomials);
    const double* bytes = numbers(sizes);
    for (std::size_t i = 0; i < n; ++i) {
      memory[i] -= bytes[i] <= s.most_bytes ? bytes[i] * s.seconds_per_byte : 0.0;
    }
    if (found != nullptr) {
      (s.intermediates ? found->intermediates : found->sharing) = bytes[0] <= s.most_bytes;
    }
  }
  if (e.broadcasts) {
    Value all;
    Value operands;
    Value repetitions;
    evaluate_into(all, terms, e.bytes, monomials);
    evaluate_into(operands, terms, e.operand_bytes, monomials);
    evaluate_into(repetitions, terms, e.times, monomials);
    const double* bytes = numbers(all);
    const double* operand = numbers(operands);
    const double* times = numbers(repetitions);
    for (std::size_t i = 0; i < n; ++i) {
      const double between = (bytes[i] - operand[i]) / times[i] + operand[i];
      const double reread = operand[i] * (times[i] - 1) * e.seconds_per_byte;
      memory[i] += between > on_chip_bytes ? reread : 0.0;
      if (found != nullptr) found->reread = between > on_chip_bytes;
    }
  }
  if (e.length_effect) {
    const Slowdown<Value>& slower = at.slowdowns[*e.length_effect];
    const double* compute_times = numbers(slower.compute);
    const double* memory_times = numbers(slower.memory);
    for (std::size_t i = 0; i < n; ++i) {
      compute[i] *= compute_times[i];
      memory[i] *= memory_times[i];
    }
  }
}

/// `computing` is an operator's arithmetic and the part of its memory time that this waits for.
/// busy_seconds is the longer of the two; the latency comes on top.
template <typename Value>
struct Roofs {
  Value computing;
  Value memory;
};

template <typename Value>
KVCAST_INLINE void op_roofs(const StepEntry& e, const Evaluated<Value>& at, const Rates& rates,
                            Roofs<Value>& roofs) {
  roof_times(e, at, rates.on_chip_bytes, roofs.computing, roofs.memory);
  double* computing = numbers(roofs.computing);
  const double* memory = numbers(roofs.memory);
  for (std::size_t i = 0; i < width<Value>; ++i) computing[i] += e.exposed * memory[i];
}

/// The mean of each roof over `steps` from `a` to `b`, into `a`. If the roofs of some lane cross in
/// between, the mean of the longer ones replaces the roof that is longer in the mean, 0 the other.
KVCAST_INLINE void mean_roofs(Roofs<Lanes>& a, const Roofs<Lanes>& b, const Lanes& steps) {
  double* c = numbers(a.computing);
  double* m = numbers(a.memory);
  const double* c1 = numbers(b.computing);
  const double* m1 = numbers(b.memory);
  double crossing = 0;
  for (std::size_t i = 0; i < lanes; ++i) {
    crossing += (c[i] - m[i]) * (c1[i] - m1[i]) < 0 ? 1.0 : 0.0;
  }
  if (crossing == 0) {
    for (std::size_t i = 0; i < lanes; ++i) {
      c[i] = (c[i] + c1[i]) / 2;
      m[i] = (m[i] + m1[i]) / 2;
    }
    return;
  }
  for (std::size_t i = 0; i < lanes; ++i) {
    const double mean = mean_of_crossing(c[i], m[i], c1[i], m1[i], steps.v[i]);
    const bool computes = c[i] + c1[i] > m[i] + m1[i];
    c[i] = computes ? mean : 0;
    m[i] = computes ? 0 : mean;
  }
}

/// Adds the time of all operators of this cost to the totals, by the limit that it comes from.
KVCAST_INLINE void add_time(const StepEntry& e, const Roofs<Lanes>& roofs, StepTotals& sum) {
  const double* c = numbers(roofs.computing);
  const double* m = numbers(roofs.memory);
  double* total = numbers(sum.seconds);
  double* by_compute = numbers(sum.by_bound[static_cast<std::size_t>(Bound::Compute)]);
  double* by_memory = numbers(sum.by_bound[static_cast<std::size_t>(Bound::Memory)]);
  double* by_latency = numbers(sum.by_bound[static_cast<std::size_t>(Bound::Latency)]);
  const double latency = e.latency_s;
  const double count = e.count;
  for (std::size_t i = 0; i < lanes; ++i) {
    const double busy = c[i] > m[i] ? c[i] : m[i];
    const double time = count * (busy + latency);
    const double computing = c[i] > m[i] ? time : 0.0;
    const double starting = latency > busy ? time : 0.0;
    total[i] += time;
    by_latency[i] += starting;
    by_compute[i] += latency > busy ? 0.0 : computing;
    by_memory[i] += latency > busy ? 0.0 : time - computing;
  }
}

/// The same of one that costs this much at all points.
KVCAST_INLINE void add_time(const StepEntry& e, const Roofs<double>& roofs, StepTotals& sum) {
  const double busy = std::max(roofs.computing, roofs.memory);
  const double time = e.count * (busy + e.latency_s);
  Bound bound = roofs.computing > roofs.memory ? Bound::Compute : Bound::Memory;
  if (e.latency_s > busy) bound = Bound::Latency;
  double* total = numbers(sum.seconds);
  double* of_bound = numbers(sum.by_bound[static_cast<std::size_t>(bound)]);
  for (std::size_t i = 0; i < lanes; ++i) {
    total[i] += time;
    of_bound[i] += time;
  }
}

/// Adds the mean of a collective's time at both ends of a range of steps.
void add_collective(const StepEntry& e, const Polynomials::Term* terms, const Lanes* first,
                    const Lanes* last, StepTotals& sum) {
  Lanes bytes;
  evaluate_into(bytes, terms, e.message_bytes, first);
  Lanes end = bytes;
  if (last != nullptr) evaluate_into(end, terms, e.message_bytes, last);
  double at_first = 0;
  double at_end = 0;
  for (std::size_t i = 0; i < lanes; ++i) {
    const bool again = i > 0 && bytes.v[i] == bytes.v[i - 1] && end.v[i] == end.v[i - 1];
    if (!again) {
      at_first = e.collective->at(bytes.v[i]);
      at_end = bytes.v[i] == end.v[i] ? at_first : e.collective->at(end.v[i]);
    }
    const double time = e.count * (at_first + at_end) / 2;
    sum.seconds.v[i] += time;
    sum.collectives.v[i] += time;
    sum.by_bound[static_cast<std::size_t>(Bound::Link)].v[i] += time;
  }
}

/// Whether an operator costs the same at all points and in all steps.
KVCAST_INLINE bool is_constant(const StepEntry& e, const Polynomials::Term* terms,
                               const StepConstants& constants) {
  if (e.length_effect && constants.slowdown_varies[*e.length_effect]) return false;
  for (std::uint32_t t = e.sizes.begin; t < e.sizes.end; ++t) {
    if (constants.monomial_varies[terms[t].monomial]) return false;
  }
  return true;
}

/// What run_entries reads: `last` is null for one step at `first`; else the mean over `steps`.
struct StepRange {
  const StepValues<Lanes>* first;
  const StepValues<Lanes>* last;
  const Lanes* steps;
  const StepConstants* constants;
};

KVCAST_VECTOR_CLONES
void run_entries(std::span<const StepEntry> entries, const Polynomials::Term* terms,
                 const Rates& rates, const StepRange& range, StepTotals& sum) {
  const Evaluated<double> once(terms, range.constants->values);
  const Evaluated<Lanes> at_first(terms, *range.first);
  const Evaluated<Lanes> at_last(terms, range.last != nullptr ? *range.last : *range.first);
  Roofs<double> constant;
  Roofs<Lanes> first;
  Roofs<Lanes> last;
  for (const StepEntry& e : entries) {
    if (e.collective) add_collective(e, terms, at_first.monomials, at_last.monomials, sum);
    if (!e.works) continue;
    if (is_constant(e, terms, *range.constants)) {
      op_roofs(e, once, rates, constant);
      add_time(e, constant, sum);
      continue;
    }
    op_roofs(e, at_first, rates, first);
    if (range.last != nullptr) {
      op_roofs(e, at_last, rates, last);
      mean_roofs(first, last, *range.steps);
    }
    add_time(e, first, sum);
  }
}

KVCAST_VECTOR_CLONES
void evaluate_clone(Lanes& out, const Polynomials::Term* terms, Polynomial p,
                    const Lanes* monomials) {
  evaluate_into(out, terms, p, monomials);
}

/// Null: not of experts, or these have no rate of their own.
const ExpertRate* expert_rate(BandwidthClass moves_at, const Rates& rates) {
  const auto of = [](const std::optional<ExpertRate>& rate) { return rate ? &*rate : nullptr; };
  if (moves_at == BandwidthClass::Experts) return of(rates.experts);
  if (moves_at == BandwidthClass::QuantizedExperts) return of(rates.quantized_experts);
  return nullptr;
}

/// Which of `effects` this one is; it is added where it is none of them.
std::size_t index_of(LengthEffect effect, Polynomials& polynomials,
                     std::vector<CompiledLengthEffect>& effects) {
  const auto known =
      std::find_if(effects.begin(), effects.end(),
                   [&](const CompiledLengthEffect& e) { return e.effect == effect; });
  const auto index = static_cast<std::size_t>(known - effects.begin());
  if (known == effects.end()) {
    const Polynomial length = polynomials.add(effect.length);
    const Polynomial groups = polynomials.add(effect.groups);
    effects.push_back({std::move(effect), length, groups});
  }
  return index;
}

/// `count` operators of this cost.
StepEntry compile(const OpCost& cost, double count, const Rates& rates, Polynomials& polynomials,
                  std::vector<CompiledLengthEffect>& effects) {
  const ExpertRate* experts = expert_rate(cost.bandwidth_class, rates);
  double rate = rates.flops_per_second[static_cast<std::size_t>(cost.rate_class)].value;
  if (experts != nullptr) {
    rate = experts->flops_per_second.value;
  } else if (cost.products && rates.other_products.contains(*cost.products)) {
    rate = rates.other_products.at(*cost.products).value;
  }
  const double bandwidth =
      rates.bytes_per_second[static_cast<std::size_t>(cost.bandwidth_class)].value;
  StepEntry e;
  e.sizes.begin = polynomials.num_terms();
  if (cost.collective) {
    if (rates.collectives.interconnect == nullptr) {
      throw Error("several devices", "no platform that joins them",
                  "--platform NAME, or hardware whose node is known");
    }
    e.collective =
        rates.collectives.interconnect->curve(cost.collective->kind, cost.collective->group,
                                              rates.collectives.library, rates.collectives.mode);
    e.collective->wait(rates.collectives.wait);
    e.message_bytes = polynomials.add(cost.collective->bytes);
  }
  e.works = !cost.collective || !cost.bytes.is_zero();
  e.compute_s = polynomials.add(cost.flops, cost.flops.is_zero() ? 0 : 1 / rate);
  const auto stored = cost.stored_weights ? rates.weight_bandwidth.find(*cost.stored_weights)
                                          : rates.weight_bandwidth.end();
  if (stored == rates.weight_bandwidth.end()) {
    e.memory_s = polynomials.add(cost.bytes, 1 / bandwidth);
  } else {
    e.memory_s = polynomials.add(cost.bytes - cost.weight_bytes, 1 / bandwidth);
    e.memory_s.end =
        polynomials.add(cost.weight_bytes, 1 / stored->second.bytes_per_second.value).end;
  }
  if (!cost.reread_bytes.is_zero() && rates.on_chip_read_bytes_per_second > 0) {
    e.memory_s.end =
        polynomials.add(cost.reread_bytes, 1 / rates.on_chip_read_bytes_per_second).end;
  }
  e.count = count;
  e.broadcasts = !cost.broadcast.operand_bytes.is_zero();
  if (e.broadcasts) {
    e.bytes = polynomials.add(cost.bytes);
    e.operand_bytes = polynomials.add(cost.broadcast.operand_bytes);
    e.times = polynomials.add(cost.broadcast.times);
  }
  e.seconds_per_byte = 1 / bandwidth;
  const auto moves_at = static_cast<std::size_t>(cost.bandwidth_class);
  e.latency_s = rates.latency[moves_at].value;
  e.exposed = rates.exposed[moves_at];
  if (!cost.sharing.operand_bytes.is_zero()) {
    const auto layers = static_cast<double>(cost.sharing.layers);
    e.on_chip_hits.push_back({polynomials.add(cost.sharing.operand_bytes), rates.on_chip_bytes,
                              (layers - 1) / layers / bandwidth, false});
  }
  if (!cost.intermediate_bytes.is_zero() && rates.on_chip_bytes_per_second &&
      rates.on_chip_bytes_per_second->value > bandwidth) {
    e.on_chip_hits.push_back({polynomials.add(cost.intermediate_bytes),
                              most_intermediate_bytes(rates.on_chip_bytes),
                              1 / bandwidth - 1 / rates.on_chip_bytes_per_second->value, true});
  }
  if (!cost.length.is_zero()) {
    LengthEffect effect;
    effect.length = cost.length;
    effect.groups = cost.groups;
    effect.flops = experts != nullptr
                       ? experts->by_rows
                       : rates.flops_by_length[static_cast<std::size_t>(cost.rate_class)];
    effect.bytes = stored != rates.weight_bandwidth.end()
                       ? stored->second.by_rows
                       : rates.bytes_by_length[static_cast<std::size_t>(cost.bandwidth_class)];
    if (!cost.groups.is_zero() && !cost.measured_loads) effect.uneven_loads = rates.uneven_loads;
    if (!effect.is_none()) {
      e.length_effect = index_of(std::move(effect), polynomials, effects);
    }
  }
  e.sizes.end = polynomials.num_terms();
  return e;
}

/// At one point, on the stack; a pass has about five.
class SlowdownValues {
 public:
  SlowdownValues(const std::vector<CompiledLengthEffect>& effects, const Polynomials& polynomials,
                 const double* monomials) {
    KVCAST_ASSERT(effects.size() <= values_.size());
    for (std::size_t i = 0; i < effects.size(); ++i) {
      evaluate_into(values_[i], polynomials.terms(), effects[i], monomials);
    }
  }
  const Slowdown<double>* data() const { return values_.data(); }

 private:
  std::array<Slowdown<double>, 512> values_;
};

/// The monomials of one point, on the stack: about ten of a pass, and one of each chunk of a loss.
class MonomialValues {
 public:
  template <typename Number>
  MonomialValues(const Polynomials& polynomials, std::span<const Number> symbols) {
    KVCAST_ASSERT(polynomials.num_monomials() <= values_.size());
    polynomials.evaluate_monomials(symbols, std::span<double>(values_));
  }
  const double* data() const { return values_.data(); }

 private:
  std::array<double, 128> values_;
};

}  // namespace

Polynomial Polynomials::add(const Count& count, double scale) {
  Polynomial p{static_cast<std::uint32_t>(terms_.size()), 0};
  const double unit = scale / static_cast<double>(count.denominator());
  for (const Count::Term& t : count.terms()) {
    const auto known = std::find(monomials_.begin(), monomials_.end(), t.monomial);
    const auto index = static_cast<std::uint32_t>(known - monomials_.begin());
    if (known == monomials_.end()) monomials_.push_back(t.monomial);
    terms_.push_back({index, static_cast<double>(t.numerator) * unit});
  }
  p.end = static_cast<std::uint32_t>(terms_.size());
  return p;
}

void Polynomials::evaluate_monomials(std::span<const Lanes> symbols,
                                     std::vector<Lanes>& monomials) const {
  monomials.resize(monomials_.size());
  for (std::size_t m = 0; m < monomials_.size(); ++m) {
    monomials[m].v.fill(1);
    for (const std::uint16_t factor : monomials_[m].factors()) {
      for (std::size_t i = 0; i < lanes; ++i) monomials[m].v[i] *= symbols[factor].v[i];
    }
  }
}

Lanes Polynomials::evaluate(Polynomial p, std::span<const Lanes> monomials) const {
  Lanes out;
  evaluate_clone(out, terms_.data(), p, monomials.data());
  return out;
}

void StepTotals::pace(double host_s) {
  for (std::size_t i = 0; i < lanes; ++i) {
    const double paced = paced_seconds(seconds.v[i], host_s);
    if (paced == seconds.v[i]) continue;
    seconds.v[i] = paced;
    for (Lanes& bound : by_bound) bound.v[i] = 0;
    by_bound[static_cast<std::size_t>(Bound::Latency)].v[i] = paced;
  }
}

void StepTotals::wait(const Lanes& host) {
  for (std::size_t i = 0; i < lanes; ++i) {
    seconds.v[i] += host.v[i];
    by_bound[static_cast<std::size_t>(Bound::Latency)].v[i] += host.v[i];
  }
}

void StepTotals::add(const StepTotals& other, const Lanes& times) {
  const auto add_to = [&times](Lanes& sum, const Lanes& more) {
    for (std::size_t i = 0; i < lanes; ++i) {
      if (times.v[i] != 0) sum.v[i] += times.v[i] * more.v[i];
    }
  };
  add_to(seconds, other.seconds);
  add_to(flops, other.flops);
  add_to(bytes, other.bytes);
  add_to(collectives, other.collectives);
  for (std::size_t b = 0; b < num_bounds; ++b) add_to(by_bound[b], other.by_bound[b]);
}

OpTime time_of(const OpGroup& group, const Rates& rates, std::span<const std::uint64_t> values) {
  Polynomials polynomials;
  std::vector<CompiledLengthEffect> effects;
  const StepEntry e = compile(group.cost(), 1, rates, polynomials, effects);
  const MonomialValues monomials(polynomials, values);
  const SlowdownValues slowdowns(effects, polynomials, monomials.data());
  const Evaluated<double> at{polynomials.terms(), monomials.data(), slowdowns.data()};
  OpTime t;
  OnChip found;
  roof_times(e, at, rates.on_chip_bytes, t.compute.value, t.memory.value, &found);
  t.flops = {group.work.flops.at(values)};
  t.bytes = {group.work.bytes().at(values)};
  if (found.reread) {
    t.bytes_reread = {checked_multiply(group.broadcast.operand_bytes.at(values),
                                       group.broadcast.times.at(values) - 1)};
  }
  if (found.sharing) {  // each of the layers is charged its part of the one reading
    const std::uint64_t layers = group.sharing.layers;
    const std::uint64_t operand = group.sharing.operand_bytes.at(values);
    t.bytes_hit_on_chip = {checked_multiply(operand, layers - 1) / layers};
  }
  if (found.intermediates) t.bytes_on_chip = {group.intermediate_bytes.at(values)};
  const Seconds busy{busy_seconds(t.compute.value, t.memory.value, e.exposed)};
  const double latency_s = e.works ? e.latency_s : 0;
  if (e.collective) {
    double message_bytes = 0;
    evaluate_into(message_bytes, polynomials.terms(), e.message_bytes, monomials.data());
    t.collective = {e.collective->at(message_bytes)};
  }
  t.total = busy + Seconds{latency_s} + t.collective;
  t.bound = busy > t.memory ? Bound::Compute : Bound::Memory;
  if (latency_s > busy.value) t.bound = Bound::Latency;
  if (t.collective.value > std::max(busy.value, latency_s)) t.bound = Bound::Link;
  return t;
}

std::vector<LaunchTime> launch_times(const std::vector<OpGroup>& groups, const Rates& rates,
                                     std::span<const std::uint64_t> values) {
  std::vector<LaunchTime> times(groups.size());
  std::size_t launch = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].op != conversion_name) launch = g;
    const OpTime t = time_of(groups[g], rates, values);
    times[launch].device_s += t.total.value - t.collective.value;
    times[launch].collective_s += t.collective.value;
    times[launch].host_s += rates.host_operator_latency.value;
  }
  return times;
}

StepCost::StepCost(const std::vector<std::vector<OpGroup>>& parts, const Rates& rates)
    : rates_(rates) {
  Work total;
  for (const std::vector<OpGroup>& groups : parts) {
    Part part;
    for (const auto& [cost, count] : merge(groups)) {
      entries_.push_back(
          compile(cost, static_cast<double>(count), rates, polynomials_, length_effects_));
      part.operators += entries_.back().count;
    }
    part.end = entries_.size();
    parts_.push_back(part);
    total += total_work(groups);
  }
  total_flops_ = polynomials_.add(total.flops);
  total_bytes_ = polynomials_.add(total.bytes());
}

double StepCost::num_operators() const {
  double operators = 0;
  for (const Part& part : parts_) operators += part.operators;
  return operators;
}

void StepCost::evaluate(StepPoint& point) const {
  StepValues<Lanes>& values = point.values;
  polynomials_.evaluate_monomials(point.symbols, values.monomials);
  values.slowdowns.resize(length_effects_.size());
  for (std::size_t i = 0; i < length_effects_.size(); ++i) {
    evaluate_into(values.slowdowns[i], polynomials_.terms(), length_effects_[i],
                  values.monomials.data());
  }
}

StepConstants StepCost::constants(const StepValues<Lanes>& first,
                                  const StepValues<Lanes>& last) const {
  const auto varies = [](const Lanes& a, const Lanes& b) {
    const double value = a.v[0];
    const auto differs = [value](double x) { return x != value; };
    return std::any_of(a.v.begin(), a.v.end(), differs) ||
           (&a != &b && std::any_of(b.v.begin(), b.v.end(), differs));
  };
  StepConstants c;
  for (std::size_t m = 0; m < first.monomials.size(); ++m) {
    c.monomial_varies.push_back(varies(first.monomials[m], last.monomials[m]));
    c.values.monomials.push_back(first.monomials[m].v[0]);
  }
  for (std::size_t i = 0; i < first.slowdowns.size(); ++i) {
    const Slowdown<Lanes>& a = first.slowdowns[i];
    const Slowdown<Lanes>& b = last.slowdowns[i];
    c.slowdown_varies.push_back(varies(a.compute, b.compute) || varies(a.memory, b.memory));
    c.values.slowdowns.push_back({a.compute.v[0], a.memory.v[0]});
  }
  return c;
}

StepTotals StepCost::at(StepPoint& point) const {
  evaluate(point);
  const StepConstants same = constants(point.values, point.values);
  StepTotals sum{};
  run_entries(entries_, polynomials_.terms(), rates_, {&point.values, nullptr, nullptr, &same},
              sum);
  sum.flops = polynomials_.evaluate(total_flops_, point.values.monomials);
  sum.bytes = polynomials_.evaluate(total_bytes_, point.values.monomials);
  return sum;
}

StepTotals StepCost::mean(StepPoint& first, StepPoint& last, const Lanes& steps) const {
  evaluate(first);
  evaluate(last);
  const StepConstants same = constants(first.values, last.values);
  StepTotals sum{};
  run_entries(entries_, polynomials_.terms(), rates_, {&first.values, &last.values, &steps, &same},
              sum);
  const auto mean_of = [&](Polynomial p, Lanes& mean) {
    mean = polynomials_.evaluate(p, first.values.monomials);
    const Lanes end = polynomials_.evaluate(p, last.values.monomials);
    for (std::size_t i = 0; i < lanes; ++i) mean.v[i] = (mean.v[i] + end.v[i]) / 2;
  };
  mean_of(total_flops_, sum.flops);
  mean_of(total_bytes_, sum.bytes);
  return sum;
}

void StepCost::part_seconds(std::span<const std::uint64_t> values,
                            std::span<double> seconds) const {
  part_seconds_at(MonomialValues(polynomials_, values).data(), seconds);
}

void StepCost::part_seconds(std::span<const double> values, std::span<double> seconds) const {
  part_seconds_at(MonomialValues(polynomials_, values).data(), seconds);
}

void StepCost::part_seconds_at(const double* monomials, std::span<double> seconds) const {
  const SlowdownValues slowdowns(length_effects_, polynomials_, monomials);
  const Evaluated<double> at{polynomials_.terms(), monomials, slowdowns.data()};
  std::size_t next = 0;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    double total = 0;
    for (; next < parts_[part].end; ++next) {
      const StepEntry& e = entries_[next];
      if (e.collective) {
        double bytes = 0;
        evaluate_into(bytes, polynomials_.terms(), e.message_bytes, monomials);
        total += e.count * e.collective->at(bytes);
      }
      if (!e.works) continue;
      Roofs<double> roofs;
      op_roofs(e, at, rates_, roofs);
      total += e.count * (std::max(roofs.memory, roofs.computing) + e.latency_s);
    }
    seconds[part] = total;
  }
}

}  // namespace kvcast::roofline
