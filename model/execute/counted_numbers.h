/// Numbers and operands that count what is done with them, for the plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/execute/operand.h"

namespace kvcast::execute {

/// A number whose arithmetic is counted; N is float or double.
template <typename N>
struct Real {
  N value = 0;
};

/// Operations on this thread since somebody set it to zero.
inline thread_local std::uint64_t counted_flops = 0;

template <typename N>
Real<N> counted(N value) {
  ++counted_flops;
  return {value};
}
template <typename N>
Real<N> operator+(Real<N> a, Real<N> b) {
  return counted(a.value + b.value);
}
template <typename N>
Real<N> operator-(Real<N> a, Real<N> b) {
  return counted(a.value - b.value);
}
template <typename N>
Real<N> operator*(Real<N> a, Real<N> b) {
  return counted(a.value * b.value);
}
template <typename N>
Real<N> operator/(Real<N> a, Real<N> b) {
  return counted(a.value / b.value);
}
template <typename N>
Real<N> operator-(Real<N> a) {
  return counted(-a.value);
}
template <typename N>
Real<N>& operator+=(Real<N>& a, Real<N> b) {
  return a = a + b;
}
template <typename N>
bool at_least(Real<N> a, Real<N> b) {
  ++counted_flops;
  return a.value >= b.value;
}
template <typename N>
Real<N> maximum(Real<N> a, Real<N> b) {
  return counted(std::max(a.value, b.value));
}
template <typename N>
Real<N> exponential(Real<N> a) {
  return counted(std::exp(a.value));
}
template <typename N>
Real<N> hyperbolic_tangent(Real<N> a) {
  return counted(std::tanh(a.value));
}
template <typename N>
Real<N> error_function(Real<N> a) {
  return counted(std::erf(a.value));
}
template <typename N>
Real<N> square_root(Real<N> a) {
  return counted(std::sqrt(a.value));
}
template <typename N>
Real<N> inverse_square_root(Real<N> a) {
  return counted(1 / std::sqrt(a.value));
}

template <typename N>
Real<N> constant(double value) {
  return {static_cast<N>(value)};
}

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
  template <typename N>
  N* at(std::size_t i) const {
    if (operand_.contiguous()) return operand_.numbers<N>() + i;
    const std::size_t of_sequence = operand_.shape.elements() / operand_.shape[0];
    return operand_.sequence<N>(i / of_sequence) + i % of_sequence;
  }

 private:
  const Operand& operand_;
  std::vector<bool> touched_;
  std::uint64_t elements_ = 0;
};

template <typename N>
class Reader : public Touched {
 public:
  using Touched::Touched;
  Real<N> operator()(std::size_t i) {
    touch(i);
    return {*at<N>(i)};
  }
  Real<N> gather(std::size_t i) {
    gathered();
    return {*at<N>(i)};
  }
};

template <typename N>
class Writer : public Touched {
 public:
  using Touched::Touched;
  void operator()(std::size_t i, Real<N> x) {
    touch(i);
    *at<N>(i) = x.value;
  }
  /// An element written before, still in a register.
  Real<N> held(std::size_t i) const { return {*at<N>(i)}; }
};

}  // namespace kvcast::execute
