#include <algorithm>
#include <vector>

#include <omp.h>

#include "model/execute/arena.h"
#include "model/execute/attention_layout.h"
#include "model/execute/block_product.h"
#include "model/execute/floats.h"
#include "model/execute/kernels.h"
#include "model/execute/matrix.h"
#include "model/execute/positions.h"
#include "model/execute/row_loops.h"

namespace kvcast::execute {

/// Soft cap, bias and mask for one row of scores over keys [first, first + n).
void finish_scores(const Attention& a, std::size_t head, std::size_t query, std::size_t first,
                   std::size_t n, float* row) {
  if (a.op.softcap > 0) {
    map_row(Function::SoftCap, static_cast<float>(a.op.softcap), row, row, n);
  }
  if (a.bias != nullptr) {
    const std::size_t known = std::min(n, a.keys - first);
    const std::size_t at = bias_index(a.bias->shape, head, query, first);
    combine_rows(Function::Add, row, a.bias->data + at, row, known);
  }
  const KeyRange visible = visible_range(a.op.mask, a.past + query, a.keys);
  const std::size_t begin = std::clamp(visible.first, first, first + n) - first;
  const std::size_t end = std::clamp(visible.end, first, first + n) - first;
  std::fill(row, row + begin, masked_score);
  std::fill(row + std::max(begin, end), row + n, masked_score);
}

void rotate_keys(const TiledAttention& op, const float* keys, std::size_t first, std::size_t n,
                 float* out) {
  const Heads& h = op.heads;
  const std::size_t half = op.key_rope->inverse_frequencies.size();
  const std::size_t stride = h.num_key_value_heads * h.head_dim;
  const RopeAngleTable<float>& angles = rope_angles(op.key_rope, first + n);
  std::copy_n(keys, n * stride, out);
  for (std::size_t j = 0; j < n; ++j) {
    rotate_heads(out + j * stride, h.num_key_value_heads, h.head_dim, angles.cosines(first + j),
                 angles.sines(first + j), half);
  }
}

void tiled_attention(const Call& call, const TiledAttention& op) {
  const HeadLayout layout(op.heads);
  const HeadLayout values(op.value_heads());
  const Attention a{.op = op,
                    .layout = layout,
                    .values = values,
                    .bias = call.inputs.size() > 3 ? &call.inputs[3] : nullptr,
                    .past = op.mask.causal ? call.value(op.mask.past) : 0,
                    .keys = call.inputs[1].shape[1]};
  if (op.key_rope && call.inputs[0].shape[1] > 1) {
    // All keys at once, for many queries; one query's are rotated piece by piece.
    std::vector<Operand> inputs(call.inputs.begin(), call.inputs.end());
    const Floats rotated = allocate_floats(inputs[1].shape.elements());
    inputs[1].data = rotated.get();
    inputs[1].batch_stride = a.keys * layout.kv_stride;
    for (std::size_t b = 0; b < inputs[1].shape[0]; ++b) {
      rotate_keys(op, call.inputs[1].sequence(b), 0, a.keys, inputs[1].sequence(b));
    }
    return attend_many({call.node, inputs, call.output, call.symbols}, a);
  }
  if (call.inputs[0].shape[1] == 1) {
    attend_one(call, a);
  } else {
    attend_many(call, a);
  }
}

/// Heads whose single queries read the same keys: the rows of one product.
static std::size_t heads_together(const HeadLayout& l, std::size_t queries) {
  return queries == 1 ? l.queries_per_key : 1;
}

/// Up to as many rows dot products with the keys as they lie are faster than ordering them first.
constexpr std::size_t most_dotted_rows = 8;
/// Rows of a piece of values, and the keys that they are multiplied by at a time: a head's values
/// of those stay in the second-level cache.
constexpr std::size_t value_rows = 4 * block_rows;
constexpr std::size_t value_keys = 512;
/// More rows than these take a head's values from where they lie side by side: rows that are a
/// power of two apart push each other out of the caches.
constexpr std::size_t most_scattered_rows = 2 * value_rows;

/// The values [batch, keys, heads, head_dim] of an operand as [batch, heads, keys, head_dim].
static const float* values_by_head(const Operand& v, const HeadLayout& l, std::size_t keys) {
  const std::size_t heads = l.num_kv_heads();
  static thread_local Arena arena;  // of the last layer: its pages are there
  float* const ordered = arena.reserve(v.shape[0] * heads * keys * l.head_dim);
#pragma omp parallel for collapse(2) schedule(static)
  for (std::size_t item = 0; item < v.shape[0] * heads; ++item) {
    for (std::size_t j = 0; j < keys; ++j) {
      const float* from = v.sequence(item / heads) + j * l.kv_stride + item % heads * l.head_dim;
      std::copy_n(from, l.head_dim, ordered + (item * keys + j) * l.head_dim);
    }
  }
  return ordered;
}

/// C = A·Bᵀ with B's rows brought into `panel` [k][key_panel] first, where a whole vector of them
/// fits in.
static void multiply_keys(Product p, float* panel) {
  const std::size_t whole = p.m > most_dotted_rows ? p.n / vector_width * vector_width : 0;
  if (whole > 0) {
    transpose_block(p.b, p.ldb, whole, p.k, panel, key_panel);
    Product ordered = p;
    ordered.n = whole;
    ordered.b = panel;
    ordered.ldb = key_panel;
    multiply_block(ordered);
  }
  if (whole == p.n) return;
  p.b += whole * p.ldb;
  p.c += whole;
  p.n -= whole;
  multiply_block_transposed(p);
}

void attention_scores(const Call& call, const Heads& heads) {
  const HeadLayout l(heads);
  const Operand& q = call.inputs[0];
  const std::size_t queries = call.output.shape[2];
  const std::size_t keys = call.output.shape[3];
  const std::size_t together = heads_together(l, queries);
  const std::size_t items = call.output.shape[0] * l.num_heads / together;
  const std::size_t panel_size = l.head_dim * key_panel;
  const auto threads = static_cast<std::size_t>(omp_get_max_threads());
  static thread_local Arena arena;
  float* const panels = arena.reserve(threads * panel_size);
#pragma omp parallel for collapse(2) schedule(static)
  for (std::size_t item = 0; item < items; ++item) {
    for (std::size_t first = 0; first < keys; first += key_panel) {
      const std::size_t b = item * together / l.num_heads;
      const std::size_t head = item * together % l.num_heads;
      multiply_keys({.m = queries * together,
                     .n = std::min(key_panel, keys - first),
                     .k = l.head_dim,
                     .a = q.data + b * queries * l.query_stride + l.query_offset(head),
                     .lda = together > 1 ? l.head_dim : l.query_stride,
                     .b = call.inputs[1].sequence(b) + l.kv_offset(head) + first * l.kv_stride,
                     .ldb = l.kv_stride,
                     .c = call.output.data + item * together * queries * keys + first,
                     .ldc = keys},
                    panels + static_cast<std::size_t>(omp_get_thread_num()) * panel_size);
    }
  }
}

void attention_values(const Call& call, const Heads& heads) {
  const HeadLayout l(heads);
  const Shape& p = call.inputs[0].shape;
  const std::size_t queries = p[2];
  const std::size_t keys = p[3];
  const std::size_t together = heads_together(l, queries);
  const std::size_t items = p[0] * l.num_heads / together;
  const std::size_t rows = queries * together;
  const bool vectors = l.head_dim % vector_width == 0;
  // A few rows are shared among threads by columns.
  constexpr std::size_t half = 2 * vector_width;
  const std::size_t columns =
      vectors && rows <= block_rows && l.head_dim % half == 0 ? half : l.head_dim;
  const Operand& v = call.inputs[1];
  const float* ordered = nullptr;
  if (vectors && rows > most_scattered_rows && l.num_kv_heads() > 1)
    ordered = values_by_head(v, l, keys);
  const std::size_t value_stride = ordered != nullptr ? l.head_dim : l.kv_stride;
  const auto values_of = [&](std::size_t b, std::size_t head) -> const float* {
    if (ordered == nullptr) return v.sequence(b) + l.kv_offset(head);
    return ordered + (b * l.num_kv_heads() + head / l.queries_per_key) * keys * l.head_dim;
  };
#pragma omp parallel for collapse(3) schedule(static)
  for (std::size_t item = 0; item < items; ++item) {
    for (std::size_t row = 0; row < rows; row += value_rows) {
      for (std::size_t first = 0; first < l.head_dim; first += columns) {
        const std::size_t b = item * together / l.num_heads;
        const std::size_t head = item * together % l.num_heads;
        const std::size_t stride = together > 1 ? l.head_dim : l.query_stride;
        Product product{.m = std::min(value_rows, rows - row),
                        .n = columns,
                        .k = keys,
                        .a = call.inputs[0].data + (item * rows + row) * keys,
                        .lda = keys,
                        .b = values_of(b, head) + first,
                        .ldb = value_stride,
                        .c = call.output.data + b * queries * l.query_stride +
                             l.query_offset(head) + row * stride + first,
                        .ldc = stride};
        if (!vectors) {
          multiply(product, false);
          continue;
        }
        for (std::size_t k = 0; k < keys; k += value_keys) {
          product.k = std::min(value_keys, keys - k);
          multiply_block(product, k > 0);
          product.a += value_keys;
          product.b += value_keys * value_stride;
        }
      }
    }
  }
}

}  // namespace kvcast::execute
