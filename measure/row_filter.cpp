#include "measure/row_filter.h"

#include <algorithm>
#include <array>

#include "model/base/error.h"
#include "model/base/quantity.h"

namespace kvcast::measure {
namespace {

constexpr std::array words{"id",        "model",        "hardware", "method",
                           "attention", "weight_dtype", "metric"};
constexpr std::array numbers{"batch", "prompt_len", "output_len", "every"};
/// Longer ones first: "<" begins "<=".
constexpr std::array comparisons{"<=", ">=", "!=", "=", "<", ">"};

template <typename List>
bool contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::string word_of(const ValidationCase& c, std::string_view key) {
  const MeasuredRow& r = c.row;
  if (key == "id") return r.id;
  if (key == "model") return r.model;
  if (key == "hardware") return r.hardware;
  if (key == "method") return method_names(r.method);
  if (key == "attention") return std::string(attention_name(r.lowering.attention));
  if (key == "weight_dtype") return std::string(kvcast::name(r.lowering.weights));
  KVCAST_ASSERT(key == "metric");
  return std::string(name(c.metric));
}

std::uint64_t number_of(const ValidationCase& c, std::string_view key) {
  if (key == "batch") return c.row.size.batch;
  if (key == "prompt_len") return c.row.size.prompt_len;
  KVCAST_ASSERT(key == "output_len");
  return c.row.size.output_len;
}

bool holds(std::uint64_t value, std::string_view comparison, std::uint64_t limit) {
  if (comparison == "<=") return value <= limit;
  if (comparison == ">=") return value >= limit;
  if (comparison == "!=") return value != limit;
  if (comparison == "<") return value < limit;
  if (comparison == ">") return value > limit;
  return value == limit;
}

}  // namespace

RowFilter::RowFilter(std::string_view text, std::string_view place) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    Condition c;
    for (const char* comparison : comparisons) {
      const std::size_t at = part.find(comparison);
      if (at == std::string_view::npos) continue;
      c.key = part.substr(0, at);
      c.comparison = comparison;
      c.word = part.substr(at + c.comparison.size());
      break;
    }
    if (c.key.empty() || c.word.empty()) {
      throw Error(place, "'" + std::string(part) + "'",
                  "KEY=VALUE, KEY<=NUMBER or every=N, separated by commas");
    }
    const bool is_number = contains(numbers, c.key);
    if (!is_number && !contains(words, c.key)) {
      std::vector<std::string> keys(words.begin(), words.end());
      keys.insert(keys.end(), numbers.begin(), numbers.end());
      throw Error(std::string(place) + ": " + unknown_name("key", c.key, keys).what());
    }
    if (is_number) {
      c.number = parse_token_count(c.word, std::string(place) + ": " + c.key);
    }
    const bool equality = c.comparison == "=" || c.comparison == "!=";
    if ((!is_number && !equality) || (c.key == "every" && c.comparison != "=")) {
      throw Error(place, "'" + std::string(part) + "'", c.key + "=VALUE");
    }
    if (c.key == "every" && c.number == 0) throw Error(place, "every=0", "every=1 or more");
    conditions_.push_back(std::move(c));
  }
}

bool RowFilter::takes(const ValidationCase& c, std::size_t index) const {
  return std::all_of(conditions_.begin(), conditions_.end(), [&](const Condition& condition) {
    if (condition.key == "every") return index % condition.number == 0;
    if (contains(numbers, condition.key)) {
      return holds(number_of(c, condition.key), condition.comparison, condition.number);
    }
    return (word_of(c, condition.key) == condition.word) == (condition.comparison == "=");
  });
}

}  // namespace kvcast::measure
