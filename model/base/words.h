/// Enumerators and the words for them in commands and files.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/base/error.h"

namespace kvcast {

/// Each enumerator once.
template <typename Enum, std::size_t N>
using Words = std::array<std::pair<Enum, std::string_view>, N>;

template <typename Enum, std::size_t N>
std::string_view word_for(Enum value, const Words<Enum, N>& words) {
  for (const auto& [known, word] : words) {
    if (known == value) return word;
  }
  KVCAST_ASSERT(false);
  return {};
}

/// Throws Error with the nearest word; `kind` is what they are words for.
template <typename Enum, std::size_t N>
Enum parse_word(std::string_view kind, std::string_view text, const Words<Enum, N>& words) {
  std::vector<std::string> known;
  for (const auto& [value, word] : words) {
    if (word == text) return value;
    known.emplace_back(word);
  }
  throw unknown_name(kind, text, known);
}

}  // namespace kvcast
