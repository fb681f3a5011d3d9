/// Byte-pair encoding of one word: characters, then merges of neighbours by rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "model/io/text/vocabulary.h"

namespace kvcast::text {

/// Two tokens and the token of their texts joined; a merge's rank is its position in the file.
struct Merge {
  TokenId left;
  TokenId right;
  TokenId joined;
};

/// Throws Error beginning with place() for a token outside the vocabulary.
template <typename Place>
Merge merge_of(const Vocabulary& vocabulary, std::string_view left, std::string_view right,
               const Place& place) {
  const auto id = [&](std::string_view token) {
    const auto known = vocabulary.id_of(token);
    if (!known) throw Error(place(), "'" + std::string(token) + "'", "tokens of the vocabulary");
    return *known;
  };
  return {id(left), id(right), id(std::string(left).append(right))};
}

struct BpeOptions {
  std::optional<TokenId> unknown;  ///< for characters without a token; without it they vanish
  bool fuse_unknown = false;       ///< neighbouring unknown characters become one token
  /// The tokens of bytes (<0x41>), for characters without a token whose bytes all have one.
  std::optional<std::array<std::optional<TokenId>, 256>> byte_tokens;
  bool ignore_merges = false;  ///< a word that is itself a token becomes that token
};

/// Source   Sennrich et al. 2016 (arXiv:1508.07909), algorithm 1, with ties broken from the left
class BpeModel {
 public:
  /// Ids are in `vocabulary`, which must outlive the model. Of two merges of the same pair the
  /// later counts, as in Hugging Face's tokenizers.
  BpeModel(const Vocabulary& vocabulary, const std::vector<Merge>& merges, BpeOptions options);

  class Encoder;

 private:
  struct Rule {
    std::uint32_t rank;
    TokenId joined;
  };
  class Rules {
   public:
    explicit Rules(const std::vector<Merge>& merges);
    const Rule* find(TokenId left, TokenId right) const;

   private:
    struct Slot {
      std::uint64_t pair;
      Rule rule;
    };
    std::size_t place_of(std::uint64_t pair) const;
    OpenTable<Slot> slots_;
  };

  const Vocabulary& vocabulary_;
  Rules rules_;
  BpeOptions options_;
};

/// Encodes the words of one text and remembers them, so that a repeated word costs one look-up.
class BpeModel::Encoder {
 public:
  explicit Encoder(const BpeModel& model) : model_(model) {}

  /// Appends the ids of a word of valid UTF-8, in O(n log n) for n characters. The word's
  /// characters must stay where they are while the encoder lives.
  void encode(std::string_view word, std::vector<TokenId>& ids);

 private:
  struct Symbol {
    TokenId id;
    std::int64_t previous;  // -1 at the ends
    std::int64_t next;
    bool is_merged;  // into the one before
  };
  /// A pair that could be merged. The first in the queue has the lowest rank, then position.
  struct Candidate {
    std::uint32_t rank;
    std::size_t position;
    TokenId joined;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };

  void split(std::string_view word);
  void add_symbol(TokenId id);
  bool add_bytes(std::string_view character);
  void merge();
  void enqueue(std::int64_t position);

  const BpeModel& model_;
  std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>> known_;
  std::vector<TokenId> known_ids_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> queue_;  // a heap
};

}  // namespace kvcast::text
