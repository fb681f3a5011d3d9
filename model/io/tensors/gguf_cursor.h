/// Reads on from a place in a GGUF file; what would leave the bytes is an Error naming the place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "model/base/error.h"

namespace kvcast {

class GgufCursor {
 public:
  /// `path` names the file in errors and must outlive the cursor.
  GgufCursor(std::span<const std::byte> bytes, const std::string& path)
      : bytes_(bytes), path_(path) {}

  const std::string& path() const { return path_; }
  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return bytes_.size() - position_; }

  std::span<const std::byte> take(std::uint64_t count, std::string_view what) {
    if (count > remaining()) {
      throw Error(path_ + ": byte " + std::to_string(position_),
                  std::string(what) + " of " + std::to_string(count) + " bytes",
                  "at most the " + std::to_string(remaining()) + " that the file still has");
    }
    const auto taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  template <typename T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }

  /// Characters with their number before them.
  std::string_view text(std::string_view what) {
    const auto bytes = take(number<std::uint64_t>(what), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// A key or a tensor's name.
  std::string_view name(std::string_view what) {
    const std::string_view name = text(what);
    if (name.empty() || name.size() > 65535) {
      throw Error(path_ + ": byte " + std::to_string(position_ - name.size()),
                  std::string(what) + " of " + std::to_string(name.size()) + " bytes",
                  "1 to 65535");
    }
    return name;
  }

  /// The number of things that follow, each at least `min_bytes` long.
  std::uint64_t count(std::string_view what, std::uint64_t min_bytes) {
    const auto claimed = number<std::uint64_t>(what);
    if (claimed > remaining() / min_bytes) {
      throw Error(path_ + ": " + std::string(what), std::to_string(claimed),
                  "as many as the file's " + std::to_string(bytes_.size()) + " bytes can hold");
    }
    return claimed;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
  std::uint64_t position_ = 0;
};

}  // namespace kvcast
