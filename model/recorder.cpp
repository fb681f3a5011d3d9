#include "model/recorder.h"

#include <algorithm>

#include "model/error.h"
#include "model/work.h"

namespace kvcast {
namespace {

bool is_half(DType dtype) { return dtype == DType::FP16 || dtype == DType::BF16; }

}  // namespace

Kernels parse_kernels(std::string_view word) {
  if (word == "eager") return Kernels::Eager;
  if (word == "tiled" || word == "fused" || word == "flash") return Kernels::Fused;
  throw unknown_name("kind", word, {"eager", "tiled", "fused"});
}

void Recorder::enter(std::string phase, int layer) {
  phase_ = std::move(phase);
  layer_ = layer;
}

Value Recorder::weight(const std::string& name, std::vector<Count> shape) {
  const std::string full_name = prefixes_.weights + name;
  const auto known = weights_.find(full_name);
  if (known != weights_.end()) {
    KVCAST_ASSERT(graph_.tensor(known->second).shape == shape);
    return known->second;
  }
  const Value value =
      graph_.add_tensor({full_name, std::move(shape), lowering_.weights, Storage::Weights, {}});
  weights_.emplace(full_name, value);
  return value;
}

Value Recorder::input(const std::string& name, std::vector<Count> shape, DType dtype) {
  return graph_.add_tensor(
      {prefixes_.tensors + name, std::move(shape), dtype, Storage::Activations, {}});
}

Value Recorder::cache(const std::string& name, std::vector<Count> shape) {
  if (exchange_ != nullptr) return exchange_->open(*this, name, shape);
  return own_cache(name, std::move(shape));
}

Value Recorder::own_cache(const std::string& name, std::vector<Count> shape) {
  return graph_.add_tensor(
      {prefixes_.tensors + name, std::move(shape), lowering_.cache, Storage::KvCache, {}});
}

Value Recorder::state(const std::string& name, std::vector<Count> shape, DType dtype) {
  return graph_.add_tensor(
      {prefixes_.tensors + name, std::move(shape), dtype, Storage::KvCache, {}});
}

Value Recorder::node(Op op, std::string_view label, std::vector<Value> inputs,
                     std::vector<Count> shape, DType dtype, Storage storage) {
  Node n{std::move(op), std::move(inputs), {}, std::string(label), phase_, layer_};
  return graph_.add_node(std::move(n), {"", std::move(shape), dtype, storage, {}});
}

Value Recorder::cast(Value x, DType dtype, std::string_view label) {
  if (info(x).dtype == dtype) return x;
  return node(Elementwise{Function::Copy}, label, {x}, info(x).shape, dtype);
}

Value Recorder::embedding(Value table, Value ids, std::string_view label) {
  std::vector<Count> shape = info(ids).shape;
  shape.push_back(info(table).shape.back());
  return node(Embedding{}, label, {table, ids}, std::move(shape), lowering_.activations);
}

Value Recorder::linear(std::string_view label, Value x, Value weight, std::optional<Value> bias) {
  KVCAST_ASSERT(info(x).shape.back() == info(weight).shape[1]);
  std::vector<Count> shape = info(x).shape;
  shape.back() = info(weight).shape[0];
  std::vector<Value> inputs{x, weight};
  if (bias) inputs.push_back(*bias);
  return node(Linear{}, label, std::move(inputs), std::move(shape), lowering_.activations);
}

Value Recorder::head_linear(std::string_view label, const HeadLinear& op, Value x, Value weight) {
  const Count block = info(weight).shape[0].scaled(1, static_cast<std::int64_t>(op.num_blocks));
  const Count in = info(weight).shape[1];
  KVCAST_ASSERT(info(x).shape.back() == op.num_heads * (op.transposed ? block : in));
  std::vector<Count> shape = info(x).shape;
  shape.back() = op.num_heads * (op.transposed ? in : block);
  return node(op, label, {x, weight}, std::move(shape), lowering_.activations);
}

Value Recorder::norm(std::string_view label, NormKind kind, double eps, const std::string& prefix,
                     Value x) {
  const Count features = info(x).shape.back();
  const bool rms = kind == NormKind::Rms || kind == NormKind::RmsUnitOffset;
  if (rms) {
    const bool unit_offset = kind == NormKind::RmsUnitOffset;
    const Value w = weight(prefix + ".weight", {features});
    const RmsNorm op{eps, unit_offset, 1};
    if (lowering_.elementwise == Kernels::Eager) return eager_rms_norm(label, op, w, x);
    return node(op, label, {x, w}, info(x).shape, info(x).dtype);
  }
  std::vector<Value> inputs{x};
  if (kind == NormKind::Layer) {
    inputs.push_back(weight(prefix + ".weight", {features}));
    inputs.push_back(weight(prefix + ".bias", {features}));
  }
  return node(LayerNorm{eps}, label, std::move(inputs), info(x).shape, info(x).dtype);
}

Value Recorder::eager_rms_norm(std::string_view label, const RmsNorm& op, Value w, Value x) {
  // transformers' LlamaRMSNorm, one kernel for each line; half-precision inputs go through fp32.
  const DType dtype = info(x).dtype;
  const DType wide = is_half(dtype) ? DType::FP32 : dtype;
  std::vector<Count> runs = info(x).shape;  // of elements that are normalised together
  runs.back() = op.groups;
  runs.push_back(info(w).shape.back());
  const Value x32 = cast(x, wide, label);
  const Value squares = node(Elementwise{Function::Square}, label, {x32}, runs, wide);
  runs.back() = 1;
  const Value mean = node(RowMean{}, label, {squares}, runs, wide);
  const Value root = unary(label, Function::InverseRoot, mean, op.eps);
  const Value normalized = cast(binary(label, Function::Multiply, x32, root), dtype, label);
  const Value factor = op.unit_offset ? unary(label, Function::OnePlus, w) : w;
  return binary(label, Function::Multiply, normalized, factor);
}

Value Recorder::head_norm(std::string_view label, double eps, const std::string& prefix, Value x,
                          std::uint64_t num_heads) {
  const std::uint64_t head_dim = info(x).shape.back().constant() / num_heads;
  const Value w = weight(prefix + ".weight", {head_dim});
  const RmsNorm op{eps, false, num_heads};
  if (lowering_.elementwise == Kernels::Eager) return eager_rms_norm(label, op, w, x);
  return node(op, label, {x, w}, info(x).shape, info(x).dtype);
}

Value Recorder::rope(std::string_view label, Value x, std::uint64_t num_heads,
                     std::uint64_t head_dim, const std::shared_ptr<const RopeTable>& table,
                     const Count& first_position, bool inverse, std::optional<Value> positions) {
  const Rope op{num_heads, head_dim, table, positions ? Count() : first_position, inverse};
  if (lowering_.elementwise == Kernels::Eager) return eager_rope(label, op, x, positions);
  std::vector<Value> inputs{x};
  if (positions) inputs.push_back(*positions);
  return node(op, label, std::move(inputs), info(x).shape, info(x).dtype);
}

Value Recorder::rope_angles(const RopeAngles& op, std::uint64_t head_dim, const Count& tokens,
                            std::optional<Value> positions) {
  for (const Angles& known : angles_) {
    if (known.op == op && known.head_dim == head_dim && known.positions == positions) {
      return known.value;
    }
  }
  std::vector<Value> inputs;
  std::vector<Count> shape{tokens, head_dim};
  if (positions) {
    inputs.push_back(*positions);
    shape.insert(shape.begin(), info(*positions).shape[0]);
  }
  const Value value =
      node(op, op.sine ? "sin" : "cos", std::move(inputs), std::move(shape), lowering_.activations);
  angles_.push_back({op, head_dim, positions, value});
  return value;
}

Value Recorder::eager_rope(std::string_view label, const Rope& op, Value x,
                           std::optional<Value> positions) {
  // transformers' apply_rotary_pos_emb: x·cos + rotate_half(x)·sin, one kernel for each step.
  const Count tokens = info(x).shape[1];
  const auto angles = [&](bool sine) {
    return rope_angles({sine, op.table, op.first_position, op.inverse}, op.head_dim, tokens,
                       positions);
  };
  const Value cosine = angles(false);
  const Value sine = angles(true);
  const std::uint64_t rotary_dims = 2 * op.table->inverse_frequencies.size();
  const Value rotated =
      node(RotateHalf{op.num_heads, rotary_dims}, label, {x}, info(x).shape, info(x).dtype);
  return binary(label, Function::Add, binary(label, Function::Multiply, x, cosine),
                binary(label, Function::Multiply, rotated, sine));
}

Value Recorder::append(Value cache, Value rows, std::string_view label) {
  std::vector<Count> shape = info(cache).shape;
  shape[1] += info(rows).shape[1];
  const Value all = node(CacheAppend{}, label, {cache, rows}, std::move(shape), info(cache).dtype,
                         Storage::KvCache);
  return exchange_ != nullptr ? exchange_->share(*this, all, label) : all;
}

void Recorder::send(Value cache, std::uint64_t rank, const Count& first_row, const Count& rows,
                    std::string_view label) {
  std::vector<Count> shape = info(cache).shape;
  shape[1] = rows;
  node(Send{rank, first_row}, label, {cache}, std::move(shape), lowering_.cache, Storage::Messages);
}

Value Recorder::receive(Value cache, std::uint64_t rank, const Count& first_row, const Count& rows,
                        const Count& all_rows, std::string_view label) {
  std::vector<Count> shape = info(cache).shape;
  shape[1] = rows;
  const Value message = graph_.add_tensor({"", shape, lowering_.cache, Storage::Messages, {}});
  shape[1] = all_rows;
  return node(Receive{rank, first_row}, label, {cache, message}, std::move(shape), lowering_.cache,
              Storage::KvCache);
}

Value Recorder::evict(Value cache, std::uint64_t kept_first, const Count& dropped,
                      std::string_view label) {
  std::vector<Count> shape = info(cache).shape;
  shape[1] -= dropped;
  const Count any = symbols_.minimum(dropped, 1);
  const Count moved = (shape[1] - kept_first) * any;
  return node(CacheEvict{kept_first, dropped, moved}, label, {cache}, std::move(shape),
              lowering_.cache, Storage::KvCache);
}

Value Recorder::join(Value past, Value rows, std::string_view label) {
  std::vector<Count> shape = info(past).shape;
  shape[1] += info(rows).shape[1];
  return node(JoinRows{}, label, {past, rows}, std::move(shape), lowering_.activations);
}

Value Recorder::unary(std::string_view label, Function function, Value x, double parameter) {
  return node(Elementwise{function, parameter}, label, {x}, info(x).shape, info(x).dtype);
}

Value Recorder::binary(std::string_view label, Function function, Value x, Value y) {
  return node(Elementwise{function}, label, {x, y}, info(x).shape, info(x).dtype);
}

Value Recorder::gated(std::string_view label, Function activation, Value gate, Value up) {
  if (lowering_.elementwise == Kernels::Eager) {
    return binary(label, Function::Multiply, unary(label, activation, gate), up);
  }
  return node(GatedActivation{activation}, label, {gate, up}, info(gate).shape, info(gate).dtype);
}

Value Recorder::last_token(Value x) {
  std::vector<Count> shape = info(x).shape;
  if (shape[1] == Count(1)) return x;
  shape[1] = 1;
  return node(LastToken{}, "last_token", {x}, std::move(shape), info(x).dtype);
}

Value Recorder::conv1d(std::string_view label, Value x, Value weight, Value bias,
                       std::uint64_t kernel, std::uint64_t stride) {
  std::vector<Count> shape = info(x).shape;
  shape[1] = shape[1].scaled(1, static_cast<std::int64_t>(stride));
  shape[2] = info(weight).shape[0];
  return node(Conv1d{kernel, stride}, label, {x, weight, bias}, std::move(shape),
              lowering_.activations);
}

Value Recorder::relative_position_bias(Value table, const RelativePositionBias& op,
                                       const Count& queries, const Count& keys) {
  return node(op, "position_bias", {table}, {info(table).shape[1], queries, keys},
              lowering_.activations);
}

Value Recorder::alibi_bias(std::uint64_t num_attention_heads, const Count& keys, double scale) {
  return node(AlibiBias{scale}, "alibi", {}, {num_attention_heads, 1, keys}, lowering_.activations);
}

Value Recorder::causal_mask(const Mask& mask, const Count& queries, const Count& keys) {
  const CausalMask op{mask};
  for (const auto& [known, value] : masks_) {
    if (known == op && info(value).shape == std::vector<Count>{queries, keys}) return value;
  }
  const Value value = node(op, "mask", {}, {queries, keys}, lowering_.activations);
  masks_.emplace_back(op, value);
  return value;
}

Heads Recorder::Attention::value_heads() const {
  return {heads.num_attention_heads,
          num_value_heads > 0 ? num_value_heads : heads.num_key_value_heads,
          value_dim > 0 ? value_dim : heads.head_dim};
}

Value Recorder::attention(const Attention& a, Value q, Value k, Value v) {
  const bool eager = lowering_.attention == Kernels::Eager || a.threshold > 0 || a.stores_scores;
  return eager ? eager_attention(a, q, k, v) : tiled_attention(a, q, k, v);
}

Value Recorder::tiled_attention(const Attention& a, Value q, Value k, Value v) {
  const Count& queries = info(q).shape[1];
  const Count& keys = info(k).shape[1];
  TiledAttention op{.heads = a.heads,
                    .scale = a.scale,
                    .softcap = a.softcap,
                    .mask = a.mask,
                    .visible_pairs = visible_pairs(a.mask, queries, keys, symbols_),
                    .visible_keys = visible_keys(a.mask, queries, keys, symbols_),
                    .num_value_heads = a.num_value_heads,
                    .value_dim = a.value_dim,
                    .values_are_keys = k == v,
                    .key_rope = a.key_rope};
  std::vector<Value> inputs{q, k, v};
  if (a.bias) inputs.push_back(*a.bias);
  std::vector<Count> shape = info(q).shape;
  shape.back() = a.heads.num_attention_heads * a.value_heads().head_dim;
  return node(std::move(op), "attention", std::move(inputs), std::move(shape),
              lowering_.activations);
}

Value Recorder::eager_attention(const Attention& a, Value q, Value k, Value v) {
  // The steps of transformers' eager attention in the releases of PyTorch 2.0's time (4.28-4.30):
  // products, scale, mask, softmax in fp32, back to half, values, and the copy that puts the heads
  // side by side again. Llama and OPT clamp to the lowest number after the mask; releases from 4.31
  // on do not.
  if (a.key_rope) {
    k = rope("key_rope", k, a.heads.num_key_value_heads, a.heads.head_dim, a.key_rope, 0);
  }
  const auto repeat = [&](Value x, Heads& heads, std::string_view label) {
    const std::uint64_t repeats = heads.num_attention_heads / heads.num_key_value_heads;
    if (repeats == 1 || a.shares_heads) return x;
    std::vector<Count> shape = info(x).shape;
    shape[2] = shape[2] * repeats;
    heads.num_key_value_heads = heads.num_attention_heads;
    return node(RepeatHeads{repeats, heads.head_dim}, label, {x}, std::move(shape),
                lowering_.activations);
  };
  Heads heads = a.heads;
  Heads value_heads = a.value_heads();
  k = repeat(k, heads, "repeat_keys");
  v = repeat(v, value_heads, "repeat_values");
  if (a.score_scale == ScoreScale::OnQuery) q = unary("scale", Function::Scale, q, a.scale);
  const std::vector<Count> shape{info(q).shape[0], heads.num_attention_heads, info(q).shape[1],
                                 info(k).shape[1]};
  Value s = node(AttentionScores{heads}, "scores", {q, k}, shape, lowering_.activations);
  if (a.score_scale == ScoreScale::OnScores) s = unary("scale", Function::Scale, s, a.scale);
  if (a.softcap > 0) s = unary("soft_cap", Function::SoftCap, s, a.softcap);
  if (a.bias) s = binary("bias", Function::Add, s, *a.bias);
  if (a.additive_mask) {
    s = binary("mask", Function::Add, s, *a.additive_mask);
    if (a.clamp_masked) s = unary("clamp", Function::ClampBelow, s, -65504);  // fp16's lowest
  }
  const DType wide = is_half(lowering_.activations) ? DType::FP32 : lowering_.activations;
  const Value p = cast(node(Softmax{}, "softmax", {s}, shape, wide), lowering_.activations, "cast");
  std::vector<Count> out = info(q).shape;
  out.back() = value_heads.num_attention_heads * value_heads.head_dim;
  Op sum = AttentionValues{value_heads};
  if (a.threshold > 0) {
    sum = SparseValues{value_heads, a.threshold, a.unrotates_values, a.heads.num_key_value_heads};
  }
  const Value o = node(std::move(sum), "values", {p, v}, std::move(out), lowering_.activations);
  return unary("merge_heads", Function::Copy, o);
}

Value Recorder::largest_probability(const Attention& a, Value q, Value k, std::uint64_t pool,
                                    std::optional<Value> before) {
  const Value p = probabilities(a, q, k);
  std::vector<Value> inputs{p};
  if (before) inputs.push_back(*before);
  const std::vector<Count> shape = info(p).shape;
  return node(LargestProbability{pool}, "largest", std::move(inputs),
              {shape[0], shape[3], shape[2]}, lowering_.activations);
}

Value Recorder::keep_tokens(const Attention& a, Value q, Value k, const Count& kept) {
  const Value p = probabilities(a, q, k);
  return node(KeepTokens{}, "keep_tokens", {p}, {info(p).shape[0], kept}, DType::FP32);
}

Value Recorder::gather_rows(std::string_view label, Value x, Value indices) {
  std::vector<Count> shape = info(x).shape;
  shape[1] = info(indices).shape[1];
  return node(GatherRows{}, label, {x, indices}, std::move(shape), info(x).dtype);
}

Value Recorder::drop_tokens(Value kept, const Count& tokens) {
  std::vector<Count> shape = info(kept).shape;
  shape[1] = tokens - shape[1];
  return node(DropTokens{}, "drop_tokens", {kept}, std::move(shape), info(kept).dtype);
}

Value Recorder::missing_tokens(Value held, Value wanted, Symbol missing) {
  return node(MissingTokens{missing}, "missing_tokens", {held, wanted},
              {info(wanted).shape[0], Count(missing) + 1}, info(wanted).dtype);
}

Value Recorder::token_rows(std::string_view label, Value cache, Value held, Value tokens) {
  std::vector<Count> shape = info(cache).shape;
  shape[1] = info(tokens).shape[1];
  return node(TokenRows{}, label, {cache, held, tokens}, std::move(shape), info(cache).dtype);
}

Value Recorder::token_states(Value cache, Value held, Value x, Value tokens) {
  std::vector<Count> shape = info(x).shape;
  shape[1] = info(tokens).shape[1];
  return node(TokenStates{}, "revive_states", {cache, held, x, tokens}, std::move(shape),
              info(x).dtype);
}

Value Recorder::store_states(Value cache, Value held, Value x, Value tokens) {
  return node(StoreStates{}, "store_states", {cache, held, x, tokens}, info(cache).shape,
              info(cache).dtype, Storage::KvCache);
}

Value Recorder::token_mask(Value queries, Value keys) {
  const std::vector<Count>& of_queries = info(queries).shape;
  return node(TokenMask{}, "mask", {queries, keys},
              {of_queries[0], 1, of_queries[1], info(keys).shape[1]}, lowering_.activations);
}

Value Recorder::probabilities(const Attention& a, Value q, Value k) {
  if (a.score_scale == ScoreScale::OnQuery) q = unary("scale", Function::Scale, q, a.scale);
  const Count& batch = info(q).shape[0];
  const Count queries = info(q).shape[1];
  const Count keys = info(k).shape[1];
  const std::vector<Count> shape{batch, a.heads.num_attention_heads, queries, keys};
  Value s = node(AttentionScores{a.heads}, "scores", {q, k}, shape, lowering_.activations);
  if (a.score_scale == ScoreScale::OnScores) s = unary("scale", Function::Scale, s, a.scale);
  if (a.softcap > 0) s = unary("soft_cap", Function::SoftCap, s, a.softcap);
  const DType wide = is_half(lowering_.activations) ? DType::FP32 : lowering_.activations;
  return cast(node(Softmax{}, "softmax", {s}, shape, wide), lowering_.activations, "cast");
}

Value Recorder::row_mean(std::string_view label, Value x) {
  std::vector<Count> shape = info(x).shape;
  shape.back() = 1;
  return node(RowMean{}, label, {x}, std::move(shape), info(x).dtype);
}

}  // namespace kvcast
