/// Tokens and their ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvcast::text {

using TokenId = std::uint32_t;

/// Each token has one id and each id at most one token; some ids may have none.
class Vocabulary {
 public:
  /// Ids must stay below 2·`expected_tokens` + 65536, so that a file cannot ask for memory by
  /// naming a large one. Errors begin with `place`.
  Vocabulary(std::size_t expected_tokens, std::string place);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  /// Throws Error when the id is absurd or has another token, or the token another id.
  void add(std::string_view token, std::uint64_t id);

  std::optional<TokenId> id_of(std::string_view token) const;
  /// Nothing for an id without a token.
  std::optional<std::string_view> token_of(std::uint64_t id) const;

  /// The largest id + 1.
  std::size_t size() const { return tokens_.size(); }
  const std::string& place() const { return place_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view token) const {
      return std::hash<std::string_view>{}(token);
    }
  };
  std::unordered_map<std::string, TokenId, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;  // keys of ids_, whose addresses do not change
  std::size_t id_limit_;
  std::string place_;
};

}  // namespace kvcast::text
