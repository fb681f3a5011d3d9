/// One decode step of one attention layer in each variant of the Slim attention paper.
///
/// A step is written down as kvcast's operators, and `work()` counts their products: the paper's
/// printed formulas are not used here, so that they can be held against these counts.
/// Source of the variants: Graef and Wasielewski 2025 (arXiv:2503.05840), sections 2 to 4.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "model/config/architecture.h"
#include "model/graph/graph.h"

namespace kvcast::reports {

/// d = hidden_size, h = num_attention_heads, d_k = head_dim, e = h·d_k; no grouped heads.
struct SlimShape {
  std::uint64_t hidden_size = 0;
  std::uint64_t num_attention_heads = 0;
  std::uint64_t head_dim = 0;

  std::uint64_t width() const;  ///< e
};

/// The shape of the decoder's first layer. Throws Error when it has grouped heads.
SlimShape slim_shape(const Architecture& a);

/// Labels of products: "query", "key", "value" (W_V, or W_KV in its place), "attention_output",
/// "scores" and "weighted_sum".
using StepLabels = std::set<std::string, std::less<>>;

class AttentionStep {
 public:
  explicit AttentionStep(Graph graph) : graph_(std::move(graph)) {}

  /// Two-operand operations of the products so labelled, a multiply-add as two.
  Count ops(const StepLabels& labels) const;
  /// Elements of the weights that these products read, each once.
  Count weights(const StepLabels& labels) const;
  /// Elements of the cache, each read once.
  Count cache() const;

 private:
  Graph graph_;
};

/// One step of a variant:
/// - vanilla: K and V of `rows` tokens are cached (section 1);
/// - unoptimized: K is cached, V = K·W_KV of all tokens is computed in every step (section 2,
///   option 1);
/// - optimized: K is cached, heads sum its whole rows and multiply by W_KV afterwards (section 2,
///   option 2);
/// - x_cache: X or the encoder's output E is cached; W_K moves to the query and W_V after the sum
///   (section 3, option 2, and section 4, option 2).
/// Throws Error for another name.
AttentionStep attention_step(const std::string& variant, const SlimShape& shape, const Count& rows);

/// Operations of [rows, in_features] times [in_features, out_features].
Count product_ops(const Count& rows, const Count& in_features, const Count& out_features);

}  // namespace kvcast::reports
