#include "model/forward/recorder.h"

#include "model/base/error.h"
#include "model/base/wide_dtype.h"

namespace kvcast {

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
  const DType wide = wide_dtype(dtype);
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

Value Recorder::row_mean(std::string_view label, Value x) {
  std::vector<Count> shape = info(x).shape;
  shape.back() = 1;
  return node(RowMean{}, label, {x}, std::move(shape), info(x).dtype);
}

}  // namespace kvcast
