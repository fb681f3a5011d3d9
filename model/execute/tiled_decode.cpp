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

/// Prefetches memory that will be read soon, a part at a time, while the processor computes.
class Prefetch {
 public:
  Prefetch(const float* data, std::size_t count) : next_(data), end_(data + count) {}
  void ask_for(std::size_t count) {
    constexpr std::size_t line = 16;
    const std::size_t n = std::min(count, static_cast<std::size_t>(end_ - next_));
    for (std::size_t i = 0; i < n; i += line) __builtin_prefetch(next_ + i, 0, 2);
    next_ += n;
  }

 private:
  const float* next_;
  const float* end_;
};

void ask_for_all(const float* data, std::size_t count) { Prefetch(data, count).ask_for(count); }

/// One sequence's query over a stretch of keys.
class Stretch {
 public:
  /// `rotated` has room for a piece of keys where they are rotated on reading.
  Stretch(const Call& call, const Attention& a, std::size_t b, float* rotated)
      : a_(a),
        b_(b),
        rotated_(rotated),
        query_(call.inputs[0].data + b * a.layout.query_stride),
        keys_(call.inputs[1].sequence(b)),
        values_(call.inputs[2].sequence(b)) {}

  /// Keys [first, end), `piece` at a time; parts and outs [num_heads] get the heads' results. The
  /// thread goes on with the next stretch, to keys `end_of_all` at most.
  void attend(std::size_t first, std::size_t end, std::size_t end_of_all, std::size_t piece,
              Part* parts, float* outs) {
    const std::size_t key_stride = a_.layout.kv_stride;
    const std::size_t value_stride = a_.values.kv_stride;
    std::fill_n(outs, a_.layout.num_heads * a_.values.head_dim, 0.0F);
    // Each head reads its part of every row. The first piece is prefetched whole, later pieces
    // while the piece before is used.
    const std::size_t rows = std::min(piece, end - first);
    ask_for_all(keys_ + first * key_stride, rows * key_stride);
    if (!a_.op.values_are_keys) ask_for_all(values_ + first * value_stride, rows * value_stride);
    for (std::size_t j = first; j < end; j += piece) {
      const std::size_t next = std::min(end, j + piece);
      const std::size_t ahead = std::min(piece, end_of_all - next);
      Prefetch keys(keys_ + next * key_stride, ahead * key_stride);
      Prefetch values(values_ + next * value_stride,
                      a_.op.values_are_keys ? 0 : ahead * value_stride);
      attend_piece(j, next - j, keys, values, parts, outs);
    }
  }

 private:
  void attend_piece(std::size_t first, std::size_t n, Prefetch& next_keys, Prefetch& next_values,
                    Part* parts, float* outs) {
    const HeadLayout& l = a_.layout;
    const HeadLayout& v = a_.values;
    const float* k = keys_ + first * l.kv_stride;
    if (a_.op.key_rope) {
      rotate_keys(a_.op, k, first, n, rotated_);
      k = rotated_;
    }
    for (std::size_t head = 0; head < l.num_heads;) {
      const std::size_t group_end = (head / v.queries_per_key + 1) * v.queries_per_key;
      const std::size_t rows = std::min(block_rows, group_end - head);
      // Heads that share a key head read it once.
      for (std::size_t r = 0; r < rows;) {
        const std::size_t next_key_head = ((head + r) / l.queries_per_key + 1) * l.queries_per_key;
        const std::size_t together = std::min(rows - r, next_key_head - head - r);
        multiply_block_transposed({.m = together,
                                   .n = n,
                                   .k = l.head_dim,
                                   .a = query_ + l.query_offset(head + r),
                                   .lda = l.head_dim,
                                   .b = k + l.kv_offset(head + r),
                                   .ldb = l.kv_stride,
                                   .c = scores_ + r * max_piece,
                                   .ldc = max_piece});
        r += together;
      }
      for (std::size_t r = 0; r < rows; ++r) {
        float* row = scores_ + r * max_piece;
        scale_row(static_cast<float>(a_.op.scale), row, n);
        finish_scores(a_, b_, head + r, 0, first, n, row);
        // Whole vectors: nothing is after the last key.
        std::fill(row + n, row + padded(n), masked_score);
        absorb(parts[head + r], row, padded(n), outs + (head + r) * v.head_dim);
      }
      // Wide values take long: a little of the next piece is asked for with each of their parts.
      const float* rows_of_values = values_ + first * v.kv_stride + v.kv_offset(head);
      const std::size_t asks = v.head_dim < 2 * value_columns ? 1 : v.head_dim / value_columns;
      for (std::size_t i = 0; i < asks; ++i) {
        next_keys.ask_for(n * l.kv_stride * rows / l.num_heads / asks);
        next_values.ask_for(n * v.kv_stride * rows / l.num_heads / asks);
        const std::size_t column = i * value_columns;
        const std::size_t columns = i + 1 < asks ? value_columns : v.head_dim - column;
        add_values(scores_, rows, rows_of_values + column, v.kv_stride, v.head_dim, columns, n,
                   outs + head * v.head_dim + column);
      }
      head += rows;
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
  std::size_t b_;
  float* rotated_;
  const float* query_;
  const float* keys_;
  const float* values_;
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

void attend_one(const Call& call, const Attention& a) {
  const HeadLayout& l = a.layout;
  const std::size_t batch = call.inputs[0].shape[0];
  KeyRange visible = a.seen_by(0, 0);
  for (std::size_t b = 1; b < batch;
       ++b) {  // scores of keys that a sequence does not see are masked
    visible.first = std::min(visible.first, a.seen_by(b, 0).first);
  }
  const std::size_t seen = visible.end - visible.first;
  const std::size_t width = a.values.head_dim;
  const std::size_t stride = l.kv_stride + (a.op.values_are_keys ? 0 : a.values.kv_stride);
  const std::size_t piece = std::clamp(piece_elements / stride, vector_width, max_piece);
  const std::size_t wanted = std::clamp(seen * stride / (cache_per_outputs * l.num_heads * width),
                                        min_stretches, max_stretches);
  const auto parts_of = [](std::size_t all, std::size_t size) { return (all + size - 1) / size; };
  const std::size_t wished = parts_of(seen, parts_of(parts_of(seen, wanted), piece) * piece);
  // As long as one another, so that threads share them evenly.
  const std::size_t stretch = padded(parts_of(seen, wished));
  const std::size_t count = parts_of(seen, stretch);
  std::vector<Part> parts(batch * count * l.num_heads);
  const Floats outs = allocate_floats(parts.size() * width);
  // Made before the threads start: what they throw could not be caught.
  std::vector<Floats> rotated;
  if (a.op.key_rope) {
    rope_angles<float>(a.op.key_rope, a.keys);
    for (int i = 0; i < omp_get_max_threads(); ++i) {
      rotated.push_back(allocate_floats(piece * l.kv_stride));
    }
  }
#pragma omp parallel for schedule(static) if (batch * seen * stride > parallel_elements)
  for (std::size_t item = 0; item < batch * count; ++item) {
    const std::size_t first = visible.first + item % count * stretch;
    float* const room =
        rotated.empty() ? nullptr : rotated[static_cast<std::size_t>(omp_get_thread_num())].get();
    Stretch(call, a, item / count, room)
        .attend(first, std::min(first + stretch, visible.end), visible.end, piece,
                &parts[item * l.num_heads], outs.get() + item * l.num_heads * width);
  }
#pragma omp parallel for schedule(static) if (batch * l.num_heads * count * width > \
                                              parallel_elements)
  for (std::size_t row = 0; row < batch * l.num_heads; ++row) {
    const std::size_t at = row / l.num_heads * count * l.num_heads + row % l.num_heads;
    const float* const sink = a.sinks != nullptr ? a.sinks + row % l.num_heads : nullptr;
    join(&parts[at], outs.get() + at * width, count, l.num_heads, width, sink,
         call.output.data + row * width);
  }
}

}  // namespace kvcast::execute
