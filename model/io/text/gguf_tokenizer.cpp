#include <utility>

#include "model/base/error.h"
#include "model/io/tensors/gguf.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/text/gguf_pre_tokenizer.h"
#include "model/io/text/sentencepiece_proto.h"
#include "model/io/text/tokenizer_parts.h"

namespace kvcast::text {
namespace {

constexpr std::size_t num_byte_tokens = 256;

/// The metadata tokenizer.ggml.*, with `tokens` and what must fit them.
class Metadata {
 public:
  explicit Metadata(const GgufFile& file) : values_(file.metadata), path_(file.file->path()) {
    tokens = values_.texts(key("tokens"));
    if (tokens.empty() || tokens.size() >= (std::size_t{1} << 31)) {
      values_.fail(key("tokens"), std::to_string(tokens.size()) + " tokens", "1 to 2^31");
    }
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      require_utf8(tokens[id], place("tokens") + ": " + std::to_string(id));
    }
    if (has("scores")) scores = values_.numbers(key("scores"));
    if (has("token_type")) types = values_.integers(key("token_type"));
    check_length("scores", scores.size());
    check_length("token_type", types.size());
  }

  const std::string& path() const { return path_; }
  std::string place(const std::string& name) const { return path_ + ": metadata " + key(name); }
  std::string text(const std::string& name) const {
    return std::string(values_.text_or(key(name), ""));
  }
  bool flag_or(const std::string& name, bool fallback) const {
    return values_.flag_or(key(name), fallback);
  }
  std::vector<std::string_view> merges() const { return values_.texts(key("merges")); }
  std::optional<TokenId> id(const std::string& name) const {
    if (!has(name)) return std::nullopt;
    const std::uint64_t id = values_.whole(key(name));
    if (id < tokens.size()) return static_cast<TokenId>(id);
    values_.fail(key(name), std::to_string(id), "an id below " + std::to_string(tokens.size()));
  }
  PieceType type_of(std::size_t id) const {
    if (types.empty()) return PieceType::Normal;
    if (types[id] >= 1 && types[id] <= 6) return static_cast<PieceType>(types[id]);
    values_.fail(key("token_type"), std::to_string(types[id]) + " for id " + std::to_string(id),
                 "types from 1 to 6");
  }

  std::vector<std::string_view> tokens;  ///< by id
  std::vector<float> scores;             ///< empty, or one for each token
  std::vector<std::int64_t> types;       ///< empty, or one for each token

 private:
  static std::string key(const std::string& name) { return "tokenizer.ggml." + name; }
  bool has(const std::string& name) const { return values_.has(key(name)); }
  void check_length(const std::string& name, std::size_t length) const {
    if (length == 0 || length == tokens.size()) return;
    values_.fail(key(name), std::to_string(length) + " entries",
                 std::to_string(tokens.size()) + ", as tokens");
  }

  const GgufMetadata& values_;
  std::string path_;
};

/// Of "left right" entries, by rank.
std::vector<Merge> read_merges(const Metadata& metadata, const Vocabulary& vocabulary) {
  std::vector<Merge> merges;
  for (const std::string_view text : metadata.merges()) {
    const auto place = [&] {
      return metadata.place("merges") + ": " + std::to_string(merges.size());
    };
    // A token of the byte alphabet has no blank, but one that begins with it might.
    const std::size_t blank = text.find(' ', 1);
    if (blank == std::string_view::npos) {
      throw Error(place(), "'" + std::string(text.substr(0, 60)) + "'", "two tokens");
    }
    merges.push_back(merge_of(vocabulary, text.substr(0, blank), text.substr(blank + 1), place));
  }
  return merges;
}

TokenizerParts byte_level_parts(const Metadata& metadata, const GgufPreTokenizer& pre) {
  TokenizerParts parts{.place = metadata.path(),
                       .vocabulary = Vocabulary(metadata.tokens.size(), metadata.place("tokens")),
                       .added_tokens_are_text = true};
  for (std::size_t id = 0; id < metadata.tokens.size(); ++id) {
    const PieceType type = metadata.type_of(id);
    const std::string_view token = metadata.tokens[id];
    const bool is_added = type == PieceType::Control || type == PieceType::UserDefined;
    if (!is_added) {
      parts.vocabulary.add(token, id);
    } else if (!token.empty()) {
      parts.added_tokens.push_back({.content = std::string(token),
                                    .id = static_cast<TokenId>(id),
                                    .special = type == PieceType::Control});
    }
  }
  parts.merges = read_merges(metadata, parts.vocabulary);
  parts.options.ignore_merges = pre.ignore_merges;
  auto& steps = parts.pre_tokenizer.steps;
  for (const std::string_view pattern : pre.patterns) {
    steps.emplace_back(SplitByPattern{{pattern, metadata.place("pre")}});
  }
  steps.emplace_back(ToByteAlphabet{metadata.flag_or("add_space_prefix", false), std::nullopt});
  parts.decoder.bytes = PieceBytes::ByteAlphabet;
  return parts;
}

/// A user-defined token as SentencePiece has it: the converter puts blanks in the place of the
/// marks for them, as llama.cpp looks for such tokens in the text as it stands (Gemma's runs of
/// blanks).
std::string with_blank_marks(std::string_view token) {
  std::string marked;
  for (const char c : token) {
    if (c == ' ') {
      marked += "\xE2\x96\x81";  // U+2581
    } else {
      marked += c;
    }
  }
  return marked;
}

TokenizerParts sentencepiece_parts(const Metadata& metadata) {
  std::vector<SentencePiece> pieces;
  pieces.reserve(metadata.tokens.size());
  std::size_t bytes = 0;
  for (std::size_t id = 0; id < metadata.tokens.size(); ++id) {
    const PieceType type = metadata.type_of(id);
    bytes += type == PieceType::Byte ? 1 : 0;
    const float score = metadata.scores.empty() ? 0 : metadata.scores[id];
    const std::string_view token = metadata.tokens[id];
    const bool is_user_defined = type == PieceType::UserDefined;
    pieces.push_back({is_user_defined ? with_blank_marks(token) : std::string(token), score, type});
  }
  if (const auto unknown = metadata.id("unknown_token_id")) {
    pieces[*unknown].type = PieceType::Unknown;
  }
  return sentencepiece_tokenizer(
      serialize_sentencepiece_bpe(pieces, bytes == num_byte_tokens,
                                  metadata.flag_or("add_space_prefix", true)),
      metadata.path());
}

}  // namespace

TokenizerParts gguf_tokenizer(const GgufFile& file) {
  const Metadata metadata(file);
  const std::string model = metadata.text("model");
  if (model != "gpt2" && model != "llama") {
    throw Error(metadata.place("model"), "'" + model + "'", "'gpt2' or 'llama'");
  }
  const bool byte_level = model == "gpt2";
  const GgufPreTokenizer* const pre =
      byte_level ? &gguf_pre_tokenizer(metadata.text("pre"), metadata.place("pre")) : nullptr;
  TokenizerParts parts =
      byte_level ? byte_level_parts(metadata, *pre) : sentencepiece_parts(metadata);
  const auto bos = metadata.id("bos_token_id");
  const auto eos = metadata.id("eos_token_id");
  if (bos && metadata.flag_or("add_bos_token", byte_level ? pre->add_bos : true)) {
    parts.prefix = {*bos};
  }
  if (eos && metadata.flag_or("add_eos_token", false)) parts.suffix = {*eos};
  for (const auto end : {eos, metadata.id("eot_token_id")}) {
    if (end) parts.end_of_text.push_back(*end);
  }
  return parts;
}

}  // namespace kvcast::text
