#include "model/io/text/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "model/base/error.h"
#include "model/base/utf8_text.h"
#include "model/io/text/tokenizer_parts.h"

namespace kvcast::text {
namespace {

/// Throws Error when two added tokens, or one and the vocabulary, contradict each other.
void check_added_tokens(const TokenizerParts& parts) {
  Vocabulary added(parts.vocabulary.size() + parts.added_tokens.size(),
                   parts.place + ": /added_tokens");
  for (const AddedToken& token : parts.added_tokens) {
    added.add(token.content, token.id);
    const auto same_id = parts.vocabulary.token_of(token.id);
    const auto same_token = parts.vocabulary.id_of(token.content);
    if ((same_id && *same_id != token.content) || (same_token && *same_token != token.id)) {
      throw Error(added.place(), "'" + token.content + "' as " + std::to_string(token.id),
                  "the ids and tokens of the vocabulary");
    }
  }
}

}  // namespace

/// The parts, ready to work.
class TokenizerCore {
 public:
  explicit TokenizerCore(TokenizerParts given)
      : parts(std::move(given)),
        vocab_size(parts.vocab_size()),
        model_(parts.vocabulary, std::exchange(parts.merges, {}), parts.options) {
    check_added_tokens(parts);
    raw_finder_ = finder(false);
    normalized_finder_ = finder(true);
    for (const AddedToken& token : parts.added_tokens) by_id_[token.id] = &token;
    auto& ends = parts.end_of_text;
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    for (const auto* ids : {&parts.prefix, &parts.suffix}) {
      for (const TokenId id : *ids) {
        if (id < vocab_size) continue;
        throw Error(parts.place + ": /post_processor", "id " + std::to_string(id),
                    "ids below " + std::to_string(vocab_size));
      }
    }
  }

  TokenizerParts parts;
  const std::size_t vocab_size;

  /// Appends the ids of valid UTF-8, without those that every text gets.
  void encode(std::string_view text, std::vector<TokenId>& ids) const {
    for (const TextPart& part : raw_finder_.split(text)) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
        continue;
      }
      const Normalized normalized = parts.normalizer.apply(slice(text, part.span));
      encode_normalized(normalized.text, part.span.begin == 0 && normalized.keeps_beginning, ids);
    }
  }

  void require_known(TokenId id) const {
    if (id < vocab_size) return;
    throw Error("token id", std::to_string(id),
                "an id below " + std::to_string(vocab_size) + ", the vocabulary's size");
  }

  bool is_special(TokenId id) const {
    const auto token = by_id_.find(id);
    return token != by_id_.end() && token->second->special;
  }

  /// The bytes that a token adds. `is_first`: no token of the text came before this one; becomes
  /// what it is for the next.
  DecodedPiece piece(TokenId id, bool& is_first) const {
    const auto added = by_id_.find(id);
    if (added != by_id_.end() && parts.added_tokens_are_text) {
      is_first = true;
      return {added->second->content};
    }
    const auto token = added != by_id_.end()
                           ? std::optional<std::string_view>(added->second->content)
                           : parts.vocabulary.token_of(id);
    if (!token) return {};
    DecodedPiece piece = parts.decoder.decode(*token, is_first);
    if (!is_first) piece.bytes.insert(0, parts.decoder.separator);
    is_first = is_first && piece.bytes.empty() && parts.decoder.skips_empty;
    return piece;
  }

 private:
  AddedTokenFinder finder(bool normalized) const {
    std::vector<const AddedToken*> tokens;
    std::vector<std::string> patterns;
    // Of two entries for the same text the first counts, special ones before others.
    for (const bool special : {true, false}) {
      for (const AddedToken& token : parts.added_tokens) {
        if (token.special != special || token.normalized != normalized) continue;
        tokens.push_back(&token);
        patterns.push_back(normalized ? parts.normalizer.apply(token.content).text : token.content);
      }
    }
    return {std::move(tokens), patterns, parts.place + ": /added_tokens"};
  }

  void encode_normalized(const std::string& text, bool is_first, std::vector<TokenId>& ids) const {
    for (const TextPart& part : normalized_finder_.split(text)) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
        continue;
      }
      const Words words = parts.pre_tokenizer.cut(std::string(slice(text, part.span)),
                                                  is_first && part.span.begin == 0);
      BpeModel::Encoder bpe(model_);
      for (const Span span : words.spans) {
        const std::string_view word = slice(words.text, span);
        parts.encoder ? parts.encoder(word, ids) : bpe.encode(word, ids);
      }
    }
  }

  BpeModel model_;
  AddedTokenFinder raw_finder_;
  AddedTokenFinder normalized_finder_;
  std::unordered_map<TokenId, const AddedToken*> by_id_;
};

std::size_t TokenizerParts::vocab_size() const {
  std::size_t size = vocabulary.size();
  for (const AddedToken& token : added_tokens) size = std::max<std::size_t>(size, token.id + 1u);
  return size;
}

std::optional<TokenId> TokenizerParts::id_of(std::string_view token) const {
  for (const AddedToken& added : added_tokens) {
    if (added.content == token) return added.id;
  }
  return vocabulary.id_of(token);
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : core_(std::make_shared<const TokenizerCore>(std::move(parts))) {}

std::vector<TokenId> Tokenizer::encode(std::string_view utf8_text) const {
  require_utf8(utf8_text, "text to encode");
  std::vector<TokenId> ids = core_->parts.prefix;
  core_->encode(utf8_text, ids);
  ids.insert(ids.end(), core_->parts.suffix.begin(), core_->parts.suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, SpecialTokens special_tokens) const {
  const PieceDecoder& decoder = core_->parts.decoder;
  std::string text;
  std::string run;  // of byte tokens: characters, or U+FFFD for each of them
  const auto end_run = [&] {
    if (is_utf8(run)) {
      text += run;
    } else {
      for (std::size_t i = 0; i < run.size(); ++i) text += "\xEF\xBF\xBD";
    }
    run.clear();
  };
  bool is_first = true;
  for (const TokenId id : ids) {
    core_->require_known(id);
    if (special_tokens == SpecialTokens::Skip && core_->is_special(id)) continue;
    const DecodedPiece piece = core_->piece(id, is_first);
    if (piece.is_byte && decoder.whole_byte_runs) {
      run += piece.bytes;
    } else if (!piece.bytes.empty()) {
      end_run();
      text += piece.bytes;
    }
  }
  end_run();
  text = take_characters(text, decoder.repair(), true);
  strip_front(text, decoder.strip_whole.content, decoder.strip_whole.start);
  return text;
}

std::size_t Tokenizer::vocab_size() const { return core_->vocab_size; }

std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  return core_->parts.id_of(token);
}

bool Tokenizer::is_special(TokenId id) const { return core_->is_special(id); }

const std::vector<TokenId>& Tokenizer::end_of_text() const { return core_->parts.end_of_text; }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, SpecialTokens special_tokens)
    : core_(tokenizer.core_),
      special_tokens_(special_tokens),
      strips_left_(core_->parts.decoder.strip_whole.start) {}

std::string StreamDecoder::push(TokenId id) {
  const PieceDecoder& decoder = core_->parts.decoder;
  core_->require_known(id);
  if (special_tokens_ == SpecialTokens::Skip && core_->is_special(id)) return "";
  DecodedPiece piece = core_->piece(id, is_first_);
  if (strips_left_ > 0) {
    strips_left_ -= strip_front(piece.bytes, decoder.strip_whole.content, strips_left_);
    if (!piece.bytes.empty()) strips_left_ = 0;
  }
  pending_ += piece.bytes;
  return take_characters(pending_, decoder.repair(), false);
}

std::string StreamDecoder::finish() {
  is_first_ = true;
  strips_left_ = core_->parts.decoder.strip_whole.start;
  return take_characters(pending_, core_->parts.decoder.repair(), true);
}

}  // namespace kvcast::text
