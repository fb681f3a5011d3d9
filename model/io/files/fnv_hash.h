/// FNV-1a, 64 bits: fingerprints that tell inputs apart; no protection against a forger.
/// Source: the authors' page, www.isthe.com/chongo/tech/comp/fnv.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace kvcast {

class FnvHash {
 public:
  void add(const void* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      state_ = (state_ ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3u;
    }
  }
  void add(std::string_view bytes) { add(bytes.data(), bytes.size()); }
  std::uint64_t value() const { return state_; }
  /// 16 hexadecimal digits.
  std::string text() const { return fmt::format("{:016x}", state_); }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace kvcast
