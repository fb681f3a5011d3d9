#include <algorithm>
#include <cmath>
#include <vector>

#include "model/execute/arena.h"
#include "model/execute/attention_layout.h"
#include "model/execute/block_product.h"
#include "model/execute/floats.h"
#include "model/execute/kernels.h"
#include "model/execute/parallel_rows.h"
#include "model/execute/positions.h"
#include "model/execute/row_loops.h"

namespace kvcast::execute {

KeyRange Attention::seen_by(const SequencePart& part, std::size_t query) const {
  KeyRange visible = visible_range(op.mask, part.past + query, part.keys);
  if (first != nullptr) {
    visible.first = static_cast<std::size_t>(first->data[part.first_query + query]);
  }
  return visible;
}

void finish_scores(const Attention& a, const SequencePart& part, std::size_t head,
                   std::size_t query, std::size_t first, std::size_t n, float* row) {
  if (a.op.softcap > 0) {
    map_row(Function::SoftCap, static_cast<float>(a.op.softcap), row, row, n);
  }
  if (a.bias != nullptr) {
    const std::size_t known = std::min(n, part.keys - first);
    const std::size_t at = bias_index(a.bias->shape, head, query, first);
    combine_rows(Function::Add, row, a.bias->data + at, row, known);
  }
  const KeyRange visible = a.seen_by(part, query);
  const std::size_t begin = std::clamp(visible.first, first, first + n) - first;
  const std::size_t end = std::clamp(visible.end, first, first + n) - first;
  std::fill(row, row + begin, masked_score);
  std::fill(row + std::max(begin, end), row + n, masked_score);
}

void rotate_keys(const TiledAttention& op, const KeyRows& keys, std::size_t first, std::size_t n,
                 float* out) {
  const Heads& h = op.heads;
  const std::size_t stride = h.num_key_value_heads * h.head_dim;
  const RopeAngleTable<float>& angles = rope_angles<float>(op.key_rope, first + n);
  keys.copied(n, out);
  for (std::size_t j = 0; j < n; ++j) {
    rotate_heads(out + j * stride, h.num_key_value_heads, h.head_dim, angles.cosines(first + j),
                 angles.sines(first + j), *op.key_rope);
  }
}

namespace {

/// Each query attends to keys of its own, the last input.
void attend_to_kept(const Call& call, const Attention& a, std::span<const SequencePart> parts) {
  KVCAST_ASSERT(a.op.softcap == 0);  // no model has both
  const Operand& chosen = call.inputs.back();
  const std::size_t queries = call.inputs[0].shape[1];
  const std::size_t items = call.inputs[0].shape[0] * queries;
  const std::size_t width = chosen.shape.back();
  const HeadLayout& k = a.layout;
  const HeadLayout& v = a.values;
  // Made before the threads start: what they throw could not be caught.
  const Floats weights = allocate_floats(items * width);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::size_t item = 0; item < items; ++item) {
    const std::size_t b = item / queries;
    const std::size_t visible =
        visible_range(a.op.mask, parts[b].past + item % queries, parts[b].keys).end;
    const std::size_t n = std::min<std::size_t>(a.op.kept, visible);
    float* const row = weights.get() + item * width;
    const auto key = [&](std::size_t i) {
      return static_cast<std::size_t>(chosen.data[item * width + i]);
    };
    for (std::size_t head = 0; head < k.num_heads; ++head) {
      const float* const q = call.inputs[0].data + item * k.query_stride + k.query_offset(head);
      for (std::size_t i = 0; i < n; ++i) {
        const float* const of_key =
            call.inputs[1].sequence(b) + key(i) * k.kv_stride + k.kv_offset(head);
        row[i] = static_cast<float>(a.op.scale) * dot_row(q, of_key, k.head_dim);
      }
      const float peak = largest_of_row(row, n);
      const float sum = exp_row(peak, row, n);
      if (a.log_sums != nullptr) a.log_sums[item * k.num_heads + head] = peak + std::log(sum);
      float* const out = call.output.data + item * v.query_stride + v.query_offset(head);
      std::fill_n(out, v.head_dim, 0.0F);
      for (std::size_t i = 0; i < n; ++i) {
        add_scaled_row(row[i] / sum,
                       call.inputs[2].sequence(b) + key(i) * v.kv_stride + v.kv_offset(head), out,
                       v.head_dim);
      }
    }
  }
}

}  // namespace

void tiled_attention(const Call& call, const TiledAttention& op) {
  const HeadLayout layout(op.heads);
  HeadLayout values(op.value_heads());
  values.kv_stride = call.inputs[2].shape[2];  // that of the keys, where they are values too
  const std::size_t others = call.inputs.size() - (op.has_first ? 1 : 0);
  const Operand* const last = others > 3 ? &call.inputs[others - 1] : nullptr;
  const Attention a{.op = op,
                    .layout = layout,
                    .values = values,
                    .bias = op.has_sinks || op.kept > 0 ? nullptr : last,
                    .sinks = op.has_sinks ? last->data : nullptr,
                    .first = op.has_first ? &call.inputs.back() : nullptr,
                    .log_sums = call.more_outputs.empty() ? nullptr : call.more_outputs[0].data};
  std::vector<SequencePart> parts = parts_of(call, op.mask);
  for (SequencePart& part : parts) {
    part.first_read = a.seen_by(part, 0).first / key_panel * key_panel;
  }
  // Steps have neither: their sequences would choose and rotate keys apart.
  KVCAST_ASSERT(call.step == nullptr || (op.kept == 0 && !op.key_rope));
  if (op.kept > 0) return attend_to_kept(call, a, parts);
  if (op.key_rope && call.inputs[0].shape[1] > 1) {
    // All keys at once, for many queries; one query's are rotated piece by piece.
    std::vector<Operand> inputs(call.inputs.begin(), call.inputs.end());
    const Floats rotated = allocate_floats(inputs[1].shape.elements());
    inputs[1].data = rotated.get();
    inputs[1].form = nullptr;
    const std::size_t keys = inputs[1].shape[1];
    inputs[1].batch_stride = keys * layout.kv_stride;
    for (std::size_t b = 0; b < inputs[1].shape[0]; ++b) {
      rotate_keys(op, KeyRows(call.inputs[1], parts[b]), 0, keys, inputs[1].sequence(b));
    }
    return attend_many({call.node, inputs, call.output, call.symbols}, a, parts);
  }
  const auto ones = std::stable_partition(parts.begin(), parts.end(), [&](const SequencePart& p) {
    return p.queries > 1 || a.log_sums != nullptr;
  });
  const std::span many(parts.begin(), ones);
  if (!many.empty()) attend_many(call, a, many);
  if (ones != parts.end()) attend_one(call, a, {ones, parts.end()});
}

ValueRows::ValueRows(const Operand& v, const HeadLayout& layout,
                     std::span<const SequencePart> parts, bool ordered)
    : values_(v), layout_(layout), parts_(parts) {
  KVCAST_ASSERT(ordered || (v.places == nullptr && v.form == nullptr));
  if (!ordered) return;
  const std::size_t heads = layout.num_kv_heads();
  const std::size_t dim = layout.head_dim;
  std::size_t rows = 0;
  for (const SequencePart& part : parts) {
    rows_before_.push_back(rows);
    rows += part.keys - part.first_read;
  }
  static thread_local Arena arena;  // of the last layer: its pages are there
  ordered_ = arena.reserve(heads * rows * padded(dim));
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const KeyRows from(v, parts[p]);
    const std::size_t keys = parts[p].keys - parts[p].first_read;
    float* const to = ordered_ + rows_before_[p] * heads * padded(dim);
    for_rows(heads * keys, heads * keys * dim, [&](std::size_t i) {
      float* const row = to + i * padded(dim);
      from.copy(parts[p].first_read + i % keys, i / keys * dim, dim, row);
      std::fill(row + dim, row + padded(dim), 0.0F);
    });
  }
}

const float* ValueRows::of(std::size_t part, std::size_t head, std::size_t key) const {
  const SequencePart& p = parts_[part];
  if (ordered_ == nullptr) return KeyRows(values_, p)[key] + layout_.kv_offset(head);
  const std::size_t keys = p.keys - p.first_read;
  const std::size_t row = rows_before_[part] * layout_.num_kv_heads() +
                          head / layout_.queries_per_key * keys + key - p.first_read;
  return ordered_ + row * stride();
}

std::size_t ValueRows::stride() const {
  return ordered_ == nullptr ? layout_.kv_stride : padded(layout_.head_dim);
}

}  // namespace kvcast::execute
