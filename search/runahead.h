/// When the first token of a parallel prefill is ready, in closed form. On quiet links of which
/// each serves one pair of ranks the event simulator finds the same, in milliseconds instead of
/// microseconds.
///
/// A chain of ranks (KV-Runahead): rank i, layer l has its keys and values ready for sending
/// at r(i, l) = max(end(i, l-1) + before(i, l), arrival(i-1, l)) and ends the layer at
/// end(i, l) = r(i, l) + after(i, l). Its messages hold the cache of all tokens up to its last one.
/// Source: KV-Runahead (arXiv:2405.05329), section 4.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/methods/placement.h"
#include "simulate/layer_times.h"
#include "simulate/simulation.h"

namespace kvcast::search {

using simulate::SendOrder;

/// The way from each rank to the next. Each has a link of its own.
struct ChainLink {
  double bytes_per_s = 0;
  double latency_s = 0;  ///< from end to end
  SendOrder order = SendOrder::Fifo;
  simulate::ExchangeCost exchange = {};
};

/// Tokens of each rank, in order of the prompt.
using Partition = std::vector<std::uint64_t>;

/// 0 and the end of each part.
std::vector<std::uint64_t> boundaries_of(std::span<const std::uint64_t> partition);
/// Throws Error, starting with `where`, unless every part has a token and they sum to the
/// prompt_len.
void check_partition(std::span<const std::uint64_t> partition, std::uint64_t prompt_len,
                     std::string_view where);

/// Memory that is kept from one evaluation to the next, one for each thread.
struct RunaheadScratch {
  simulate::RankTimes times;
  // By layer.
  std::vector<double> received;  ///< when the messages of the rank before are there
  std::vector<double> ready;     ///< when its own keys and values are
  std::vector<double> sent;      ///< when its messages have arrived
};

/// What every rank of a chain has in common.
struct Chain {
  std::vector<std::size_t> kinds;              ///< of each layer
  std::vector<std::uint64_t> bytes_per_token;  ///< that a layer of each kind sends
  ChainLink link;
  std::vector<simulate::SeenTokens> seen = {};  ///< by kind; empty: all tokens

  bool exchanges(std::size_t layer) const {
    const bool more = !seen.empty() && seen[kinds[layer]].besides_keys();
    return bytes_per_token[kinds[layer]] > 0 || more;
  }
  /// A layer with a state waits for the rank before it begins, others before their attention.
  bool waits_first(std::size_t layer) const {
    return !seen.empty() && seen[kinds[layer]].has_state();
  }
  double message_bytes(std::size_t layer, std::uint64_t tokens) const {
    const std::size_t kind = kinds[layer];
    const simulate::SeenTokens of_kind = seen.empty() ? simulate::SeenTokens() : seen[kind];
    return static_cast<double>(of_kind.of(tokens)) * static_cast<double>(bytes_per_token[kind]) +
           static_cast<double>(of_kind.of_state(tokens));
  }
};

/// One rank of the chain, whose prompt part ends after `tokens`, from what it has `received`: sets
/// `ready` and `sent`, 0 for layers that exchange nothing and for the last rank. Of messages that
/// share the link, `sent` is when all up to this one can have arrived. Returns when it ends.
double play_layers(const Chain& chain, const simulate::RankTimes& times, std::uint64_t tokens,
                   bool last, std::span<const double> received, std::span<double> ready,
                   std::span<double> sent);

/// When the messages of one rank have arrived if they share its link equally (SendOrder::Async).
/// `ready` ascends by layer; layers that exchange nothing are left out. A message that ends early
/// may overtake those of layers before.
void share_link(const Chain& chain, std::uint64_t tokens, std::span<const double> ready,
                std::span<double> sent);

/// Plays one rank of the chain, whose prompt part ends after `tokens`. Reads scratch.received, and
/// leaves there what the next rank receives. Returns when it ends.
double play_rank(const Chain& chain, const simulate::RankTimes& times, std::uint64_t tokens,
                 bool last, RunaheadScratch& scratch);

class Runahead {
 public:
  /// `times` is copied. Throws Error unless bandwidth is above 0 and the latencies at least 0.
  Runahead(simulate::LayerTimes times, const ChainLink& link);

  const simulate::LayerTimes& times() const { return times_; }
  const Chain& chain() const { return chain_; }
  const ChainLink& link() const { return chain_.link; }

  /// TTFT of a partition whose parts have at least one token each.
  double ttft_s(std::span<const std::uint64_t> partition, RunaheadScratch& scratch) const;
  double ttft_s(std::span<const std::uint64_t> partition) const;
  /// Times of one of the ranks, whose `tokens` end at `keys` in the prompt.
  void evaluate(std::size_t rank, std::size_t ranks, std::uint64_t tokens, std::uint64_t keys,
                simulate::RankTimes& times) const;

 private:
  simulate::LayerTimes times_;
  Chain chain_;
};

/// TTFT of tensor and sequence parallel prefill: even parts, and in each layer every rank
/// gathers the keys and values of all over a ring, P - 1 steps of one part each. Fifo or Block
/// (with Async a rank's messages may share its link: the simulator plays that). Throws Error
/// likewise, and for Async.
double tsp_ttft_s(const simulate::LayerTimes& times, const ChainLink& link,
                  std::span<const std::uint64_t> partition);

/// What a parallel prefill is compared with.
struct PrefillBounds {
  double one_device_s = 0;        ///< TTFT(1)
  double no_communication_s = 0;  ///< the same schedule and partition, over links that cost nothing
  /// TTFT(1)/2 · (1/p + 1/p²): attention alone, an even partition, nothing ever waited for.
  /// KV-Runahead (arXiv:2405.05329), equations 2 and 3.
  double star_s = 0;
};
PrefillBounds prefill_bounds(const simulate::LayerTimes& times, simulate::Schedule schedule,
                             std::span<const std::uint64_t> partition,
                             const simulate::ExchangeCost& exchange);

}  // namespace kvcast::search
