/// Text to token ids and back, as the checkpoint's own tokenizer does it.
///
///     const auto tokenizer = text::Tokenizer::from_folder("checkpoints/smollm2-135m");
///     const auto ids = tokenizer.encode("Once upon a time");
///     text::StreamDecoder stream(tokenizer);
///     for (const auto id : ids) std::fputs(stream.push(id).c_str(), stdout);
///     std::fputs(stream.finish().c_str(), stdout);
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcast {

struct GgufFile;

namespace text {

using TokenId = std::uint32_t;

/// What decoding does with special tokens (<s>, <|im_end|>, ...).
enum class SpecialTokens { Skip, Keep };

struct TokenizerParts;
class TokenizerCore;

/// A value: copies share the vocabulary. All members may be called from several threads at once.
class Tokenizer {
 public:
  /// From tokenizer.json, else tokenizer.model or spiece.model. tokenizer_config.json and
  /// generation_config.json, where they lie beside it, say which tokens end a text and, for a
  /// SentencePiece model, whether texts begin with BOS.
  static Tokenizer from_folder(const std::filesystem::path& folder);
  /// A tokenizer.json of Hugging Face's tokenizers with a BPE model, of at most 128 MiB.
  static Tokenizer from_json_file(const std::filesystem::path& path);
  /// The same as a text; `place` names it in errors.
  static Tokenizer from_json(std::string_view json, const std::string& place);
  /// A serialized SentencePiece model of at most 128 MiB.
  static Tokenizer from_sentencepiece_file(const std::filesystem::path& path);
  /// The metadata tokenizer.ggml.*: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE).
  /// Source   ggml-org/ggml : docs/gguf.md
  static Tokenizer from_gguf(const GgufFile& file);

  /// The ids of a text, with the tokens that the file's post-processor adds (BOS, ...); special
  /// tokens written in the text become their ids. Throws Error with the offset of the first byte
  /// that is not UTF-8.
  std::vector<TokenId> encode(std::string_view utf8_text) const;

  /// The text of ids, always valid UTF-8: U+FFFD stands for bytes that form no character. Throws
  /// Error for an id of vocab_size() or more; an id without a token adds nothing.
  std::string decode(std::span<const TokenId> ids,
                     SpecialTokens special_tokens = SpecialTokens::Skip) const;

  /// The largest id + 1.
  std::size_t vocab_size() const;
  std::optional<TokenId> id_of(std::string_view token) const;
  bool is_special(TokenId id) const;
  /// The tokens that end a text, ascending; empty when the file does not say.
  const std::vector<TokenId>& end_of_text() const;

  /// Throws Error when an added token contradicts the vocabulary.
  explicit Tokenizer(TokenizerParts parts);

 private:
  friend class StreamDecoder;
  std::shared_ptr<const TokenizerCore> core_;
};

/// Text as its tokens arrive: the pieces joined are what Tokenizer::decode gives, except that
/// invalid bytes become U+FFFD one by one where it judges a whole run of byte tokens.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer,
                         SpecialTokens special_tokens = SpecialTokens::Skip);

  /// The characters that the token completes; bytes of an unfinished character wait.
  std::string push(TokenId id);
  /// What is still waiting, as U+FFFD; then the decoder begins a new text.
  std::string finish();

 private:
  std::shared_ptr<const TokenizerCore> core_;
  SpecialTokens special_tokens_;
  std::string pending_;
  bool is_first_ = true;
  std::size_t strips_left_;
};

}  // namespace text
}  // namespace kvcast
