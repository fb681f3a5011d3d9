#include "model/io/text/sentencepiece_tokenizer.h"

#include <algorithm>
#include <map>
#include <utility>

#include <sentencepiece_processor.h>

#include "model/base/error.h"
#include "model/io/text/sentencepiece_proto.h"

namespace kvcast::text {
namespace {

constexpr std::string_view blank_mark = "\xE2\x96\x81";  // U+2581

class SentencePieceTokenizer : public TokenizerBackend {
 public:
  SentencePieceTokenizer(std::string_view serialized, const std::string& place,
                         std::vector<AddedToken> added_tokens)
      : place_(place),
        facts_(check_sentencepiece_model(serialized, place)),
        added_(std::move(added_tokens)) {
    check(processor_.LoadFromSerializedProto(serialized));
    const int size = processor_.GetPieceSize();
    for (const AddedToken& token : added_) require_same(token, size);
    for (int id = 0; id < size; ++id) {
      const std::string& text = processor_.IdToPiece(id);
      if (!processor_.IsControl(id) || text.empty()) continue;
      added_.push_back({.content = text, .id = static_cast<TokenId>(id), .special = true});
    }
    num_tokens_ = static_cast<std::size_t>(size);
    std::vector<const AddedToken*> tokens;
    std::vector<std::string> patterns;
    for (const AddedToken& token : added_) {
      num_tokens_ = std::max(num_tokens_, std::size_t{token.id} + 1);
      by_id_.emplace(token.id, &token);
      tokens.push_back(&token);
      patterns.push_back(token.content);
    }
    finder_ = AddedTokenFinder(std::move(tokens), patterns, place_);
    check(processor_.Decode(std::vector<int>{processor_.unk_id()}, &unknown_surface_));
  }

  void encode(std::string_view text, std::vector<TokenId>& ids) const override {
    std::vector<int> part_ids;
    for (const TextPart& part : finder_.split(text)) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
        continue;
      }
      check(processor_.Encode(slice(text, part.span), &part_ids));
      for (const int id : part_ids) ids.push_back(static_cast<TokenId>(id));
    }
  }

  std::string decode(std::span<const TokenId> ids) const override {
    std::string text;
    std::vector<int> part_ids;
    const auto end_part = [&] {
      std::string part;
      check(processor_.Decode(part_ids, &part));
      text += part;
      part_ids.clear();
    };
    for (const TokenId id : ids) {
      const auto added = by_id_.find(id);
      if (added != by_id_.end()) {
        end_part();
        text += added->second->content;
      } else if (in_model(id)) {
        part_ids.push_back(static_cast<int>(id));
      }
    }
    end_part();
    return take_characters(text, Repair::PerByte, true);
  }

  std::size_t vocab_size() const override { return num_tokens_; }

  std::optional<TokenId> id_of(std::string_view token) const override {
    for (const AddedToken& added : added_) {
      if (added.content == token) return added.id;
    }
    const int id = processor_.PieceToId(token);
    if (id < 0 || id >= processor_.GetPieceSize() || processor_.IdToPiece(id) != token) {
      return std::nullopt;
    }
    return static_cast<TokenId>(id);
  }

  bool is_special(TokenId id) const override {
    const auto added = by_id_.find(id);
    return added != by_id_.end() && added->second->special;
  }

  DecodedPiece piece(TokenId id, bool is_first) const override {
    const auto added = by_id_.find(id);
    if (added != by_id_.end()) return {added->second->content};
    if (!in_model(id)) return {};
    const int number = static_cast<int>(id);
    if (processor_.IsUnknown(number)) return {unknown_surface_};
    const std::string& text = processor_.IdToPiece(number);
    if (processor_.IsByte(number)) {
      const auto byte = byte_of_piece(text);
      return {std::string(1, static_cast<char>(byte.value_or('?'))), true};
    }
    std::string_view rest = text;
    const bool drops = facts_.add_dummy_prefix || facts_.remove_extra_whitespaces;
    if (is_first && drops && rest.starts_with(blank_mark)) rest.remove_prefix(blank_mark.size());
    std::string bytes;
    for (std::size_t at = 0; (at = rest.find(blank_mark)) != std::string_view::npos;) {
      bytes += rest.substr(0, at);
      bytes += ' ';
      rest.remove_prefix(at + blank_mark.size());
    }
    return {bytes += rest};
  }

  const StripPiece& strip_whole() const override { return no_strip_; }
  Repair repair() const override { return Repair::PerByte; }

  bool next_is_first(TokenId id, bool is_first) const override {
    if (by_id_.contains(id)) return true;
    if (!is_first || !in_model(id)) return is_first;
    if (!piece(id, true).bytes.empty()) return false;
    // A blank that was dropped: more of them are dropped only where runs of blanks are.
    return facts_.remove_extra_whitespaces;
  }

 private:
  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok()) throw Error(place_ + ": SentencePiece: " + status.ToString());
  }

  bool in_model(TokenId id) const { return id < static_cast<TokenId>(processor_.GetPieceSize()); }

  /// The limit is the one of Vocabulary: ids of tokens far beyond the model's are a mistake.
  void require_same(const AddedToken& token, int size) const {
    const auto model_size = static_cast<std::size_t>(size);
    if (token.id >= 2 * model_size + 65536) {
      throw Error(place_, "id " + std::to_string(token.id) + " for '" + token.content + "'",
                  "ids near the model's " + std::to_string(model_size) + " tokens");
    }
    if (!in_model(token.id)) return;
    const std::string& text = processor_.IdToPiece(static_cast<int>(token.id));
    if (text == token.content) return;
    throw Error(place_, "'" + text + "' as " + std::to_string(token.id),
                "'" + token.content + "', as tokenizer.json has it");
  }

  std::string place_;
  SentencePieceFacts facts_;
  sentencepiece::SentencePieceProcessor processor_;
  std::vector<AddedToken> added_;
  std::map<TokenId, const AddedToken*> by_id_;
  AddedTokenFinder finder_{{}, {}, ""};
  std::string unknown_surface_;
  std::size_t num_tokens_ = 0;
  StripPiece no_strip_;
};

}  // namespace

std::unique_ptr<TokenizerBackend> make_sentencepiece_tokenizer(
    std::string_view serialized, const std::string& place, std::vector<AddedToken> added_tokens) {
  return std::make_unique<SentencePieceTokenizer>(serialized, place, std::move(added_tokens));
}

}  // namespace kvcast::text
