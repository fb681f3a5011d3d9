/// Values that are nearly alike.
#pragma once

#include <limits>

#include <doctest/doctest.h>

namespace kvcast {

/// Within 1.2e-5 of the larger of the two, or within `epsilon()` of it. doctest's own Approx allows
/// that share of 1 on top, and so takes any two times below some microseconds for alike.
/// Zero is near itself alone.
template <typename T>
doctest::Approx near(const T& value) {
  return doctest::Approx(static_cast<double>(value)).scale(std::numeric_limits<double>::min());
}

}  // namespace kvcast
