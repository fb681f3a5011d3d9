/// Units: exact counts of work, and the rates that turn them into seconds.
///
/// A count divided by its own rate is a time; no other mixture compiles. Counts are exact 64-bit
/// integers with checked arithmetic, so that analytic and counted work can be compared with `==`.
#pragma once

#include <compare>
#include <cstdint>

namespace kvcast {

/// a + b, a * b on 64-bit counts. Throws Error when the result does not fit.
std::uint64_t checked_add(std::uint64_t a, std::uint64_t b);
std::uint64_t checked_multiply(std::uint64_t a, std::uint64_t b);

/// A number of floating-point operations; a multiply-add counts as two.
struct Flops {
  std::uint64_t count = 0;
  auto operator<=>(const Flops&) const = default;
};

/// A number of bytes.
struct Bytes {
  std::uint64_t count = 0;
  auto operator<=>(const Bytes&) const = default;
};

struct Seconds {
  double value = 0;
  auto operator<=>(const Seconds&) const = default;
};

struct FlopsPerSecond {
  double value = 0;
  auto operator<=>(const FlopsPerSecond&) const = default;
};

struct BytesPerSecond {
  double value = 0;
  auto operator<=>(const BytesPerSecond&) const = default;
};

inline Flops operator+(Flops a, Flops b) { return {checked_add(a.count, b.count)}; }
inline Bytes operator+(Bytes a, Bytes b) { return {checked_add(a.count, b.count)}; }
inline Flops& operator+=(Flops& a, Flops b) { return a = a + b; }
inline Bytes& operator+=(Bytes& a, Bytes b) { return a = a + b; }

constexpr Seconds operator+(Seconds a, Seconds b) { return {a.value + b.value}; }
constexpr Seconds& operator+=(Seconds& a, Seconds b) { return a = a + b; }
constexpr Seconds operator*(double factor, Seconds s) { return {factor * s.value}; }
constexpr double operator/(Seconds a, Seconds b) { return a.value / b.value; }

constexpr FlopsPerSecond operator*(double factor, FlopsPerSecond r) { return {factor * r.value}; }
constexpr BytesPerSecond operator*(double factor, BytesPerSecond r) { return {factor * r.value}; }

constexpr Seconds operator/(Flops work, FlopsPerSecond rate) {
  return {static_cast<double>(work.count) / rate.value};
}
constexpr Seconds operator/(Bytes bytes, BytesPerSecond rate) {
  return {static_cast<double>(bytes.count) / rate.value};
}

}  // namespace kvcast
