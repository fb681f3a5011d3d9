/// Programs of parallel prefill: who computes what, and which messages carry keys and values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "simulate/programs.h"

namespace kvcast::simulate {

enum class Schedule {
  /// KV-Runahead (Cho et al. 2024, section 4): each rank sends the cache of all tokens up to its
  /// last to the next one, before its own attention.
  Kvr,
  /// Tensor and sequence parallel: keys and values of every rank are gathered by all.
  Tsp,
};
std::string_view name(Schedule schedule);
/// "kvr", "tsp". Throws Error with the nearest name.
Schedule parse_schedule(std::string_view word);

/// How every rank gets every chunk.
enum class AllGather {
  Ring,               ///< P - 1 steps: pass on to the next rank what came from the one before
  RecursiveDoubling,  ///< log2 P steps: exchange all so far with a partner twice as far each time
  Direct,             ///< each rank sends its own chunk to every other one
};
std::string_view name(AllGather kind);
/// "ring", "recursive-doubling", "direct". Throws Error with the nearest name.
AllGather parse_all_gather(std::string_view word);

/// Seconds of one layer.
struct LayerTime {
  double before_exchange_s = 0;  ///< norm, query, key, value, rotation, append
  double after_exchange_s = 0;   ///< attention, its projection, MLP
};

/// One rank's compute times; layers that are alike stand here once.
struct RankTimes {
  double embedding_s = 0;  ///< before the first layer
  double head_s = 0;       ///< after the last one; 0 for a rank that makes no token
  std::vector<LayerTime> kinds;
};

/// The tokens before a rank's end that later ranks see in a layer, and so are sent.
struct SeenTokens {
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();  ///< of a window, or all
  std::uint64_t chunk = 0;  ///< only those since the last whole chunk; 0: no chunks
  // Beside them, of a layer with a state, whose scan waits for the rank before:
  std::uint64_t state_bytes = 0;
  std::uint64_t taps = 0;       ///< tokens that a convolution sees
  std::uint64_t tap_bytes = 0;  ///< of each

  std::uint64_t of(std::uint64_t tokens) const {
    return chunk > 0 ? tokens % chunk : std::min(tokens, most);
  }
  std::uint64_t of_state(std::uint64_t tokens) const {
    return state_bytes + std::min(tokens, taps) * tap_bytes;
  }
  /// Later ranks wait for it where the layer begins; what a convolution sees is sent as keys are.
  bool has_state() const { return state_bytes > 0; }
  bool besides_keys() const { return state_bytes > 0 || tap_bytes > 0; }
  auto operator<=>(const SeenTokens&) const = default;
};

struct PrefillWork {
  Schedule schedule = Schedule::Kvr;
  AllGather all_gather = AllGather::Ring;       ///< of Tsp
  std::vector<std::uint64_t> partition_tokens;  ///< of each rank, in order of the prompt
  std::vector<RankTimes> ranks;
  /// Keys and values of one token, by kind; 0: such a layer caches none.
  std::vector<std::uint64_t> bytes_per_token;
  std::vector<std::size_t> layers;  ///< the kind of each layer
  /// What a chain sends, by kind; empty: all tokens in all layers.
  std::vector<SeenTokens> seen = {};
};

/// Throws Error unless there are parts, each with a token.
void check_parts(const std::vector<std::uint64_t>& partition_tokens);

/// What each rank does, in order. Throws Error: not as many ranks as parts, no tokens, no layers,
/// recursive doubling over a number of ranks that is no power of two, bytes beyond 64 bits, more
/// than max_instructions.
Programs prefill_programs(const PrefillWork& work);

/// Appends to each rank the sends and receives of one all-gather. Rank i owns `chunk_bytes[i]`.
/// Throws Error as above.
void append_all_gather(AllGather kind, const std::vector<std::uint64_t>& chunk_bytes,
                       Programs& programs);

}  // namespace kvcast::simulate
