#include <algorithm>
#include <cmath>
#include <vector>

#include "model/execute/attention_layout.h"
#include "model/execute/block_product.h"
#include "model/execute/positions.h"
#include "model/execute/row_loops.h"
#include "model/execute/vector_math.h"

namespace kvcast::execute {
namespace {

/// Keys and values of one piece of work: about this many numbers each, so that both lie in a core's
/// second-level cache while all heads use them.
constexpr std::size_t piece_elements = 16384;
/// Keys of a piece at most.
constexpr std::size_t max_piece = 256;

typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));
typedef float Half __attribute__((vector_size(32)));
typedef float Quarter __attribute__((vector_size(16)));

/// A part of one query's attention, over some of its keys.
struct Part {
  float peak = masked_score;
  float sum = 0;
};

KVCAST_INLINE Quarter fold(Vector v) {
  const Half h = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
}

/// The sums over each of four vectors' lanes.
KVCAST_INLINE Quarter lane_sums(const Vector* v) {
  const Quarter a = fold(v[0]);
  const Quarter b = fold(v[1]);
  const Quarter c = fold(v[2]);
  const Quarter d = fold(v[3]);
  const Quarter ab =
      __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quarter cd =
      __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/// Scores of one query and the keys that follow `k`, four at a time: dot products.
KVCAST_VECTOR_CLONES void score_keys(const float* q, const float* k, std::size_t stride,
                                     std::size_t head_dim, std::size_t n, float scale,
                                     float* scores) {
  const std::size_t whole = head_dim / vector_width * vector_width;
  std::size_t j = 0;
  for (; j + 4 <= n; j += 4) {
    const float* key = k + j * stride;
    Vector sums[4] = {};
    for (std::size_t d = 0; d < whole; d += vector_width) {
      const Vector x = *reinterpret_cast<const Vector*>(q + d);
      for (std::size_t i = 0; i < 4; ++i) {
        sums[i] += x * *reinterpret_cast<const Vector*>(key + i * stride + d);
      }
    }
    const Quarter four = lane_sums(sums);
    for (std::size_t i = 0; i < 4; ++i) {
      float sum = four[i];
      for (std::size_t d = whole; d < head_dim; ++d) sum += q[d] * key[i * stride + d];
      scores[j + i] = scale * sum;
    }
  }
  for (; j < n; ++j) scores[j] = scale * dot_row(q, k + j * stride, head_dim);
}

/// out[rows, head_dim] = weights[rows, n]·v[n, head_dim]
void sum_values(const float* weights, std::size_t rows, const float* v, std::size_t stride,
                std::size_t head_dim, std::size_t n, float* out) {
  const std::size_t whole = head_dim / vector_width * vector_width;
  multiply_block({.m = rows,
                  .n = whole,
                  .k = n,
                  .a = weights,
                  .lda = max_piece,
                  .b = v,
                  .ldb = stride,
                  .c = out,
                  .ldc = head_dim});
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t d = whole; d < head_dim; ++d) {
      float sum = 0;
      for (std::size_t j = 0; j < n; ++j) sum += weights[i * max_piece + j] * v[j * stride + d];
      out[i * head_dim + d] = sum;
    }
  }
}

/// Asks for memory that will be read, in the order in which it lies there.
void prefetch(const float* data, std::size_t count) {
  constexpr std::size_t line = 16;
  for (std::size_t i = 0; i < count; i += line) __builtin_prefetch(data + i);
}

/// Keys [first, first + n) for all heads of sequence b.
void attend_piece(const Call& call, const Attention& a, std::size_t b, std::size_t first,
                  std::size_t n, Part* parts, float* outs) {
  const HeadLayout& l = a.layout;
  const HeadLayout& values = a.values;
  const float* q = call.inputs[0].data + b * l.query_stride;
  const float* k = call.inputs[1].sequence(b) + first * l.kv_stride;
  const float* v = call.inputs[2].sequence(b) + first * values.kv_stride;
  // Heads take their shares of every row one after the other: the rows come in whole before.
  prefetch(k, n * l.kv_stride);
  if (v != k) prefetch(v, n * values.kv_stride);
  std::vector<float> rotated;
  if (a.op.key_rope) {
    rotated.resize(n * l.kv_stride);
    rotate_keys(a.op, k, first, n, rotated.data());
    k = rotated.data();
  }
  float scores[block_rows * max_piece];
  for (std::size_t head = 0; head < l.num_heads;) {
    const std::size_t group_end = (head / values.queries_per_key + 1) * values.queries_per_key;
    const std::size_t rows = std::min(block_rows, group_end - head);
    for (std::size_t r = 0; r < rows; ++r) {
      float* row = scores + r * max_piece;
      score_keys(q + l.query_offset(head + r), k + l.kv_offset(head + r), l.kv_stride, l.head_dim,
                 n, static_cast<float>(a.op.scale), row);
      finish_scores(a, head + r, 0, first, n, row);
      Part& part = parts[head + r];
      part.peak = largest_of_row(row, n);
      part.sum = exp_row(part.peak, row, n);
    }
    sum_values(scores, rows, v + values.kv_offset(head), values.kv_stride, values.head_dim, n,
               outs + head * values.head_dim);
    head += rows;
  }
}

/// Joins the pieces of one head. Source: Dao et al. 2023, Flash-Decoding.
void join(const Part* parts, const float* outs, std::size_t pieces, std::size_t num_heads,
          std::size_t head_dim, float* out) {
  float peak = masked_score;
  for (std::size_t p = 0; p < pieces; ++p) peak = std::max(peak, parts[p * num_heads].peak);
  float sum = 0;
  std::fill_n(out, head_dim, 0.0F);
  for (std::size_t p = 0; p < pieces; ++p) {
    const float share = std::exp(parts[p * num_heads].peak - peak);
    sum += share * parts[p * num_heads].sum;
    add_scaled_row(share, outs + p * num_heads * head_dim, out, head_dim);
  }
  scale_row(1 / sum, out, head_dim);
}

}  // namespace

void attend_one(const Call& call, const Attention& a) {
  const HeadLayout& l = a.layout;
  const std::size_t batch = call.inputs[0].shape[0];
  const KeyRange visible = visible_range(a.op.mask, a.past, a.keys);
  const std::size_t seen = visible.end - visible.first;
  const std::size_t width = a.values.head_dim;
  const std::size_t stride = std::max(l.kv_stride, a.values.kv_stride);
  const std::size_t piece = std::clamp(piece_elements / stride, vector_width, max_piece);
  const std::size_t pieces = (seen + piece - 1) / piece;
  std::vector<Part> parts(batch * pieces * l.num_heads);
  std::vector<float> outs(parts.size() * width);
#pragma omp parallel for schedule(static) if (batch * seen * stride > piece_elements)
  for (std::size_t item = 0; item < batch * pieces; ++item) {
    const std::size_t first = visible.first + item % pieces * piece;
    attend_piece(call, a, item / pieces, first, std::min(piece, visible.end - first),
                 &parts[item * l.num_heads], &outs[item * l.num_heads * width]);
  }
  for (std::size_t row = 0; row < batch * l.num_heads; ++row) {
    const std::size_t at = row / l.num_heads * pieces * l.num_heads + row % l.num_heads;
    join(&parts[at], &outs[at * width], pieces, l.num_heads, width, call.output.data + row * width);
  }
}

}  // namespace kvcast::execute
