#include "model/io/text/vocabulary.h"

#include <functional>
#include <utility>

#include "model/base/error.h"

namespace kvcast::text {
namespace {

constexpr std::size_t spare_ids = 65536;

std::string in_quotes(std::string_view token) {
  constexpr std::size_t shown = 40;
  return "'" + std::string(token.substr(0, shown)) + (token.size() > shown ? "...'" : "'");
}

}  // namespace

Vocabulary::Vocabulary(std::size_t expected_tokens, std::string place)
    : id_limit_(2 * expected_tokens + spare_ids), place_(std::move(place)) {}

std::size_t Vocabulary::place_of(std::string_view token) const {
  return ids_.find(std::hash<std::string_view>{}(token),
                   [&](TokenId id) { return id == free_slot || token_of(id) == token; });
}

void Vocabulary::make_room() {
  if (count_ < ids_.entries()) return;
  ids_ = OpenTable<TokenId>(2 * count_ + 1, free_slot);
  for (TokenId id = 0; id < tokens_.size(); ++id) {
    if (const auto token = token_of(id)) ids_[place_of(*token)] = id;
  }
}

void Vocabulary::add(std::string_view token, std::uint64_t id) {
  if (id >= id_limit_) {
    throw Error(place_, "id " + std::to_string(id) + " for " + in_quotes(token),
                "ids below " + std::to_string(id_limit_) + " for a vocabulary of this size");
  }
  const auto known = id_of(token);
  if (known == id) return;
  if (known) {
    throw Error(
        place_,
        "ids " + std::to_string(*known) + " and " + std::to_string(id) + " for " + in_quotes(token),
        "one id for each token");
  }
  if (const auto other = token_of(id)) {
    throw Error(place_,
                in_quotes(*other) + " and " + in_quotes(token) + " for id " + std::to_string(id),
                "one token for each id");
  }
  make_room();
  if (id >= tokens_.size()) tokens_.resize(id + 1, {0, no_token});
  tokens_[id] = {texts_.size(), token.size()};
  texts_ += token;
  ids_[place_of(token)] = static_cast<TokenId>(id);
  ++count_;
}

std::optional<TokenId> Vocabulary::id_of(std::string_view token) const {
  const TokenId id = ids_[place_of(token)];
  return id == free_slot ? std::nullopt : std::optional(id);
}

std::optional<std::string_view> Vocabulary::token_of(std::uint64_t id) const {
  if (id >= tokens_.size() || tokens_[id].length == no_token) return std::nullopt;
  return std::string_view(texts_).substr(tokens_[id].begin, tokens_[id].length);
}

}  // namespace kvcast::text
