/// Runs a request: prefill and greedy decoding on the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/execute/executor.h"
#include "model/execute/helper_run.h"
#include "model/execute/opened_models.h"
#include "model/record/recording.h"

namespace kvcast::execute {

/// How a session runs its model.
struct SessionOptions {
  std::vector<MethodSpec> methods = {};
  Kernels attention = Kernels::Fused;
  Kernels elementwise = Kernels::Fused;
  bool skip_unread_rows = false;  ///< see Lowering
  Loops loops = Loops::Fast;
  Logits logits = Logits::Last;
  /// FP32 or FP64, for weights, cache, activations and arithmetic. FP64 always runs the counting
  /// loops; it shows what is equal but for rounding.
  DType dtype = DType::FP32;
  /// What FP32 sessions keep weights in: FP32, or stored_weight_types() of the checkpoint.
  WeightTypes weights = DType::FP32;
  /// What fast loops multiply prompts by weight matrices in; INT8 needs weights as stored.
  Arithmetic arithmetic = Arithmetic::FP32;
  /// What FP32 sessions keep the cache in: FP32, or a narrow type (cache_rows.h). Counting loops
  /// hold fp32 numbers and count the type.
  DType cache = DType::FP32;
  /// Encoder-decoder models: tokens that the decoder starts from.
  std::uint64_t decoder_tokens = 1;
  /// Decoder-only models: prompt tokens that prefill takes at a time; 0: all.
  std::uint64_t chunk = 0;
  /// For a StepSession: see RecordOptions::steps. Such a session runs no requests.
  bool steps = false;
  /// With a placement among the methods: the part of the prompt that this session computes. Unless
  /// all logits are asked for, only the last rank has them, and sends them to the one that decodes.
  std::optional<RankShare> share = {};
  /// One of the devices that the model is spread over: its part of the weights and the cache. All
  /// devices that split a layer have the same logits and tokens.
  std::optional<DevicePlace> place = {};
  OpenModel open = nullptr;  ///< of the models that methods name

  /// The process of another rank of the placement; of several devices the one in this one's place.
  std::size_t process_of(std::size_t rank) const {
    return place ? rank * place->plan.devices() + place->device : rank;
  }
};

struct Request {
  /// One sequence of token ids for each of the batch: the prompt, or what an encoder-decoder
  /// model's decoder starts from. Prompts of different lengths run one after another
  /// (runs_one_by_one).
  std::vector<std::vector<TokenId>> tokens;
  /// Encoder-decoder models with token input: the encoder's.
  std::vector<std::vector<TokenId>> encoder_tokens;
  /// Models with mel input: [batch, frames, num_mel_bins].
  std::vector<float> features;
  std::uint64_t output_len = 1;
  /// For each sequence output_len - 1 tokens that decode steps read instead of the model's own.
  /// Nothing then ends decoding early. Empty: the model's own tokens.
  std::vector<std::vector<TokenId>> continuation = {};
  /// A sequence that produces one of them is done; decoding ends when all are.
  std::vector<TokenId> stop_tokens;
  /// The next token of each sequence, as soon as it is known.
  std::function<void(std::span<const TokenId>)> on_token;
  /// The logits of each of these tokens, at the last position: [batch, positions, vocab_size].
  std::function<void(const Output&)> on_logits = nullptr;
  /// Called before each prefill chunk and decode step with the passes done and to do; for progress.
  std::function<void(std::uint64_t done, std::uint64_t all)> on_pass;
  /// Called after each node with the pass's graph, what happened and the values of the symbols.
  std::function<void(const Graph&, const NodeRun&, std::span<const std::uint64_t>)> on_node;
  /// To the other ranks of a session with a share or a place. The clock starts when all are ready.
  Messenger* messenger = nullptr;
  /// Of the first sequence in the whole batch, where others are elsewhere.
  std::size_t first_index = 0;
};

/// Where the time went, a number for each node of a graph.
struct Profile {
  std::vector<std::vector<double>> helpers_s;  ///< by helper pass
  std::vector<double> prefill_s;
  std::vector<double> decode_s;
};

struct Generation {
  std::vector<std::vector<TokenId>> tokens;  ///< generated, by sequence; stop tokens included
  double ttft_s = 0;                         ///< from the prompt to the first token, or share's end
  double tpot_s = 0;                         ///< mean of the later ones; 0 when there is none
  std::uint64_t kv_cache_bytes = 0;          ///< at the end of the output, as estimated
  std::uint64_t analytic_flops = 0;
  std::uint64_t analytic_bytes = 0;
  CountedWork counted;               ///< with Loops::Counting, and in FP64
  Skipped skipped;                   ///< of the analytic work, see SparseValues
  Shape logits_shape;                ///< [batch, positions, vocab_size]; a share's positions
  std::span<const float> logits;     ///< of prefill: the last position's or all, as asked
  std::span<const double> logits64;  ///< in FP64 sessions instead of `logits`
  Floats logits_data;                ///< what both point at
  std::uint64_t decode_steps = 0;
  /// Where a method selects the prompt's tokens: their importance and the positions of the kept
  /// ones, by sequence.
  std::vector<FoundCount> found;            ///< of one sequence, where they run one by one
  std::vector<std::uint64_t> helper_steps;  ///< run of each helper pass
  /// Tokens that layers took back (Recording::revived), by decode step of the first sequence.
  std::vector<std::vector<std::uint64_t>> revived;
  std::vector<std::vector<double>> importance;
  std::vector<std::vector<std::uint64_t>> kept;
  Profile profile;

  /// Takes logits of this dtype.
  void set_logits(DType dtype, const Shape& shape, Floats data);
};

/// The shares of a prompt's dropped tokens that decode steps took back, over all layers: the values
/// for lazyllm's options `revive_first` and `revive`. 0 where nothing was dropped or no such step
/// ran.
RevivedShares revived_shares(const Recording& recording, const Generation& run,
                             std::uint64_t prompt_len);

/// `length` token ids without meaning, spread over the vocabulary: for measuring.
std::vector<TokenId> made_up_prompt(std::uint64_t length, std::uint64_t vocab_size);

/// Throws Error when the encoder has not as many sequences of tokens as the decoder.
void check_encoder_sequences(const Request& request);

class Session {
 public:
  /// Records the passes and loads the weights. The checkpoint must outlive it. Throws Error when
  /// the methods do not fit the model, the checkpoint does not hold what the passes need, or the
  /// dtype is neither FP32 nor FP64.
  Session(const Checkpoint& checkpoint, const SessionOptions& options);

  const SessionOptions& options() const { return options_; }
  const Recording& recording() const { return recording_; }
  const Architecture& architecture() const { return checkpoint_.architecture(); }
  /// The models that the methods name.
  const OpenedModels& opened() const { return opened_; }
  const WeightStore& weights() const { return weights_; }
  std::uint64_t weight_bytes() const { return weights_.bytes(); }
  double load_s() const { return load_s_; }
  /// All steps of a SessionRun, or of one for each sequence. Throws Error for wrong token ids,
  /// lengths, continuations or features.
  Generation run(const Request& request) const;

 private:
  void check(const Request& request) const;
  /// The same of each sequence by itself, for a batch whose lengths differ.
  void check_apart(const Request& request) const;

  const Checkpoint& checkpoint_;
  SessionOptions options_;
  OpenedModels opened_;
  Recording recording_;
  double load_s_;
  WeightStore weights_;
};

/// What a session runs with: counting loops for anything but FP32.
Loops loops_of(const SessionOptions& options);

/// What the numbers of the cache are in memory.
DType cache_dtype(const SessionOptions& options);

/// What a session records with: its dtype everywhere.
Lowering session_lowering(const SessionOptions& options);

/// Throws Error naming `what` when it has more tokens than the model's table has positions.
void check_positions(const Stack& stack, std::uint64_t tokens, const std::string& what);
/// Throws Error for a spread model, or one with these methods, that only forecasts know.
void check_runs_spread(const Parallelism& plan);

/// Throws Error when the checkpoint does not hold what a session needs; reads headers only.
/// Likewise when the methods do not take prompts of these lengths. Returns the methods' models.
OpenedModels check_checkpoint(const Checkpoint& checkpoint, const SessionOptions& options,
                              const std::set<std::uint64_t>& prompt_lens = {});

/// Tokens of a prompt that the ranks of a session's placement share out: options without a share.
/// Throws Error when the other methods do not fit the model.
std::uint64_t tokens_to_share(const Architecture& a, SessionOptions options,
                              std::uint64_t prompt_len);

/// Bytes that a session and one run of it will need: weights, cache and the larger peak of
/// activations. `prompt_len` as in estimates (encoder-decoder models: the encoder's). Throws Error
/// when the methods do not fit the model.
double needed_bytes(const Architecture& a, SessionOptions options, std::uint64_t batch,
                    std::uint64_t prompt_len, std::uint64_t output_len);

}  // namespace kvcast::execute
