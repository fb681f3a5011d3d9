#include "model/io/text/bpe_tokenizer.h"

#include <algorithm>
#include <utility>

#include "model/base/error.h"

namespace kvcast::text {
namespace {

class BpeTokenizer : public TokenizerBackend {
 public:
  explicit BpeTokenizer(BpeTokenizerParts parts)
      : parts_(std::move(parts)),
        added_(known_added_tokens(parts_)),
        model_(parts_.vocabulary, parts_.merges, std::move(parts_.options)),
        raw_finder_(finder(false)),
        normalized_finder_(finder(true)) {
    parts_.merges = {};
    prefix = parts_.prefix;
    suffix = parts_.suffix;
    for (const AddedToken& token : parts_.added_tokens) by_id_[token.id] = &token;
  }

  void encode(std::string_view text, std::vector<TokenId>& ids) const override {
    for (const TextPart& part : raw_finder_.split(text)) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
        continue;
      }
      const Normalized normalized = parts_.normalizer.apply(slice(text, part.span));
      encode_normalized(normalized.text, part.span.begin == 0 && normalized.keeps_beginning, ids);
    }
  }

  std::string decode(std::span<const TokenId> ids) const override {
    std::string text;
    std::string bytes;  // a run of byte tokens: characters, or U+FFFD for each of them
    const auto end_run = [&] {
      if (is_utf8(bytes)) {
        text += bytes;
      } else {
        for (std::size_t i = 0; i < bytes.size(); ++i) text += "\xEF\xBF\xBD";
      }
      bytes.clear();
    };
    bool is_first = true;
    for (const TokenId id : ids) {
      if (!token_of(id)) continue;
      if (!is_first) text += parts_.decoder.separator;
      const DecodedPiece decoded = piece_of(id, is_first);
      is_first = false;
      if (decoded.is_byte) {
        bytes += decoded.bytes;
        continue;
      }
      end_run();
      text += decoded.bytes;
    }
    end_run();
    text = take_characters(text, repair(), true);
    strip_front(text, strip_whole().content, strip_whole().start);
    return text;
  }

  std::size_t vocab_size() const override {
    return std::max(parts_.vocabulary.size(), added_.size());
  }

  std::optional<TokenId> id_of(std::string_view token) const override {
    const auto id = added_.id_of(token);
    return id ? id : parts_.vocabulary.id_of(token);
  }

  bool is_special(TokenId id) const override {
    const auto token = by_id_.find(id);
    return token != by_id_.end() && token->second->special;
  }

  DecodedPiece piece(TokenId id, bool is_first) const override {
    if (!token_of(id)) return {};
    DecodedPiece decoded = piece_of(id, is_first);
    if (!is_first) decoded.bytes.insert(0, parts_.decoder.separator);
    return decoded;
  }

  const StripPiece& strip_whole() const override { return parts_.decoder.strip_whole; }
  Repair repair() const override { return parts_.decoder.repair(); }
  bool next_is_first(TokenId id, bool is_first) const override { return is_first && !token_of(id); }

 private:
  static Vocabulary known_added_tokens(const BpeTokenizerParts& parts) {
    const std::size_t tokens = parts.vocabulary.size() + parts.added_tokens.size();
    Vocabulary added(tokens, parts.place + ": /added_tokens");
    for (const AddedToken& token : parts.added_tokens) {
      added.add(token.content, token.id);
      const auto same_id = parts.vocabulary.token_of(token.id);
      const auto same_token = parts.vocabulary.id_of(token.content);
      if ((same_id && *same_id != token.content) || (same_token && *same_token != token.id)) {
        throw Error(added.place(), "'" + token.content + "' as " + std::to_string(token.id),
                    "the ids and tokens of the vocabulary");
      }
    }
    return added;
  }

  AddedTokenFinder finder(bool normalized) const {
    std::vector<const AddedToken*> tokens;
    std::vector<std::string> patterns;
    // Of two entries for the same text the first counts, special ones before others.
    for (const bool special : {true, false}) {
      for (const AddedToken& token : parts_.added_tokens) {
        if (token.special != special || token.normalized != normalized) continue;
        tokens.push_back(&token);
        patterns.push_back(normalized ? parts_.normalizer.apply(token.content).text
                                      : token.content);
      }
    }
    return {std::move(tokens), patterns, parts_.place + ": /added_tokens"};
  }

  void encode_normalized(const std::string& text, bool is_first, std::vector<TokenId>& ids) const {
    for (const TextPart& part : normalized_finder_.split(text)) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
        continue;
      }
      const Words words = parts_.pre_tokenizer.cut(std::string(slice(text, part.span)),
                                                   is_first && part.span.begin == 0);
      BpeModel::Encoder encoder(model_);
      for (const Span word : words.spans) encoder.encode(slice(words.text, word), ids);
    }
  }

  std::optional<std::string_view> token_of(TokenId id) const {
    const auto token = added_.token_of(id);
    return token ? token : parts_.vocabulary.token_of(id);
  }

  DecodedPiece piece_of(TokenId id, bool is_first) const {
    if (parts_.added_tokens_are_text && by_id_.contains(id)) return {std::string(*token_of(id))};
    return parts_.decoder.decode(*token_of(id), is_first);
  }

  BpeTokenizerParts parts_;
  Vocabulary added_;
  BpeModel model_;
  AddedTokenFinder raw_finder_;
  AddedTokenFinder normalized_finder_;
  std::unordered_map<TokenId, const AddedToken*> by_id_;
};

}  // namespace

std::unique_ptr<TokenizerBackend> make_bpe_tokenizer(BpeTokenizerParts parts) {
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace kvcast::text
