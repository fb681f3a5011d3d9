#include "model/io/text/gguf_tokenizer.h"

#include <algorithm>
#include <utility>

#include "model/base/error.h"
#include "model/io/text/bpe_tokenizer.h"
#include "model/io/text/gguf_pre_tokenizer.h"
#include "model/io/text/sentencepiece_proto.h"
#include "model/io/text/sentencepiece_tokenizer.h"

namespace kvcast::text {
namespace {

constexpr std::size_t num_bytes = 256;

std::string key(const GgufVocabulary& gguf, const std::string& name) {
  return gguf.place + ": tokenizer.ggml." + name;
}

PieceType type_of(const GgufVocabulary& gguf, std::size_t id) {
  if (gguf.types.empty()) return PieceType::Normal;
  const std::int32_t type = gguf.types[id];
  if (type < 1 || type > 6) {
    throw Error(key(gguf, "token_type"), std::to_string(type) + " for id " + std::to_string(id),
                "types from 1 to 6");
  }
  return static_cast<PieceType>(type);
}

void check_lists(const GgufVocabulary& gguf) {
  const std::string count = std::to_string(gguf.tokens.size());
  if (gguf.tokens.empty() || gguf.tokens.size() >= (std::size_t{1} << 31)) {
    throw Error(key(gguf, "tokens"), count + " tokens", "1 to 2^31");
  }
  const auto check_length = [&](std::size_t length, const char* name) {
    if (length == 0 || length == gguf.tokens.size()) return;
    throw Error(key(gguf, name), std::to_string(length) + " entries", count + ", as tokens");
  };
  check_length(gguf.scores.size(), "scores");
  check_length(gguf.types.size(), "token_type");
  const auto check_id = [&](std::optional<TokenId> id, const char* name) {
    if (!id || *id < gguf.tokens.size()) return;
    throw Error(key(gguf, name), std::to_string(*id), "an id below " + count);
  };
  check_id(gguf.bos, "bos_token_id");
  check_id(gguf.eos, "eos_token_id");
  check_id(gguf.eot, "eot_token_id");
  check_id(gguf.unknown, "unknown_token_id");
  for (std::size_t id = 0; id < gguf.tokens.size(); ++id) {
    require_utf8(gguf.tokens[id], key(gguf, "tokens") + ": " + std::to_string(id));
  }
}

std::vector<Merge> read_merges(const GgufVocabulary& gguf, const Vocabulary& vocabulary) {
  std::vector<Merge> merges;
  merges.reserve(gguf.merges.size());
  for (std::size_t i = 0; i < gguf.merges.size(); ++i) {
    const std::string_view text = gguf.merges[i];
    const std::string place = key(gguf, "merges") + ": " + std::to_string(i);
    // A token of the byte alphabet has no blank, but one that begins with it might.
    const std::size_t blank = text.find(' ', 1);
    if (blank == std::string_view::npos) {
      throw Error(place, "'" + std::string(text.substr(0, 60)) + "'", "two tokens");
    }
    const std::string left(text.substr(0, blank));
    const std::string right(text.substr(blank + 1));
    const auto id = [&](const std::string& token) {
      const auto known = vocabulary.id_of(token);
      if (!known) throw Error(place, "'" + token + "'", "tokens of the vocabulary");
      return *known;
    };
    merges.push_back({id(left), id(right), id(left + right)});
  }
  return merges;
}

std::unique_ptr<TokenizerBackend> make_byte_level(const GgufVocabulary& gguf) {
  const GgufPreTokenizer& pre = gguf_pre_tokenizer(gguf.pre, gguf.place);
  const std::string pre_place = key(gguf, "pre");
  BpeTokenizerParts parts{.place = gguf.place,
                          .vocabulary = Vocabulary(gguf.tokens.size(), key(gguf, "tokens")),
                          .added_tokens_are_text = true};
  for (std::size_t id = 0; id < gguf.tokens.size(); ++id) {
    const PieceType type = type_of(gguf, id);
    const std::string& token = gguf.tokens[id];
    const bool is_added = type == PieceType::Control || type == PieceType::UserDefined;
    if (!is_added) {
      parts.vocabulary.add(token, id);
    } else if (!token.empty()) {
      parts.added_tokens.push_back({.content = token,
                                    .id = static_cast<TokenId>(id),
                                    .special = type == PieceType::Control});
    }
  }
  parts.merges = read_merges(gguf, parts.vocabulary);
  parts.options.ignore_merges = pre.ignore_merges;
  std::vector<PreTokenizerStep> steps;
  for (const std::string_view pattern : pre.patterns) {
    steps.emplace_back(SplitByPattern{{pattern, pre_place}});
  }
  steps.emplace_back(ToByteAlphabet{gguf.add_space_prefix.value_or(false), std::nullopt});
  parts.pre_tokenizer = PreTokenizer(std::move(steps));
  parts.decoder.bytes = PieceBytes::ByteAlphabet;
  auto tokenizer = make_bpe_tokenizer(std::move(parts));
  if (gguf.bos && gguf.add_bos.value_or(pre.add_bos)) tokenizer->prefix = {*gguf.bos};
  if (gguf.eos && gguf.add_eos.value_or(false)) tokenizer->suffix = {*gguf.eos};
  return tokenizer;
}

std::unique_ptr<TokenizerBackend> make_sentencepiece(const GgufVocabulary& gguf) {
  std::vector<SentencePiece> pieces;
  pieces.reserve(gguf.tokens.size());
  std::size_t bytes = 0;
  for (std::size_t id = 0; id < gguf.tokens.size(); ++id) {
    const PieceType type = type_of(gguf, id);
    bytes += type == PieceType::Byte ? 1 : 0;
    pieces.push_back({gguf.tokens[id], gguf.scores.empty() ? 0 : gguf.scores[id], type});
  }
  if (gguf.unknown) pieces[*gguf.unknown].type = PieceType::Unknown;
  auto tokenizer = make_sentencepiece_tokenizer(
      serialize_sentencepiece_bpe(pieces, bytes == num_bytes, gguf.add_space_prefix.value_or(true)),
      gguf.place + ": tokenizer.ggml");
  if (gguf.bos && gguf.add_bos.value_or(true)) tokenizer->prefix = {*gguf.bos};
  if (gguf.eos && gguf.add_eos.value_or(false)) tokenizer->suffix = {*gguf.eos};
  return tokenizer;
}

}  // namespace

std::unique_ptr<TokenizerBackend> make_gguf_tokenizer(const GgufVocabulary& gguf) {
  check_lists(gguf);
  if (gguf.model == "gpt2") return make_byte_level(gguf);
  if (gguf.model == "llama") return make_sentencepiece(gguf);
  throw Error(key(gguf, "model"), "'" + gguf.model + "'", "'gpt2' or 'llama'");
}

}  // namespace kvcast::text
