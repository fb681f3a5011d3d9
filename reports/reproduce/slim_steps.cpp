#include "reports/reproduce/slim_steps.h"

#include <utility>
#include <vector>

#include "model/base/error.h"
#include "model/graph/work.h"

namespace kvcast::reports {
namespace {

/// Adds the products of one token to a graph; a tensor is [1, rows, features].
class StepBuilder {
 public:
  StepBuilder(const SlimShape& shape, Count rows) : shape_(shape), rows_(std::move(rows)) {}

  AttentionStep take() { return AttentionStep(std::move(graph_)); }

  TensorId row(const Count& features) { return rows_of(1, features); }
  TensorId cache(const std::string& name, const Count& features) {
    return graph_.add_tensor({name, {1, rows_, features}, DType::FP32, Storage::KvCache, {}});
  }

  TensorId linear(const std::string& label, TensorId x, const Count& out_features,
                  const std::string& weight) {
    const std::vector<Count> shape = graph_.tensor(x).shape;
    const TensorId w =
        graph_.add_tensor({weight, {out_features, shape[2]}, DType::FP32, Storage::Weights, {}});
    return add(label, Linear{}, {x, w}, {1, shape[1], out_features});
  }

  /// Each head multiplies its own `in_features` by its own matrix. Slices of a row are no work.
  TensorId linear_by_head(const std::string& label, const Count& in_features,
                          const Count& out_features, const std::string& weight) {
    for (std::uint64_t head = 0; head < shape_.num_attention_heads; ++head) {
      linear(label, row(in_features), out_features, weight + "." + std::to_string(head));
    }
    return row(shape_.num_attention_heads * out_features);
  }

  /// All heads' softmax arguments, with keys of `head_dim` in `key_heads` heads.
  TensorId scores(TensorId q, TensorId keys, std::uint64_t key_heads, std::uint64_t head_dim) {
    const Heads heads{shape_.num_attention_heads, key_heads, head_dim};
    return add("scores", AttentionScores{heads}, {q, keys},
               {1, shape_.num_attention_heads, 1, rows_});
  }
  TensorId weighted_sum(TensorId scores, TensorId values, std::uint64_t value_heads,
                        std::uint64_t head_dim) {
    const Heads heads{shape_.num_attention_heads, value_heads, head_dim};
    return add("weighted_sum", AttentionValues{heads}, {scores, values},
               {1, 1, shape_.num_attention_heads * head_dim});
  }

 private:
  TensorId rows_of(const Count& rows, const Count& features) {
    return graph_.add_tensor({"", {1, rows, features}, DType::FP32, Storage::Activations, {}});
  }
  TensorId add(const std::string& label, Op op, std::vector<TensorId> inputs,
               std::vector<Count> shape) {
    return graph_.add_node({std::move(op), std::move(inputs), {}, label, "", no_layer},
                           {"", std::move(shape), DType::FP32, Storage::Activations, {}});
  }

  SlimShape shape_;
  Count rows_;
  Graph graph_;
};

}  // namespace

std::uint64_t SlimShape::width() const { return checked_multiply(num_attention_heads, head_dim); }

SlimShape slim_shape(const Architecture& a) {
  const Heads& heads = a.decoder.layers.front().heads;
  if (heads.num_attention_heads != heads.num_key_value_heads) {
    throw Error(a.name, std::to_string(heads.num_key_value_heads) + " key-value heads",
                "as many as query heads");
  }
  return {a.hidden_size, heads.num_attention_heads, heads.head_dim};
}

Count AttentionStep::ops(const StepLabels& labels) const {
  Count flops;
  for (const Node& node : graph_.nodes()) {
    if (labels.contains(node.label)) flops += work(graph_, node).flops;
  }
  return flops;
}

Count AttentionStep::weights(const StepLabels& labels) const {
  std::set<TensorId> read;
  for (const Node& node : graph_.nodes()) {
    if (labels.contains(node.label)) read.insert(node.inputs.begin(), node.inputs.end());
  }
  Count elements;
  for (const TensorId id : read) {
    const TensorInfo& t = graph_.tensor(id);
    if (t.storage == Storage::Weights) elements += t.elements();
  }
  return elements;
}

Count AttentionStep::cache() const {
  Count elements;
  for (const TensorInfo& t : graph_.tensors()) {
    if (t.storage == Storage::KvCache) elements += t.elements();
  }
  return elements;
}

AttentionStep attention_step(const std::string& variant, const SlimShape& s, const Count& rows) {
  const std::uint64_t heads = s.num_attention_heads;
  StepBuilder b(s, rows);
  const TensorId x = b.row(s.hidden_size);
  const TensorId q = b.linear("query", x, s.width(), "W_Q");
  TensorId o = x;
  if (variant == "x_cache") {
    const TensorId u = b.linear_by_head("key", s.head_dim, s.hidden_size, "W_K");
    const TensorId inputs = b.cache("X", s.hidden_size);
    b.weighted_sum(b.scores(u, inputs, 1, s.hidden_size), inputs, 1, s.hidden_size);
    o = b.linear_by_head("value", s.hidden_size, s.head_dim, "W_V");
  } else {
    b.linear("key", x, s.width(), "W_K");
    const TensorId keys = b.cache("K", s.width());
    const TensorId p = b.scores(q, keys, heads, s.head_dim);
    if (variant == "vanilla") {
      b.linear("value", x, s.width(), "W_V");
      o = b.weighted_sum(p, b.cache("V", s.width()), heads, s.head_dim);
    } else if (variant == "unoptimized") {
      o = b.weighted_sum(p, b.linear("value", keys, s.width(), "W_KV"), heads, s.head_dim);
    } else if (variant == "optimized") {
      b.weighted_sum(p, keys, 1, s.width());  // every head sums the whole rows of K
      o = b.linear_by_head("value", s.width(), s.head_dim, "W_KV");
    } else {
      throw unknown_name("variant of attention", variant,
                         {"vanilla", "unoptimized", "optimized", "x_cache"});
    }
  }
  b.linear("attention_output", o, s.hidden_size, "W_O");
  return b.take();
}

Count product_ops(const Count& rows, const Count& in_features, const Count& out_features) {
  StepBuilder b({}, rows);
  b.linear("product", b.cache("X", in_features), out_features, "W");
  return b.take().ops({"product"});
}

}  // namespace kvcast::reports
