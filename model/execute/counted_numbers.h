/// Numbers and operands that count what is done with them, for the plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/execute/operand.h"

namespace kvcast::execute {

/// A number whose arithmetic is counted.
struct Real {
  float value = 0;
};

/// Operations on this thread since somebody set it to zero.
inline thread_local std::uint64_t counted_flops = 0;

inline Real counted(float value) {
  ++counted_flops;
  return {value};
}
inline Real operator+(Real a, Real b) { return counted(a.value + b.value); }
inline Real operator-(Real a, Real b) { return counted(a.value - b.value); }
inline Real operator*(Real a, Real b) { return counted(a.value * b.value); }
inline Real operator/(Real a, Real b) { return counted(a.value / b.value); }
inline Real operator-(Real a) { return counted(-a.value); }
inline Real& operator+=(Real& a, Real b) { return a = a + b; }
inline Real maximum(Real a, Real b) { return counted(std::max(a.value, b.value)); }
inline Real exponential(Real a) { return counted(std::exp(a.value)); }
inline Real hyperbolic_tangent(Real a) { return counted(std::tanh(a.value)); }
inline Real error_function(Real a) { return counted(std::erf(a.value)); }
inline Real square_root(Real a) { return counted(std::sqrt(a.value)); }
inline Real inverse_square_root(Real a) { return counted(1 / std::sqrt(a.value)); }

inline Real constant(double value) { return {static_cast<float>(value)}; }

/// The elements of an operand that were touched. A gather reads an element anew for each row that
/// asks for it.
class Touched {
 public:
  explicit Touched(const Operand& operand)
      : operand_(operand), touched_(operand.shape.elements(), false) {}

  std::uint64_t bytes() const { return bytes_of(elements_, operand_.info->dtype).constant(); }
  const Operand& operand() const { return operand_; }

 protected:
  void touch(std::size_t i) {
    if (touched_[i]) return;
    touched_[i] = true;
    ++elements_;
  }
  void gathered() { ++elements_; }
  /// Where logical element i lies.
  float* at(std::size_t i) const {
    if (operand_.contiguous()) return operand_.data + i;
    const std::size_t of_sequence = operand_.shape.elements() / operand_.shape[0];
    return operand_.sequence(i / of_sequence) + i % of_sequence;
  }

 private:
  const Operand& operand_;
  std::vector<bool> touched_;
  std::uint64_t elements_ = 0;
};

class Reader : public Touched {
 public:
  using Touched::Touched;
  Real operator()(std::size_t i) {
    touch(i);
    return {*at(i)};
  }
  Real gather(std::size_t i) {
    gathered();
    return {*at(i)};
  }
};

class Writer : public Touched {
 public:
  using Touched::Touched;
  void operator()(std::size_t i, Real x) {
    touch(i);
    *at(i) = x.value;
  }
  /// An element written before, still in a register.
  Real held(std::size_t i) const { return {*at(i)}; }
};

}  // namespace kvcast::execute
