/// Tokens and their ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/io/text/open_table.h"

namespace kvcast::text {

using TokenId = std::uint32_t;

/// Each token has one id and each id at most one token; some ids may have none.
class Vocabulary {
 public:
  /// Ids must stay below 2·`expected_tokens` + 65536, so that a file cannot ask for memory by
  /// naming a large one. Errors begin with `place`.
  Vocabulary(std::size_t expected_tokens, std::string place);

  /// Throws Error when the id is absurd or has another token, or the token another id.
  void add(std::string_view token, std::uint64_t id);

  std::optional<TokenId> id_of(std::string_view token) const;
  /// Nothing for an id without a token. Valid until another token is added.
  std::optional<std::string_view> token_of(std::uint64_t id) const;

  /// The largest id + 1.
  std::size_t size() const { return tokens_.size(); }
  const std::string& place() const { return place_; }

 private:
  /// In texts_.
  struct Range {
    std::size_t begin;
    std::size_t length;  // no_token: an id without one
  };
  static constexpr std::size_t no_token = SIZE_MAX;
  static constexpr TokenId free_slot = UINT32_MAX;

  std::size_t place_of(std::string_view token) const;  // in ids_
  void make_room();

  std::string texts_;          // of all tokens, one after the other: millions of strings of their
  std::vector<Range> tokens_;  // own would take several times the memory; by id
  OpenTable<TokenId> ids_{0, free_slot};
  std::size_t count_ = 0;  // of tokens
  std::size_t id_limit_;
  std::string place_;
};

}  // namespace kvcast::text
