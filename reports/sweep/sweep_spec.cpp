#include "reports/sweep/sweep_spec.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/quantity.h"

namespace kvcast::reports {
namespace {

using nlohmann::json;

constexpr std::uint64_t max_values = 10'000'000;

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

/// A value named twice counts once.
template <typename T>
void keep_first(std::vector<T>& values) {
  std::unordered_set<T> seen;
  std::erase_if(values, [&](const T& value) { return !seen.insert(value).second; });
}

/// Splits at separators for which `is_boundary(rest)` holds, `rest` being what follows.
template <typename IsBoundary>
std::vector<std::string> split(std::string_view text, std::string_view place,
                               IsBoundary is_boundary) {
  if (text.empty()) throw Error(place, "an empty list", "at least one value");
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_boundary(i)) {
      words.emplace_back();
    } else {
      words.back() += text[i];
    }
  }
  for (std::string& word : words) {
    const std::size_t begin = word.find_first_not_of(' ');
    const std::size_t end = word.find_last_not_of(' ');
    word = begin == std::string::npos ? "" : word.substr(begin, end - begin + 1);
    if (word.empty()) {
      throw Error(place, "an empty value in " + quoted(text), "values separated by single commas");
    }
  }
  return words;
}

struct Range {
  std::uint64_t begin = 1;
  std::uint64_t end = 1;
  std::uint64_t step = 1;
  bool geometric = false;
};

std::uint64_t plain_whole(std::string_view text, std::string_view place) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value == 0) {
    throw Error(place, quoted(text), "a whole number above 0");
  }
  return value;
}

/// "A..B[:STEP|:xFACTOR]", its numbers read by `number`; nothing when there is no "..".
template <typename Number>
std::optional<Range> parse_range(std::string_view text, std::string_view place, Number number) {
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  const std::size_t colon = text.find(':', dots);
  Range range;
  range.begin = number(text.substr(0, dots), place);
  range.end = number(
      text.substr(dots + 2, colon == std::string_view::npos ? colon : colon - dots - 2), place);
  if (range.end < range.begin) {
    throw Error(place, "the reversed range " + quoted(text), "its smaller end first");
  }
  if (colon == std::string_view::npos) return range;
  std::string_view step = text.substr(colon + 1);
  range.geometric = step.starts_with('x');
  if (range.geometric) step.remove_prefix(1);
  try {
    range.step = range.geometric ? plain_whole(step, place) : number(step, place);
  } catch (const Error&) {
    range.step = 0;
  }
  if (range.step < (range.geometric ? 2u : 1u)) {
    throw Error(place, "the step " + quoted(text.substr(colon + 1)),
                "a step above 0, such as 1k, or a whole factor above 1, such as x2");
  }
  return range;
}

void append(const Range& r, std::string_view place, std::vector<std::uint64_t>& values) {
  if (!r.geometric && (r.end - r.begin) / r.step >= max_values) {
    throw Error(place, std::to_string((r.end - r.begin) / r.step + 1) + " values",
                "at most " + std::to_string(max_values));
  }
  for (std::uint64_t value = r.begin; value <= r.end;) {
    values.push_back(value);
    // No overflow: numbers end far below 2^63, and a factor is tried by division.
    if (r.geometric && value > r.end / r.step) break;
    value = r.geometric ? value * r.step : value + r.step;
  }
}

/// A JSON scalar as the words of a flag would spell it.
std::string spelled(const json& value, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return value.dump();
  throw Error(place,
              value.is_null()    ? "null"
              : value.is_array() ? "a list in a list"
                                 : "an object",
              "a value, or a list of values");
}

/// One string as a flag's text, or each element of an array as one value.
template <typename ParseText, typename ParseElement, typename T>
void read_axis(const json& value, const std::string& place, ParseText parse_text,
               ParseElement parse_element, std::vector<T>& values) {
  if (!value.is_array()) {
    values = parse_text(spelled(value, place), place);
    return;
  }
  if (value.empty()) throw Error(place, "an empty list", "at least one value");
  for (const json& element : value) {
    for (T& parsed : parse_element(spelled(element, place), place)) {
      values.push_back(std::move(parsed));
    }
  }
  keep_first(values);
}

std::vector<std::string> one_word(const std::string& text, const std::string& place) {
  if (text.empty()) throw Error(place, "an empty value", "a name");
  return {text};
}

std::vector<SetAxis> read_set(const JsonObject& set, const json& values) {
  std::vector<SetAxis> axes;
  for (const std::string& key : set.keys()) {
    const std::string place = set.place_of(key);
    SetAxis axis{key, {}};
    const json& value = values.at(key);
    if (value.is_string()) {
      axis = parse_set_axis(key + "=" + value.get<std::string>(), place);
    } else if (value.is_array() && value.empty()) {
      throw Error(place, "an empty list", "at least one value");
    } else {
      for (const json& element : value.is_array() ? value : json::array({value})) {
        // A config entry may itself be a list, so anything goes.
        axis.values.push_back(element.is_string() ? element.get<std::string>() : element.dump());
      }
      keep_first(axis.values);
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

}  // namespace

std::string flag_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

std::string SweepSpec::place_of(const std::string& key) const {
  const auto place = places.find(key);
  return place != places.end() ? place->second : flag_of(key);
}

std::vector<std::string> parse_words(std::string_view text, std::string_view place) {
  auto words = split(text, place, [&](std::size_t i) { return text[i] == ','; });
  keep_first(words);
  return words;
}

bool has_options(std::string_view axis) { return axis == "method" || axis == "weight_dtype"; }

std::vector<std::string> parse_method_words(std::string_view text, std::string_view place) {
  const auto option_follows = [&](std::size_t i) {
    const std::size_t next = text.find_first_of("=:+,;", i + 1);
    return next != std::string_view::npos && text[next] == '=';
  };
  auto words = split(text, place, [&](std::size_t i) {
    return text[i] == ';' || (text[i] == ',' && !option_follows(i));
  });
  keep_first(words);
  return words;
}

std::vector<std::uint64_t> parse_numbers(std::string_view text, std::string_view place) {
  std::vector<std::uint64_t> values;
  for (const std::string& word : parse_words(text, place)) {
    if (const auto range = parse_range(word, place, parse_token_count)) {
      append(*range, place, values);
    } else {
      values.push_back(parse_token_count(word, place));
    }
  }
  keep_first(values);
  return values;
}

SetAxis parse_set_axis(std::string_view text, std::string_view place) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    throw Error(place, quoted(text), "KEY=VALUE[,VALUE...]");
  }
  SetAxis axis{std::string(text.substr(0, equals)), {}};
  const std::string_view list = text.substr(equals + 1);
  int depth = 0;
  bool in_string = false;
  const auto words = split(list, place, [&](std::size_t i) {
    const char c = list[i];
    if (c == '"') in_string = !in_string;
    if (!in_string && (c == '[' || c == '{')) ++depth;
    if (!in_string && (c == ']' || c == '}')) --depth;
    return c == ',' && depth == 0 && !in_string;
  });
  for (const std::string& word : words) {
    const bool numeric = word[0] >= '0' && word[0] <= '9';
    const auto range = numeric ? parse_range(word, place, plain_whole) : std::nullopt;
    if (!range) {
      axis.values.push_back(word);
      continue;
    }
    std::vector<std::uint64_t> numbers;
    append(*range, place, numbers);
    for (const std::uint64_t n : numbers) axis.values.push_back(std::to_string(n));
  }
  keep_first(axis.values);
  return axis;
}

ParseWords words_of_axis(std::string_view axis) {
  if (has_options(axis)) return parse_method_words;
  if (axis != "micro_batches") return parse_words;
  return [](std::string_view text, std::string_view place) {
    std::vector<std::string> words;
    for (const std::uint64_t n : parse_numbers(text, place)) words.push_back(std::to_string(n));
    return words;
  };
}

SweepSpec read_sweep_spec(const std::filesystem::path& path) {
  const json document = read_json_file(path);
  const JsonObject object(document, path.string());
  SweepSpec spec;
  const auto read_words = [&](const WordAxis& axis) {
    if (!object.has(axis.key)) return;
    const std::string& place = spec.places[axis.key] = object.place_of(axis.key);
    read_axis(object.at(axis.key), place, words_of_axis(axis.key), one_word, spec.*axis.values);
  };
  for (const WordAxis& axis : word_axes) read_words(axis);
  for (const WordAxis& axis : training_word_axes) read_words(axis);
  const auto read_numbers = [&](const NumberAxis& axis) {
    if (!object.has(axis.key)) return;
    const std::string& place = spec.places[axis.key] = object.place_of(axis.key);
    read_axis(object.at(axis.key), place, parse_numbers, parse_numbers, spec.*axis.values);
  };
  for (const NumberAxis& axis : number_axes) read_numbers(axis);
  for (const NumberAxis& axis : training_number_axes) read_numbers(axis);
  if (object.has("set")) spec.set = read_set(object.object("set"), object.at("set"));
  object.reject_unknown_keys();
  return spec;
}

}  // namespace kvcast::reports
