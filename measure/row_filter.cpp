#include "measure/row_filter.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/quantity.h"

namespace kvcast::measure {
namespace {

using Value = nlohmann::ordered_json;

const std::vector<std::string> words{"id",        "model",        "hardware", "method",
                                     "attention", "weight_dtype", "metric"};
const std::vector<std::string> filtered_numbers{"batch", "prompt_len", "output_len", "every"};

struct Comparison {
  std::string_view sign;
  bool (*holds)(const Value& value, const Value& limit);
};
/// Longer ones first: "<" begins "<=".
constexpr std::array<Comparison, 6> comparisons{{
    {"<=", [](const Value& a, const Value& b) { return a <= b; }},
    {">=", [](const Value& a, const Value& b) { return a >= b; }},
    {"!=", [](const Value& a, const Value& b) { return a != b; }},
    {"=", [](const Value& a, const Value& b) { return a == b; }},
    {"<", [](const Value& a, const Value& b) { return a < b; }},
    {">", [](const Value& a, const Value& b) { return a > b; }},
}};

struct Condition {
  std::string key;
  const Comparison* comparison = nullptr;
  Value limit;
};

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

Condition parse_condition(std::string_view part, const std::string& place) {
  Condition c;
  std::string word;
  for (const Comparison& comparison : comparisons) {
    const std::size_t at = part.find(comparison.sign);
    if (at == std::string_view::npos) continue;
    c.key = part.substr(0, at);
    c.comparison = &comparison;
    word = part.substr(at + comparison.sign.size());
    break;
  }
  if (c.key.empty() || word.empty()) {
    throw Error(place, "'" + std::string(part) + "'",
                "KEY=VALUE, KEY<=NUMBER or every=N, separated by commas");
  }
  const bool is_number = contains(filtered_numbers, c.key);
  if (!is_number && !contains(words, c.key)) {
    std::vector<std::string> keys = words;
    keys.insert(keys.end(), filtered_numbers.begin(), filtered_numbers.end());
    throw Error(place, unknown_name("key", c.key, keys));
  }
  c.limit = is_number ? Value(parse_token_count(word, place + ": " + c.key)) : Value(word);
  const std::string_view sign = c.comparison->sign;
  if ((!is_number && sign != "=" && sign != "!=") || (c.key == "every" && sign != "=")) {
    throw Error(place, "'" + std::string(part) + "'", c.key + "=VALUE");
  }
  if (c.key == "every" && c.limit == 0) throw Error(place, "every=0", "every=1 or more");
  return c;
}

}  // namespace

RowFilter parse_row_filter(std::string_view text, std::string_view place) {
  std::vector<Condition> conditions;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    conditions.push_back(parse_condition(part, std::string(place)));
  }
  return [conditions](const ValidationCase& c, std::size_t index) {
    Value values = case_json(c);
    values["method"] = method_names(c.row.method);
    return std::all_of(conditions.begin(), conditions.end(), [&](const Condition& condition) {
      if (condition.key == "every") return index % condition.limit.get<std::uint64_t>() == 0;
      return condition.comparison->holds(values.at(condition.key), condition.limit);
    });
  };
}

}  // namespace kvcast::measure
