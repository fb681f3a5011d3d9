/// A pass compiled for evaluating many design points at once: polynomials over a shared table of
/// monomials, evaluated for `lanes` points side by side.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "roofline/op_cost.h"

namespace kvcast::roofline {

inline constexpr std::size_t lanes = 64;

/// One number for each point of a block.
struct alignas(64) Lanes {
  std::array<double, lanes> v{};
};

/// A range of terms in a Program's term table.
struct Polynomial {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// Polynomials that share one table of monomials and one of terms.
class Polynomials {
 public:
  struct Term {
    std::uint32_t monomial;
    double coefficient;
  };

  /// `scale` multiplies every coefficient (bytes to seconds).
  Polynomial add(const Count& count, double scale = 1);
  /// Computes all monomials from the symbols' values, one Lanes for each symbol id.
  void evaluate_monomials(std::span<const Lanes> symbols, std::vector<Lanes>& monomials) const;
  Lanes evaluate(Polynomial p, std::span<const Lanes> monomials) const;
  const Term* terms() const { return terms_.data(); }

 private:
  std::vector<Monomial> monomials_;
  std::vector<Term> terms_;
};

/// Seconds of a pass, split by the limit that each operator's time comes from.
struct PassTime {
  Lanes total;
  std::array<Lanes, num_bounds> by_bound;
};

/// SparedBytes as the inner loop sees them.
struct Spared {
  Polynomial bytes;
  double most_bytes = 0;
  double seconds_per_byte = 0;
};

/// An operator group as the inner loop sees it.
struct ProgramEntry {
  Polynomial compute_s;
  Polynomial memory_s;
  double count = 0;
  bool repeats = false;  ///< the rest is set if so, see Repetition
  Polynomial bytes;
  Polynomial operand_bytes;
  Polynomial times;
  double seconds_per_byte = 0;
  double latency_s = 0;
  std::vector<Spared> spared;
  LengthCurves curves;  ///< where they are not flat, `length` is set
  Polynomial length;
};

/// Symbol values of a block of points and the monomials made of them.
struct ProgramPoint {
  std::vector<Lanes> symbols;
  std::vector<Lanes> monomials;
};

class PassProgram {
 public:
  PassProgram(const std::vector<OpGroup>& groups, const Rates& rates);

  /// Operators of one pass.
  double num_operators() const { return num_operators_; }
  const Rates& rates() const { return rates_; }

  /// Fills in the monomials; the functions below want it done.
  void prepare(ProgramPoint& point) const {
    polynomials_.evaluate_monomials(point.symbols, point.monomials);
  }
  /// The time of the pass at each point.
  PassTime time(const ProgramPoint& point) const;
  /// The mean time over a range of passes whose costs are affine between its ends, such as decode
  /// steps over a growing cache; `steps` passes from `first` to `last`, both included.
  PassTime mean_time(const ProgramPoint& first, const ProgramPoint& last, const Lanes& steps) const;
  Lanes flops(const ProgramPoint& point) const {
    return polynomials_.evaluate(total_flops_, point.monomials);
  }
  Lanes bytes(const ProgramPoint& point) const {
    return polynomials_.evaluate(total_bytes_, point.monomials);
  }

 private:
  Rates rates_;
  Polynomials polynomials_;
  std::vector<ProgramEntry> entries_;
  Polynomial total_flops_;
  Polynomial total_bytes_;
  double num_operators_ = 0;
};

}  // namespace kvcast::roofline
