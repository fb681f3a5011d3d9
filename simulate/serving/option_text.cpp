#include "simulate/serving/option_text.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/io/files/number_text.h"

namespace kvcast::simulate {

OptionText::OptionText(std::string_view text, std::string place)
    : place_(std::move(place)), name_(text.substr(0, text.find(':'))) {
  if (name_.size() == text.size()) return;
  for (std::string_view rest = text.substr(name_.size() + 1);;) {
    const std::size_t comma = rest.find(',');
    const std::string_view option = rest.substr(0, comma);
    const std::size_t equals = option.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      throw Error(place_, "'" + std::string(option) + "' in '" + std::string(text) + "'",
                  "KEY=VALUE");
    }
    const auto [entry, is_new] =
        values_.emplace(option.substr(0, equals), option.substr(equals + 1));
    if (!is_new) {
      throw Error(fmt::format("{}: option '{}' given twice; expected once", place_, entry->first));
    }
    if (comma == std::string_view::npos) return;
    rest = rest.substr(comma + 1);
  }
}

const std::string* OptionText::find(std::string_view key) const {
  asked_.emplace(key);
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const std::string& OptionText::at(std::string_view key, std::string_view expected) const {
  const std::string* value = find(key);
  if (value != nullptr) return *value;
  throw Error(place_, fmt::format("'{}' without {}", name_, key),
              fmt::format("{}:{}=N with {}", name_, key, expected));
}

void OptionText::fail(std::string_view key, std::string_view expected) const {
  throw Error(fmt::format("{}: option '{}'", place_, key), "'" + at(key, expected) + "'", expected);
}

double OptionText::number(std::string_view key, double least, double most,
                          std::optional<double> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const std::string expected = fmt::format("a number from {:g} to {:g}", least, most);
  double value = 0;
  const bool right =
      parse_number(at(key, expected), value) && value >= least && value <= most;  // no nan
  if (!right) fail(key, expected);
  return value;
}

std::uint64_t OptionText::whole(std::string_view key, std::uint64_t least, std::uint64_t most,
                                std::optional<std::uint64_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const std::string expected = fmt::format("a whole number from {} to {}", least, most);
  double value = 0;
  const bool right = parse_number(at(key, expected), value) && value == std::floor(value) &&
                     value >= static_cast<double>(least) && value <= static_cast<double>(most);
  if (!right) fail(key, expected);
  return static_cast<std::uint64_t>(value);
}

bool OptionText::flag(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const std::string& value = at(key, "");
  if (value != "true" && value != "false") fail(key, "true or false");
  return value == "true";
}

void OptionText::reject_unknown() const {
  for (const auto& [key, value] : values_) {
    if (asked_.contains(key)) continue;
    if (asked_.empty()) throw Error(place_, "options of '" + name_ + "'", "none");
    throw Error(place_, unknown_name("option", key, {asked_.begin(), asked_.end()}));
  }
}

}  // namespace kvcast::simulate
