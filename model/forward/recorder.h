/// Records a forward pass: each call adds operators to a graph and returns their result.
///
/// A forward pass says `norm`, `attention`, `activation`; the lowering decides which operators that
/// becomes. `Eager` is what plain PyTorch runs, one kernel for each step of the transformers code,
/// with scores in memory; `Fused` is what serving engines run, one kernel for a norm, a rotation or
/// a whole attention.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config/architecture.h"
#include "model/graph/graph.h"

namespace kvcast {

enum class Kernels { Eager, Fused };

/// "eager", or "tiled" (an attention; "fused" and "flash" mean the same). Throws Error with the
/// nearest word.
Kernels parse_kernels(std::string_view word);

/// How a recording chooses operators and element types.
struct Lowering {
  Kernels attention = Kernels::Fused;
  Kernels elementwise = Kernels::Fused;
  DType weights = DType::FP16;
  DType activations = DType::FP16;
  DType cache = DType::FP16;
  /// Rows of the last layer that no logits come from end with its attention, as in llama.cpp's
  /// graphs; transformers computes them.
  bool skip_unread_rows = false;
  bool operator==(const Lowering&) const = default;
};

/// A value of the forward pass: a tensor of the graph.
using Value = TensorId;

class Recorder;

/// What a rank of several does with each of its caches (model/methods/placement.h).
struct CacheExchange {
  /// The cache [batch, rows before the pass, features] as the rank's own rows are appended to it.
  std::function<Value(Recorder&, const std::string& name, const std::vector<Count>& shape)> open;
  /// From the cache with the rank's own rows, which a node with this label has appended, to the
  /// state that attention reads.
  std::function<Value(Recorder&, Value own, std::string_view label)> share;
  /// Rows after the rank's own that attention reads too, and masks.
  Count later = 0;
};

/// What the names of a pass begin with, so that those of several models differ.
struct NamePrefixes {
  std::string weights = {};
  std::string tensors = {};  ///< inputs and cache
};

class Recorder {
 public:
  /// `exchange` must outlive the recorder; null: one device has the whole cache.
  Recorder(Symbols& symbols, const Lowering& lowering, NamePrefixes prefixes = {},
           const CacheExchange* exchange = nullptr)
      : symbols_(symbols),
        lowering_(lowering),
        exchange_(exchange),
        prefixes_(std::move(prefixes)) {}

  Symbols& symbols() { return symbols_; }
  const Lowering& lowering() const { return lowering_; }
  Graph take() { return std::move(graph_); }
  const TensorInfo& info(Value v) const { return graph_.tensor(v); }

  /// What the names that follow begin with: one pass may read weights of several models.
  void use(NamePrefixes prefixes) { prefixes_ = std::move(prefixes); }
  /// Labels the nodes that follow.
  void enter(std::string phase, int layer = no_layer);

  /// A weight by its name, "layers.3.query.weight"; the same name is the same tensor (tied heads).
  Value weight(const std::string& name, std::vector<Count> shape);
  /// An input of the pass: token ids [batch, tokens] (int32), or features.
  Value input(const std::string& name, std::vector<Count> shape, DType dtype);
  /// A cache tensor as it stands before the pass: [batch, rows, features].
  Value cache(const std::string& name, std::vector<Count> shape);
  /// The same, without what a CacheExchange adds.
  Value own_cache(const std::string& name, std::vector<Count> shape);
  /// A tensor of another element type that stays between passes beside the cache.
  Value state(const std::string& name, std::vector<Count> shape, DType dtype);
  void output(Value v) { graph_.mark_output(v); }

  Value embedding(Value table, Value ids, std::string_view label);
  Value linear(std::string_view label, Value x, Value weight, std::optional<Value> bias = {});
  /// x [..., H·in] (transposed: [..., H·out]) times each head's block of the weight [G·out, in].
  Value head_linear(std::string_view label, const HeadLinear& op, Value x, Value weight);
  /// `prefix` names the weights: PREFIX.weight, PREFIX.bias.
  Value norm(std::string_view label, NormKind kind, double eps, const std::string& prefix, Value x);
  /// RMSNorm of each head with one shared weight [head_dim].
  Value head_norm(std::string_view label, double eps, const std::string& prefix, Value x,
                  std::uint64_t num_heads);
  Value rope(std::string_view label, Value x, std::uint64_t num_heads, std::uint64_t head_dim,
             const std::shared_ptr<const RopeTable>& table, const Count& first_position,
             bool inverse = false, std::optional<Value> positions = {});
  Value append(Value cache, Value rows, std::string_view label);
  /// Sends `rows` rows of a cache to a rank.
  void send(Value cache, std::uint64_t rank, const Count& first_row, const Count& rows,
            std::string_view label);
  /// Waits for `rows` rows of a cache from a rank; it then has `all_rows`.
  Value receive(Value cache, std::uint64_t rank, const Count& first_row, const Count& rows,
                const Count& all_rows, std::string_view label);
  /// Keeps the first rows and the last of a cache, `dropped` fewer.
  Value evict(Value cache, std::uint64_t kept_first, const Count& dropped, std::string_view label);
  /// `rows` after `past`, copied to one new tensor.
  Value join(Value past, Value rows, std::string_view label);
  Value unary(std::string_view label, Function function, Value x, double parameter = 0);
  Value binary(std::string_view label, Function function, Value x, Value y);
  /// activation(gate)·up
  Value gated(std::string_view label, Function activation, Value gate, Value up);
  Value last_token(Value x);
  Value conv1d(std::string_view label, Value x, Value weight, Value bias, std::uint64_t kernel,
               std::uint64_t stride);
  Value relative_position_bias(Value table, const RelativePositionBias& op, const Count& queries,
                               const Count& keys);
  Value alibi_bias(std::uint64_t num_attention_heads, const Count& keys, double scale);
  /// The additive mask of eager attention, made once a pass and read by all layers; fused attention
  /// needs none.
  Value causal_mask(const Mask& mask, const Count& queries, const Count& keys);

  struct Attention {
    Heads heads;
    double scale = 1;
    ScoreScale score_scale = ScoreScale::OnScores;
    double softcap = 0;
    Mask mask;
    std::optional<Value> bias;           ///< added to the scores: [H, 1 or queries, keys]
    bool clamp_masked = false;           ///< eager only: max(score, lowest number) after the mask
    std::optional<Value> additive_mask;  ///< eager only: from causal_mask()
    /// Values with heads of their own, and keys to rotate on reading, as in TiledAttention.
    std::uint64_t num_value_heads = 0;
    std::uint64_t value_dim = 0;
    std::shared_ptr<const RopeTable> key_rope = nullptr;
    /// Eager only: heads that several query heads share are multiplied where they lie, not repeated
    /// in memory before.
    bool shares_heads = false;
    /// Above 0: scores in memory whatever the kernels, and values as in SparseValues; keys that are
    /// values too are kept rotated if `unrotates_values`.
    double threshold = 0;
    std::shared_ptr<const RopeTable> unrotates_values = nullptr;
    /// Scores in memory whatever the kernels.
    bool stores_scores = false;

    Heads value_heads() const;
  };
  /// q [batch, queries, H·hd]; k [batch, keys, G·hd]; v [batch, keys, Gv·vd] -> [batch, queries,
  /// H·vd].
  Value attention(const Attention& a, Value q, Value k, Value v);
  /// The probabilities that queries give all keys, whatever the mask, as LargestProbability takes
  /// them -> [batch, keys, queries].
  Value largest_probability(const Attention& a, Value q, Value k, std::uint64_t pool,
                            std::optional<Value> before);
  /// The indices [batch, kept] of the tokens that a query [batch, 1, H·hd] attends to most, as
  /// KeepTokens takes them.
  Value keep_tokens(const Attention& a, Value q, Value k, const Count& kept);
  Value gather_rows(std::string_view label, Value x, Value indices);
  /// The indices of `tokens` that `kept` has none of.
  Value drop_tokens(Value kept, const Count& tokens);
  /// See the operators of these names.
  Value missing_tokens(Value held, Value wanted, Symbol missing);
  Value token_rows(std::string_view label, Value cache, Value held, Value tokens);
  Value token_states(Value cache, Value held, Value x, Value tokens);
  Value store_states(Value cache, Value held, Value x, Value tokens);
  Value token_mask(Value queries, Value keys);
  /// The mean over the last dimension: [..., n] -> [..., 1].
  Value row_mean(std::string_view label, Value x);

 private:
  Value node(Op op, std::string_view label, std::vector<Value> inputs, std::vector<Count> shape,
             DType dtype, Storage storage = Storage::Activations);
  Value cast(Value x, DType dtype, std::string_view label);
  Value probabilities(const Attention& a, Value q, Value k);
  Value eager_attention(const Attention& a, Value q, Value k, Value v);
  Value tiled_attention(const Attention& a, Value q, Value k, Value v);
  Value eager_rms_norm(std::string_view label, const RmsNorm& op, Value weight, Value x);
  Value eager_rope(std::string_view label, const Rope& op, Value x, std::optional<Value> positions);
  Value rope_angles(const RopeAngles& op, std::uint64_t head_dim, const Count& tokens,
                    std::optional<Value> positions);

  Symbols& symbols_;
  Lowering lowering_;
  const CacheExchange* exchange_;
  NamePrefixes prefixes_;
  Graph graph_;
  std::map<std::string, Value, std::less<>> weights_;
  struct Angles {
    RopeAngles op;
    std::uint64_t head_dim;
    std::optional<Value> positions;
    Value value;
  };
  std::vector<Angles> angles_;  ///< computed once a pass, used by all layers
  std::vector<std::pair<CausalMask, Value>> masks_;
  std::string phase_;
  int layer_ = no_layer;
};

}  // namespace kvcast
