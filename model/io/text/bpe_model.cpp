#include "model/io/text/bpe_model.h"

#include <algorithm>
#include <functional>

#include "model/base/utf8_text.h"

namespace kvcast::text {
namespace {

constexpr std::uint64_t no_pair = UINT64_MAX;  // both ids 2^32 - 1, which no vocabulary holds
constexpr std::size_t longest_remembered_word = 256;

std::uint64_t pair_of(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(left) << 32) | right;
}

}  // namespace

BpeModel::Rules::Rules(const std::vector<Merge>& merges) : slots_(merges.size(), {no_pair, {}}) {
  std::uint32_t rank = 0;
  for (const Merge& merge : merges) {
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    slots_[place_of(pair)] = {pair, {rank++, merge.joined}};
  }
}

std::size_t BpeModel::Rules::place_of(std::uint64_t pair) const {
  std::uint64_t hash = pair * 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio
  hash ^= hash >> 32;
  return slots_.find(hash,
                     [&](const Slot& slot) { return slot.pair == pair || slot.pair == no_pair; });
}

const BpeModel::Rule* BpeModel::Rules::find(TokenId left, TokenId right) const {
  const Slot& slot = slots_[place_of(pair_of(left, right))];
  return slot.pair == no_pair ? nullptr : &slot.rule;
}

BpeModel::BpeModel(const Vocabulary& vocabulary, const std::vector<Merge>& merges,
                   BpeOptions options)
    : vocabulary_(vocabulary), rules_(merges), options_(std::move(options)) {}

void BpeModel::Encoder::encode(std::string_view word, std::vector<TokenId>& ids) {
  if (word.empty()) return;
  const auto known = known_.find(word);
  if (known != known_.end()) {
    const auto first = known_ids_.begin() + static_cast<std::ptrdiff_t>(known->second.first);
    ids.insert(ids.end(), first, first + static_cast<std::ptrdiff_t>(known->second.second));
    return;
  }
  const std::size_t begin = ids.size();
  const auto whole =
      model_.options_.ignore_merges ? model_.vocabulary_.id_of(word) : std::optional<TokenId>();
  if (whole) {
    ids.push_back(*whole);
  } else {
    split(word);
    merge();
    for (const Symbol& symbol : symbols_) {
      if (!symbol.is_merged) ids.push_back(symbol.id);
    }
  }
  if (word.size() <= longest_remembered_word) {
    known_.emplace(word, std::pair(known_ids_.size(), ids.size() - begin));
    known_ids_.insert(known_ids_.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin),
                      ids.end());
  }
}

void BpeModel::Encoder::add_symbol(TokenId id) {
  const auto position = static_cast<std::int64_t>(symbols_.size());
  if (!symbols_.empty()) symbols_.back().next = position;
  symbols_.push_back({id, position - 1, -1, false});
}

bool BpeModel::Encoder::add_bytes(std::string_view character) {
  const auto& tokens = model_.options_.byte_tokens;
  if (!tokens) return false;
  const auto token_of = [&](char c) { return (*tokens)[static_cast<unsigned char>(c)]; };
  if (!std::all_of(character.begin(), character.end(),
                   [&](char c) { return token_of(c).has_value(); }))
    return false;
  for (const char c : character) add_symbol(*token_of(c));
  return true;
}

void BpeModel::Encoder::split(std::string_view word) {
  const BpeOptions& options = model_.options_;
  symbols_.clear();
  // The token of an unknown character waits for more of them, and byte tokens overtake it: so do
  // Hugging Face's tokenizers, and checkpoints were trained with their ids.
  bool unknown_waits = false;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t length = first_character(word.substr(i)).length;
    const std::string_view character = word.substr(i, length);
    i += length;
    if (const auto id = model_.vocabulary_.id_of(character)) {
      if (unknown_waits) add_symbol(*options.unknown);
      unknown_waits = false;
      add_symbol(*id);
    } else if (!add_bytes(character) && options.unknown) {
      if (unknown_waits && !options.fuse_unknown) add_symbol(*options.unknown);
      unknown_waits = true;
    }
  }
  if (unknown_waits) add_symbol(*options.unknown);
}

void BpeModel::Encoder::enqueue(std::int64_t position) {
  if (position < 0) return;
  const Symbol& left = symbols_[static_cast<std::size_t>(position)];
  if (left.next < 0) return;
  const Symbol& right = symbols_[static_cast<std::size_t>(left.next)];
  if (const Rule* rule = model_.rules_.find(left.id, right.id)) {
    queue_.push_back({rule->rank, static_cast<std::size_t>(position), rule->joined});
    std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
  }
}

void BpeModel::Encoder::merge() {
  queue_.clear();
  for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) enqueue(static_cast<std::int64_t>(i));
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    const Candidate top = queue_.back();
    queue_.pop_back();
    Symbol& left = symbols_[top.position];
    if (left.is_merged || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<std::size_t>(left.next)];
    // The pair may have changed since it was queued.
    const Rule* rule = model_.rules_.find(left.id, right.id);
    if (rule == nullptr || rule->joined != top.joined) continue;
    left.id = top.joined;
    left.next = right.next;
    right.is_merged = true;
    if (right.next >= 0) {
      symbols_[static_cast<std::size_t>(right.next)].previous =
          static_cast<std::int64_t>(top.position);
    }
    enqueue(left.previous);
    enqueue(static_cast<std::int64_t>(top.position));
  }
}

}  // namespace kvcast::text
