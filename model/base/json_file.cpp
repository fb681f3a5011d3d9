#include "model/base/json_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/base/read_file.h"

namespace kvcast {
namespace {

using nlohmann::json;

constexpr std::uint64_t max_file_bytes = 16u << 20;
constexpr int max_depth = 100;  // deeper documents would exhaust the stack when copied or printed
constexpr std::uint64_t max_whole = std::uint64_t{1} << 40;

/// A list of at least one number, all of them in range.
template <typename Number>
std::vector<Number> list_at(const JsonObject& object, std::string_view key, const char* expected,
                            bool (*in_range)(const json&)) {
  const json& list = object.at(key);
  if (!list.is_array() || list.empty()) object.fail(key, expected);
  const auto bad = std::find_if_not(list.begin(), list.end(), in_range);
  if (bad != list.end()) throw Error(object.place_of(key), shown(*bad), expected);
  return list.get<std::vector<Number>>();
}

constexpr std::string_view infinity = "Infinity";
constexpr std::string_view named_infinity = R"({"__float__":"Infinity"})";

/// Python's json module writes Infinity, which JSON has not: as transformers 5 spells it,
/// {"__float__": "Infinity"}.
std::string with_named_infinities(std::string_view text) {
  std::string named;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!in_string && text.substr(i).starts_with(infinity)) {
      named += named_infinity;
      i += infinity.size() - 1;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) named += text[i++];
    named += text[i];
  }
  return named;
}

}  // namespace

json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path, "a JSON file", max_file_bytes), path.string());
}

json parse_json(std::string_view text, const std::string& place) {
  using Event = json::parse_event_t;
  std::array<std::unordered_set<std::string>, max_depth + 1> keys;  // of the open objects, by depth
  const auto check = [&](int depth, Event event, const json& key) {
    if (depth > max_depth) {
      throw Error(place, "JSON nested deeper than " + std::to_string(max_depth), "a flat document");
    }
    const auto level = static_cast<std::size_t>(depth);
    if (event == Event::key && !keys[level].insert(key.get<std::string>()).second) {
      throw Error(place, "the key " + shown(key) + " twice in one object", "each key once");
    }
    if (event == Event::object_end && level < max_depth) keys[level + 1].clear();
    return true;
  };
  try {
    return json::parse(with_named_infinities(text), check);
  } catch (const json::exception& e) {
    std::string reason = e.what();
    const auto bracket = reason.find("] ");
    if (bracket != std::string::npos) reason = reason.substr(bracket + 2);
    throw Error(place + ": not valid JSON: " + reason);
  }
}

std::string json_text(const json& document, int indent) {
  return document.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& document, int indent) {
  return document.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string shown(const json& value) {
  constexpr std::size_t most = 60;
  std::string text = json_text(value);
  for (std::size_t at = 0; (at = text.find(named_infinity, at)) != text.npos; ++at) {
    text.replace(at, named_infinity.size(), infinity);
  }
  if (text.size() > most) text = text.substr(0, most - 3) + "...";
  return text;
}

JsonObject::JsonObject(const json& value, std::string place)
    : json_(&value), place_(std::move(place)) {
  if (!value.is_object()) throw Error(place_, shown(value), "an object");
}

std::string JsonObject::place_of(std::string_view key) const {
  const bool inside = place_.find(": /") != std::string::npos;
  return place_ + (inside ? "/" : ": /") + std::string(key);
}

const json* JsonObject::find(std::string_view key) const {
  asked_.emplace(key);
  const auto it = json_->find(key);
  return it == json_->end() || it->is_null() ? nullptr : &*it;
}

bool JsonObject::has(std::string_view key) const { return find(key) != nullptr; }

bool JsonObject::is_null(std::string_view key) const {
  asked_.emplace(key);
  const auto it = json_->find(key);
  return it != json_->end() && it->is_null();
}

const json& JsonObject::at(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) throw Error(place_of(key) + ": missing; this key is required");
  return *value;
}

void JsonObject::fail(std::string_view key, std::string_view expected) const {
  throw Error(place_of(key), shown(at(key)), expected);
}

std::uint64_t JsonObject::whole(std::string_view key, std::uint64_t minimum) const {
  const json& value = at(key);
  const std::string expected = "a whole number from " + std::to_string(minimum) + " to 2^40";
  double number = 0;
  const bool is_natural =
      value.is_number_integer() && (value.is_number_unsigned() || value.get<std::int64_t>() >= 0);
  if (is_natural) {
    const auto n = value.get<std::uint64_t>();
    if (n < minimum || n > max_whole) fail(key, expected);
    return n;
  }
  if (value.is_number_float()) {
    number = value.get<double>();
    if (number == std::floor(number) && number >= static_cast<double>(minimum) &&
        number <= static_cast<double>(max_whole)) {
      return static_cast<std::uint64_t>(number);
    }
  }
  fail(key, expected);
}

std::uint64_t JsonObject::whole_or(std::string_view key, std::uint64_t fallback,
                                   std::uint64_t minimum) const {
  return has(key) ? whole(key, minimum) : fallback;
}

std::vector<std::uint64_t> JsonObject::wholes(std::string_view key) const {
  const auto in_range = [](const json& entry) {
    return entry.is_number_integer() && entry.get<std::int64_t>() >= 1 &&
           entry.get<std::uint64_t>() <= max_whole;
  };
  return list_at<std::uint64_t>(*this, key, "a list of whole numbers from 1 to 2^40", in_range);
}

double JsonObject::positive(std::string_view key) const {
  const json& value = at(key);
  if (!value.is_number() || !(value.get<double>() > 0)) fail(key, "a number above 0");
  if (!is_computable(value.get<double>())) fail(key, computable_range);
  return value.get<double>();
}

double JsonObject::positive_or(std::string_view key, double fallback) const {
  return has(key) ? positive(key) : fallback;
}

double JsonObject::number_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  const json& value = at(key);
  if (!value.is_number()) fail(key, "a number");
  const double number = value.get<double>();
  if (number != 0 && !is_computable(std::abs(number))) fail(key, computable_range);
  return number;
}

std::vector<double> JsonObject::positives(std::string_view key) const {
  const auto in_range = [](const json& entry) {
    return entry.is_number() && is_computable(entry.get<double>());
  };
  return list_at<double>(*this, key, "a list of numbers above 0, from 1e-30 to 1e30", in_range);
}

std::string JsonObject::text(std::string_view key) const {
  const json& value = at(key);
  if (!value.is_string()) fail(key, "a string");
  return value.get<std::string>();
}

std::vector<std::string> JsonObject::texts(std::string_view key) const {
  const auto is_text = [](const json& entry) { return entry.is_string(); };
  return list_at<std::string>(*this, key, "a list of strings", is_text);
}

std::string JsonObject::text_or(std::string_view key, std::string fallback) const {
  return has(key) ? text(key) : std::move(fallback);
}

bool JsonObject::flag_or(std::string_view key, bool fallback) const {
  if (is_null(key)) return false;
  if (!has(key)) return fallback;
  if (!at(key).is_boolean()) fail(key, "true or false");
  return at(key).get<bool>();
}

JsonObject JsonObject::object(std::string_view key) const { return {at(key), place_of(key)}; }

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : json_->items()) names.push_back(key);
  return names;
}

void JsonObject::reject_unknown_keys() const {
  for (const auto& [key, value] : json_->items()) {
    if (asked_.contains(key)) continue;
    throw Error(place_, unknown_name("key", key, {asked_.begin(), asked_.end()}));
  }
}

}  // namespace kvcast
