/// A tokenizer made of the parts that a tokenizer.json names: added tokens, normalizer,
/// pre-tokenizer, BPE model, decoder.
#pragma once

#include <memory>
#include <unordered_map>

#include "model/io/text/added_tokens.h"
#include "model/io/text/bpe_model.h"
#include "model/io/text/piece_decoder.h"
#include "model/io/text/pre_tokenizer.h"
#include "model/io/text/text_normalizer.h"
#include "model/io/text/tokenizer_backend.h"

namespace kvcast::text {

struct BpeTokenizerParts {
  std::string place;  ///< names the file in errors
  Vocabulary vocabulary;
  std::vector<Merge> merges{};
  BpeOptions options{};
  std::vector<AddedToken> added_tokens{};
  TextNormalizer normalizer{};
  PreTokenizer pre_tokenizer{};
  PieceDecoder decoder{};
  std::vector<TokenId> prefix{};
  std::vector<TokenId> suffix{};
  /// Added tokens are decoded as they stand, not from the byte alphabet.
  bool added_tokens_are_text = false;
};

/// Throws Error when an added token contradicts the vocabulary.
std::unique_ptr<TokenizerBackend> make_bpe_tokenizer(BpeTokenizerParts parts);

}  // namespace kvcast::text
