#include "roofline/pass_program.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

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

KVCAST_INLINE void evaluate_into(double* out, const Polynomials::Term* terms, Polynomial p,
                                 const Lanes* monomials) {
  for (std::size_t i = 0; i < lanes; ++i) out[i] = 0;
  for (std::uint32_t t = p.begin; t < p.end; ++t) {
    const double* x = monomials[terms[t].monomial].v.data();
    const double coefficient = terms[t].coefficient;
    for (std::size_t i = 0; i < lanes; ++i) out[i] += coefficient * x[i];
  }
}

KVCAST_INLINE void roof_times(const ProgramEntry& e, const Polynomials::Term* terms,
                              const Lanes* monomials, double on_chip_bytes, double* compute,
                              double* memory) {
  evaluate_into(compute, terms, e.compute_s, monomials);
  evaluate_into(memory, terms, e.memory_s, monomials);
  for (const Spared& s : e.spared) {
    Lanes bytes;
    evaluate_into(bytes.v.data(), terms, s.bytes, monomials);
    for (std::size_t i = 0; i < lanes; ++i) {
      memory[i] -= bytes.v[i] <= s.most_bytes ? bytes.v[i] * s.seconds_per_byte : 0.0;
    }
  }
  if (e.repeats) {
    Lanes bytes;
    Lanes operand;
    Lanes times;
    evaluate_into(bytes.v.data(), terms, e.bytes, monomials);
    evaluate_into(operand.v.data(), terms, e.operand_bytes, monomials);
    evaluate_into(times.v.data(), terms, e.times, monomials);
    for (std::size_t i = 0; i < lanes; ++i) {
      const double between = (bytes.v[i] - operand.v[i]) / times.v[i] + operand.v[i];
      const double again = operand.v[i] * (times.v[i] - 1) * e.seconds_per_byte;
      memory[i] += between > on_chip_bytes ? again : 0.0;
    }
  }
  if (!e.curves.are_flat()) {
    Lanes length;
    evaluate_into(length.v.data(), terms, e.length, monomials);
    double flops_rate = 1;
    double bytes_rate = 1;
    for (std::size_t i = 0; i < lanes; ++i) {
      if (i == 0 || length.v[i] != length.v[i - 1]) {  // often all the same
        flops_rate = e.curves.flops.at(length.v[i]);
        bytes_rate = e.curves.bytes.at(length.v[i]);
      }
      compute[i] /= flops_rate;
      memory[i] /= bytes_rate;
    }
  }
}

/// Memory time, and what arithmetic takes with the part of it that it waits for: busy_seconds is
/// the longer of the two.
KVCAST_INLINE void entry_times(const ProgramEntry& e, const Polynomials::Term* terms,
                               const Lanes* monomials, double on_chip_bytes, double exposed,
                               double* compute, double* memory) {
  roof_times(e, terms, monomials, on_chip_bytes, compute, memory);
  for (std::size_t i = 0; i < lanes; ++i) compute[i] += exposed * memory[i];
}

struct KernelInput {
  std::span<const ProgramEntry> entries;
  const Polynomials::Term* terms;
  const Lanes* first;
  const Lanes* last;  ///< null: one pass at `first`, else the mean over `steps`
  const Lanes* steps;
  double on_chip_bytes;
  double exposed;
};

/// Adds count · (busy_seconds + latency) of every entry to the totals.
KVCAST_VECTOR_CLONES
void run_entries(const KernelInput& in, PassTime& sum) {
  double* total = sum.total.v.data();
  double* by_compute = sum.by_bound[static_cast<std::size_t>(Bound::Compute)].v.data();
  double* by_memory = sum.by_bound[static_cast<std::size_t>(Bound::Memory)].v.data();
  double* by_latency = sum.by_bound[static_cast<std::size_t>(Bound::Latency)].v.data();
  Lanes c;
  Lanes m;
  Lanes c1;
  Lanes m1;
  for (const ProgramEntry& e : in.entries) {
    entry_times(e, in.terms, in.first, in.on_chip_bytes, in.exposed, c.v.data(), m.v.data());
    if (in.last != nullptr) {
      entry_times(e, in.terms, in.last, in.on_chip_bytes, in.exposed, c1.v.data(), m1.v.data());
      double crossing = 0;
      for (std::size_t i = 0; i < lanes; ++i) {
        crossing += (c.v[i] - m.v[i]) * (c1.v[i] - m1.v[i]) < 0 ? 1.0 : 0.0;
      }
      if (crossing > 0) {
        for (std::size_t i = 0; i < lanes; ++i) {
          const double mean = mean_of_crossing(c.v[i], m.v[i], c1.v[i], m1.v[i], in.steps->v[i]);
          const bool computing = c.v[i] + c1.v[i] > m.v[i] + m1.v[i];
          c.v[i] = computing ? mean : 0;
          m.v[i] = computing ? 0 : mean;
        }
      } else {
        for (std::size_t i = 0; i < lanes; ++i) {
          c.v[i] = (c.v[i] + c1.v[i]) / 2;
          m.v[i] = (m.v[i] + m1.v[i]) / 2;
        }
      }
    }
    const double latency = e.latency_s;
    const double count = e.count;
    for (std::size_t i = 0; i < lanes; ++i) {
      const double busy = c.v[i] > m.v[i] ? c.v[i] : m.v[i];
      const double time = count * (busy + latency);
      const double computing = c.v[i] > m.v[i] ? time : 0.0;
      const double starting = latency > busy ? time : 0.0;
      total[i] += time;
      by_latency[i] += starting;
      by_compute[i] += latency > busy ? 0.0 : computing;
      by_memory[i] += latency > busy ? 0.0 : time - computing;
    }
  }
}

KVCAST_VECTOR_CLONES
void evaluate_clone(double* out, const Polynomials::Term* terms, Polynomial p,
                    const Lanes* monomials) {
  evaluate_into(out, terms, p, monomials);
}

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
  evaluate_clone(out.v.data(), terms_.data(), p, monomials.data());
  return out;
}

PassProgram::PassProgram(const std::vector<OpGroup>& groups, const Rates& rates) : rates_(rates) {
  // Groups that differ in their labels only cost the same.
  std::map<OpCost, std::uint64_t> merged;
  for (const OpGroup& g : groups) merged[g.cost()] += g.count;
  for (const auto& [cost, count] : merged) {
    const double rate = rates.flops_per_second[static_cast<std::size_t>(cost.engine)].value;
    const double bandwidth = rates.bytes_per_second[static_cast<std::size_t>(cost.stream)].value;
    ProgramEntry e;
    e.compute_s = polynomials_.add(cost.flops, cost.flops.is_zero() ? 0 : 1 / rate);
    e.memory_s = polynomials_.add(cost.bytes, 1 / bandwidth);
    e.count = static_cast<double>(count);
    e.repeats = !cost.repetition.operand_bytes.is_zero();
    if (e.repeats) {
      e.bytes = polynomials_.add(cost.bytes);
      e.operand_bytes = polynomials_.add(cost.repetition.operand_bytes);
      e.times = polynomials_.add(cost.repetition.times);
    }
    e.seconds_per_byte = 1 / bandwidth;
    e.latency_s = rates.latency(cost.engine, cost.stream).value;
    for (const SparedBytes& s : spared_bytes(cost, rates)) {
      e.spared.push_back({polynomials_.add(s.bytes), s.most_bytes, s.seconds_per_byte});
    }
    e.curves = length_curves(cost, rates);
    if (!e.curves.are_flat()) e.length = polynomials_.add(cost.length);
    num_operators_ += e.count;
    entries_.push_back(std::move(e));
  }
  const Work total = total_work(groups);
  total_flops_ = polynomials_.add(total.flops);
  total_bytes_ = polynomials_.add(total.bytes());
}

PassTime PassProgram::time(const ProgramPoint& point) const {
  PassTime sum{};
  run_entries({entries_, polynomials_.terms(), point.monomials.data(), nullptr, nullptr,
               rates_.on_chip_bytes, rates_.exposed},
              sum);
  return sum;
}

PassTime PassProgram::mean_time(const ProgramPoint& first, const ProgramPoint& last,
                                const Lanes& steps) const {
  PassTime sum{};
  run_entries({entries_, polynomials_.terms(), first.monomials.data(), last.monomials.data(),
               &steps, rates_.on_chip_bytes, rates_.exposed},
              sum);
  return sum;
}

}  // namespace kvcast::roofline
