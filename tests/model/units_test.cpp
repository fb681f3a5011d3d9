#include "model/base/units.h"

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include "tests/model/message_of.h"

using namespace kvcast;

namespace {

constexpr std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();

template <typename A, typename B>
concept Divisible = requires(A a, B b) {
  a / b;
};
template <typename A, typename B>
concept Addable = requires(A a, B b) {
  a + b;
};

}  // namespace

TEST_CASE("units: a sum of counts is exact up to the last 64-bit number and throws beyond it") {
  CHECK(checked_add(largest - 3, 3) == largest);
  CHECK((Flops{5} + Flops{7}).count == 12);
  CHECK((Bytes{largest - 1} + Bytes{1}).count == largest);
  CHECK_THROWS_AS(checked_add(largest, 1), Error);
  CHECK_THROWS_AS((Flops{largest} + Flops{2}), Error);
  Bytes sum{largest - 4};
  CHECK_THROWS_AS((sum += Bytes{5}), Error);
  CHECK(sum == Bytes{largest - 4});
}

TEST_CASE("units: a product of counts is exact up to the last 64-bit number and throws beyond it") {
  // 2^64 - 1 = 3 · 5 · 17 · 257 · 641 · 65537 · 6700417 = 4294967295 · 4294967297
  CHECK(checked_multiply(4294967295u, 4294967297u) == largest);
  CHECK(checked_multiply(0, largest) == 0);
  CHECK_THROWS_AS(checked_multiply(std::uint64_t{1} << 32, std::uint64_t{1} << 32), Error);
}

TEST_CASE("units: an overflow names both operands on one line") {
  const std::string line = message_of([] { checked_multiply(largest, 3); });
  CHECK(line.find("18446744073709551615 x 3") != std::string::npos);
  CHECK(line.find("exceeds 64 bits") != std::string::npos);
  CHECK(line.find('\n') == std::string::npos);
  const std::string sum = message_of([] { checked_add(7, largest); });
  CHECK(sum.find("7 + 18446744073709551615") != std::string::npos);
}

TEST_CASE("units: a count divided by its own rate is a time") {
  CHECK((Flops{12} / FlopsPerSecond{4}).value == 3.0);  // 12 FLOPs at 4 a second
  CHECK((Bytes{10} / BytesPerSecond{4}).value == 2.5);
}

TEST_CASE("units: a count divided by another rate does not compile") {
  static_assert(Divisible<Flops, FlopsPerSecond>);
  static_assert(Divisible<Bytes, BytesPerSecond>);
  static_assert(!Divisible<Flops, BytesPerSecond>);
  static_assert(!Divisible<Bytes, FlopsPerSecond>);
  static_assert(!Addable<Flops, Bytes>);
  static_assert(!Addable<Seconds, double>);
}

TEST_CASE("units: seconds add, scale and compare; their quotient is a bare number") {
  Seconds t{1.5};
  t += Seconds{0.5};
  CHECK(t == Seconds{2.0});
  CHECK((3.0 * t) == Seconds{6.0});
  CHECK(Seconds{6.0} / t == 3.0);
  CHECK(Seconds{1.0} < t);
  CHECK((0.5 * FlopsPerSecond{8}).value == 4.0);
  CHECK((0.25 * BytesPerSecond{8}).value == 2.0);
}
