/// A GGUF file's metadata: values by key, with errors that name the file and the key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace kvcast {

class MappedFile;

/// As numbered in files.
enum class GgufType : std::uint32_t {
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

/// Bytes of a number or a boolean; 0 for strings and arrays, which have lengths of their own.
std::size_t gguf_bytes(GgufType type);

/// A metadata value where it lies in the file, checked to lie in it whole.
struct GgufValue {
  GgufType type = GgufType::UInt8;
  GgufType element = GgufType::UInt8;  ///< of an array
  std::uint64_t length = 0;            ///< of an array, in elements
  /// A number; a string's characters; an array's elements one after another, strings each with
  /// their length before them.
  std::span<const std::byte> bytes;
};

/// Every accessor throws Error "FILE: metadata KEY: ..." when the key is missing or of another
/// kind. Any width of number will do. The views point into the mapped file.
class GgufMetadata {
 public:
  GgufMetadata(std::shared_ptr<const MappedFile> file,
               std::map<std::string_view, GgufValue, std::less<>> values);

  bool has(std::string_view key) const { return values_.contains(key); }
  bool is_array(std::string_view key) const;
  std::uint64_t length(std::string_view key) const;  ///< of an array
  std::vector<std::string_view> keys() const;

  std::string_view text(std::string_view key) const;
  std::uint64_t whole(std::string_view key) const;  ///< an integer of at least 0
  double number(std::string_view key) const;        ///< finite; fp32 gives the decimal it was
  bool flag(std::string_view key) const;

  std::string_view text_or(std::string_view key, std::string_view fallback) const;
  std::uint64_t whole_or(std::string_view key, std::uint64_t fallback) const;
  double number_or(std::string_view key, double fallback) const;
  bool flag_or(std::string_view key, bool fallback) const;

  /// Whole arrays; an array of another element type is an error, integers of any width are not.
  std::vector<std::string_view> texts(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;
  std::vector<bool> flags(std::string_view key) const;

  /// "FILE: metadata KEY: got FOUND, expected EXPECTED"
  [[noreturn]] void fail(std::string_view key, std::string_view found,
                         std::string_view expected) const;

 private:
  const GgufValue& at(std::string_view key, std::string_view expected) const;
  const GgufValue& array_at(std::string_view key, std::string_view expected) const;

  std::shared_ptr<const MappedFile> file_;
  std::map<std::string_view, GgufValue, std::less<>> values_;
};

}  // namespace kvcast
