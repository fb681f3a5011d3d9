#include "model/io/tensors/gguf_metadata.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "model/base/error.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/tensors/stored_tensor.h"

namespace kvcast {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

constexpr std::string_view whole_number = "a whole number";
constexpr std::string_view a_number = "a number";
constexpr std::string_view a_string = "a string";
constexpr std::string_view true_or_false = "true or false";

std::string_view name_of(GgufType type) {
  switch (type) {
    case GgufType::UInt8:
    case GgufType::Int8:
    case GgufType::UInt16:
    case GgufType::Int16:
    case GgufType::UInt32:
    case GgufType::Int32:
    case GgufType::UInt64:
    case GgufType::Int64: return "an integer";
    case GgufType::Float32:
    case GgufType::Float64: return "a float";
    case GgufType::Bool: return "a boolean";
    case GgufType::String: return "a string";
    case GgufType::Array: return "an array";
  }
  return "an unknown type";
}

/// An integer of any width; unsigned ones above 2^63 - 1 are none that a model has.
std::optional<std::int64_t> integer_at(GgufType type, const std::byte* from) {
  switch (type) {
    case GgufType::UInt8: return load<std::uint8_t>(from);
    case GgufType::Int8: return load<std::int8_t>(from);
    case GgufType::UInt16: return load<std::uint16_t>(from);
    case GgufType::Int16: return load<std::int16_t>(from);
    case GgufType::UInt32: return load<std::uint32_t>(from);
    case GgufType::Int32: return load<std::int32_t>(from);
    case GgufType::Int64: return load<std::int64_t>(from);
    case GgufType::UInt64: {
      const auto value = load<std::uint64_t>(from);
      if (value > static_cast<std::uint64_t>(INT64_MAX)) return {};
      return static_cast<std::int64_t>(value);
    }
    case GgufType::Float32:
    case GgufType::Float64:
    case GgufType::Bool:
    case GgufType::String:
    case GgufType::Array: break;
  }
  return {};
}

std::optional<double> number_at(GgufType type, const std::byte* from) {
  if (type == GgufType::Float32) return static_cast<double>(load<float>(from));
  if (type == GgufType::Float64) return load<double>(from);
  const std::optional<std::int64_t> integer = integer_at(type, from);
  if (!integer) return {};
  return static_cast<double>(*integer);
}

/// 1e-05 for the float nearest to it, where a cast gives 9.99999975e-06: configs say 1e-05.
double decimal_of(float value) {
  std::array<char, 32> text;
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value);
  double decimal = 0;
  std::from_chars(text.data(), written.ptr, decimal);
  return decimal;
}

}  // namespace

std::size_t gguf_bytes(GgufType type) {
  switch (type) {
    case GgufType::UInt8:
    case GgufType::Int8:
    case GgufType::Bool: return 1;
    case GgufType::UInt16:
    case GgufType::Int16: return 2;
    case GgufType::UInt32:
    case GgufType::Int32:
    case GgufType::Float32: return 4;
    case GgufType::UInt64:
    case GgufType::Int64:
    case GgufType::Float64: return 8;
    case GgufType::String:
    case GgufType::Array: break;
  }
  return 0;
}

GgufMetadata::GgufMetadata(std::shared_ptr<const MappedFile> file,
                           std::map<std::string_view, GgufValue, std::less<>> values)
    : file_(std::move(file)), values_(std::move(values)) {}

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

const GgufValue& GgufMetadata::array_at(std::string_view key, std::string_view expected) const {
  const GgufValue& value = at(key, expected);
  if (value.type != GgufType::Array) fail(key, name_of(value.type), expected);
  return value;
}

bool GgufMetadata::is_array(std::string_view key) const {
  return at(key, "a value").type == GgufType::Array;
}

std::uint64_t GgufMetadata::length(std::string_view key) const {
  return array_at(key, "an array").length;
}

std::vector<std::string_view> GgufMetadata::keys() const {
  std::vector<std::string_view> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

std::string_view GgufMetadata::text(std::string_view key) const {
  const GgufValue& value = at(key, a_string);
  if (value.type != GgufType::String) fail(key, name_of(value.type), a_string);
  return {reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size()};
}

std::uint64_t GgufMetadata::whole(std::string_view key) const {
  const GgufValue& value = at(key, whole_number);
  const std::optional<std::int64_t> integer = integer_at(value.type, value.bytes.data());
  if (!integer) fail(key, name_of(value.type), whole_number);
  if (*integer < 0) fail(key, std::to_string(*integer), whole_number);
  return static_cast<std::uint64_t>(*integer);
}

double GgufMetadata::number(std::string_view key) const {
  const GgufValue& value = at(key, a_number);
  const std::optional<double> number = number_at(value.type, value.bytes.data());
  if (!number) fail(key, name_of(value.type), a_number);
  if (!std::isfinite(*number)) fail(key, std::to_string(*number), a_number);
  return value.type == GgufType::Float32 ? decimal_of(load<float>(value.bytes.data())) : *number;
}

bool GgufMetadata::flag(std::string_view key) const {
  const GgufValue& value = at(key, true_or_false);
  if (value.type != GgufType::Bool) fail(key, name_of(value.type), true_or_false);
  return value.bytes[0] != std::byte{0};
}

std::string_view GgufMetadata::text_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : fallback;
}

std::uint64_t GgufMetadata::whole_or(std::string_view key, std::uint64_t fallback) const {
  return has(key) ? whole(key) : fallback;
}

double GgufMetadata::number_or(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

bool GgufMetadata::flag_or(std::string_view key, bool fallback) const {
  return has(key) ? flag(key) : fallback;
}

std::vector<std::string_view> GgufMetadata::texts(std::string_view key) const {
  const std::string_view expected = "an array of strings";
  const GgufValue& value = array_at(key, expected);
  if (value.element != GgufType::String) {
    fail(key, "an array whose elements are each " + std::string(name_of(value.element)), expected);
  }
  std::vector<std::string_view> texts;
  texts.reserve(value.length);  // at most an eighth of the file: each has its length before it
  const std::byte* next = value.bytes.data();
  for (std::uint64_t i = 0; i < value.length; ++i) {
    const auto length = load<std::uint64_t>(next);
    texts.emplace_back(reinterpret_cast<const char*>(next + 8), length);
    next += 8 + length;
  }
  return texts;
}

std::vector<std::int64_t> GgufMetadata::integers(std::string_view key) const {
  const std::string_view expected = "an array of whole numbers";
  const GgufValue& value = array_at(key, expected);
  std::vector<std::int64_t> integers;
  integers.reserve(value.length);
  for (std::uint64_t i = 0; i < value.length; ++i) {
    const std::byte* from = value.bytes.data() + i * gguf_bytes(value.element);
    const std::optional<std::int64_t> integer = integer_at(value.element, from);
    if (!integer) fail(key, name_of(value.element), expected);
    integers.push_back(*integer);
  }
  return integers;
}

std::vector<double> GgufMetadata::numbers(std::string_view key) const {
  const std::string_view expected = "an array of numbers";
  const GgufValue& value = array_at(key, expected);
  std::vector<double> numbers;
  numbers.reserve(value.length);
  for (std::uint64_t i = 0; i < value.length; ++i) {
    const std::byte* from = value.bytes.data() + i * gguf_bytes(value.element);
    const std::optional<double> number = number_at(value.element, from);
    if (!number) fail(key, name_of(value.element), expected);
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<bool> GgufMetadata::flags(std::string_view key) const {
  const std::string_view expected = "an array of booleans";
  const GgufValue& value = array_at(key, expected);
  if (value.element != GgufType::Bool) fail(key, "another array", expected);
  std::vector<bool> flags;
  for (const std::byte b : value.bytes) flags.push_back(b != std::byte{0});
  return flags;
}

}  // namespace kvcast
