/// Numbers and operands that count what is done with them, for the plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/execute/operand.h"

namespace kvcast::execute {

/// Of QuickGelu. Source: transformers, activations.py, QuickGELUActivation.
inline constexpr double quick_gelu_slope = 1.702;

/// Operations on this thread since somebody set it to zero.
inline thread_local std::uint64_t counted_flops = 0;

/// log(1 + e^x), as PyTorch computes it: 3 FLOPs.
template <std::floating_point N>
N softplus(N x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

// Of numbers of other types, what argument-dependent lookup finds.
using std::erf;
using std::exp;
using std::log;
using std::sqrt;
using std::tanh;

/// What angles are computed in, in which nothing is differentiated.
template <typename N>
struct AngleNumber {
  using Type = N;
};

/// A number whose arithmetic is counted; N is float or double.
template <typename N>
struct Real {
  N value = 0;

  static Real counted(N value) {
    ++counted_flops;
    return {value};
  }
  static Real constant(double value) { return {static_cast<N>(value)}; }

  friend Real operator+(Real a, Real b) { return counted(a.value + b.value); }
  friend Real operator-(Real a, Real b) { return counted(a.value - b.value); }
  friend Real operator*(Real a, Real b) { return counted(a.value * b.value); }
  friend Real operator/(Real a, Real b) { return counted(a.value / b.value); }
  friend Real operator-(Real a) { return counted(-a.value); }
  friend N number_of(Real a) { return a.value; }
  Real& operator+=(Real b) { return *this = *this + b; }
  friend bool at_least(Real a, Real b) { return counted(a.value).value >= b.value; }
  friend bool above(Real a, Real b) { return counted(a.value).value > b.value; }
  friend Real magnitude(Real a) { return counted(a.value < N{0} ? N{0} - a.value : a.value); }
  /// a, -a, or 0 where b is 0
  friend Real with_sign_of(Real a, Real b) {
    return counted(b.value < N{0} ? N{0} - a.value : N{0} < b.value ? a.value : N{0});
  }
  friend Real maximum(Real a, Real b) { return counted(a.value < b.value ? b.value : a.value); }
  friend Real minimum(Real a, Real b) { return counted(b.value < a.value ? b.value : a.value); }
  friend Real logarithm(Real a) { return counted(log(a.value)); }
  friend Real exponential(Real a) { return counted(exp(a.value)); }
  friend Real softplus(Real a) {
    counted_flops += 2;
    return counted(softplus(a.value));  // as above, or of another type
  }
  friend Real hyperbolic_tangent(Real a) { return counted(tanh(a.value)); }
  friend Real error_function(Real a) { return counted(erf(a.value)); }
  friend Real square_root(Real a) { return counted(sqrt(a.value)); }
  friend Real inverse_square_root(Real a) { return counted(N{1} / sqrt(a.value)); }
};

/// The elements of an operand that were touched. A gather reads an element anew for each row that
/// asks for it, and a scatter writes it anew.
class Touched {
 public:
  explicit Touched(const Operand& operand)
      : operand_(operand),
        contiguous_(operand.contiguous()),
        touched_(operand.shape.elements(), Mark::Untouched) {}

  std::uint64_t bytes() const {
    const auto touched = std::count(touched_.begin(), touched_.end(), Mark::Touched);
    return bytes_of(gathered_ + static_cast<std::uint64_t>(touched), operand_.info->dtype)
        .constant();
  }
  const Operand& operand() const { return operand_; }

 protected:
  // The loops call these for every number, and the compiler leaves them as calls by itself.
  [[gnu::always_inline]] void touch(std::size_t i) { touched_[i] = Mark::Touched; }
  void gathered(std::uint64_t elements = 1) { gathered_ += elements; }
  /// Where logical element i lies.
  template <typename N>
  [[gnu::always_inline]] N* at(std::size_t i) const {
    if (contiguous_) return operand_.numbers<N>() + i;
    const std::size_t of_sequence = operand_.shape.sequence_elements();
    return operand_.element<N>(i / of_sequence, i % of_sequence);
  }

 private:
  /// Of a type of its own, so that a mark changes no other number in the compiler's eyes.
  enum class Mark : std::uint8_t { Untouched, Touched };
  const Operand& operand_;
  bool contiguous_;
  std::vector<Mark> touched_;
  std::uint64_t gathered_ = 0;
};

template <typename N>
class Reader : public Touched {
 public:
  using Touched::Touched;
  [[gnu::always_inline]] Real<N> operator()(std::size_t i) {
    touch(i);
    return {*at<N>(i)};
  }
  Real<N> gather(std::size_t i) {
    gathered();
    return {*at<N>(i)};
  }
  void gather_elsewhere(std::uint64_t elements) { gathered(elements); }
};

template <typename N>
class Writer : public Touched {
 public:
  using Touched::Touched;
  [[gnu::always_inline]] void operator()(std::size_t i, Real<N> x) {
    touch(i);
    *at<N>(i) = x.value;
  }
  void scatter(std::size_t i, Real<N> x) {
    gathered();
    *at<N>(i) = x.value;
  }
  /// An element written before, still in a register.
  Real<N> held(std::size_t i) const { return {*at<N>(i)}; }
};

}  // namespace kvcast::execute
