/// "NAME" or "NAME:KEY=VALUE,KEY=VALUE,..." of a command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/error.h"
#include "model/base/words.h"

namespace kvcast::simulate {

/// Remembers which keys were asked for, so that a reader can reject the others.
class OptionText {
 public:
  /// `place` names the flag in errors. Throws Error: a key twice or without a value.
  OptionText(std::string_view text, std::string place);

  const std::string& name() const { return name_; }
  /// The enumerator whose word the name is. Throws Error with the nearest word.
  template <typename Enum, std::size_t N>
  Enum kind(std::string_view what, const Words<Enum, N>& words) const {
    std::vector<std::string> known;
    for (const auto& [value, word] : words) {
      if (word == name_) return value;
      known.emplace_back(word);
    }
    throw Error(place_, unknown_name(what, name_, known));
  }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// These throw Error: a value that is not right; a missing one if there is no fallback.
  double number(std::string_view key, double least, double most,
                std::optional<double> fallback = {}) const;
  /// May be written as 1e8.
  std::uint64_t whole(std::string_view key, std::uint64_t least, std::uint64_t most,
                      std::optional<std::uint64_t> fallback = {}) const;
  bool flag(std::string_view key, bool fallback) const;
  /// Throws Error for the first key that nobody asked for, with the nearest that was.
  void reject_unknown() const;

 private:
  const std::string* find(std::string_view key) const;
  const std::string& at(std::string_view key, std::string_view expected) const;
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

  std::string place_;
  std::string name_;
  std::map<std::string, std::string, std::less<>> values_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace kvcast::simulate
