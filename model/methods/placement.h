/// Placements: who computes which part of a prompt, and what is sent.
///
/// Every rank has all weights and a contiguous part of the prompt. A CacheExchange of the recorder
/// says what a rank does with its caches; the rest of its forward pass is the model's own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/forward/recorder.h"

namespace kvcast {

/// One method as the user wrote it: NAME[:KEY=VALUE,...].
struct MethodSpec {
  std::string name = "plain";
  std::vector<std::pair<std::string, std::string>> options;
  bool operator==(const MethodSpec&) const = default;
};

/// One rank's place in a partition of the prompt.
struct RankShare {
  std::vector<std::uint64_t> partition;  ///< tokens of each rank, at least 1
  std::size_t rank = 0;
  bool first_decodes = false;  ///< Placement::first_decodes

  std::size_t ranks() const { return partition.size(); }
  /// Whether it has the prompt's logits.
  bool is_last() const { return rank + 1 == partition.size(); }
  /// The rank that goes on with the whole cache.
  std::size_t decoder() const { return first_decodes ? 0 : partition.size() - 1; }
  bool decodes() const { return rank == decoder(); }
  std::uint64_t tokens() const { return partition[rank]; }
  std::uint64_t first() const;  ///< position of its first token
  std::uint64_t end() const { return first() + tokens(); }
  std::uint64_t prompt_len() const;
};

struct Placement {
  std::string method;  ///< as the user wrote it, "kvr:p=4"
  std::uint64_t ranks = 1;
  std::vector<std::uint64_t> partition = {};  ///< tokens of each rank; empty: even
  /// Every rank ends with the whole cache, and the first one decodes, not the last.
  bool first_decodes = false;
  /// What a rank does with its caches, called where there are several ranks.
  std::function<CacheExchange(const RankShare&)> exchange = {};
};

/// Tokens of each rank. Throws Error when the prompt is not the sum of the parts, or has fewer
/// tokens than there are ranks.
std::vector<std::uint64_t> partition_tokens(const Placement& placement, std::uint64_t prompt_len);

/// The even partition; if the prompt does not divide, the first ranks have a token more.
/// Throws Error when there is no rank, or fewer tokens than ranks.
std::vector<std::uint64_t> even_partition(std::uint64_t prompt_len, std::uint64_t ranks);

/// The placement among the methods, if any. Throws Error when its options are wrong.
std::optional<Placement> find_placement(const std::vector<MethodSpec>& methods);

/// From the options of kvr or tsp: p=P and, if the method takes it, partition=even (the default),
/// A/B/... (P parts; p may be left out) or search (even here; a caller that knows the devices
/// searches). Throws Error when they are wrong.
Placement parse_placement(const MethodSpec& spec);

/// What a rank of a chain does with its caches (kvr).
CacheExchange chain_exchange(const RankShare& share);

/// "keys" of a cache named "layers.3.keys" or a node labelled "cache_keys".
std::string_view cache_part(std::string_view name);

}  // namespace kvcast
