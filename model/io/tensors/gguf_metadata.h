/// A GGUF file's metadata: values by key, with errors that name the file and the key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvcast {

class GgufCursor;
class MappedFile;

/// An array where it lies in the file, all of its elements checked to lie there.
struct GgufArray {
  std::uint32_t element = 0;  ///< the elements' type, as numbered in files
  std::uint64_t length = 0;
  std::span<const std::byte> bytes;
};

/// Integers of any width are int64; those above 2^63 - 1, which no model has, stay uint64.
using GgufValue =
    std::variant<bool, std::int64_t, std::uint64_t, float, double, std::string_view, GgufArray>;

/// Every accessor throws Error "FILE: metadata KEY: ..." when the key is missing or of another
/// kind. Any width of number will do. The views point into the mapped file.
class GgufMetadata {
 public:
  /// Reads `count` keys and values. Throws Error naming the file, and the key where a value is
  /// wrong: lengths that leave the file, unknown types, odd booleans, deep arrays, repeated keys.
  GgufMetadata(std::shared_ptr<const MappedFile> file, GgufCursor& cursor, std::uint64_t count);

  bool has(std::string_view key) const { return values_.contains(key); }
  bool is_array(std::string_view key) const;
  std::uint64_t length(std::string_view key) const;  ///< of an array
  std::vector<std::string_view> keys() const;

  /// A key and its value as they lie in the file, in its order.
  struct Entry {
    std::string_view key;
    std::span<const std::byte> bytes;
  };
  const std::vector<Entry>& entries() const { return entries_; }

  std::string_view text(std::string_view key) const;
  std::uint64_t whole(std::string_view key) const;  ///< an integer of at least 0
  double number(std::string_view key) const;        ///< finite; fp32 gives the decimal it was
  bool flag(std::string_view key) const;

  std::string_view text_or(std::string_view key, std::string_view fallback) const {
    return has(key) ? text(key) : fallback;
  }
  std::uint64_t whole_or(std::string_view key, std::uint64_t fallback) const {
    return has(key) ? whole(key) : fallback;
  }
  double number_or(std::string_view key, double fallback) const {
    return has(key) ? number(key) : fallback;
  }
  bool flag_or(std::string_view key, bool fallback) const {
    return has(key) ? flag(key) : fallback;
  }

  /// Whole arrays.
  std::vector<std::string_view> texts(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<bool> flags(std::string_view key) const;
  std::vector<float> numbers(std::string_view key) const;

  /// "FILE: metadata KEY: got FOUND, expected EXPECTED"
  [[noreturn]] void fail(std::string_view key, std::string_view found,
                         std::string_view expected) const;

 private:
  const GgufValue& at(std::string_view key, std::string_view expected) const;
  template <typename T>
  T get(std::string_view key, std::string_view expected) const;
  template <typename T>
  std::vector<T> list(std::string_view key, std::string_view expected) const;

  std::shared_ptr<const MappedFile> file_;
  std::map<std::string_view, GgufValue, std::less<>> values_;
  std::vector<Entry> entries_;
};

}  // namespace kvcast
