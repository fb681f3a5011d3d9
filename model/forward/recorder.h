/// Records a forward pass: each call adds operators to a graph and returns their result.
///
/// A forward pass says `norm`, `attention`, `activation`; the lowering decides which operators
/// these become. `Eager` is plain PyTorch: one kernel for each step of the transformers code,
/// scores in memory. `Fused` is a serving engine: one kernel for a norm, a rotation or a whole
/// attention.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config/architecture.h"
#include "model/config/sharding.h"
#include "model/graph/graph.h"

namespace kvcast {

enum class Kernels { Eager, Fused };

/// "eager", or "tiled" (an attention; "fused" and "flash" mean the same). Throws Error with the
/// nearest word.
Kernels parse_kernels(std::string_view word);

/// Operators that run as one kernel: their labels, in the order in which they are recorded.
struct Launch {
  enum class In { AnyPass, Prefill, Decode };
  std::vector<std::string> labels;
  In in = In::AnyPass;
  bool operator==(const Launch&) const = default;
};

/// How a recording chooses operators and element types, and how its operators become kernels.
struct Lowering {
  Kernels attention = Kernels::Fused;
  Kernels elementwise = Kernels::Fused;
  WeightTypes weights = DType::FP16;
  DType activations = DType::FP16;
  DType cache = DType::FP16;
  /// After its attention the last layer computes only the rows whose logits are needed, as
  /// llama.cpp does; transformers computes all.
  bool skip_unread_rows = false;
  // What is recorded does not depend on these; what it costs does (roofline/op_cost.h).
  std::vector<Launch> launches = {};
  /// In decode steps each query head reads its group's keys and values, instead of each group once;
  /// but for groups of these sizes.
  bool reads_groups_again = false;
  std::vector<std::uint64_t> groups_read_once = {};
  /// What products read activations in, where it is narrower than what they are in between kernels.
  /// Operands of 16 bits are converted before products (for quantised weights to 8 bits), and
  /// results after them. That operands of fewer bits are quantised is in the products' rates.
  std::optional<DType> operands = {};
  /// What products with weights multiply in, where it is not the wider of the two operands' dtypes.
  std::optional<DType> products = {};
  /// Quantised weights are converted to 16 bits before a prompt's products.
  bool dequantizes_weights = false;
  /// Of activations as products read them.
  DType operand_dtype() const { return operands.value_or(activations); }
  bool operator==(const Lowering&) const = default;
};

/// A value of the forward pass: a tensor of the graph.
using Value = TensorId;

class Recorder;

/// One of a layer's caches in an exchange.
struct SharedCache {
  /// With the rank's own rows; the exchange makes it what attention reads.
  Value state;
  std::string_view label;  ///< of the node that appended them
  Count seen;              ///< tokens after the rank's own see at most as many last rows
};

/// What one of several ranks does with its caches (model/methods/placement.h).
struct CacheExchange {
  /// The cache [batch, rows before the pass, features] to which the rank's own rows are appended.
  std::function<Value(Recorder&, const std::string& name, const std::vector<Count>& shape, DType)>
      open;
  /// What it does when a layer's own rows are appended: of its keys and values, side by side.
  std::function<void(Recorder&, std::span<SharedCache>)> share;
  /// Ranks have only those rows of others that a window or chunk lets them see.
  bool bounds_caches = false;
  /// Rows after the rank's own that attention reads and masks.
  Count later = 0;
};

struct KeyValues {
  Value keys;
  Value values;
};

/// Prefixes of a pass's names, so that those of several models differ.
struct NamePrefixes {
  std::string weights = {};
  std::string tensors = {};  ///< inputs and cache
};

class Recorder {
 public:
  /// `exchange` and `sharding` must outlive the recorder; null: one device has the whole cache, the
  /// whole model.
  Recorder(Symbols& symbols, const Lowering& lowering, NamePrefixes prefixes = {},
           const CacheExchange* exchange = nullptr, const Sharding* sharding = nullptr)
      : symbols_(symbols),
        lowering_(lowering),
        exchange_(exchange),
        sharding_(sharding),
        prefixes_(std::move(prefixes)) {}

  Symbols& symbols() { return symbols_; }
  const Lowering& lowering() const { return lowering_; }
  const Sharding* sharding() const { return sharding_; }
  /// Devices that share each layer's heads.
  std::uint64_t tensor_parallel() const { return sharding_ ? sharding_->plan().tp : 1; }
  Graph take() { return std::move(graph_); }
  const TensorInfo& info(Value v) const { return graph_.tensor(v); }

  /// Of passes of training, the chance of a number to be dropped where dropped() is asked.
  void use_dropout(double probability) { dropout_ = probability; }
  /// Of passes of training, the parts of each sequence whose logits are computed one by one.
  void use_loss_chunks(std::uint64_t chunks) { loss_chunks_ = chunks; }
  std::uint64_t loss_chunks() const { return loss_chunks_; }
  /// Prefixes of the names that follow: one pass may read weights of several models.
  void use(NamePrefixes prefixes) { prefixes_ = std::move(prefixes); }
  /// The weights that follow are of this model, which must outlive the recording.
  void enter_model(const Architecture& model) { model_ = &model; }
  /// Labels the nodes that follow.
  void enter(std::string phase, int layer = no_layer);

  /// A weight by its name, "layers.3.query.weight"; the same name is the same tensor (tied heads).
  Value weight(const std::string& name, std::vector<Count> shape);
  /// An input of the pass: token ids [batch, tokens] (int32), or features.
  Value input(const std::string& name, std::vector<Count> shape, DType dtype);
  /// A cache tensor as it stands before the pass: [batch, rows, features]. It holds `most_rows`
  /// rows at most, 0: all. Later passes see at most `seen` of its last rows; all, if absent.
  /// Without a dtype it has that of caches.
  Value cache(const std::string& name, std::vector<Count> shape, std::uint64_t most_rows = 0,
              std::optional<Count> seen = {}, std::optional<DType> dtype = {});
  /// Ranks share the caches.
  bool shares_caches() const { return exchange_ != nullptr; }
  /// Caches of windows let go of rows that no later query sees; those that ranks gather do not.
  bool bounds_caches() const { return exchange_ == nullptr || exchange_->bounds_caches; }
  /// A tensor of any element type that stays between passes, without what a CacheExchange adds.
  Value state(const std::string& name, std::vector<Count> shape, DType dtype,
              std::uint64_t most_rows = 0);
  void output(Value v) { graph_.mark_output(v); }

  Value embedding(Value table, Value ids, std::string_view label, const Embedding& op = {});
  Value linear(std::string_view label, Value x, Value weight, std::optional<Value> bias = {});
  /// x [..., H·in] (transposed: [..., H·out]) times each head's block of the weight [G·out, in].
  Value head_linear(std::string_view label, const HeadLinear& op, Value x, Value weight);
  /// `prefix` names the weights: PREFIX.weight, PREFIX.bias.
  Value norm(std::string_view label, NormKind kind, double eps, const std::string& prefix, Value x);
  /// The norm of query or key heads.
  Value head_norm(std::string_view label, QueryKeyNorm kind, double eps, const std::string& prefix,
                  Value x, std::uint64_t num_heads);
  Value rope(std::string_view label, Value x, std::uint64_t num_heads, std::uint64_t head_dim,
             const std::shared_ptr<const RopeTable>& table, const Count& first_position,
             bool inverse = false, std::optional<Value> positions = {});
  Value append(Value cache, Value rows, std::string_view label);
  /// A layer's keys and values, which ranks exchange side by side.
  KeyValues append(KeyValues caches, KeyValues rows);
  /// Sends `rows` rows of a cache to a rank, of several devices to the one in this one's place.
  void send(Value cache, std::uint64_t rank, const Count& first_row, const Count& rows,
            std::string_view label);
  /// Waits for `rows` rows of a cache from a rank; it then has `all_rows`.
  Value receive(Value cache, std::uint64_t rank, const Count& first_row, const Count& rows,
                const Count& all_rows, std::string_view label);
  /// Hidden states to and from the device with the same part of the next or previous stage.
  void send_states(Value x, std::uint64_t rank, std::string_view label);
  Value receive_states(std::uint64_t rank, std::vector<Count> shape, std::string_view label);
  /// Of devices that split each layer: x has a part of a sum -> the sum. One device: x itself. With
  /// `splits_rows` each gets ceil(tokens/tp) rows of it.
  Value sum_parts(std::string_view label, Value x, bool splits_rows = false);
  /// Such rows -> `tokens` rows.
  Value gather_token_rows(std::string_view label, Value x, const Count& tokens);
  /// The features of all these devices, side by side.
  Value gather_features(std::string_view label, Value x);
  /// Keeps the first rows and the last of a cache, `dropped` fewer.
  Value evict(Value cache, std::uint64_t kept_first, const Count& dropped, std::string_view label);
  /// `rows` after `past`, copied to one new tensor.
  Value join(Value past, Value rows, std::string_view label);
  Value unary(std::string_view label, Function function, Value x, double parameter = 0);
  Value xielu(std::string_view label, Value x, Value a, Value b);
  /// x times a mask of one byte a number; x itself without dropout.
  Value dropped(std::string_view label, Value x);
  /// factor·x; x itself where the factor is 1.
  Value scaled(std::string_view label, Value x, double factor);
  Value binary(std::string_view label, Function function, Value x, Value y);
  /// activation(gate)·up
  Value gated(std::string_view label, const GatedActivation& op, Value gate, Value up);
  Value scale_by_position(Value x, const ScaleByPosition& op, std::optional<Value> positions);
  /// The experts of each token [batch, tokens, K] and their weights [batch, tokens, K, 1].
  struct Routed {
    Value experts;
    Value weights;
  };
  Routed route(const Route& op, Value logits, std::optional<Value> correction);
  Value expert_linear(std::string_view label, const ExpertLinear& op, Value x, Value experts,
                      Value weight, std::optional<Value> bias);
  Value combine_experts(std::uint64_t experts_per_token, Value y, std::optional<Value> weights);
  struct Dispatched {
    Value rows;
    Value experts;
    Value weights;
    Value places;
  };
  Dispatched dispatch_tokens(const DispatchTokens& op, Value x, const Routed& routed);
  Value return_tokens(const ReturnTokens& op, Value y, std::optional<Value> weights, Value places,
                      std::vector<Count> shape);
  /// `mixed` into `onto`, one result for each of these; see MixStreams.
  std::vector<Value> mix_streams(std::string_view label, const std::vector<Value>& mixed,
                                 const std::vector<Value>& onto, Value coefficients);
  /// The rows of each sequence in parts, which differ by a row at most.
  std::vector<Value> split_rows(std::string_view label, Value x, std::uint64_t parts);
  /// Each row `times` times side by side.
  Value repeat_rows(std::string_view label, Value x, std::uint64_t times);
  Value join_heads(std::string_view label, const JoinHeads& op, Value a, Value b);
  Value slice_features(std::string_view label, Value x, std::uint64_t first,
                       std::uint64_t features);
  Value last_token(Value x);
  Value conv1d(std::string_view label, Value x, Value weight, Value bias, std::uint64_t kernel,
               std::uint64_t stride);
  /// The last `tokens` rows of x convolved with those before them.
  Value causal_conv(std::string_view label, Value x, const Count& tokens, Value weight,
                    std::optional<Value> bias);
  /// The operands of a StateScan; `beta` and `skip` as its settings say.
  struct ScanInputs {
    Value query;
    Value key;
    Value value;
    Value time_step;
    Value time_step_bias;
    Value decay;
    std::optional<Value> beta = {};
    std::optional<Value> skip = {};
    Value state;
  };
  struct Scanned {
    Value y;
    Value state;
  };
  /// Fills in the pairs and chunks of the settings. The state comes from cache().
  Scanned state_scan(StateScan op, const ScanInputs& in);
  Value relative_position_bias(Value table, const RelativePositionBias& op, const Count& queries,
                               const Count& keys);
  /// Of `num_attention_heads` heads of the model, from first_head on.
  Value alibi_bias(std::uint64_t num_attention_heads, const Count& keys, const AlibiBias& op);
  /// The additive mask of eager attention, recorded once a pass; fused attention needs none.
  Value causal_mask(const Mask& mask, const Count& queries, const Count& keys);

  /// An attention by its meaning: the fused operator's settings, of which attention() fills in what
  /// follows from the operands, and what only eager kernels tell apart.
  struct Attention : TiledAttention {
    ScoreScale score_scale = ScoreScale::OnScores;
    std::optional<Value> bias;           ///< added to the scores: [H, 1 or queries, keys]
    std::optional<Value> sinks;          ///< [H], see TiledAttention::has_sinks
    std::optional<Value> chosen;         ///< fused only: from choose_keys(), of `kept` keys
    std::optional<Value> first;          ///< fused only: from first_seen()
    bool clamp_masked = false;           ///< eager only: max(score, lowest number) after the mask
    std::optional<Value> additive_mask;  ///< eager only: from causal_mask()
    /// Eager only: heads that several query heads share are not repeated in memory.
    bool shares_heads = false;
    /// Above 0: eager whatever the kernels, and values as in SparseValues; keys that are values too
    /// are stored rotated if `unrotates_values`.
    double threshold = 0;
    std::shared_ptr<const RopeTable> unrotates_values = nullptr;
    bool stores_scores = false;  ///< eager whatever the kernels
  };
  /// q [batch, queries, H·hd]; k [batch, keys, G·hd]; v [batch, keys, Gv·vd] -> [batch, queries,
  /// H·vd].
  Value attention(const Attention& a, Value q, Value k, Value v);
  /// LargestProbability of the probabilities that queries give all keys, whatever the mask
  /// -> [batch, keys, queries].
  Value largest_probability(const Attention& a, Value q, Value k, std::uint64_t pool,
                            std::optional<Value> before);
  /// KeepTokens of a query [batch, 1, H·hd] -> [batch, kept].
  Value keep_tokens(const Attention& a, Value q, Value k, const Count& kept);
  Value gather_rows(std::string_view label, Value x, Value indices);
  /// `tokens`: before any was dropped.
  Value drop_tokens(Value kept, const Count& tokens);
  Value missing_tokens(Value held, Value wanted, Symbol missing);
  Value token_rows(std::string_view label, Value cache, Value held, Value tokens);
  Value token_states(Value cache, Value held, Value x, Value tokens);
  Value store_states(Value cache, Value held, Value x, Value tokens);
  /// Both once a pass.
  Value token_mask(const TokenMask& op, Value queries, Value keys);
  /// Of the last `queries` keys. A run finds the visible pairs of a sequence; estimates expect
  /// `pairs`.
  Value first_seen(FirstSeen op, Value keys, const Count& queries, const Count& pairs);
  /// Indices, or for eager kernels the mask. `op` has its number of heads and of keys, and the
  /// mask.
  Value choose_keys(ChooseKeys op, Value q, Value k, Value weights);
  /// The mean over the last dimension: [..., n] -> [..., 1].
  Value row_mean(std::string_view label, Value x);

 private:
  using Inputs = std::initializer_list<std::optional<Value>>;  ///< absent ones are left out

  Value node(Op op, std::string_view label, Inputs inputs, std::vector<Count> shape, DType dtype,
             Storage storage = Storage::Activations);
  /// The node recorded before with the same operator, inputs and shape, or a new one: for what all
  /// layers share.
  Value once(const Op& op, std::string_view label, Inputs inputs, std::vector<Count> shape);
  /// The shape of x with another number of rows, or of features.
  std::vector<Count> with_rows(Value x, const Count& rows) const;
  std::vector<Count> with_features(Value x, const Count& features) const;
  Value cast(Value x, DType dtype, std::string_view label);
  std::uint64_t device_of(std::uint64_t rank) const;
  /// The cache with the pass's rows, not yet exchanged.
  SharedCache appended(Value cache, Value rows, std::string_view label);
  /// What the pass has made of the cache `before`.
  SharedCache of_exchange(Value before, Value own, std::string_view label) const;
  void share(std::span<SharedCache> caches);
  /// Without a prefix it has no weight.
  Value rms_norm(std::string_view label, const RmsNorm& op,
                 const std::optional<std::string>& prefix, Value x);
  /// Its weights serve `shared_by` parts of each row.
  Value layer_norm(std::string_view label, const LayerNorm& op, NormKind kind,
                   const std::string& prefix, Value x, std::uint64_t shared_by);
  Value eager_rope(std::string_view label, const Rope& op, Value x, std::optional<Value> positions);
  Value probabilities(const Attention& a, const Heads& heads, Value q, Value k);
  Value eager_attention(const Attention& a, Value q, Value k, Value v);
  Value tiled_attention(const Attention& a, Value q, Value k, Value v);

  Symbols& symbols_;
  Lowering lowering_;
  const CacheExchange* exchange_;
  const Sharding* sharding_;
  NamePrefixes prefixes_;
  const Architecture* model_ = nullptr;
  Graph graph_;
  std::map<std::string, Value, std::less<>> weights_;
  double dropout_ = 0;
  std::uint64_t loss_chunks_ = 1;
  std::optional<Value> dropout_seed_;
  std::uint64_t num_dropouts_ = 0;
  std::vector<Value> shared_;          ///< results of once()
  std::vector<Value> first_seen_;      ///< of FirstSeen nodes
  std::map<std::size_t, Count> seen_;  ///< by cache tensor, see cache(); for an exchange
  std::string phase_;
  int layer_ = no_layer;
};

}  // namespace kvcast
