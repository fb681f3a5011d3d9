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

/// The keys of one layer as products want them, [sequence][kv head][keys/64][head_dim][64], from
/// the first that a query sees on; and its values, ordered where their head_dim is no multiple of
/// the vector width or their rows lie apart.
class PackedCache {
 public:
  PackedCache(const Call& call, const Attention& a, std::span<const SequencePart> parts)
      : parts_(parts),
        kv_heads_(a.layout.num_kv_heads()),
        panel_size_(a.layout.head_dim * key_panel),
        layout_(a.layout),
        values_(call.inputs[2], a.values, parts,
                call.inputs[2].places != nullptr || call.inputs[2].form != nullptr ||
                    padded(a.values.head_dim) != a.values.head_dim) {
    for (const SequencePart& part : parts) {
      panels_before_.push_back(panels_.size());
      for (std::size_t j = part.first_read; j < part.keys; j += key_panel) {
        panels_.push_back({&part, j});
      }
    }
    // The block of the last layer: its pages are there.
    static thread_local Arena arena;
    // Behind the panels a place for each thread, where keys that lie apart come together.
    const auto threads = static_cast<std::size_t>(omp_get_max_threads());
    packed_keys_ = arena.reserve((panels_.size() * kv_heads_ + threads) * panel_size_);
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < panels_.size() * kv_heads_; ++i) {
      const std::size_t place =
          panels_.size() * kv_heads_ + static_cast<std::size_t>(omp_get_thread_num());
      pack(call.inputs[1], panels_[i / kv_heads_], i % kv_heads_ * layout_.head_dim,
           packed_keys_ + place * panel_size_, packed_keys_ + i * panel_size_);
    }
  }

  /// The panel of part `part` that begins with a key, for the head's group.
  const float* keys_of(std::size_t part, std::size_t head, std::size_t key) const {
    const std::size_t panel = panels_before_[part] + (key - parts_[part].first_read) / key_panel;
    return packed_keys_ + (panel * kv_heads_ + head / layout_.queries_per_key) * panel_size_;
  }
  const ValueRows& values() const { return values_; }
  const SequencePart& part(std::size_t part) const { return parts_[part]; }

 private:
  struct Panel {
    const SequencePart* part;
    std::size_t first;  ///< key
  };

  void pack(const Operand& k, const Panel& panel, std::size_t offset, float* together,
            float* out) const {
    const KeyRows keys(k, *panel.part);
    const std::size_t end = std::min(panel.first + key_panel, panel.part->keys);
    const float* from = keys[panel.first] + offset;
    std::size_t stride = keys.stride();
    if (keys.is_narrow() || keys.run_end(panel.first, end) < end) {
      for (std::size_t j = panel.first; j < end; ++j) {
        keys.copy(j, offset, layout_.head_dim, together + (j - panel.first) * layout_.head_dim);
      }
      from = together;
      stride = layout_.head_dim;
    }
    transpose_block(from, stride, end - panel.first, layout_.head_dim, out, key_panel);
  }

  std::span<const SequencePart> parts_;
  std::size_t kv_heads_;
  std::size_t panel_size_;
  const HeadLayout& layout_;
  ValueRows values_;
  std::vector<Panel> panels_;
  std::vector<std::size_t> panels_before_;  ///< by part
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

  /// Queries first ... first + n - 1 of a part, which lie at `q`; their outputs go to `out`.
  void attend(const Attention& a, const PackedCache& cache, std::size_t part, std::size_t head,
              std::size_t first, std::size_t n, const float* q, float* out) {
    const SequencePart& sequence = cache.part(part);
    const std::size_t stride = a.layout.query_stride;
    for (std::size_t i = 0; i < n; ++i) {
      map_row(Function::Scale, static_cast<float>(a.op.scale), q + i * stride,
              &queries_[i * head_dim_], head_dim_);
      peak_[i] = masked_score;
      sum_[i] = 0;
    }
    std::fill(out_.begin(), out_.end(), 0.0F);
    // From the first query's first key, on a panel's border, to the last query's last.
    const std::size_t begin = a.seen_by(sequence, first).first / key_panel * key_panel;
    const std::size_t end = a.seen_by(sequence, first + n - 1).end;
    for (std::size_t j = begin; j < end; j += key_tile) {
      absorb(a, cache, part, head, first, n, j, std::min(key_tile, end - j));
    }
    for (std::size_t i = 0; i < n; ++i) {
      float share = 1 / sum_[i];
      float log_sum = peak_[i] + std::log(sum_[i]);
      if (a.sinks != nullptr) {
        const float peak = std::max(peak_[i], a.sinks[head]);
        const float correction = std::exp(peak_[i] - peak);
        const float sum = sum_[i] * correction + std::exp(a.sinks[head] - peak);
        share = correction / sum;
        log_sum = peak + std::log(sum);
      }
      map_row(Function::Scale, share, &out_[i * width_], out + i * a.values.query_stride,
              value_dim_);
      if (a.log_sums != nullptr) {
        const std::size_t row = sequence.first_query + first + i;
        a.log_sums[row * a.layout.num_heads + head] = log_sum;
      }
    }
  }

 private:
  /// Keys [first_key, first_key + count).
  void absorb(const Attention& a, const PackedCache& cache, std::size_t part, std::size_t head,
              std::size_t first, std::size_t n, std::size_t first_key, std::size_t count) {
    for (std::size_t j = 0; j < count; j += key_panel) {
      multiply_block({.m = n,
                      .n = padded(std::min(key_panel, count - j)),
                      .k = head_dim_,
                      .a = queries_.data(),
                      .lda = head_dim_,
                      .b = cache.keys_of(part, head, first_key + j),
                      .ldb = key_panel,
                      .c = &scores_[j],
                      .ldc = key_tile});
    }
    // Whole vectors: keys after the last one are masked as invisible ones are.
    const std::size_t width = padded(count);
    for (std::size_t i = 0; i < n; ++i) {
      float* row = &scores_[i * key_tile];
      finish_scores(a, cache.part(part), head, first + i, first_key, width, row);
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
                    .b = cache.values().of(part, head, first_key),
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

void attend_many(const Call& call, const Attention& a, std::span<const SequencePart> parts) {
  const HeadLayout& l = a.layout;
  const PackedCache cache(call, a, parts);
  struct Tile {
    std::size_t part;
    std::size_t first;  ///< query
  };
  std::vector<Tile> tiles;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (std::size_t i = 0; i < parts[p].queries; i += query_tile) tiles.push_back({p, i});
  }
  // The last tiles of a causal pass are the longest: they start first, the short ones fill up.
  std::stable_sort(tiles.begin(), tiles.end(), [&](const Tile& x, const Tile& y) {
    return parts[x.part].past + x.first > parts[y.part].past + y.first;
  });
  // One for each thread, made before they start: what they throw could not be caught.
  std::vector<QueryBlock> blocks(static_cast<std::size_t>(omp_get_max_threads()),
                                 QueryBlock(l.head_dim, a.values.head_dim));
#pragma omp parallel
  {
    QueryBlock& block = blocks[static_cast<std::size_t>(omp_get_thread_num())];
#pragma omp for schedule(dynamic, 1)
    for (std::size_t item = 0; item < tiles.size() * l.num_heads; ++item) {
      const std::size_t head = item % l.num_heads;
      const auto [p, first] = tiles[item / l.num_heads];
      const std::size_t end = std::min(parts[p].queries, first + query_tile);
      for (std::size_t i = first; i < end; i += block_rows) {
        const std::size_t row = parts[p].first_query + i;
        block.attend(a, cache, p, head, i, std::min(block_rows, end - i),
                     call.inputs[0].data + row * l.query_stride + l.query_offset(head),
                     call.output.data + row * a.values.query_stride + a.values.query_offset(head));
      }
    }
  }
}

}  // namespace kvcast::execute
