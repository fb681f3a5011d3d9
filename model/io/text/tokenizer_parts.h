/// What a tokenizer is made of, whichever file describes it: a tokenizer.json, the metadata of a
/// GGUF file or a SentencePiece model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/io/text/added_tokens.h"
#include "model/io/text/bpe_model.h"
#include "model/io/text/piece_decoder.h"
#include "model/io/text/pre_tokenizer.h"
#include "model/io/text/text_normalizer.h"
#include "model/io/text/tokenizer.h"

namespace kvcast::text {

struct TokenizerParts {
  std::string place;  ///< names the file in errors
  Vocabulary vocabulary;
  std::vector<Merge> merges{};
  BpeOptions options{};
  /// Encodes a word in the place of the merges, if set.
  std::function<void(std::string_view word, std::vector<TokenId>& ids)> encoder{};
  std::vector<AddedToken> added_tokens{};
  TextNormalizer normalizer{};
  PreTokenizer pre_tokenizer{};
  PieceDecoder decoder{};
  /// Added tokens are decoded as they stand, and the text after one begins anew.
  bool added_tokens_are_text = false;
  std::vector<TokenId> prefix{};  ///< before every text
  std::vector<TokenId> suffix{};  ///< after every text
  std::vector<TokenId> end_of_text{};

  /// The largest id + 1.
  std::size_t vocab_size() const;
  std::optional<TokenId> id_of(std::string_view token) const;
};

/// Of Hugging Face's tokenizer.json; a Unigram model is `sentencepiece`, a file beside it. Throws
/// Error with the place in the file of whatever is wrong or not supported. "truncation" and
/// "padding" are settings for batches and do not count here.
TokenizerParts json_tokenizer(const nlohmann::json& document, const std::string& place,
                              const std::optional<std::filesystem::path>& sentencepiece = {});

/// Of a serialized SentencePiece model, which its own library runs. Control tokens written in a
/// text are found there, and each stretch between them is a text of its own (it gets the prefix
/// blank), as in transformers' LlamaTokenizer. `added_tokens` are found too; their ids may lie
/// beyond the model's.
TokenizerParts sentencepiece_tokenizer(std::string_view serialized, const std::string& place,
                                       std::vector<AddedToken> added_tokens = {});

/// Of a GGUF file's metadata. Throws Error naming the file and the key when lists disagree in
/// length, an id lies outside, or a name is unknown.
TokenizerParts gguf_tokenizer(const GgufFile& file);

/// A file's bytes, at most 128 MiB.
std::string read_tokenizer_file(const std::filesystem::path& path);

}  // namespace kvcast::text
