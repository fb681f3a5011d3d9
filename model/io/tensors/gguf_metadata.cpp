#include "model/io/tensors/gguf_metadata.h"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>

#include "model/base/error.h"
#include "model/io/tensors/gguf_cursor.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/stored_tensor.h"

namespace kvcast {
namespace {

/// As numbered in files.
enum class Type : std::uint32_t {
  UInt8,
  Int8,
  UInt16,
  Int16,
  UInt32,
  Int32,
  Float32,
  Bool,
  String,
  Array,
  UInt64,
  Int64,
  Float64,
};

/// The bytes of each type; of a string at least its length, of an array its type and length.
constexpr std::array<std::uint64_t, 13> min_bytes{1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
constexpr int max_array_depth = 4;

std::string_view name_of(const GgufValue& value) {
  static constexpr std::array<std::string_view, std::variant_size_v<GgufValue>> names{
      "a boolean", "an integer", "an integer", "a float", "a float", "a string", "an array"};
  return names[value.index()];
}

std::uint32_t read_type(GgufCursor& cursor, const std::string& place) {
  const auto type = cursor.number<std::uint32_t>("a value's type");
  if (type >= min_bytes.size()) {
    throw Error(place, "value type " + std::to_string(type), "0 to 12");
  }
  return type;
}

GgufValue read_value(GgufCursor& cursor, std::uint32_t type, const std::string& place,
                     int depth = 0);

GgufArray read_array(GgufCursor& cursor, const std::string& place, int depth) {
  if (depth > max_array_depth) {
    throw Error(place, "arrays nested deeper than " + std::to_string(max_array_depth),
                "a flat array");
  }
  GgufArray array;
  array.element = read_type(cursor, place);
  array.length = cursor.count("an array's length", min_bytes[array.element]);
  GgufCursor walk = cursor;
  const Type element{array.element};
  if (element == Type::Bool || element == Type::String || element == Type::Array) {
    for (std::uint64_t i = 0; i < array.length; ++i) read_value(walk, array.element, place, depth);
  } else {
    walk.take(array.length * min_bytes[array.element], "an array");
  }
  array.bytes = cursor.take(walk.position() - cursor.position(), "an array");
  return array;
}

template <typename T>
GgufValue read_integer(GgufCursor& cursor) {
  const T value = cursor.number<T>("a number");
  if (std::in_range<std::int64_t>(value)) return static_cast<std::int64_t>(value);
  return static_cast<std::uint64_t>(value);
}

GgufValue read_value(GgufCursor& cursor, std::uint32_t type, const std::string& place, int depth) {
  switch (Type{type}) {
    case Type::UInt8: return read_integer<std::uint8_t>(cursor);
    case Type::Int8: return read_integer<std::int8_t>(cursor);
    case Type::UInt16: return read_integer<std::uint16_t>(cursor);
    case Type::Int16: return read_integer<std::int16_t>(cursor);
    case Type::UInt32: return read_integer<std::uint32_t>(cursor);
    case Type::Int32: return read_integer<std::int32_t>(cursor);
    case Type::UInt64: return read_integer<std::uint64_t>(cursor);
    case Type::Int64: return read_integer<std::int64_t>(cursor);
    case Type::Float32: return cursor.number<float>("a number");
    case Type::Float64: return cursor.number<double>("a number");
    case Type::String: return cursor.text("a string");
    case Type::Array: return read_array(cursor, place, depth + 1);
    case Type::Bool: break;
  }
  const auto flag = cursor.number<std::uint8_t>("a boolean");
  if (flag > 1) throw Error(place, "a boolean other than 0 and 1", "true or false");
  return flag == 1;
}

/// 1e-05 for the float nearest to it, where a cast gives 9.99999975e-06: configs say 1e-05.
double decimal_of(float value) {
  std::array<char, 32> text;
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value);
  double decimal = 0;
  std::from_chars(text.data(), written.ptr, decimal);
  return decimal;
}

/// The value as a T; any number will do for a floating-point T.
template <typename T>
std::optional<T> as(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> std::optional<T> {
        using Held = std::decay_t<decltype(held)>;
        constexpr bool is_number = std::is_arithmetic_v<Held> && !std::is_same_v<Held, bool>;
        if constexpr (std::is_same_v<Held, T> || (std::is_floating_point_v<T> && is_number)) {
          return static_cast<T>(held);
        } else {
          return std::nullopt;
        }
      },
      value);
}

}  // namespace

GgufMetadata::GgufMetadata(std::shared_ptr<const MappedFile> file, GgufCursor& cursor,
                           std::uint64_t count)
    : file_(std::move(file)) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t begin = cursor.position();
    const std::string_view key = cursor.name("a metadata key");
    const std::string place = file_->path() + ": metadata " + shortened(key);
    const std::uint32_t type = read_type(cursor, place);
    if (!values_.emplace(key, read_value(cursor, type, place)).second) {
      throw Error(place, "the key twice", "each key once");
    }
    entries_.push_back({key, file_->bytes().subspan(begin, cursor.position() - begin)});
  }
}

void GgufMetadata::fail(std::string_view key, std::string_view found,
                        std::string_view expected) const {
  throw Error(file_->path() + ": metadata " + shortened(key), found, expected);
}

const GgufValue& GgufMetadata::at(std::string_view key, std::string_view expected) const {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    throw Error(file_->path() + ": metadata " + shortened(key) + ": missing, expected " +
                std::string(expected));
  }
  return it->second;
}

template <typename T>
T GgufMetadata::get(std::string_view key, std::string_view expected) const {
  const GgufValue& value = at(key, expected);
  const std::optional<T> found = as<T>(value);
  if (!found) fail(key, name_of(value), expected);
  return *found;
}

template <typename T>
std::vector<T> GgufMetadata::list(std::string_view key, std::string_view expected) const {
  const auto array = get<GgufArray>(key, expected);
  std::vector<T> elements;
  elements.reserve(array.length);  // at most the array's bytes
  GgufCursor cursor(array.bytes, file_->path());
  for (std::uint64_t i = 0; i < array.length; ++i) {
    const GgufValue value = read_value(cursor, array.element, file_->path());
    const std::optional<T> element = as<T>(value);
    if (!element) fail(key, "an array with " + std::string(name_of(value)), expected);
    elements.push_back(*element);
  }
  return elements;
}

bool GgufMetadata::is_array(std::string_view key) const {
  return std::holds_alternative<GgufArray>(at(key, "a value"));
}

std::uint64_t GgufMetadata::length(std::string_view key) const {
  return get<GgufArray>(key, "an array").length;
}

std::vector<std::string_view> GgufMetadata::keys() const {
  std::vector<std::string_view> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

std::string_view GgufMetadata::text(std::string_view key) const {
  return get<std::string_view>(key, "a string");
}

std::uint64_t GgufMetadata::whole(std::string_view key) const {
  const std::string_view expected = "a whole number";
  if (const auto* const large = std::get_if<std::uint64_t>(&at(key, expected))) {
    fail(key, std::to_string(*large), "a whole number below 2^63");
  }
  const auto integer = get<std::int64_t>(key, expected);
  if (integer < 0) fail(key, std::to_string(integer), expected);
  return static_cast<std::uint64_t>(integer);
}

double GgufMetadata::number(std::string_view key) const {
  const std::string_view expected = "a number";
  const auto* single = std::get_if<float>(&at(key, expected));
  const double number = single != nullptr ? decimal_of(*single) : get<double>(key, expected);
  if (!std::isfinite(number)) fail(key, std::to_string(number), expected);
  return number;
}

bool GgufMetadata::flag(std::string_view key) const { return get<bool>(key, "true or false"); }

std::vector<std::string_view> GgufMetadata::texts(std::string_view key) const {
  return list<std::string_view>(key, "an array of strings");
}

std::vector<std::int64_t> GgufMetadata::integers(std::string_view key) const {
  return list<std::int64_t>(key, "an array of whole numbers");
}

std::vector<bool> GgufMetadata::flags(std::string_view key) const {
  return list<bool>(key, "an array of true and false");
}

std::vector<float> GgufMetadata::numbers(std::string_view key) const {
  return list<float>(key, "an array of numbers");
}

}  // namespace kvcast
