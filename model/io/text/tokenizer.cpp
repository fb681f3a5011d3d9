#include "model/io/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "model/base/error.h"
#include "model/base/utf8_text.h"
#include "model/io/text/tokenizer_backend.h"

namespace kvcast::text {
namespace {

void require_known(TokenId id, const TokenizerBackend& backend) {
  if (id < backend.vocab_size()) return;
  throw Error("token id", std::to_string(id),
              "an id below " + std::to_string(backend.vocab_size()) + ", the vocabulary's size");
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerBackend> backend,
                     std::vector<TokenId> end_of_text)
    : backend_(std::move(backend)), end_of_text_(std::move(end_of_text)) {
  std::sort(end_of_text_.begin(), end_of_text_.end());
  end_of_text_.erase(std::unique(end_of_text_.begin(), end_of_text_.end()), end_of_text_.end());
}

std::vector<TokenId> Tokenizer::encode(std::string_view utf8_text) const {
  require_utf8(utf8_text, "text to encode");
  std::vector<TokenId> ids = backend_->prefix;
  backend_->encode(utf8_text, ids);
  ids.insert(ids.end(), backend_->suffix.begin(), backend_->suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, SpecialTokens special_tokens) const {
  std::vector<TokenId> kept;
  kept.reserve(ids.size());
  for (const TokenId id : ids) {
    require_known(id, *backend_);
    const bool skipped = special_tokens == SpecialTokens::Skip && backend_->is_special(id);
    if (!skipped) kept.push_back(id);
  }
  return backend_->decode(kept);
}

std::size_t Tokenizer::vocab_size() const { return backend_->vocab_size(); }

std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  return backend_->id_of(token);
}

bool Tokenizer::is_special(TokenId id) const { return backend_->is_special(id); }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, SpecialTokens special_tokens)
    : backend_(tokenizer.backend_),
      special_tokens_(special_tokens),
      strips_left_(backend_->strip_whole().start) {}

std::string StreamDecoder::push(TokenId id) {
  require_known(id, *backend_);
  if (special_tokens_ == SpecialTokens::Skip && backend_->is_special(id)) return "";
  DecodedPiece piece = backend_->piece(id, is_first_);
  is_first_ = backend_->next_is_first(id, is_first_);
  if (strips_left_ > 0) {
    strips_left_ -= strip_front(piece.bytes, backend_->strip_whole().content, strips_left_);
    if (!piece.bytes.empty()) strips_left_ = 0;
  }
  pending_ += piece.bytes;
  return take_characters(pending_, backend_->repair(), false);
}

std::string StreamDecoder::finish() {
  is_first_ = true;
  strips_left_ = backend_->strip_whole().start;
  return take_characters(pending_, backend_->repair(), true);
}

}  // namespace kvcast::text
