#include "model/io/text/vocabulary.h"

#include <algorithm>
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
    : id_limit_(2 * expected_tokens + spare_ids), place_(std::move(place)) {
  ids_.reserve(expected_tokens);
}

void Vocabulary::add(std::string_view token, std::uint64_t id) {
  if (id >= id_limit_) {
    throw Error(place_, "id " + std::to_string(id) + " for " + in_quotes(token),
                "ids below " + std::to_string(id_limit_) + " for a vocabulary of this size");
  }
  const auto [entry, is_new] = ids_.try_emplace(std::string(token), static_cast<TokenId>(id));
  if (entry->second != id) {
    throw Error(place_,
                "ids " + std::to_string(entry->second) + " and " + std::to_string(id) + " for " +
                    in_quotes(token),
                "one id for each token");
  }
  if (id >= tokens_.size()) tokens_.resize(id + 1);
  const std::string*& slot = tokens_[id];
  if (slot != nullptr && *slot != token) {
    throw Error(place_,
                in_quotes(*slot) + " and " + in_quotes(token) + " for id " + std::to_string(id),
                "one token for each id");
  }
  slot = &entry->first;
}

std::optional<TokenId> Vocabulary::id_of(std::string_view token) const {
  const auto entry = ids_.find(token);
  if (entry == ids_.end()) return std::nullopt;
  return entry->second;
}

std::optional<std::string_view> Vocabulary::token_of(std::uint64_t id) const {
  if (id >= tokens_.size() || tokens_[id] == nullptr) return std::nullopt;
  return *tokens_[id];
}

}  // namespace kvcast::text
