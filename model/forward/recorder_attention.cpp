#include <algorithm>

#include "model/base/error.h"
#include "model/base/wide_dtype.h"
#include "model/forward/recorder.h"
#include "model/graph/work.h"

namespace kvcast {

Value Recorder::relative_position_bias(Value table, const RelativePositionBias& op,
                                       const Count& queries, const Count& keys) {
  return node(op, "position_bias", {table}, {info(table).shape[1], queries, keys},
              lowering_.activations);
}

Value Recorder::alibi_bias(std::uint64_t num_attention_heads, const Count& keys,
                           const AlibiBias& op) {
  return node(op, "alibi", {}, {num_attention_heads, 1, keys}, lowering_.activations);
}

Value Recorder::causal_mask(const Mask& mask, const Count& queries, const Count& keys) {
  return once(CausalMask{mask}, "mask", {}, {queries, keys});
}

Value Recorder::attention(const Attention& a, Value q, Value k, Value v) {
  const bool eager = lowering_.attention == Kernels::Eager || a.threshold > 0 || a.stores_scores;
  KVCAST_ASSERT(!eager || !a.chosen);
  return eager ? eager_attention(a, q, k, v) : tiled_attention(a, q, k, v);
}

Value Recorder::tiled_attention(const Attention& a, Value q, Value k, Value v) {
  const Count& queries = info(q).shape[1];
  const Count& keys = info(k).shape[1];
  TiledAttention op = a;
  op.visible_pairs = visible_pairs(a.mask, queries, keys, symbols_);
  op.visible_keys = visible_keys(a.mask, queries, keys, symbols_);
  if (op.kept > 0) {
    Mask counted = a.mask;
    counted.window = op.kept;  // which has as many pairs
    op.visible_pairs = visible_pairs(counted, queries, keys, symbols_);
    op.visible_keys = symbols_.minimum(op.visible_keys, queries * op.kept);
  }
  if (a.first) {
    const Count& batch = info(q).shape[0];
    op.has_first = true;
    op.visible_pairs = std::get<FirstSeen>(graph_.node(*info(*a.first).producer).op).pairs;
    // Each query sees itself.
    KVCAST_ASSERT(queries == keys || queries == Count(1));
    op.visible_keys = queries == keys ? batch * keys : op.visible_pairs;
  }
  op.values_are_keys = k == v;
  op.has_sinks = a.sinks.has_value();
  return node(std::move(op), "attention", {q, k, v, a.bias, a.sinks, a.chosen, a.first},
              with_features(q, a.heads.num_attention_heads * a.value_heads().head_dim),
              lowering_.activations);
}

Value Recorder::eager_attention(const Attention& a, Value q, Value k, Value v) {
  // transformers' eager attention of 4.28-4.30 (PyTorch 2.0's time): scores, scale, mask, softmax
  // in fp32, back to half, values, and the copy that puts the heads side by side again. Llama and
  // OPT clamp to the lowest number after the mask; releases from 4.31 on do not.
  if (a.key_rope) {
    k = rope("key_rope", k, a.heads.num_key_value_heads, a.heads.head_dim, a.key_rope, 0);
  }
  const auto repeat = [&](Value x, Heads& heads, std::string_view label) {
    const std::uint64_t repeats = heads.num_attention_heads / heads.num_key_value_heads;
    if (repeats == 1 || a.shares_heads) return x;
    heads.num_key_value_heads = heads.num_attention_heads;
    return node(RepeatHeads{repeats, heads.head_dim}, label, {x},
                with_features(x, info(x).shape[2] * repeats), lowering_.activations);
  };
  Heads heads = a.heads;
  Heads value_heads = a.value_heads();
  k = repeat(k, heads, "repeat_keys");
  v = repeat(v, value_heads, "repeat_values");
  const Value p = dropped("attention_dropout", probabilities(a, heads, q, k));
  Op sum = AttentionValues{value_heads};
  if (a.threshold > 0) {
    sum = SparseValues{value_heads, a.threshold, a.unrotates_values, a.heads.num_key_value_heads};
  }
  const Value o = node(std::move(sum), "values", {p, v},
                       with_features(q, value_heads.num_attention_heads * value_heads.head_dim),
                       lowering_.activations);
  return unary("merge_heads", Function::Copy, o);
}

Value Recorder::probabilities(const Attention& a, const Heads& heads, Value q, Value k) {
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
  // A fused softmax widens what it reads and narrows what it writes.
  const bool fused = lowering_.elementwise == Kernels::Fused;
  const DType dtype = fused ? lowering_.activations : wide_dtype(lowering_.activations);
  return cast(node(Softmax{}, "softmax", {s, a.sinks}, shape, dtype), lowering_.activations,
              "cast");
}

Value Recorder::largest_probability(const Attention& a, Value q, Value k, std::uint64_t pool,
                                    std::optional<Value> before) {
  const Value p = probabilities(a, a.heads, q, k);
  const std::vector<Count> shape = info(p).shape;
  return node(LargestProbability{pool}, "largest", {p, before}, {shape[0], shape[3], shape[2]},
              lowering_.activations);
}

Value Recorder::keep_tokens(const Attention& a, Value q, Value k, const Count& kept) {
  const Value p = probabilities(a, a.heads, q, k);
  return node(KeepTokens{}, "keep_tokens", {p}, {info(p).shape[0], kept}, DType::FP32);
}

Value Recorder::choose_keys(ChooseKeys op, Value q, Value k, Value weights) {
  const Count batch = info(q).shape[0];
  const Count queries = info(q).shape[1];
  const Count keys = info(k).shape[1];
  op.visible_pairs = visible_pairs(op.mask, queries, keys, symbols_);
  op.visible_keys = visible_keys(op.mask, queries, keys, symbols_);
  op.as_mask = lowering_.attention == Kernels::Eager;
  std::vector<Count> shape{batch, queries, symbols_.minimum(keys, op.kept)};
  if (op.as_mask) shape = {batch, 1, queries, keys};
  const DType dtype = op.as_mask ? lowering_.activations : DType::FP32;
  return node(std::move(op), "choose_keys", {q, k, weights}, std::move(shape), dtype);
}

Value Recorder::token_mask(const TokenMask& op, Value queries, Value keys) {
  const std::vector<Count>& of_queries = info(queries).shape;
  return once(op, "mask", {queries, keys}, {of_queries[0], 1, of_queries[1], info(keys).shape[1]});
}

Value Recorder::first_seen(FirstSeen op, Value keys, const Count& queries, const Count& pairs) {
  for (const Value known : first_seen_) {
    const Node& n = graph_.node(*info(known).producer);
    const auto& other = std::get<FirstSeen>(n.op);
    const bool is_same = other.window == op.window && other.chunk == op.chunk;
    if (is_same && n.inputs[0] == keys && info(known).shape[1] == queries) return known;
  }
  // A window of tokens holds at most as many keys.
  const Mask reach{true, std::max(op.window, op.chunk), info(keys).shape[1] - queries};
  const Count& batch = info(keys).shape[0];
  const Count most = batch * visible_pairs(reach, queries, info(keys).shape[1], symbols_);
  op.pairs = symbols_.found_by_run(most, "seen_pairs", symbols_.minimum(batch * pairs, most));
  first_seen_.push_back(node(op, "first_seen", {keys}, {batch, queries}, DType::FP32));
  return first_seen_.back();
}

}  // namespace kvcast
