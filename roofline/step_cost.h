/// Seconds of a step: one pass of any recording, compiled once and evaluated at one point or at
/// `lanes` points side by side.
///
/// Every estimate, sweep, schedule and bound takes the time of an operator from here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "roofline/interconnect.h"
#include "roofline/op_cost.h"

namespace kvcast::roofline {

inline constexpr std::size_t lanes = 64;

/// One number for each point of a block.
struct alignas(64) Lanes {
  std::array<double, lanes> v{};
};

/// A range of terms of Polynomials.
struct Polynomial {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// Polynomials that share one table of monomials and one of terms. `Value` is double (one point) or
/// Lanes.
class Polynomials {
 public:
  struct Term {
    std::uint32_t monomial;
    double coefficient;
  };

  /// `scale` multiplies every coefficient (bytes to seconds).
  Polynomial add(const Count& count, double scale = 1);
  std::size_t num_monomials() const { return monomials_.size(); }
  /// All monomials, num_monomials() of them, from the symbols' values by symbol id.
  void evaluate_monomials(std::span<const Lanes> symbols, std::vector<Lanes>& monomials) const;
  template <typename Number>
  void evaluate_monomials(std::span<const Number> symbols, std::span<double> monomials) const {
    for (std::size_t m = 0; m < monomials_.size(); ++m) {
      monomials[m] = 1;
      for (const std::uint16_t factor : monomials_[m].factors()) {
        monomials[m] *= static_cast<double>(symbols[factor]);
      }
    }
  }
  Lanes evaluate(Polynomial p, std::span<const Lanes> monomials) const;
  const Term* terms() const { return terms_.data(); }
  std::uint32_t num_terms() const { return static_cast<std::uint32_t>(terms_.size()); }

 private:
  std::vector<Monomial> monomials_;
  std::vector<Term> terms_;
};

/// A host that issues operators one by one (Rates::host_operator_latency) runs ahead of the device;
/// the slower of the two sets the time.
inline double paced_seconds(double device_s, double host_s) { return std::max(device_s, host_s); }

/// Totals of a step at each point, or their means over several steps.
struct StepTotals {
  Lanes seconds;
  std::array<Lanes, num_bounds> by_bound;  ///< the seconds, by the limit that they come from
  Lanes flops;
  Lanes bytes;
  Lanes collectives;  ///< of the seconds, those of collectives

  /// The host needs `host_s` for the step: where it is slower, all of the time is latency.
  void pace(double host_s);
  /// The device waits as long for the host.
  void wait(const Lanes& seconds);
  /// Adds `times` another step, lane by lane; 0 times adds nothing, even of infinities.
  void add(const StepTotals& other, const Lanes& times);
};

/// One operator of a group at given sizes.
struct OpTime {
  Flops flops;
  Bytes bytes;              ///< algorithmic
  Bytes bytes_reread;       ///< read again because a repeated operand left the on-chip memory
  Bytes bytes_hit_on_chip;  ///< found in the on-chip memory, where another layer had read them
  Bytes bytes_on_chip;      ///< moved at the on-chip memory's rate
  Seconds compute;
  Seconds memory;
  Seconds collective;
  Seconds total;  ///< busy_seconds, the latency and the collective
  Bound bound = Bound::Compute;
};

/// The time of one of the group's operators. `values`: of all symbols (Symbols::resolve). Throws
/// Error when a count does not fit 64 bits.
OpTime time_of(const OpGroup& group, const Rates& rates, std::span<const std::uint64_t> values);

/// What the launch of a node takes, with the conversions beside it.
struct LaunchTime {
  double device_s = 0;  ///< apart from its collective
  double collective_s = 0;
  double host_s = 0;  ///< for the host to issue it
};
/// By group; of conversions nothing, which are with the launch before. Errors as time_of.
std::vector<LaunchTime> launch_times(const std::vector<OpGroup>& groups, const Rates& rates,
                                     std::span<const std::uint64_t> values);

/// Bytes that take less time if they are few enough to be on the chip: of a cache tensor that
/// another layer has read, or intermediates.
struct OnChipHit {
  Polynomial bytes;
  double most_bytes = 0;        ///< no hit above
  double seconds_per_byte = 0;  ///< saved by a hit
  bool intermediates = false;
};

/// What the length of operators (OpCost::length) does to their rates.
struct LengthEffect {
  Count length;
  Count groups;  ///< OpCost; zero: one
  RateCurve flops;
  RateCurve bytes;
  RateCurve uneven_loads;  ///< of Rates, where there are groups

  bool is_none() const { return flops.is_flat() && bytes.is_flat() && uneven_loads.is_flat(); }
  bool operator==(const LengthEffect&) const = default;
};

/// The same as the inner loop sees it.
struct CompiledLengthEffect {
  LengthEffect effect;
  Polynomial length;
  Polynomial groups;
};

/// How many times longer an operator's arithmetic, and its loads and stores, take at its length
/// than at the rates without one. `Value`: double or Lanes.
template <typename Value>
struct Slowdown {
  Value compute;
  Value memory;
};

/// Operators that cost the same, as the inner loop sees them.
struct StepEntry {
  Polynomial compute_s;
  Polynomial memory_s;
  double count = 0;
  bool works = true;        ///< the device does something; false: it only exchanges
  bool broadcasts = false;  ///< the rest is set if so, see Broadcast
  Polynomial bytes;
  Polynomial operand_bytes;
  Polynomial times;
  double seconds_per_byte = 0;
  double latency_s = 0;
  double exposed = 0;  ///< of Rates
  std::vector<OnChipHit> on_chip_hits;
  std::optional<std::size_t> length_effect;   ///< which one of its step
  Polynomial sizes;                           ///< the terms of all of its polynomials
  std::optional<CollectiveCurve> collective;  ///< of `message_bytes`
  Polynomial message_bytes;
};

/// What the operators of a step are evaluated with. `Value`: double or Lanes.
template <typename Value>
struct StepValues {
  std::vector<Value> monomials;
  std::vector<Slowdown<Value>> slowdowns;  ///< by length effect
};

/// Symbol values of a block of points, and what a step makes of them.
struct StepPoint {
  std::vector<Lanes> symbols;
  StepValues<Lanes> values;
};

/// What is the same at all points of a block and in all steps of a range, as products with weights
/// in decode steps of one batch: such operators are evaluated once.
struct StepConstants {
  std::vector<char> monomial_varies;
  std::vector<char> slowdown_varies;
  StepValues<double> values;  ///< at the first point
};

class StepCost {
 public:
  /// Any pass of any recording.
  StepCost(const Graph& graph, const Lowering& lowering, const Rates& rates)
      : StepCost(fold(graph, lowering), rates) {}
  StepCost(const std::vector<OpGroup>& groups, const Rates& rates)
      : StepCost(std::vector<std::vector<OpGroup>>{groups}, rates) {}
  /// A step in parts, such as those between messages, whose seconds can be had apart.
  StepCost(const std::vector<std::vector<OpGroup>>& parts, const Rates& rates);

  const Rates& rates() const { return rates_; }
  /// Operators of all parts.
  double num_operators() const;
  /// For the host to issue all of them.
  double host_seconds() const { return rates_.host_operator_latency.value * num_operators(); }

  /// At each point; fills in its values.
  StepTotals at(StepPoint& point) const;
  /// The mean over `steps` steps from `first` to `last`, both included, whose costs are affine in
  /// between, such as decode steps over a growing cache.
  StepTotals mean(StepPoint& first, StepPoint& last, const Lanes& steps) const;

  double num_operators(std::size_t part) const { return parts_[part].operators; }
  /// Device seconds of each part at one point, whose symbols have these `values`
  /// (Symbols::resolve), or the means of them over several sequences.
  void part_seconds(std::span<const std::uint64_t> values, std::span<double> seconds) const;
  void part_seconds(std::span<const double> values, std::span<double> seconds) const;

 private:
  struct Part {
    std::size_t end = 0;  ///< of its entries
    double operators = 0;
  };
  void part_seconds_at(const double* monomials, std::span<double> seconds) const;
  /// Fills in what follows from the symbols.
  void evaluate(StepPoint& point) const;
  /// Of a range of steps between two evaluated points.
  StepConstants constants(const StepValues<Lanes>& first, const StepValues<Lanes>& last) const;

  Rates rates_;
  Polynomials polynomials_;
  std::vector<CompiledLengthEffect> length_effects_;
  std::vector<StepEntry> entries_;  ///< part by part
  std::vector<Part> parts_;
  Polynomial total_flops_;
  Polynomial total_bytes_;
};

}  // namespace kvcast::roofline
