#include <algorithm>
#include <vector>

#include "model/execute/attention_layout.h"
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

/// Products of heads together are few: their columns are cut into the same pieces whatever the
/// number of threads.
static std::size_t columns_of(std::size_t together, std::size_t columns) {
  constexpr std::size_t pieces = 16;
  return std::max<std::size_t>(1, together > 1 ? (columns + pieces - 1) / pieces : columns);
}

void attention_scores(const Call& call, const Heads& heads) {
  const HeadLayout l(heads);
  const Operand& q = call.inputs[0];
  const std::size_t queries = call.output.shape[2];
  const std::size_t keys = call.output.shape[3];
  const std::size_t together = heads_together(l, queries);
  const std::size_t items = call.output.shape[0] * l.num_heads / together;
  const std::size_t columns = columns_of(together, keys);
#pragma omp parallel for collapse(2) schedule(dynamic, 1)
  for (std::size_t item = 0; item < items; ++item) {
    for (std::size_t first = 0; first < keys; first += columns) {
      const std::size_t b = item * together / l.num_heads;
      const std::size_t head = item * together % l.num_heads;
      multiply({.m = queries * together,
                .n = std::min(columns, keys - first),
                .k = l.head_dim,
                .a = q.data + b * queries * l.query_stride + l.query_offset(head),
                .lda = together > 1 ? l.head_dim : l.query_stride,
                .b = call.inputs[1].sequence(b) + l.kv_offset(head) + first * l.kv_stride,
                .ldb = l.kv_stride,
                .c = call.output.data + item * together * queries * keys + first,
                .ldc = keys},
               true);
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
  const std::size_t columns = columns_of(together, l.head_dim);
#pragma omp parallel for collapse(2) schedule(dynamic, 1)
  for (std::size_t item = 0; item < items; ++item) {
    for (std::size_t first = 0; first < l.head_dim; first += columns) {
      const std::size_t b = item * together / l.num_heads;
      const std::size_t head = item * together % l.num_heads;
      multiply({.m = queries * together,
                .n = std::min(columns, l.head_dim - first),
                .k = keys,
                .a = call.inputs[0].data + item * together * queries * keys,
                .lda = keys,
                .b = call.inputs[1].sequence(b) + l.kv_offset(head) + first,
                .ldb = l.kv_stride,
                .c = call.output.data + b * queries * l.query_stride + l.query_offset(head) + first,
                .ldc = together > 1 ? l.head_dim : l.query_stride},
               false);
    }
  }
}

}  // namespace kvcast::execute
