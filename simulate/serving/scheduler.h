/// Schedulers of servers: which sequences compute how many tokens in the next step, and who has the
/// cache's blocks. No clock and no costs: a simulator and a run on real weights use the same.
///
/// Each follows the published rules of one engine, whose version its name in `policies` stands for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "simulate/serving/block_pool.h"
#include "simulate/serving/requests.h"

namespace kvcast::simulate {

enum class Policy {
  VllmV1,             ///< vLLM 0.11: one budget of tokens for prompts and decode steps
  VllmV0,             ///< vLLM 0.6.3: prompts first, in steps of their own
  Sarathi,            ///< Sarathi-Serve 96f9911: decode steps first, prompts fill the step
  Orca,               ///< whole prompts beside decode steps, the longest cache reserved
  Static,             ///< FasterTransformer: a batch runs until its last member ends
  TrtllmGuaranteed,   ///< TensorRT-LLM 1.x, GUARANTEED_NO_EVICT
  TrtllmUtilization,  ///< TensorRT-LLM 1.x, MAX_UTILIZATION
  Sglang,             ///< SGLang 0.5.3, first come first served
  SglangLpm,          ///< SGLang 0.5.3, longest prefix match first
};
std::string_view name(Policy policy);
/// Throws Error with the nearest name.
Policy parse_policy(std::string_view text);
std::vector<std::string> policy_names();

/// Blocks of all servers together: what is known of them takes up to 8 GiB, half as much again
/// while it grows.
constexpr std::uint64_t all_blocks = std::uint64_t{1} << 28;

struct SchedulerSettings {
  Policy policy = Policy::VllmV1;
  std::uint64_t max_num_batched_tokens = 2048;  ///< of a step
  std::uint64_t max_num_seqs = 256;
  std::uint64_t num_blocks = 1;
  std::uint64_t block_size = 16;  ///< tokens
  /// Prompt and output; longer ones are rejected. 0: any length.
  std::uint64_t max_model_len = 0;
  /// Share of the blocks that vllm-v0 and sarathi leave free when they take a request.
  double watermark = 0.01;
  bool prefix_caching = false;
  /// vllm-v1: takes a request only if all of its tokens fit.
  bool reserve_full_prompt = false;
  /// vllm-v0: decode steps of a batch in a row; requests start only between such rows.
  std::uint64_t num_scheduler_steps = 1;
  /// A step is planned while the one before it runs, so what arrives then waits for another.
  bool schedules_ahead = false;
  /// Stages of a pipeline: so many steps are under way at once. A sequence is in one of them, but
  /// the chunks of a prompt may follow each other (vllm-v1, SGLang).
  std::uint64_t pipeline_stages = 1;
  /// TensorRT-LLM: beside decode steps, prompts wait for others for so many steps, but no longer
  /// than until the step has this share of max_num_batched_tokens. 0 in either: they do not wait.
  std::uint64_t batch_wait_timeout_iters = 0;
  double batch_wait_max_tokens_ratio = 0;
  bool chunked_prefill = true;                     ///< vllm-v1, TensorRT-LLM
  std::uint64_t long_prefill_token_threshold = 0;  ///< vllm-v1: most of a prompt in a step; 0: all
  std::uint64_t chunked_prefill_size = 8192;       ///< SGLang
  double conservativeness = 1;                     ///< SGLang
  bool mixed_chunk = false;                        ///< SGLang: prompts' steps take decode steps too
  /// Tokens that each of ServingRequest::blocks stands for; 0: no requests have any.
  std::uint64_t request_block_tokens = 0;
  /// Rows of cache that a sequence of so many tokens fills, where windows bound it or it has
  /// states; empty: all.
  std::function<std::uint64_t(std::uint64_t tokens)> cache_rows = {};

  /// Throws Error for values that are not above zero and shares beyond 1.
  void check() const;
};

/// A request on its way.
struct Sequence {
  ServingRequest request;
  std::uint64_t known = 0;      ///< tokens of the prompt and those made so far
  std::uint64_t computed = 0;   ///< of them, those that are in the cache or in steps under way
  std::uint64_t under_way = 0;  ///< steps with it
  std::uint64_t admitted = 0;   ///< known when it was last taken from the waiting
  std::uint64_t generated = 0;
  std::vector<BlockPool::Block> blocks = {};
  std::vector<std::uint64_t> pieces = {};  ///< of the prompt, for its full blocks; with caching
  std::uint64_t entered = 0;               ///< of them, those that are known to the pool
  std::uint64_t leaves_after = 0;  ///< tokens that it makes in all before it leaves a server
  std::uint64_t dropped = 0;       ///< tokens of the prompt that the cache never holds
  std::uint64_t received = 0;      ///< tokens whose keys and values another server has sent
  std::uint64_t hit_tokens = 0;
  std::uint64_t preemptions = 0;
  // Set by who keeps the time.
  std::optional<double> scheduled_s = {};  ///< first in a step
  double first_token_s = 0;
  double last_token_s = 0;

  std::uint64_t left() const { return known - computed; }
  bool decodes() const { return generated > 0 && left() == 1; }
  bool is_done() const { return generated == request.output_tokens; }
  /// Tokens that are in the cache when it leaves; the last one is never computed.
  std::uint64_t most_cached() const { return request.prompt_tokens + leaves_after - 1; }
};

/// What one sequence computes in a step.
struct ScheduledPart {
  Sequence* sequence = nullptr;
  std::uint64_t tokens = 0;
  std::uint64_t cached = 0;  ///< tokens before these
  bool decodes = false;  ///< one token after others that it has made; else a (recomputed) prompt
  bool makes_token = false;  ///< the last of the tokens that are known
};

struct SchedulerCounts {
  std::uint64_t preemptions = 0;
  std::uint64_t prefill_tokens = 0;  ///< with those computed again
  std::uint64_t decode_tokens = 0;
  std::uint64_t hit_tokens = 0;  ///< found in the cache, summed over admissions
  std::uint64_t peak_running = 0;
  std::uint64_t rejected = 0;
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// The sequence waits, from its request alone or as another server has left it. Returns the
  /// reason if it can never run; it is then left where it is and counts as rejected.
  std::optional<std::string> add(std::unique_ptr<Sequence>& sequence);
  /// The next step's parts, valid until it ends. Empty: nothing waits, and what runs is under way.
  const std::vector<ScheduledPart>& schedule();
  /// The oldest step is over: sequences that have computed all they know have one token more.
  /// `told` hears of each of them. Returns those that leave.
  std::vector<std::unique_ptr<Sequence>> end_step(const std::function<void(Sequence&)>& told);

  const SchedulerSettings& settings() const { return settings_; }
  const SchedulerCounts& counts() const { return counts_; }
  const BlockPool& pool() const { return pool_; }
  /// The most blocks that sequences held at once.
  virtual std::uint64_t peak_blocks() const { return pool_.peak(); }
  std::size_t num_waiting() const { return waiting_.size() + arrived_.size(); }
  std::size_t num_running() const { return running_.size(); }
  std::size_t num_requests() const { return num_waiting() + num_running(); }
  /// Tokens that waiting and running sequences have still to compute before their next one.
  std::uint64_t pending_tokens() const;
  /// Requests that add() had taken and that the server, empty, cannot run; once.
  std::vector<std::unique_ptr<Sequence>> take_rejected() { return std::exchange(rejected_, {}); }
  /// Blocks of the prompt that the cache holds.
  std::size_t num_hits(const ServingRequest& request) const;
  /// Of the cache, for the sequence's first `tokens` tokens.
  std::uint64_t rows_for(const Sequence& s, std::uint64_t tokens) const {
    const std::uint64_t rows = tokens - std::min(tokens, s.dropped);
    return settings_.cache_rows ? settings_.cache_rows(rows) : rows;
  }

 protected:
  explicit Scheduler(const SchedulerSettings& settings);
  using Owned = std::unique_ptr<Sequence>;

  /// Fills parts_ and moves sequences between waiting_ and running_.
  virtual void plan() = 0;
  /// The block that holds this piece of a prompt.
  virtual std::optional<BlockPool::Block> find_piece(std::uint64_t piece) const {
    return pool_.find(piece);
  }
  /// A running sequence has its first `computed` tokens in the cache.
  virtual void after_computing(Sequence& /*s*/, std::uint64_t /*computed*/) {}
  /// Of a sequence that leaves: its blocks.
  virtual void give_back(Sequence& s);
  /// The most blocks that the sequence will ever need at once.
  virtual std::uint64_t most_blocks(const Sequence& s) const;
  /// If not, prompts longer than a step are never taken.
  virtual bool cuts_prompts() const { return settings_.chunked_prefill; }
  /// Why a request can never run.
  virtual std::optional<std::string> refusal(const Sequence& s) const;

  /// For the sequence's first `tokens` tokens.
  std::uint64_t blocks_for(const Sequence& s, std::uint64_t tokens) const {
    return (rows_for(s, tokens) + settings_.block_size - 1) / settings_.block_size;
  }
  void run(Sequence& s, std::uint64_t tokens) { parts_.push_back({&s, tokens}); }
  /// Blocks that hold the beginning of a waiting prompt, of which at least one token is computed.
  std::vector<BlockPool::Block> hits(const Sequence& s) const;
  std::uint64_t num_free_among(const std::vector<BlockPool::Block>& blocks) const;
  /// Holds them as the sequence's first blocks and counts the hit.
  void take_hits(Sequence& s, const std::vector<BlockPool::Block>& found);
  /// Blocks for the sequence's first `tokens` tokens; false, and nothing taken, if there are too
  /// few. Pieces that `tokens` fill are entered.
  bool allocate(Sequence& s, std::uint64_t tokens);
  /// Blocks up to a number that must be free.
  void grow(Sequence& s, std::uint64_t blocks);
  /// Whole blocks of the prompt that its first `tokens` tokens fill are entered.
  void enter_pieces(Sequence& s, std::uint64_t tokens);
  Owned take_waiting(std::size_t index = 0);
  Sequence& start(Owned s);
  /// The running sequence gives up its cache and waits before all others, or behind them.
  void preempt(std::size_t running, bool behind = false);
  /// Preempts the last running sequence that no step under way has, until `fits`. False: none of
  /// those from `index` on is left, and that one does not run now.
  template <typename Fits>
  bool make_room(std::size_t index, const Fits& fits) {
    while (!fits()) {
      std::size_t last = running_.size() - 1;
      while (last > index && running_[last]->under_way > 0) --last;
      if (running_[last]->under_way == 0) preempt(last);
      if (last == index) return false;
    }
    return true;
  }
  /// What has arrived may be planned from now on.
  void let_in();

  const SchedulerSettings settings_;
  BlockPool pool_;
  std::vector<Owned> arrived_;  ///< since the next step was planned; with schedules_ahead
  std::deque<Owned> waiting_;
  std::vector<Owned> running_;
  std::vector<ScheduledPart> parts_;                  ///< of the step that is planned
  std::deque<std::vector<ScheduledPart>> under_way_;  ///< the oldest first
  std::vector<ScheduledPart> spare_;                  ///< memory of a step that is over
  SchedulerCounts counts_;
  std::vector<Owned> rejected_;
};

/// Throws Error as SchedulerSettings::check.
std::unique_ptr<Scheduler> make_scheduler(const SchedulerSettings& settings);

}  // namespace kvcast::simulate
