#include <algorithm>
#include <cmath>
#include <vector>

#include <omp.h>

#include "model/execute/attention_layout.h"
#include "model/execute/block_product.h"
#include "model/execute/floats.h"
#include "model/execute/positions.h"
#include "model/execute/row_loops.h"

namespace kvcast::execute {
namespace {

/// A piece has about this many numbers of keys and values, so that they stay in a core's
/// second-level cache while all heads use them.
constexpr std::size_t piece_elements = 24576;
/// At most this many keys a piece.
constexpr std::size_t max_piece = 256;
/// Stretches that a sequence's keys are cut into. Their number does not depend on the number of
/// threads, so neither does the result. Outputs of stretches are written and read once more: there
/// are only as many as keep the cache `cache_per_outputs` times larger than all of them.
constexpr std::size_t min_stretches = 4;
constexpr std::size_t max_stretches = 16;
constexpr std::size_t cache_per_outputs = 16;
/// Rows of keys and values that lie apart are multiplied where they lie, unless fewer are side by
/// side: those of a piece are copied together first.
constexpr std::size_t shortest_run = 8;
/// Rows of keys or values that are multiplied before the next are asked for: a core waits when it
/// asks for many lines at once.
constexpr std::size_t rows_between_asks = 16;
/// Columns of wide values that are multiplied at a time.
constexpr std::size_t value_columns = 64;
/// Work on fewer numbers is not worth waking a second thread.
constexpr std::size_t parallel_elements = 16384;

/// The state of one head's online softmax over a stretch of keys.
struct Part {
  float peak = masked_score;
  float sum = 0;
};

/// out[rows, columns] += weights[rows, n]·v[n, columns]; rows of out are head_dim apart.
void add_values(const float* weights, std::size_t rows, const float* v, std::size_t stride,
                std::size_t head_dim, std::size_t columns, std::size_t n, float* out) {
  const std::size_t whole = columns / vector_width * vector_width;
  multiply_block({.m = rows,
                  .n = whole,
                  .k = n,
                  .a = weights,
                  .lda = max_piece,
                  .b = v,
                  .ldb = stride,
                  .c = out,
                  .ldc = head_dim},
                 true);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t d = whole; d < columns; ++d) {
      float sum = out[i * head_dim + d];
      for (std::size_t j = 0; j < n; ++j) sum += weights[i * max_piece + j] * v[j * stride + d];
      out[i * head_dim + d] = sum;
    }
  }
}

/// Prefetches rows that will be read soon, a part at a time, while the processor computes.
class Prefetch {
 public:
  /// Rows [first, end).
  Prefetch(const KeyRows& rows, std::size_t first, std::size_t end)
      : rows_(rows), row_(first), end_(end) {}
  /// As many numbers.
  void ask_for(std::size_t count) { ask_for_bytes(count * rows_.row_bytes() / rows_.stride()); }
  void ask_for_all() {
    if (row_ < end_) ask_for_bytes((end_ - row_) * rows_.row_bytes());
  }

 private:
  void ask_for_bytes(std::size_t count) {
    constexpr std::size_t line = 64;
    while (count > 0 && row_ < end_) {
      const std::size_t n = std::min(count, rows_.row_bytes() - column_);
      const std::byte* const next = rows_.bytes(row_) + column_;
      for (std::size_t i = 0; i < n; i += line) __builtin_prefetch(next + i, 0, 2);
      count -= n;
      column_ += n;
      if (column_ < rows_.row_bytes()) continue;
      column_ = 0;
      ++row_;
    }
  }

  const KeyRows& rows_;
  std::size_t row_;
  std::size_t end_;
  std::size_t column_ = 0;  ///< byte
};

/// One sequence's query over a stretch of keys.
class Stretch {
 public:
  /// `room` for a piece of keys and values, unless null: they are copied there, and rotated.
  Stretch(const Call& call, const Attention& a, const SequencePart& part, float* room)
      : a_(a),
        part_(part),
        room_(room),
        query_(call.inputs[0].data + part.first_query * a.layout.query_stride),
        keys_(call.inputs[1], part),
        values_(call.inputs[2], part) {}

  /// Keys [first, end), `piece` at a time; parts and outs [num_heads] get the heads' results. The
  /// thread goes on with the next stretch, to keys `end_of_all` at most.
  void attend(std::size_t first, std::size_t end, std::size_t end_of_all, std::size_t piece,
              Part* parts, float* outs) {
    std::fill_n(outs, a_.layout.num_heads * a_.values.head_dim, 0.0F);
    // Each head reads its part of every row. The first piece is prefetched whole, later pieces
    // while the piece before is used.
    const auto values_until = [&](std::size_t j) { return a_.op.values_are_keys ? 0 : j; };
    Prefetch(keys_, first, std::min(end, first + piece)).ask_for_all();
    Prefetch(values_, first, values_until(std::min(end, first + piece))).ask_for_all();
    for (std::size_t j = first; j < end; j += piece) {
      const std::size_t next = std::min(end, j + piece);
      const std::size_t after = std::min(next + piece, end_of_all);
      Prefetch keys(keys_, next, after);
      Prefetch values(values_, next, values_until(after));
      attend_piece(j, next - j, keys, values, parts, outs);
    }
  }

 private:
  void attend_piece(std::size_t first, std::size_t n, Prefetch& next_keys, Prefetch& next_values,
                    Part* parts, float* outs) {
    const HeadLayout& l = a_.layout;
    const HeadLayout& v = a_.values;
    KeyRows keys = keys_.from(first);
    KeyRows all_values = values_.from(first);
    if (a_.op.key_rope) {
      rotate_keys(a_.op, keys, first, n, room_);
      keys = {room_, l.kv_stride};
      if (all_values.is_narrow()) all_values = all_values.copied(n, room_ + n * l.kv_stride);
    } else if (room_ != nullptr) {
      keys = keys.copied(n, room_);
      all_values = a_.op.values_are_keys ? keys : all_values.copied(n, room_ + n * l.kv_stride);
    }
    for (std::size_t head = 0; head < l.num_heads;) {
      const std::size_t group_end = (head / v.queries_per_key + 1) * v.queries_per_key;
      const std::size_t rows = std::min(block_rows, group_end - head);
      // Heads that share a key head read it once.
      for (std::size_t r = 0; r < rows;) {
        const std::size_t next_key_head = ((head + r) / l.queries_per_key + 1) * l.queries_per_key;
        const std::size_t together = std::min(rows - r, next_key_head - head - r);
        Product product{.m = together,
                        .n = 0,
                        .k = l.head_dim,
                        .a = query_ + l.query_offset(head + r),
                        .lda = l.head_dim,
                        .b = nullptr,
                        .ldb = l.kv_stride,
                        .c = nullptr,
                        .ldc = max_piece};
        for_runs(keys, n, [&](std::size_t j, std::size_t count) {
          product.n = count;
          product.b = keys[j] + l.kv_offset(head + r);
          product.c = scores_ + r * max_piece + j;
          multiply_block_transposed(product);
          next_keys.ask_for(count * l.kv_stride * together / l.num_heads / 2);
          next_values.ask_for(count * v.kv_stride * together / l.num_heads / 2);
        });
        r += together;
      }
      for (std::size_t r = 0; r < rows; ++r) {
        float* row = scores_ + r * max_piece;
        scale_row(static_cast<float>(a_.op.scale), row, n);
        finish_scores(a_, part_, head + r, 0, first, n, row);
        // Whole vectors: nothing is after the last key.
        std::fill(row + n, row + padded(n), masked_score);
        absorb(parts[head + r], row, padded(n), outs + (head + r) * v.head_dim);
      }
      // Wide values take long: a little of the next piece is asked for with each of their parts.
      const std::size_t asks = v.head_dim < 2 * value_columns ? 1 : v.head_dim / value_columns;
      for (std::size_t i = 0; i < asks; ++i) {
        const std::size_t column = i * value_columns;
        const std::size_t columns = i + 1 < asks ? value_columns : v.head_dim - column;
        for_runs(all_values, n, [&](std::size_t j, std::size_t count) {
          add_values(scores_ + j, rows, all_values[j] + v.kv_offset(head) + column, v.kv_stride,
                     v.head_dim, columns, count, outs + head * v.head_dim + column);
          next_keys.ask_for(count * l.kv_stride * rows / l.num_heads / asks / 2);
          next_values.ask_for(count * v.kv_stride * rows / l.num_heads / asks / 2);
        });
      }
      head += rows;
    }
  }

  /// f(first, count) for some of the first n rows that lie one after another.
  template <typename F>
  static void for_runs(const KeyRows& rows, std::size_t n, F f) {
    for (std::size_t j = 0; j < n;) {
      const std::size_t end = std::min(j + rows_between_asks, rows.run_end(j, n));
      f(j, end - j);
      j = end;
    }
  }

  /// Turns a row of scores into weights, and what was summed before to the same peak.
  void absorb(Part& part, float* row, std::size_t n, float* out) const {
    const float peak = std::max(part.peak, largest_of_row(row, n));
    if (peak == masked_score) {  // nothing visible yet
      std::fill_n(row, n, 0.0F);
      return;
    }
    if (peak > part.peak && part.sum > 0) {
      const float correction = std::exp(part.peak - peak);
      part.sum *= correction;
      scale_row(correction, out, a_.values.head_dim);
    }
    part.peak = peak;
    part.sum += exp_row(peak, row, n);
  }

  const Attention& a_;
  const SequencePart& part_;
  float* room_;
  const float* query_;
  KeyRows keys_;
  KeyRows values_;
  float scores_[block_rows * max_piece];
};

/// Joins the stretches of one head, and its sink unless null. Source: Dao et al. 2023,
/// Flash-Decoding.
void join(const Part* parts, const float* outs, std::size_t count, std::size_t num_heads,
          std::size_t head_dim, const float* sink, float* out) {
  float peak = sink != nullptr ? *sink : masked_score;
  for (std::size_t p = 0; p < count; ++p) peak = std::max(peak, parts[p * num_heads].peak);
  float sum = sink != nullptr ? std::exp(*sink - peak) : 0;
  std::fill_n(out, head_dim, 0.0F);
  for (std::size_t p = 0; p < count; ++p) {
    const float share = std::exp(parts[p * num_heads].peak - peak);
    sum += share * parts[p * num_heads].sum;
    add_scaled_row(share, outs + p * num_heads * head_dim, out, head_dim);
  }
  scale_row(1 / sum, out, head_dim);
}

}  // namespace

void attend_one(const Call& call, const Attention& a, std::span<const SequencePart> sequences) {
  const HeadLayout& l = a.layout;
  const std::size_t width = a.values.head_dim;
  const std::size_t stride = l.kv_stride + (a.op.values_are_keys ? 0 : a.values.kv_stride);
  // Whole vectors, so that a piece begins where a block does.
  const std::size_t piece =
      std::clamp(piece_elements / stride, vector_width, max_piece) / vector_width * vector_width;
  const auto pieces_of = [](std::size_t all, std::size_t size) { return (all + size - 1) / size; };
  struct Item {
    const SequencePart* sequence;
    KeyRange keys;
    std::size_t end_of_all;
    std::size_t keys_before;  ///< of all items
  };
  std::vector<Item> items;
  std::vector<std::size_t> items_before;  // by sequence
  std::size_t all_keys = 0;
  std::size_t most_keys = 0;
  for (const SequencePart& sequence : sequences) {
    const KeyRange visible = a.seen_by(sequence, 0);
    const std::size_t seen = visible.end - visible.first;
    const std::size_t wanted = std::clamp(seen * stride / (cache_per_outputs * l.num_heads * width),
                                          min_stretches, max_stretches);
    const std::size_t whole = pieces_of(seen, pieces_of(pieces_of(seen, wanted), piece) * piece);
    // So many that threads, mostly a power of two, share them evenly.
    const std::size_t stretches = pieces_of(whole, min_stretches) * min_stretches;
    items_before.push_back(items.size());
    std::size_t begin = visible.first;
    for (std::size_t i = 1; i <= stretches; ++i) {
      const std::size_t end = std::min(visible.first + padded(seen * i / stretches), visible.end);
      if (begin == end) continue;
      items.push_back({&sequence, {begin, end}, visible.end, all_keys});
      all_keys += end - begin;
      begin = end;
    }
    most_keys = std::max(most_keys, sequence.keys);
  }
  items_before.push_back(items.size());
  std::vector<Part> parts(items.size() * l.num_heads);
  const Floats outs = allocate_floats(parts.size() * width);
  // Made before the threads start: what they throw could not be caught.
  std::vector<Floats> rooms;
  if (a.op.key_rope) rope_angles<float>(a.op.key_rope, most_keys);
  const bool narrow = call.inputs[1].form != nullptr || call.inputs[2].form != nullptr;
  if (a.op.key_rope || narrow || (call.step != nullptr && call.step->block_size < shortest_run)) {
    for (int i = 0; i < omp_get_max_threads(); ++i) {
      rooms.push_back(allocate_floats(piece * stride));
    }
  }
#pragma omp parallel if (all_keys * stride > parallel_elements)
  {
    // Sequences may have unequal numbers of keys: a thread gets its share of those of all.
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    const auto threads = static_cast<std::size_t>(omp_get_num_threads());
    float* const room = rooms.empty() ? nullptr : rooms[thread].get();
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Item& item = items[i];
      const std::size_t middle = 2 * item.keys_before + item.keys.end - item.keys.first;
      if (middle * threads / (2 * all_keys) != thread) continue;
      Stretch(call, a, *item.sequence, room)
          .attend(item.keys.first, item.keys.end, item.end_of_all, piece, &parts[i * l.num_heads],
                  outs.get() + i * l.num_heads * width);
    }
  }
#pragma omp parallel for schedule(static) if (parts.size() * width > parallel_elements)
  for (std::size_t row = 0; row < sequences.size() * l.num_heads; ++row) {
    const std::size_t sequence = row / l.num_heads;
    const std::size_t head = row % l.num_heads;
    const std::size_t first = items_before[sequence];
    const std::size_t at = first * l.num_heads + head;
    const float* const sink = a.sinks != nullptr ? a.sinks + head : nullptr;
    float* const out = call.output.data + sequences[sequence].first_query * a.values.query_stride +
                       a.values.query_offset(head);
    join(&parts[at], outs.get() + at * width, items_before[sequence + 1] - first, l.num_heads,
         width, sink, out);
  }
}

}  // namespace kvcast::execute
