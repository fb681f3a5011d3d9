#include <algorithm>
#include <numeric>
#include <vector>

#include <omp.h>

#include "model/execute/block_product.h"
#include "model/execute/gradient_kernels.h"
#include "model/execute/positions.h"
#include "model/execute/row_gradients.h"
#include "model/execute/row_loops.h"

namespace kvcast::execute {
namespace {

/// Queries and keys of one tile: queries make a panel as wide as the tiles of multiply_block.
constexpr std::size_t tile = 64;

std::size_t in_tiles(std::size_t n) { return (n + tile - 1) / tile * tile; }

/// What all pieces of one gradient share.
struct Sizes {
  Sizes(const Call& c, const TiledAttention& o)
      : call(c),
        op(o),
        heads(o.heads),
        value_heads(o.value_heads()),
        queries(c.inputs[3].shape[1]),
        keys(c.inputs[4].shape[1]),
        of_values(o.values_are_keys ? 4 : 5),
        first_query(keys),
        end_query(keys) {
    const std::size_t past = op.mask.causal ? call.value(op.mask.past) : 0;
    std::vector<KeyRange> ranges(queries);
    for (std::size_t i = 0; i < queries; ++i) ranges[i] = visible_range(op.mask, past + i, keys);
    // Ranges of later queries neither begin nor end before those of earlier ones.
    for (std::size_t j = 0; j < keys; ++j) {
      const auto first = std::partition_point(ranges.begin(), ranges.end(),
                                              [&](const KeyRange& r) { return r.end <= j; });
      const auto end = std::partition_point(ranges.begin(), ranges.end(),
                                            [&](const KeyRange& r) { return r.first <= j; });
      first_query[j] = static_cast<std::size_t>(first - ranges.begin());
      end_query[j] = std::max(first_query[j], static_cast<std::size_t>(end - ranges.begin()));
    }
  }

  /// Groups of heads that share no keys and no values with others.
  std::size_t groups() const {
    const bool apart = !op.values_are_keys || value_heads.head_dim == heads.head_dim;
    return apart ? std::gcd(heads.num_key_value_heads, value_heads.num_key_value_heads) : 1;
  }
  const Operand* bias() const {
    return call.inputs.size() > of_values + 1 ? &call.inputs[of_values + 1] : nullptr;
  }

  const Call& call;
  const TiledAttention& op;
  Heads heads;
  Heads value_heads;
  std::size_t queries;
  std::size_t keys;
  std::size_t of_values;                 ///< input
  std::vector<std::size_t> first_query;  ///< by key: it is seen from this query on
  std::vector<std::size_t> end_query;
};

/// Copies rows that lie `stride` apart to rows of `width` numbers, `factor` times; zeros after
/// them.
void copy_rows(const float* from, std::size_t stride, std::size_t rows, std::size_t dim,
               float factor, float* to, std::size_t width, std::size_t all_rows) {
  std::fill_n(to, all_rows * width, 0.0F);
  for (std::size_t r = 0; r < rows; ++r) {
    map_row(Function::Scale, factor, from + r * stride, to + r * width, dim);
  }
}

/// One head of one sequence. Scores lie as [key][query], so that products with their transpose, the
/// gradients of keys and values, read them in order.
class HeadGradient {
 public:
  explicit HeadGradient(const Sizes& s)
      : s_(s),
        dim_(s.heads.head_dim),
        value_dim_(s.value_heads.head_dim),
        width_(padded(dim_)),
        value_width_(padded(value_dim_)),
        all_queries_(in_tiles(s.queries)),
        q_(all_queries_ * width_),
        q_panels_(all_queries_ * dim_),
        g_(all_queries_ * value_width_),
        g_panels_(all_queries_ * value_dim_),
        log_sums_(all_queries_),
        deltas_(all_queries_),
        of_q_(all_queries_ * dim_),
        keys_(tile * dim_),
        key_panel_(tile * dim_),
        values_(tile * value_dim_),
        p_(tile * tile),
        of_s_(tile * tile),
        of_keys_(tile * width_),
        of_values_(tile * value_width_) {}

  void run(std::size_t b, std::size_t head) {
    load_queries(b, head);
    std::fill(of_q_.begin(), of_q_.end(), 0.0F);
    for (std::size_t j = 0; j < s_.keys; j += tile) {
      run_keys(b, head, j, std::min(tile, s_.keys - j));
    }
    const std::size_t stride = s_.heads.num_attention_heads * dim_;
    float* const out = s_.call.output.data + b * s_.queries * stride + head * dim_;
    const auto scale = static_cast<float>(s_.op.scale);
    for (std::size_t i = 0; i < s_.queries; ++i) {
      const float* const panel = &of_q_[i / tile * tile * dim_] + i % tile;
      for (std::size_t d = 0; d < dim_; ++d) out[i * stride + d] = scale * panel[d * tile];
    }
  }

 private:
  std::size_t key_column(std::size_t head) const {
    return head / (s_.heads.num_attention_heads / s_.heads.num_key_value_heads) * dim_;
  }
  std::size_t value_column(std::size_t head) const {
    return head / (s_.heads.num_attention_heads / s_.value_heads.num_key_value_heads) * value_dim_;
  }

  void load_queries(std::size_t b, std::size_t head) {
    const std::size_t stride = s_.heads.num_attention_heads * dim_;
    const std::size_t value_stride = s_.heads.num_attention_heads * value_dim_;
    const std::size_t row = b * s_.queries;
    const float* const g = s_.call.inputs[0].data + row * value_stride + head * value_dim_;
    const float* const o = s_.call.inputs[1].data + row * value_stride + head * value_dim_;
    const float* const log_sums = s_.call.inputs[2].data + row * s_.heads.num_attention_heads;
    const float* const q = s_.call.inputs[3].data + row * stride + head * dim_;
    // Scaled, for scores and for the gradients of keys.
    copy_rows(q, stride, s_.queries, dim_, static_cast<float>(s_.op.scale), q_.data(), width_,
              all_queries_);
    copy_rows(g, value_stride, s_.queries, value_dim_, 1, g_.data(), value_width_, all_queries_);
    for (std::size_t i = 0; i < all_queries_; i += tile) {
      transpose_block(&q_[i * width_], width_, tile, dim_, &q_panels_[i * dim_], tile);
      transpose_block(&g_[i * value_width_], value_width_, tile, value_dim_,
                      &g_panels_[i * value_dim_], tile);
    }
    for (std::size_t i = 0; i < s_.queries; ++i) {
      log_sums_[i] = log_sums[i * s_.heads.num_attention_heads + head];
      deltas_[i] = dot_row(g + i * value_stride, o + i * value_stride, value_dim_);
    }
  }

  /// Keys [first, first + n).
  void run_keys(std::size_t b, std::size_t head, std::size_t first, std::size_t n) {
    const Operand& k = s_.call.inputs[4];
    const Operand& v = s_.call.inputs[s_.of_values];
    const std::size_t stride = k.shape[2];
    const std::size_t value_stride = v.shape[2];
    copy_rows(k.sequence(b) + first * stride + key_column(head), stride, n, dim_, 1, keys_.data(),
              dim_, n);
    copy_rows(v.sequence(b) + first * value_stride + value_column(head), value_stride, n,
              value_dim_, 1, values_.data(), value_dim_, n);
    transpose_block(keys_.data(), dim_, n, dim_, key_panel_.data(), tile);
    std::fill(of_keys_.begin(), of_keys_.end(), 0.0F);
    std::fill(of_values_.begin(), of_values_.end(), 0.0F);
    const std::size_t end = s_.end_query[first + n - 1];
    for (std::size_t i = s_.first_query[first] / tile * tile; i < end; i += tile) {
      run_tile(head, first, n, i);
    }
    add_rows(of_keys_.data(), width_, n, dim_,
             s_.call.more_outputs[0].sequence(b) + first * stride + key_column(head), stride);
    const Operand& of_v = s_.call.more_outputs[s_.op.values_are_keys ? 0 : 1];
    add_rows(of_values_.data(), value_width_, n, value_dim_,
             of_v.sequence(b) + first * value_stride + value_column(head), value_stride);
  }

  static void add_rows(const float* from, std::size_t width, std::size_t rows, std::size_t dim,
                       float* to, std::size_t stride) {
    for (std::size_t r = 0; r < rows; ++r) {
      combine_rows(Function::Add, to + r * stride, from + r * width, to + r * stride, dim);
    }
  }

  /// Of n keys and the tile of queries that begins with `query`.
  void run_tile(std::size_t head, std::size_t first, std::size_t n, std::size_t query) {
    multiply_block({.m = n,
                    .n = tile,
                    .k = dim_,
                    .a = keys_.data(),
                    .lda = dim_,
                    .b = &q_panels_[query * dim_],
                    .ldb = tile,
                    .c = p_.data(),
                    .ldc = tile});
    multiply_block({.m = n,
                    .n = tile,
                    .k = value_dim_,
                    .a = values_.data(),
                    .lda = value_dim_,
                    .b = &g_panels_[query * value_dim_],
                    .ldb = tile,
                    .c = of_s_.data(),
                    .ldc = tile});
    for (std::size_t j = 0; j < n; ++j) finish_key(head, first + j, query, j * tile);
    multiply_block({.m = n,
                    .n = value_width_,
                    .k = tile,
                    .a = p_.data(),
                    .lda = tile,
                    .b = &g_[query * value_width_],
                    .ldb = value_width_,
                    .c = of_values_.data(),
                    .ldc = value_width_},
                   true);
    multiply_block({.m = n,
                    .n = width_,
                    .k = tile,
                    .a = of_s_.data(),
                    .lda = tile,
                    .b = &q_[query * width_],
                    .ldb = width_,
                    .c = of_keys_.data(),
                    .ldc = width_},
                   true);
    multiply_block({.m = dim_,
                    .n = tile,
                    .k = n,
                    .a = key_panel_.data(),
                    .lda = tile,
                    .b = of_s_.data(),
                    .ldb = tile,
                    .c = &of_q_[query * dim_],
                    .ldc = tile},
                   true);
  }

  /// From a key's scores and the gradients of its probabilities, which begin at `row`, to its
  /// probabilities and the gradients of its scores; 0 where a query does not see it.
  void finish_key(std::size_t head, std::size_t key, std::size_t query, std::size_t row) {
    float biases[tile] = {};
    const Operand* const bias = s_.bias();
    for (std::size_t i = 0; bias != nullptr && i < std::min(tile, s_.queries - query); ++i) {
      biases[i] = bias->data[bias_index(bias->shape, head, query + i, key)];
    }
    const std::size_t begin = std::clamp(s_.first_query[key], query, query + tile) - query;
    const std::size_t end = std::clamp(s_.end_query[key], query, query + tile) - query;
    attention_gradient_row(static_cast<float>(s_.op.softcap), bias == nullptr ? nullptr : biases,
                           &log_sums_[query], &deltas_[query], &p_[row], &of_s_[row], tile);
    for (float* const numbers : {&p_[row], &of_s_[row]}) {
      std::fill(numbers, numbers + begin, 0.0F);
      std::fill(numbers + std::max(begin, end), numbers + tile, 0.0F);
    }
  }

  const Sizes& s_;
  std::size_t dim_;
  std::size_t value_dim_;
  std::size_t width_;        ///< of rows that are the second factor of a product
  std::size_t value_width_;  ///< the same of values
  std::size_t all_queries_;  ///< in whole tiles
  std::vector<float> q_;
  std::vector<float> q_panels_;  ///< [tiles of queries][dim][tile]
  std::vector<float> g_;
  std::vector<float> g_panels_;
  std::vector<float> log_sums_;
  std::vector<float> deltas_;  ///< Σ g∘o
  std::vector<float> of_q_;    ///< as q_panels_
  std::vector<float> keys_;
  std::vector<float> key_panel_;  ///< [dim][tile]
  std::vector<float> values_;
  std::vector<float> p_;
  std::vector<float> of_s_;  ///< gradients of scores, and of probabilities before
  std::vector<float> of_keys_;
  std::vector<float> of_values_;
};

/// One head of one sequence whose queries attend to chosen keys: pair by pair.
void run_chosen(const Sizes& s, std::size_t b, std::size_t head) {
  const Call& call = s.call;
  const Heads& h = s.heads;
  const Heads& v = s.value_heads;
  const Operand& chosen = call.inputs.back();
  const auto column = [&](const Heads& of) {
    return head / (of.num_attention_heads / of.num_key_value_heads) * of.head_dim;
  };
  const std::size_t stride = call.inputs[4].shape[2];
  const std::size_t value_stride = call.inputs[s.of_values].shape[2];
  const float* const keys = call.inputs[4].sequence(b) + column(h);
  const float* const values = call.inputs[s.of_values].sequence(b) + column(v);
  float* const of_keys = call.more_outputs[0].sequence(b) + column(h);
  float* const of_values = call.more_outputs[s.op.values_are_keys ? 0 : 1].sequence(b) + column(v);
  const std::size_t past = call.value(s.op.mask.past);
  const auto scale = static_cast<float>(s.op.scale);
  for (std::size_t i = 0; i < s.queries; ++i) {
    const std::size_t row = b * s.queries + i;
    const std::size_t at = row * h.num_attention_heads + head;
    const float* const g = call.inputs[0].data + at * v.head_dim;
    const float* const q = call.inputs[3].data + at * h.head_dim;
    float* const of_q = call.output.data + at * h.head_dim;
    const float delta = dot_row(g, call.inputs[1].data + at * v.head_dim, v.head_dim);
    std::fill_n(of_q, h.head_dim, 0.0F);
    const std::size_t seen = visible_range(s.op.mask, past + i, s.keys).end;
    for (std::size_t n = 0; n < std::min<std::size_t>(s.op.kept, seen); ++n) {
      const auto j = static_cast<std::size_t>(chosen.data[row * chosen.shape.back() + n]);
      const float* const k = keys + j * stride;
      float p = scale * dot_row(q, k, h.head_dim);
      float of_s = dot_row(g, values + j * value_stride, v.head_dim);
      attention_gradient_row(static_cast<float>(s.op.softcap), nullptr, &call.inputs[2].data[at],
                             &delta, &p, &of_s, 1);
      add_scaled_row(p, g, of_values + j * value_stride, v.head_dim);
      add_scaled_row(scale * of_s, k, of_q, h.head_dim);
      add_scaled_row(scale * of_s, q, of_keys + j * stride, h.head_dim);
    }
  }
}

}  // namespace

void run_gradient(const Call& call, const TiledAttentionGradient& op) {
  const Sizes sizes(call, op.forward);
  for (const Operand& out : call.more_outputs) std::fill_n(out.data, out.shape.elements(), 0.0F);
  const std::size_t groups = sizes.groups();
  const std::size_t heads = sizes.heads.num_attention_heads / groups;  // of a group
  if (op.forward.kept > 0) {
#pragma omp parallel for schedule(dynamic, 1)
    for (std::size_t item = 0; item < call.inputs[3].shape[0] * groups; ++item) {
      const std::size_t first = item % groups * heads;
      for (std::size_t head = first; head < first + heads; ++head) {
        run_chosen(sizes, item / groups, head);
      }
    }
    return;
  }
  // One for each thread, made before they start: what they throw could not be caught.
  std::vector<HeadGradient> pieces(static_cast<std::size_t>(omp_get_max_threads()),
                                   HeadGradient(sizes));
#pragma omp parallel for schedule(dynamic, 1)
  for (std::size_t item = 0; item < call.inputs[3].shape[0] * groups; ++item) {
    HeadGradient& piece = pieces[static_cast<std::size_t>(omp_get_thread_num())];
    const std::size_t first = item % groups * heads;
    for (std::size_t head = first; head < first + heads; ++head) piece.run(item / groups, head);
  }
}

}  // namespace kvcast::execute
