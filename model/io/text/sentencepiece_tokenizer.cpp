#include <algorithm>
#include <memory>
#include <utility>

#include <sentencepiece_processor.h>

#include "model/base/error.h"
#include "model/io/text/sentencepiece_proto.h"
#include "model/io/text/tokenizer_parts.h"

namespace kvcast::text {

TokenizerParts sentencepiece_tokenizer(std::string_view serialized, const std::string& place,
                                       std::vector<AddedToken> added_tokens) {
  const SentencePieceFacts facts = check_sentencepiece_model(serialized, place);
  const auto model = std::make_shared<sentencepiece::SentencePieceProcessor>();
  const auto check = [place](const sentencepiece::util::Status& status) {
    if (!status.ok()) throw Error(place + ": SentencePiece: " + status.ToString());
  };
  check(model->LoadFromSerializedProto(serialized));

  const int size = model->GetPieceSize();
  TokenizerParts parts{.place = place,
                       .vocabulary = Vocabulary(static_cast<std::size_t>(size), place),
                       .added_tokens = std::move(added_tokens),
                       .added_tokens_are_text = true};
  for (AddedToken& token : parts.added_tokens) token.normalized = false;
  for (int i = 0; i < size; ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string& text = model->IdToPiece(i);
    parts.vocabulary.add(text, id);
    if (model->IsByte(i)) parts.decoder.bytes = PieceBytes::ByteFallback;
    if (model->IsControl(i) && !std::ranges::count(parts.added_tokens, id, &AddedToken::id)) {
      parts.added_tokens.push_back({.content = text, .id = id, .special = true});
    }
  }
  const std::string blank_mark = "\xE2\x96\x81";  // U+2581
  if (facts.add_dummy_prefix || facts.remove_extra_whitespaces) {
    parts.decoder.steps.emplace_back(
        StripPiece{.content = blank_mark, .start = 1, .only_first = true});
  }
  parts.decoder.steps.emplace_back(ReplaceInPiece{blank_mark, " "});
  parts.decoder.skips_empty = facts.remove_extra_whitespaces;
  parts.decoder.unknown = model->IdToPiece(model->unk_id());
  check(model->Decode(std::vector<int>{model->unk_id()}, &parts.decoder.unknown_text));
  parts.encoder = [model, check](std::string_view text, std::vector<TokenId>& ids) {
    std::vector<int> text_ids;
    check(model->Encode(text, &text_ids));
    for (const int id : text_ids) ids.push_back(static_cast<TokenId>(id));
  };
  return parts;
}

}  // namespace kvcast::text
