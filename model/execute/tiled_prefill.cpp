#include <algorithm>
#include <cmath>
#include <vector>

#include <omp.h>

#include "model/execute/arena.h"
#include "model/execute/attention_layout.h"
#include "model/execute/block_product.h"
#include "model/execute/positions.h"
#include "model/execute/row_loops.h"

namespace kvcast::execute {
namespace {

/// Queries of one piece of work; a multiple of block_rows.
constexpr std::size_t query_tile = 48;
/// Keys of one online-softmax step: the scores of block_rows queries stay in the first-level cache.
constexpr std::size_t key_tile = 1024;

/// The keys of one layer as products want them, [batch][kv head][keys/64][head_dim][64], and its
/// values, ordered where their head_dim is no multiple of the vector width.
class PackedCache {
 public:
  PackedCache(const Operand& k, const Operand& v, const HeadLayout& layout,
              const HeadLayout& value_layout)
      : batch_(k.shape[0]),
        keys_(k.shape[1]),
        kv_heads_(layout.num_kv_heads()),
        head_dim_(layout.head_dim),
        panels_((keys_ + key_panel - 1) / key_panel),
        layout_(layout),
        values_(v, value_layout, padded(value_layout.head_dim) != value_layout.head_dim) {
    // The block of the last layer: its pages are there.
    static thread_local Arena arena;
    packed_keys_ = arena.reserve(batch_ * kv_heads_ * panels_ * head_dim_ * key_panel);
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < batch_ * kv_heads_ * panels_; ++i) {
      const std::size_t head = i / panels_ % kv_heads_;
      const std::size_t b = i / panels_ / kv_heads_;
      const std::size_t first = i % panels_ * key_panel;
      const std::size_t n = std::min(key_panel, keys_ - first);
      const std::size_t offset = first * layout.kv_stride + head * head_dim_;
      transpose_block(k.sequence(b) + offset, layout.kv_stride, n, head_dim_,
                      packed_keys_ + i * head_dim_ * key_panel, key_panel);
    }
  }

  std::size_t keys() const { return keys_; }
  /// Panel of keys [64·index, ...) of the head's group.
  const float* keys_of(std::size_t b, std::size_t head, std::size_t index) const {
    const std::size_t group = b * kv_heads_ + head / layout_.queries_per_key;
    return packed_keys_ + (group * panels_ + index) * head_dim_ * key_panel;
  }
  const ValueRows& values() const { return values_; }

 private:
  std::size_t batch_;
  std::size_t keys_;
  std::size_t kv_heads_;
  std::size_t head_dim_;
  std::size_t panels_;
  const HeadLayout& layout_;
  ValueRows values_;
  float* packed_keys_ = nullptr;
};

/// block_rows queries of one head and their online softmax.
/// Source: Dao et al. 2022 (arXiv:2205.14135), algorithm 1.
class QueryBlock {
 public:
  QueryBlock(std::size_t head_dim, std::size_t value_dim)
      : head_dim_(head_dim),
        value_dim_(value_dim),
        width_(padded(value_dim)),
        queries_(block_rows * head_dim),
        scores_(block_rows * key_tile),
        out_(block_rows * width_) {}

  /// Queries first ... first + n - 1, which lie at `q`; their outputs go to `out`.
  void attend(const Attention& a, const PackedCache& cache, std::size_t b, std::size_t head,
              std::size_t first, std::size_t n, const float* q, float* out) {
    const std::size_t stride = a.layout.query_stride;
    for (std::size_t i = 0; i < n; ++i) {
      map_row(Function::Scale, static_cast<float>(a.op.scale), q + i * stride,
              &queries_[i * head_dim_], head_dim_);
      peak_[i] = masked_score;
      sum_[i] = 0;
    }
    std::fill(out_.begin(), out_.end(), 0.0F);
    // From the first query's first key, on a panel's border, to the last query's last.
    const std::size_t begin = a.seen_by(b, first).first / key_panel * key_panel;
    const std::size_t end = a.seen_by(b, first + n - 1).end;
    for (std::size_t j = begin; j < end; j += key_tile) {
      absorb(a, cache, b, head, first, n, j, std::min(key_tile, end - j));
    }
    for (std::size_t i = 0; i < n; ++i) {
      float share = 1 / sum_[i];
      if (a.sinks != nullptr) {
        const float peak = std::max(peak_[i], a.sinks[head]);
        const float correction = std::exp(peak_[i] - peak);
        share = correction / (sum_[i] * correction + std::exp(a.sinks[head] - peak));
      }
      map_row(Function::Scale, share, &out_[i * width_], out + i * a.values.query_stride,
              value_dim_);
    }
  }

 private:
  /// Keys [first_key, first_key + count).
  void absorb(const Attention& a, const PackedCache& cache, std::size_t b, std::size_t head,
              std::size_t first, std::size_t n, std::size_t first_key, std::size_t count) {
    for (std::size_t j = 0; j < count; j += key_panel) {
      multiply_block({.m = n,
                      .n = padded(std::min(key_panel, count - j)),
                      .k = head_dim_,
                      .a = queries_.data(),
                      .lda = head_dim_,
                      .b = cache.keys_of(b, head, (first_key + j) / key_panel),
                      .ldb = key_panel,
                      .c = &scores_[j],
                      .ldc = key_tile});
    }
    // Whole vectors: keys after the last one are masked as invisible ones are.
    const std::size_t width = padded(count);
    for (std::size_t i = 0; i < n; ++i) {
      float* row = &scores_[i * key_tile];
      finish_scores(a, b, head, first + i, first_key, width, row);
      const float peak = std::max(peak_[i], largest_of_row(row, width));
      if (peak == masked_score) {  // nothing visible yet
        std::fill_n(row, count, 0.0F);
        continue;
      }
      const float correction = std::exp(peak_[i] - peak);
      sum_[i] = sum_[i] * correction + exp_row(peak, row, width);
      if (correction != 1) scale_row(correction, &out_[i * width_], width_);
      peak_[i] = peak;
    }
    multiply_block({.m = n,
                    .n = width_,
                    .k = count,
                    .a = scores_.data(),
                    .lda = key_tile,
                    .b = cache.values().of(b, head) + first_key * cache.values().stride(),
                    .ldb = cache.values().stride(),
                    .c = out_.data(),
                    .ldc = width_},
                   true);
  }

  std::size_t head_dim_;
  std::size_t value_dim_;
  std::size_t width_;
  std::vector<float> queries_;
  std::vector<float> scores_;
  std::vector<float> out_;
  float peak_[block_rows] = {};
  float sum_[block_rows] = {};
};

}  // namespace

void attend_many(const Call& call, const Attention& a) {
  const Operand& q = call.inputs[0];
  const std::size_t batch = q.shape[0];
  const std::size_t queries = q.shape[1];
  const std::size_t tiles = (queries + query_tile - 1) / query_tile;
  const HeadLayout& l = a.layout;
  const PackedCache cache(call.inputs[1], call.inputs[2], l, a.values);
  // One for each thread, made before they start: what they throw could not be caught.
  std::vector<QueryBlock> blocks(static_cast<std::size_t>(omp_get_max_threads()),
                                 QueryBlock(l.head_dim, a.values.head_dim));
#pragma omp parallel
  {
    QueryBlock& block = blocks[static_cast<std::size_t>(omp_get_thread_num())];
    // The last tiles of a causal pass are the longest: they start first, the short ones fill up.
#pragma omp for schedule(dynamic, 1)
    for (std::size_t item = 0; item < batch * tiles * l.num_heads; ++item) {
      const std::size_t head = item % l.num_heads;
      const std::size_t b = item / l.num_heads % batch;
      const std::size_t first = (tiles - 1 - item / l.num_heads / batch) * query_tile;
      const std::size_t end = std::min(queries, first + query_tile);
      for (std::size_t i = first; i < end; i += block_rows) {
        const std::size_t row = b * queries + i;
        block.attend(a, cache, b, head, i, std::min(block_rows, end - i),
                     q.data + row * l.query_stride + l.query_offset(head),
                     call.output.data + row * a.values.query_stride + a.values.query_offset(head));
      }
    }
  }
}

}  // namespace kvcast::execute
