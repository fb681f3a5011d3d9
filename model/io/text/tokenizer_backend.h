/// What a kind of tokenizer must do; Tokenizer and StreamDecoder do the rest.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/io/text/piece_decoder.h"
#include "model/io/text/vocabulary.h"

namespace kvcast::text {

class TokenizerBackend {
 public:
  TokenizerBackend() = default;
  virtual ~TokenizerBackend() = default;
  TokenizerBackend(const TokenizerBackend&) = delete;
  TokenizerBackend& operator=(const TokenizerBackend&) = delete;

  /// Appends the ids of valid UTF-8, without those that every text gets.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids) const = 0;
  /// The text of ids below vocab_size(), none of them to be skipped.
  virtual std::string decode(std::span<const TokenId> ids) const = 0;

  virtual std::size_t vocab_size() const = 0;
  virtual std::optional<TokenId> id_of(std::string_view token) const = 0;
  virtual bool is_special(TokenId id) const = 0;

  /// For streams: the bytes of a token below vocab_size(), the first that counts or a later one.
  virtual DecodedPiece piece(TokenId id, bool is_first) const = 0;
  /// What streams take off the beginning of the whole text.
  virtual const StripPiece& strip_whole() const = 0;
  virtual Repair repair() const = 0;
  /// Whether the token after this one is the first that counts.
  virtual bool next_is_first(TokenId id, bool is_first) const = 0;

  std::vector<TokenId> prefix;  ///< before every text
  std::vector<TokenId> suffix;  ///< after every text
};

}  // namespace kvcast::text
