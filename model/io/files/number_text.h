/// Numbers as files spell them.
#pragma once

#include <array>
#include <charconv>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

namespace kvcast {

/// The value of a cell or coordinate without one: an empty cell in a CSV file.
inline constexpr double no_value = std::numeric_limits<double>::quiet_NaN();

/// True if all of `text` is a number that `value` can hold: no sign where it has none, no blanks,
/// no unit. "nan" and "inf" are numbers of a double.
template <typename Number>
bool parse_number(std::string_view text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

/// Appends the shortest digits that read back as the same number.
template <typename Number>
void append_number(std::string& text, Number number) {
  std::array<char, 32> digits;  // a double needs at most 24 characters
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  text.append(digits.data(), written.ptr);
}

}  // namespace kvcast
