/// What kvcast uses of C++20's library and the libc++ 13 of Debian's emscripten lacks. The page's
/// build includes it before each source file.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <compare>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>

#include <fmt/format.h>

namespace std {

template <typename To, typename From>
To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <typename T, size_t n>
strong_ordering operator<=>(const array<T, n>& a, const array<T, n>& b) {
  for (size_t i = 0; i < n; ++i) {
    if (a[i] != b[i]) return a[i] <=> b[i];
  }
  return strong_ordering::equal;
}

/// Decimals as from_chars takes them: strtod, which rounds alike, also takes white space, a plus
/// and hexadecimal digits.
template <typename Float>
requires is_floating_point_v<Float> from_chars_result from_chars(const char* first,
                                                                 const char* last, Float& value) {
  const char* digits = first;
  while (digits != last && (*digits == '-' || isalnum(static_cast<unsigned char>(*digits)) != 0 ||
                            *digits == '.' || (*digits == '+' && digits != first))) {
    ++digits;
  }
  string text(first, digits);
  const size_t x = text.find_first_of("xX");
  if (x != string::npos) text.resize(x);
  char* end = nullptr;
  const double read = strtod(text.c_str(), &end);
  if (end == text.c_str()) return {first, errc::invalid_argument};
  const char* const rest = first + (end - text.c_str());
  if (read == HUGE_VAL && text.find_first_of("iI") == string::npos) {
    return {rest, errc::result_out_of_range};
  }
  value = static_cast<Float>(read);
  return {rest, errc{}};
}

/// The shortest digits that read back as the number, in the shorter of the notations 1234.5 and
/// 1.2345e+03.
inline to_chars_result to_chars(char* first, char* last, double value) {
  const auto put = [&](const string& text) -> to_chars_result {
    if (static_cast<size_t>(last - first) < text.size()) return {last, errc::value_too_large};
    return {std::copy(text.begin(), text.end(), first), errc{}};
  };
  string plain = fmt::format("{}", value);
  if (plain.find_first_of("an") != string::npos) return put(plain);  // nan, inf
  const string sign = plain[0] == '-' ? "-" : "";
  plain.erase(0, sign.size());
  const size_t e = plain.find('e');
  int exponent = e == string::npos ? 0 : atoi(plain.c_str() + e + 1);
  string digits = plain.substr(0, e);
  const size_t point = digits.find('.');
  exponent += static_cast<int>(point == string::npos ? digits.size() : point) - 1;
  if (point != string::npos) digits.erase(point, 1);
  const size_t zeros = std::min(digits.find_first_not_of('0'), digits.size() - 1);
  exponent -= static_cast<int>(zeros);
  digits.erase(0, zeros);
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.empty()) return put(sign + "0");
  const string scientific = digits.substr(0, 1) +
                            (digits.size() > 1 ? "." + digits.substr(1) : "") +
                            fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', abs(exponent));
  const int size = static_cast<int>(digits.size());
  string fixed;
  if (exponent < 0) {
    fixed = "0." + string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (exponent + 1 >= size) {
    fixed = digits + string(static_cast<size_t>(exponent + 1 - size), '0');
    if (fixed.size() <= scientific.size()) fixed = fmt::format("{:.0f}", abs(value));  // all digits
  } else {
    fixed = digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
            digits.substr(static_cast<size_t>(exponent + 1));
  }
  return put(sign + (fixed.size() <= scientific.size() ? fixed : scientific));
}

namespace ranges {

template <typename Range, typename Value, typename Projection = identity>
ptrdiff_t count(const Range& range, const Value& value, Projection projection = {}) {
  ptrdiff_t n = 0;
  for (const auto& part : range) n += invoke(projection, part) == value ? 1 : 0;
  return n;
}

template <typename A, typename B>
bool equal(const A& a, const B& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

template <typename Range, typename Out>
Out move(Range&& range, Out out) {
  return std::move(range.begin(), range.end(), out);
}

}  // namespace ranges
}  // namespace std
