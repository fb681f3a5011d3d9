#include <algorithm>

#include <omp.h>

#include "model/execute/arena.h"
#include "model/execute/attention_layout.h"
#include "model/execute/block_product.h"
#include "model/execute/kernels.h"
#include "model/execute/matrix.h"

namespace kvcast::execute {
namespace {

/// Up to this many rows, dot products with the keys where they lie are faster than transposing the
/// keys first.
constexpr std::size_t most_dotted_rows = 8;
/// Rows that are multiplied together, and the keys taken at a time: a head's values of that many
/// keys stay in the second-level cache.
constexpr std::size_t value_rows = 4 * block_rows;
constexpr std::size_t value_keys = 512;
/// With more rows than this, a head's values are copied side by side first: rows that are a power
/// of two apart push each other out of the caches.
constexpr std::size_t most_scattered_rows = 2 * value_rows;

/// Heads whose single queries read the same keys: the rows of one product.
std::size_t heads_together(const HeadLayout& l, std::size_t queries) {
  return queries == 1 ? l.queries_per_key : 1;
}

/// C = A·Bᵀ. Whole vectors of B's rows are transposed into `panel` [k][key_panel] first.
void multiply_keys(Product p, float* panel) {
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

}  // namespace

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
  std::vector<SequencePart> parts;
  for (std::size_t b = 0; b < p[0]; ++b) {
    parts.push_back({.index = b, .first_key = b * keys, .keys = keys});
  }
  const ValueRows values(call.inputs[1], l, parts,
                         vectors && rows > most_scattered_rows && l.num_kv_heads() > 1);
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
                        .b = values.of(b, head, 0) + first,
                        .ldb = values.stride(),
                        .c = call.output.data + b * queries * l.query_stride +
                             l.query_offset(head) + row * stride + first,
                        .ldc = stride};
        if (!vectors) {
          multiply(product, {});
          continue;
        }
        for (std::size_t k = 0; k < keys; k += value_keys) {
          product.k = std::min(value_keys, keys - k);
          multiply_block(product, k > 0);
          product.a += value_keys;
          product.b += value_keys * values.stride();
        }
      }
    }
  }
}

}  // namespace kvcast::execute
