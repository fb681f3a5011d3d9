/// Text as training reads it: the tokens of files one after another, cut into windows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/io/text/tokenizer.h"

namespace kvcast::train {

using text::TokenId;

/// Files to tokens: a checkpoint's tokenizer with its end of text after each file, or bytes.
class TextEncoder {
 public:
  static TextEncoder bytes() { return TextEncoder({}); }
  explicit TextEncoder(std::optional<text::Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  std::size_t vocab_size() const { return tokenizer_ ? tokenizer_->vocab_size() : 256; }
  /// Throws Error naming the file: it cannot be read, is empty, or is not UTF-8.
  std::vector<TokenId> encode(const std::vector<std::filesystem::path>& files) const;

 private:
  std::optional<text::Tokenizer> tokenizer_;
};

/// Windows of `seq_len` tokens and the one after, from position 0 on; what is left over at the end
/// is not read. Each epoch has an order of its own, the same for the same seed.
class TokenWindows {
 public:
  /// Throws Error if there is no whole window.
  TokenWindows(std::vector<TokenId> tokens, std::size_t seq_len, std::uint64_t seed);

  std::size_t seq_len() const { return seq_len_; }
  std::size_t tokens() const { return tokens_.size(); }
  TokenId largest() const { return *std::max_element(tokens_.begin(), tokens_.end()); }
  /// Of all tokens, in hexadecimal digits.
  std::string fingerprint() const;
  /// Of an epoch.
  std::size_t size() const { return (tokens_.size() - 1) / seq_len_; }
  /// seq_len + 1 tokens. Window `index` of the text.
  std::span<const TokenId> window(std::size_t index) const {
    return std::span(tokens_).subspan(index * seq_len_, seq_len_ + 1);
  }
  /// The one that is read as number `n` since the training began.
  std::span<const TokenId> drawn(std::uint64_t n);

 private:
  std::vector<TokenId> tokens_;
  std::size_t seq_len_;
  std::uint64_t seed_;
  std::optional<std::uint64_t> epoch_;  ///< whose order is at hand
  std::vector<std::uint32_t> order_;
};

}  // namespace kvcast::train
