#include "model/base/quantity.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast {
namespace {

struct Prefix {
  std::string_view text;
  double factor;
  bool is_part() const { return factor < 1; }  ///< milli, micro, nano: seconds only
};

// Binary prefixes first: "Mi" must not be read as "M".
constexpr std::array prefixes{
    Prefix{"Ki", 1024.0},       Prefix{"Mi", 1048576.0},
    Prefix{"Gi", 1073741824.0}, Prefix{"Ti", 1099511627776.0},
    Prefix{"P", 1e15},          Prefix{"T", 1e12},
    Prefix{"G", 1e9},           Prefix{"M", 1e6},
    Prefix{"k", 1e3},           Prefix{"", 1.0},
    Prefix{"m", 1e-3},          Prefix{"u", 1e-6},
    Prefix{"n", 1e-9},
};
constexpr std::size_t num_binary = 4;

struct Form {
  std::array<std::string_view, 2> units;  ///< the first for output
  std::string_view example;
};

/// By Dimension.
constexpr std::array<Form, 4> forms{{
    {{"FLOP/s", "OP/s"}, "a quantity with a unit such as \"312 TFLOP/s\""},
    {{"B/s", "B/s"}, "a quantity with a unit such as \"3.35 TB/s\""},
    {{"B", "B"}, "a quantity with a unit such as \"80 GB\" or \"40 MiB\""},
    {{"s", "s"}, "a quantity with a unit such as \"2.6 us\""},
}};

const Form& form_of(Dimension dimension) { return forms[static_cast<std::size_t>(dimension)]; }

std::string quoted(std::string_view text) { return "\"" + std::string(text) + "\""; }

std::string with_prefix(double value, std::string_view unit) {
  if (value == 0) return fmt::format("0 {}", unit);
  const auto fits = [&](const Prefix& p) { return std::abs(value) >= p.factor * 0.9995; };
  const auto* const found = std::find_if(prefixes.begin() + num_binary, prefixes.end() - 1, fits);
  return fmt::format("{:.3g} {}{}", value / found->factor, found->text, unit);
}

}  // namespace

double parse_quantity(std::string_view text, Dimension dimension, std::string_view place) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const auto& units = form_of(dimension).units;
  double factor = 0;
  for (const Prefix& p : prefixes) {
    if (p.is_part() && dimension != Dimension::Seconds) continue;
    if (unit.starts_with(p.text) && std::ranges::count(units, unit.substr(p.text.size())) > 0) {
      factor = p.factor;
      break;
    }
  }
  // Dividing by an exact power of ten rounds once; multiplying by 1e-6 would round twice.
  const double value = factor < 1 && factor > 0 ? number / std::round(1 / factor) : number * factor;
  if (error != std::errc() || !std::isfinite(number) || number < 0 || factor == 0) {
    throw Error(place, quoted(text), form_of(dimension).example);
  }
  if (value != 0 && !is_computable(value)) throw Error(place, quoted(text), computable_range);
  return value;
}

std::uint64_t parse_token_count(std::string_view text, std::string_view place) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  double factor = 0;
  if (suffix.empty()) factor = 1;
  if (suffix == "k" || suffix == "K" || suffix == "Ki") factor = 1024;
  if (suffix == "M" || suffix == "Mi") factor = 1024 * 1024;
  const double value = number * factor;
  if (error != std::errc() || factor == 0 || !(value >= 1) || value != std::floor(value) ||
      value > 1e15) {
    throw Error(place, quoted(text), "a whole number above 0, such as 4096 or 4k (k is 1024)");
  }
  return static_cast<std::uint64_t>(value);
}

std::string format_quantity(double value, Dimension dimension) {
  return with_prefix(value, form_of(dimension).units.front());
}

std::string format_count(double value) {
  std::string text = with_prefix(value, "");
  if (text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace kvcast
