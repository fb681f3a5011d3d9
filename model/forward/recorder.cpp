#include "model/forward/recorder.h"

#include <array>

#include "model/base/error.h"
#include "model/base/wide_dtype.h"
#include "model/graph/work.h"

namespace kvcast {
namespace {

std::vector<Value> present(std::initializer_list<std::optional<Value>> inputs) {
  std::vector<Value> values;
  for (const std::optional<Value> input : inputs) {
    if (input) values.push_back(*input);
  }
  return values;
}

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
  const DType dtype = lowering_.weights.of(name, shape.size(), shape.back().constant(), model_);
  std::optional<WeightPart> part;
  if (sharding_ != nullptr) part = sharding_->part_of(name, shape);
  const Value value =
      graph_.add_tensor({full_name, std::move(shape), dtype, Storage::Weights, {}, 0, part});
  weights_.emplace(full_name, value);
  return value;
}

Value Recorder::input(const std::string& name, std::vector<Count> shape, DType dtype) {
  return graph_.add_tensor(
      {prefixes_.tensors + name, std::move(shape), dtype, Storage::Activations, {}});
}

Value Recorder::cache(const std::string& name, std::vector<Count> shape, std::uint64_t most_rows,
                      std::optional<Count> seen, std::optional<DType> dtype) {
  const DType own = dtype.value_or(lowering_.cache);
  if (exchange_ == nullptr) return state(name, std::move(shape), own, most_rows);
  const Value opened = exchange_->open(*this, name, shape, own);
  if (seen) seen_.emplace(opened.index, *seen);
  return opened;
}

Value Recorder::state(const std::string& name, std::vector<Count> shape, DType dtype,
                      std::uint64_t most_rows) {
  return graph_.add_tensor(
      {prefixes_.tensors + name, std::move(shape), dtype, Storage::KvCache, {}, most_rows});
}

Value Recorder::node(Op op, std::string_view label, Inputs inputs, std::vector<Count> shape,
                     DType dtype, Storage storage) {
  Node n{std::move(op), present(inputs), {}, std::string(label), phase_, layer_};
  return graph_.add_node(std::move(n), {"", std::move(shape), dtype, storage, {}});
}

Value Recorder::once(const Op& op, std::string_view label, Inputs inputs,
                     std::vector<Count> shape) {
  for (const Value known : shared_) {
    const Node& n = graph_.node(*info(known).producer);
    if (n.op == op && n.inputs == present(inputs) && info(known).shape == shape) return known;
  }
  shared_.push_back(node(op, label, inputs, std::move(shape), lowering_.activations));
  return shared_.back();
}

std::vector<Count> Recorder::with_rows(Value x, const Count& rows) const {
  std::vector<Count> shape = info(x).shape;
  shape[1] = rows;
  return shape;
}

std::vector<Count> Recorder::with_features(Value x, const Count& features) const {
  std::vector<Count> shape = info(x).shape;
  shape.back() = features;
  return shape;
}

Value Recorder::cast(Value x, DType dtype, std::string_view label) {
  if (info(x).dtype == dtype) return x;
  return node(Elementwise{Function::Copy}, label, {x}, info(x).shape, dtype);
}

Value Recorder::embedding(Value table, Value ids, std::string_view label, const Embedding& op) {
  std::vector<Count> shape = info(ids).shape;
  shape.push_back(info(table).shape.back());
  return node(op, label, {table, ids}, std::move(shape), lowering_.activations);
}

Value Recorder::linear(std::string_view label, Value x, Value weight, std::optional<Value> bias) {
  KVCAST_ASSERT(info(x).shape.back() == info(weight).shape[1]);
  return node(Linear{}, label, {x, weight, bias}, with_features(x, info(weight).shape[0]),
              lowering_.activations);
}

Value Recorder::head_linear(std::string_view label, const HeadLinear& op, Value x, Value weight) {
  const Count block = info(weight).shape[0].scaled(1, static_cast<std::int64_t>(op.num_blocks));
  const Count in = info(weight).shape[1];
  KVCAST_ASSERT(info(x).shape.back() == op.num_heads * (op.transposed ? block : in));
  return node(op, label, {x, weight}, with_features(x, op.num_heads * (op.transposed ? in : block)),
              lowering_.activations);
}

Value Recorder::norm(std::string_view label, NormKind kind, double eps, const std::string& prefix,
                     Value x) {
  if (kind == NormKind::Rms || kind == NormKind::RmsUnitOffset) {
    return rms_norm(label, {eps, kind == NormKind::RmsUnitOffset, 1}, prefix, x);
  }
  return layer_norm(label, {eps}, kind, prefix, x, 1);
}

Value Recorder::layer_norm(std::string_view label, const LayerNorm& op, NormKind kind,
                           const std::string& prefix, Value x, std::uint64_t shared_by) {
  const Count features = info(x).shape.back().constant() / shared_by;
  std::optional<Value> w;
  std::optional<Value> b;
  if (kind != NormKind::LayerPlain) w = weight(prefix + ".weight", {features});
  if (kind == NormKind::Layer) b = weight(prefix + ".bias", {features});
  return node(op, label, {x, w, b}, info(x).shape, info(x).dtype);
}

Value Recorder::head_norm(std::string_view label, QueryKeyNorm kind, double eps,
                          const std::string& prefix, Value x, std::uint64_t num_heads) {
  switch (kind) {
    case QueryKeyNorm::None: return x;
    case QueryKeyNorm::Heads:
    case QueryKeyNorm::HeadsAfterRope: return rms_norm(label, {eps, false, num_heads}, prefix, x);
    case QueryKeyNorm::HeadsUnitOffset: return rms_norm(label, {eps, true, num_heads}, prefix, x);
    case QueryKeyNorm::Whole: return rms_norm(label, {eps, false, 1}, prefix, x);
    case QueryKeyNorm::RotatedHeads: return rms_norm(label, {eps, false, num_heads}, {}, x);
    case QueryKeyNorm::LayerHeads:
      return layer_norm(label, {eps, num_heads}, NormKind::LayerScale, prefix, x, 1);
    case QueryKeyNorm::LayerHeadsShared:
      return layer_norm(label, {eps, num_heads}, NormKind::Layer, prefix, x, num_heads);
  }
  KVCAST_ASSERT(false);
  return x;
}

Value Recorder::rms_norm(std::string_view label, const RmsNorm& op,
                         const std::optional<std::string>& prefix, Value x) {
  const std::uint64_t group = info(x).shape.back().constant() / op.groups;
  std::optional<Value> w;
  if (prefix) w = weight(*prefix + ".weight", {group});
  const DType dtype = info(x).dtype;
  if (lowering_.elementwise != Kernels::Eager) {
    return node(op, label, {x, w}, info(x).shape, dtype);
  }
  // transformers' LlamaRMSNorm, one kernel for each line; half-precision inputs go through fp32.
  const DType wide = wide_dtype(dtype);
  std::vector<Count> runs = with_features(x, op.groups);  // of elements normalised together
  runs.push_back(group);
  const Value x32 = cast(x, wide, label);
  const Value squares = node(Elementwise{Function::Square}, label, {x32}, std::move(runs), wide);
  const Value root = unary(label, Function::InverseRoot, row_mean(label, squares), op.eps);
  const Value normalized = cast(binary(label, Function::Multiply, x32, root), dtype, label);
  if (!w) return normalized;
  const Value factor = op.unit_offset ? unary(label, Function::OnePlus, *w) : *w;
  return binary(label, Function::Multiply, normalized, factor);
}

Value Recorder::rope(std::string_view label, Value x, std::uint64_t num_heads,
                     std::uint64_t head_dim, const std::shared_ptr<const RopeTable>& table,
                     const Count& first_position, bool inverse, std::optional<Value> positions) {
  const Rope op{num_heads, head_dim, table, positions ? Count() : first_position, inverse};
  if (lowering_.elementwise == Kernels::Eager) return eager_rope(label, op, x, positions);
  return node(op, label, {x, positions}, info(x).shape, info(x).dtype);
}

Value Recorder::eager_rope(std::string_view label, const Rope& op, Value x,
                           std::optional<Value> positions) {
  // transformers' apply_rotary_pos_emb: x·cos + rotate_half(x)·sin, one kernel for each step.
  std::vector<Count> shape{info(x).shape[1], op.head_dim};
  if (positions) shape.insert(shape.begin(), info(*positions).shape[0]);
  const auto angles = [&](bool sine) {
    return once(RopeAngles{sine, op.table, op.first_position, op.inverse}, sine ? "sin" : "cos",
                {positions}, shape);
  };
  const Value cosine = angles(false);
  const Value sine = angles(true);
  const std::uint64_t rotary_dims = 2 * op.table->inverse_frequencies.size();
  const Value rotated = node(RotateHalf{op.num_heads, rotary_dims, op.table->interleaved}, label,
                             {x}, info(x).shape, info(x).dtype);
  return binary(label, Function::Add, binary(label, Function::Multiply, x, cosine),
                binary(label, Function::Multiply, rotated, sine));
}

SharedCache Recorder::appended(Value cache, Value rows, std::string_view label) {
  const Value all = node(CacheAppend{}, label, {cache, rows},
                         with_rows(cache, info(cache).shape[1] + info(rows).shape[1]),
                         info(cache).dtype, Storage::KvCache);
  return of_exchange(cache, all, label);
}

Value Recorder::append(Value cache, Value rows, std::string_view label) {
  std::array all{appended(cache, rows, label)};
  share(all);
  return all[0].state;
}

KeyValues Recorder::append(KeyValues caches, KeyValues rows) {
  std::array all{appended(caches.keys, rows.keys, "cache_keys"),
                 appended(caches.values, rows.values, "cache_values")};
  share(all);
  return {all[0].state, all[1].state};
}

SharedCache Recorder::of_exchange(Value before, Value own, std::string_view label) const {
  const auto seen = seen_.find(before.index);
  return {own, label, seen == seen_.end() ? info(own).shape[1] : seen->second};
}

void Recorder::share(std::span<SharedCache> caches) {
  if (exchange_ != nullptr) exchange_->share(*this, caches);
}

std::uint64_t Recorder::device_of(std::uint64_t rank) const {
  return sharding_ != nullptr ? sharding_->device_of_rank(rank) : rank;
}

void Recorder::send(Value cache, std::uint64_t rank, const Count& first_row, const Count& rows,
                    std::string_view label) {
  node(Send{device_of(rank), first_row}, label, {cache}, with_rows(cache, rows), info(cache).dtype,
       Storage::Messages);
}

Value Recorder::receive(Value cache, std::uint64_t rank, const Count& first_row, const Count& rows,
                        const Count& all_rows, std::string_view label) {
  const Value message =
      graph_.add_tensor({"", with_rows(cache, rows), info(cache).dtype, Storage::Messages, {}});
  return node(Receive{device_of(rank), first_row}, label, {cache, message},
              with_rows(cache, all_rows), info(cache).dtype, Storage::KvCache);
}

void Recorder::send_states(Value x, std::uint64_t rank, std::string_view label) {
  node(Send{rank, 0}, label, {x}, info(x).shape, info(x).dtype, Storage::Messages);
}

Value Recorder::receive_states(std::uint64_t rank, std::vector<Count> shape,
                               std::string_view label) {
  const Value message =
      graph_.add_tensor({"", shape, lowering_.activations, Storage::Messages, {}});
  return node(Receive{rank, 0}, label, {message}, std::move(shape), lowering_.activations);
}

Value Recorder::sum_parts(std::string_view label, Value x, bool splits_rows) {
  if (tensor_parallel() == 1) return x;
  const RankGroup group = sharding_->tensor_group();
  if (!splits_rows) {
    const Collective op{CollectiveKind::AllReduce, group, sharding_->slice()};
    return node(op, label, {x}, info(x).shape, info(x).dtype);
  }
  const Collective op{CollectiveKind::ReduceScatter, group, sharding_->slice(), true};
  return node(op, label, {x}, with_rows(x, symbols_.ceil_divide(info(x).shape[1], group.size)),
              info(x).dtype);
}

Value Recorder::gather_token_rows(std::string_view label, Value x, const Count& tokens) {
  const Collective op{CollectiveKind::AllGather, sharding_->tensor_group(), sharding_->slice(),
                      true};
  return node(op, label, {x}, with_rows(x, tokens), info(x).dtype);
}

Value Recorder::gather_features(std::string_view label, Value x) {
  if (tensor_parallel() == 1) return x;
  const Collective op{CollectiveKind::AllGather, sharding_->tensor_group(), sharding_->slice()};
  return node(op, label, {x}, with_features(x, info(x).shape.back() * tensor_parallel()),
              info(x).dtype);
}

Value Recorder::evict(Value cache, std::uint64_t kept_first, const Count& dropped,
                      std::string_view label) {
  const Count left = info(cache).shape[1] - dropped;
  const Count moved = (left - kept_first) * symbols_.minimum(dropped, 1);
  return node(CacheEvict{kept_first, dropped, moved}, label, {cache}, with_rows(cache, left),
              lowering_.cache, Storage::KvCache);
}

Value Recorder::join(Value past, Value rows, std::string_view label) {
  return node(JoinRows{}, label, {past, rows},
              with_rows(past, info(past).shape[1] + info(rows).shape[1]), lowering_.activations);
}

Value Recorder::unary(std::string_view label, Function function, Value x, double parameter) {
  return node(Elementwise{function, parameter}, label, {x}, info(x).shape, info(x).dtype);
}

Value Recorder::xielu(std::string_view label, Value x, Value a, Value b) {
  return node(Elementwise{Function::Xielu}, label, {x, a, b}, info(x).shape, info(x).dtype);
}

Value Recorder::dropped(std::string_view label, Value x) {
  if (dropout_ == 0) return x;
  if (!dropout_seed_) dropout_seed_ = input("dropout_seed", {1}, DType::FP32);
  const Value mask = node(DropoutMask{dropout_, num_dropouts_++}, std::string(label) + "_mask",
                          {*dropout_seed_}, info(x).shape, DType::INT8);
  return binary(label, Function::Multiply, x, mask);
}

Value Recorder::scaled(std::string_view label, Value x, double factor) {
  return factor == 1 ? x : unary(label, Function::Scale, x, factor);
}

Value Recorder::binary(std::string_view label, Function function, Value x, Value y) {
  return node(Elementwise{function}, label, {x, y}, info(x).shape, info(x).dtype);
}

Value Recorder::gated(std::string_view label, const GatedActivation& op, Value gate, Value up) {
  if (lowering_.elementwise == Kernels::Eager && op.limit == 0 && !op.cutoff) {
    return binary(label, Function::Multiply, unary(label, op.function, gate), up);
  }
  return node(op, label, {gate, up}, info(gate).shape, info(gate).dtype);
}

Value Recorder::scale_by_position(Value x, const ScaleByPosition& op,
                                  std::optional<Value> positions) {
  return node(op, "query_scale", {x, positions}, info(x).shape, info(x).dtype);
}

Recorder::Routed Recorder::route(const Route& op, Value logits, std::optional<Value> correction) {
  std::vector<Count> experts = with_features(logits, op.routing.num_experts_per_tok);
  std::vector<Count> weights = experts;
  weights.emplace_back(1);
  Node n{op, present({logits, correction}), {}, "route", phase_, layer_};
  const auto outputs = graph_.add_node(
      std::move(n), {{"", std::move(experts), DType::FP32, Storage::Activations, {}},
                     {"", std::move(weights), lowering_.activations, Storage::Activations, {}}});
  return {outputs[0], outputs[1]};
}

Value Recorder::expert_linear(std::string_view label, const ExpertLinear& op, Value x,
                              Value experts, Value weight, std::optional<Value> bias) {
  const Count out = info(weight).shape[0].scaled(static_cast<std::int64_t>(op.num_experts_per_tok),
                                                 static_cast<std::int64_t>(op.num_experts));
  return node(op, label, {x, experts, weight, bias}, with_features(x, out), lowering_.activations);
}

Value Recorder::combine_experts(std::uint64_t experts_per_token, Value y,
                                std::optional<Value> weights) {
  const Count features =
      info(y).shape.back().scaled(1, static_cast<std::int64_t>(experts_per_token));
  return node(CombineExperts{experts_per_token}, "combine", {y, weights},
              with_features(y, features), info(y).dtype);
}

Recorder::Dispatched Recorder::dispatch_tokens(const DispatchTokens& op, Value x,
                                               const Routed& routed) {
  const Count pairs = Count(op.pairs).scaled(1, static_cast<std::int64_t>(op.layers));
  const auto of_pairs = [&](std::vector<Count> rest, DType dtype) {
    std::vector<Count> shape{1, pairs};
    shape.insert(shape.end(), rest.begin(), rest.end());
    return TensorInfo{"", std::move(shape), dtype, Storage::Activations, {}};
  };
  Node n{op, {x, routed.experts, routed.weights}, {}, "dispatch", phase_, layer_};
  const auto outputs = graph_.add_node(
      std::move(n), {of_pairs({info(x).shape.back()}, info(x).dtype), of_pairs({1}, DType::FP32),
                     of_pairs({1, 1}, lowering_.activations), of_pairs({1}, DType::FP32)});
  return {outputs[0], outputs[1], outputs[2], outputs[3]};
}

Value Recorder::return_tokens(const ReturnTokens& op, Value y, std::optional<Value> weights,
                              Value places, std::vector<Count> shape) {
  return node(op, "return", {y, places, weights}, std::move(shape), info(y).dtype);
}

std::vector<Value> Recorder::mix_streams(std::string_view label, const std::vector<Value>& mixed,
                                         const std::vector<Value>& onto, Value coefficients) {
  Node n{MixStreams{mixed.size()}, mixed, {}, std::string(label), phase_, layer_};
  if (onto != mixed) n.inputs.insert(n.inputs.end(), onto.begin(), onto.end());
  n.inputs.push_back(coefficients);
  return graph_.add_node(
      std::move(n),
      std::vector<TensorInfo>(
          onto.size(), {"", info(onto[0]).shape, info(onto[0]).dtype, Storage::Activations, {}}));
}

std::vector<Value> Recorder::split_rows(std::string_view label, Value x, std::uint64_t parts) {
  if (parts == 1) return {x};
  const Count rows = info(x).shape[1];
  const auto denominator = static_cast<std::int64_t>(parts);
  const auto begin = [&](std::uint64_t part) {
    if (part == 0 || part == parts) return part == 0 ? Count() : rows;
    return symbols_.whole_chunks(rows * part, parts).scaled(1, denominator);
  };
  std::vector<TensorInfo> infos(parts, info(x));
  for (std::uint64_t i = 0; i < parts; ++i) {
    std::vector<Count> shape = infos[i].shape;
    shape[1] = begin(i + 1) - begin(i);
    infos[i] = {"", std::move(shape), infos[i].dtype, Storage::Activations, {}};
  }
  return graph_.add_node({SplitRows{}, {x}, {}, std::string(label), phase_, layer_},
                         std::move(infos));
}

Value Recorder::repeat_rows(std::string_view label, Value x, std::uint64_t times) {
  if (times == 1) return x;
  const std::uint64_t features = info(x).shape.back().constant();
  return node(RepeatHeads{times, features}, label, {x}, with_features(x, features * times),
              info(x).dtype);
}

Value Recorder::join_heads(std::string_view label, const JoinHeads& op, Value a, Value b) {
  const Count of_b = info(b).shape.back() * (op.shared ? op.num_heads : 1);
  return node(op, label, {a, b}, with_features(a, info(a).shape.back() + of_b),
              lowering_.activations);
}

Value Recorder::slice_features(std::string_view label, Value x, std::uint64_t first,
                               std::uint64_t features) {
  return node(SliceFeatures{first}, label, {x}, with_features(x, features), lowering_.activations);
}

Value Recorder::last_token(Value x) {
  if (info(x).shape[1] == Count(1)) return x;
  return node(LastToken{}, "last_token", {x}, with_rows(x, 1), info(x).dtype);
}

Value Recorder::causal_conv(std::string_view label, Value x, const Count& tokens, Value weight,
                            std::optional<Value> bias) {
  const std::uint64_t kernel = info(weight).shape.back().constant();
  return node(CausalConv{kernel}, label, {x, weight, bias}, with_rows(x, tokens),
              lowering_.activations);
}

Recorder::Scanned Recorder::state_scan(StateScan op, const ScanInputs& in) {
  const Count tokens = info(in.query).shape[1];
  Mask of_chunk;
  of_chunk.chunk = op.chunk;
  op.pairs = visible_pairs(of_chunk, tokens, tokens, symbols_);
  op.chunks = symbols_.ceil_divide(tokens, op.chunk);
  const TensorInfo& before = info(in.state);
  std::vector<Count> after = before.shape;
  after[1] = 1;
  Node n{op,
         present({in.query, in.key, in.value, in.time_step, in.time_step_bias, in.decay, in.beta,
                  in.skip, in.state}),
         {},
         "state_scan",
         phase_,
         layer_};
  const auto outputs = graph_.add_node(
      std::move(n), {{"", info(in.value).shape, lowering_.activations, Storage::Activations, {}},
                     {"", std::move(after), before.dtype, Storage::KvCache, {}}});
  std::array state{of_exchange(in.state, outputs[1], "state_heads")};
  share(state);
  return {outputs[0], state[0].state};
}

Value Recorder::conv1d(std::string_view label, Value x, Value weight, Value bias,
                       std::uint64_t kernel, std::uint64_t stride) {
  std::vector<Count> shape = info(x).shape;
  shape[1] = shape[1].scaled(1, static_cast<std::int64_t>(stride));
  shape[2] = info(weight).shape[0];
  return node(Conv1d{kernel, stride}, label, {x, weight, bias}, std::move(shape),
              lowering_.activations);
}

Value Recorder::gather_rows(std::string_view label, Value x, Value indices) {
  return node(GatherRows{}, label, {x, indices}, with_rows(x, info(indices).shape[1]),
              info(x).dtype);
}

Value Recorder::drop_tokens(Value kept, const Count& tokens) {
  return node(DropTokens{}, "drop_tokens", {kept}, with_rows(kept, tokens - info(kept).shape[1]),
              info(kept).dtype);
}

Value Recorder::missing_tokens(Value held, Value wanted, Symbol missing) {
  return node(MissingTokens{missing}, "missing_tokens", {held, wanted},
              with_rows(wanted, Count(missing) + 1), info(wanted).dtype);
}

Value Recorder::token_rows(std::string_view label, Value cache, Value held, Value tokens) {
  return node(TokenRows{}, label, {cache, held, tokens}, with_rows(cache, info(tokens).shape[1]),
              info(cache).dtype);
}

Value Recorder::token_states(Value cache, Value held, Value x, Value tokens) {
  return node(TokenStates{}, "revive_states", {cache, held, x, tokens},
              with_rows(x, info(tokens).shape[1]), info(x).dtype);
}

Value Recorder::store_states(Value cache, Value held, Value x, Value tokens) {
  return node(StoreStates{}, "store_states", {cache, held, x, tokens}, info(cache).shape,
              info(cache).dtype, Storage::KvCache);
}

Value Recorder::row_mean(std::string_view label, Value x) {
  return node(RowMean{}, label, {x}, with_features(x, 1), info(x).dtype);
}

}  // namespace kvcast
