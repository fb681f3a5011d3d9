/// Compute times of one rank of a parallel prefill, layer by layer, before and after the exchange
/// of keys and values: the recorded pass of a rank, folded at its messages.
///
/// A rank reads `tokens` tokens of the prompt and attends over `keys`, its own included. Both
/// schedules exchange right after a layer's keys and values are in the cache. What comes before
/// needs nothing of others; what comes after needs their keys and values. A layer with a state
/// begins where its scan waits for the state of the rank before, see SeenTokens::has_state.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/record/rank_recording.h"
#include "roofline/step_cost.h"
#include "simulate/schedules.h"

namespace kvcast::simulate {

/// What a layer's exchange costs beside its bytes, see ExchangePace.
struct ExchangeCost {
  double message_s = 0;   ///< host time to issue one send or receive
  double exchange_s = 0;  ///< host time for the exchange of a layer
  /// The speed of ranks that compute the same and then all wait for each other, as in TSP: the mean
  /// of their times over the slowest's, mean over the layers.
  double lockstep = 1;
};

/// What exchanging keys and values does to a rank's pace, where its host issues operators one by
/// one (Rates::host_operator_latency).
struct ExchangePace {
  /// Without an exchange the host issues the whole pass ahead of the device, and the slower of the
  /// two sets its time. With one it waits for the device at each exchange, so the slower of the two
  /// sets the time from one exchange to the next.
  bool exchanges = false;
  /// Nothing is computed between the messages of a layer, as in TSP, where they form a ring. Else a
  /// rank computes between what it gets and what it sends.
  bool rings = false;
  double messages_s = 0;  ///< host seconds that a layer's messages take, beside the operators
  /// Host seconds of a layer's exchange however many messages it has, half before and half after
  /// them: to hand over the own keys and values, and to take in the others'.
  double exchange_s = 0;
  double lockstep = 1;  ///< see ExchangeCost; 1 where no rank waits for a later one
};

/// The pace of one rank. A rank of a chain has at most a send and a receive in each layer. A host
/// of TSP issues the messages of a ring, in lockstep with the others.
ExchangePace exchange_pace(Schedule schedule, const ExchangeCost& cost, std::size_t rank,
                           std::size_t ranks);

/// A model's layer times on a device: of a rank, layer l takes RankTimes::kinds[kinds()[l]].
/// Evaluating one rank takes less than a microsecond for a model of identical layers.
class LayerTimes {
 public:
  /// Records the model's prefill in chunks, of one sequence. With Logits::All every rank has a
  /// head, as if it made a token. Throws Error for encoder-decoder models, and for methods that
  /// need the whole prompt at once.
  LayerTimes(const Architecture& architecture, const std::vector<MethodSpec>& methods,
             const Lowering& lowering, const roofline::Rates& rates, Logits logits = Logits::Last);
  /// Takes passes that were recorded with these logits.
  LayerTimes(const ChainPasses& passes, const Lowering& lowering, const roofline::Rates& rates,
             Logits logits = Logits::Last);

  std::size_t num_layers() const { return kind_of_layer_.size(); }
  /// The kind of each layer.
  const std::vector<std::size_t>& kinds() const { return kind_of_layer_; }
  /// By kind: keys and values of one token of each sequence that such a layer caches and sends.
  const std::vector<std::uint64_t>& bytes_per_token() const { return bytes_per_token_; }
  /// By kind: the tokens that it sends in a chain.
  const std::vector<SeenTokens>& seen() const { return seen_; }
  /// Keys and values of a layer, or latents: the most messages of one, without those of states.
  std::size_t most_messages() const { return most_messages_; }
  /// Operators of one rank that makes the first token.
  double num_operators() const;

  /// `tokens` of a prompt after keys - tokens others, 1 <= tokens <= keys. With scores in memory,
  /// keys and values of others are first joined with the own ones, as torch.cat does.
  RankTimes of_rank(std::uint64_t tokens, std::uint64_t keys, bool makes_token,
                    const ExchangePace& pace = {}) const;
  /// The same into `out`, whose memory is kept from call to call.
  void evaluate(std::uint64_t tokens, std::uint64_t keys, bool makes_token,
                const ExchangePace& pace, RankTimes& out) const;
  /// The same layers reading so many sequences side by side, all in the same parts. Throws Error
  /// when the bytes of a token do not fit 64 bits.
  LayerTimes for_batch(std::uint64_t batch) const;
  /// Sum over all layers, embedding and head: TTFT when one rank reads the whole prompt.
  double total_s(const RankTimes& times) const;

  /// The keys that a rank attends over, whose tokens end at `boundary` in a prompt of `prompt_len`:
  /// in a chain those up to there. In TSP all with scores in memory, and those to the right are
  /// masked; a fused kernel skips them.
  std::uint64_t keys(Schedule schedule, std::uint64_t boundary, std::uint64_t prompt_len) const {
    return schedule == Schedule::Tsp && scores_in_memory_ ? prompt_len : boundary;
  }

 private:
  /// Parts of `step_`. Those of layers that compute the same follow: up to the first message of
  /// the exchange, up to its last one, after it, and what joins keys and values of others with the
  /// own ones.
  enum Part : std::size_t { embedding, head, layer_parts };
  enum LayerPart : std::size_t { before, between, after, join, parts_of_layer };
  std::size_t part_of(std::size_t kind, LayerPart part) const {
    return kinds_[kind].first_part + part;
  }
  static bool is_join(std::size_t part) {
    return part >= layer_parts && (part - layer_parts) % parts_of_layer == join;
  }
  double operators(std::size_t part) const { return step_->num_operators(part); }
  double operators(std::size_t kind, LayerPart part) const {
    return operators(part_of(kind, part));
  }

  /// What a rank computes from one exchange to the next, with nothing issued ahead.
  struct Stretch {
    std::vector<std::pair<std::size_t, double>> parts;  ///< how often it has each
    bool begins_after_exchange = false;
    bool ends_at_exchange = false;
    bool operator==(const Stretch&) const = default;
  };
  /// The stretches that a layer with an exchange begins: the one that ends with its exchange, which
  /// a ring has not, and the one after it.
  struct Begun {
    std::size_t before = 0;
    std::size_t after = 0;
    auto operator<=>(const Begun&) const = default;
  };
  /// What layers of a kind compute and send.
  struct Layer {
    std::size_t first_part;
    std::uint64_t bytes_per_token;
    SeenTokens seen;
    std::array<Begun, 2> begun = {};  ///< in a chain and in a ring
    bool exchanges() const { return bytes_per_token > 0 || seen.besides_keys(); }
    auto operator<=>(const Layer&) const = default;
  };
  /// Cuts the pass into stretches, of a chain or of rings, and says which ones each layer begins.
  void cut_into_stretches(std::vector<Layer>& layers, bool rings);
  /// Adds what the device waits for the host, where each stretch begins.
  void pace_stretches(std::span<const double> seconds, bool has_head, bool has_joins,
                      const ExchangePace& pace, RankTimes& times) const;

  Symbols symbols_;
  std::shared_ptr<const roofline::StepCost> step_;
  double host_operator_s_ = 0;
  std::uint64_t batch_ = 1;
  Logits logits_ = Logits::Last;
  bool scores_in_memory_ = false;
  /// In a chain and in a ring; first the one that begins with the embedding.
  std::array<std::vector<Stretch>, 2> stretches_;
  std::vector<Layer> kinds_;
  std::vector<std::uint64_t> bytes_per_token_;  ///< by kind, of all sequences
  std::vector<SeenTokens> seen_;                ///< by kind, of all sequences
  std::vector<double> layers_;                  ///< how many there are, by kind
  std::vector<std::size_t> kind_of_layer_;
  std::size_t most_messages_ = 1;
};

/// Rank i reads `partition_tokens[i]` tokens, in order of the prompt; the last one makes the
/// first token. Runahead attends over the tokens up to its own last one, TSP over what its kernels
/// read, in lockstep. A host of TSP issues the messages of a ring, whatever the all-gather. Throws
/// Error when a rank has no tokens, or there is none, and for TSP of layers with states.
PrefillWork prefill_work(const LayerTimes& times, Schedule schedule,
                         const std::vector<std::uint64_t>& partition_tokens,
                         const ExchangeCost& cost = {}, AllGather all_gather = AllGather::Ring);

}  // namespace kvcast::simulate
