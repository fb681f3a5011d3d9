/// What the attention kernels share: where heads lie, and what happens to a row of scores.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/execute/operand.h"
#include "model/execute/positions.h"
#include "model/execute/step_rows.h"

namespace kvcast::execute {

/// Keys side by side in a panel that products read.
inline constexpr std::size_t key_panel = 64;

/// Where the heads of one layer lie in a row of queries, keys or values.
struct HeadLayout {
  std::size_t num_heads;
  std::size_t queries_per_key;
  std::size_t head_dim;
  std::size_t query_stride;  ///< elements between tokens
  std::size_t kv_stride;

  explicit HeadLayout(const Heads& h)
      : num_heads(h.num_attention_heads),
        queries_per_key(h.num_attention_heads / h.num_key_value_heads),
        head_dim(h.head_dim),
        query_stride(h.num_attention_heads * h.head_dim),
        kv_stride(h.num_key_value_heads * h.head_dim) {}
  std::size_t num_kv_heads() const { return num_heads / queries_per_key; }
  std::size_t query_offset(std::size_t head) const { return head * head_dim; }
  std::size_t kv_offset(std::size_t head) const { return head / queries_per_key * head_dim; }
};

/// The values of one layer for products. They are read where they lie,
/// [keys][kv heads][head_dim] of each sequence, or copied if `ordered`, as they must be where they
/// are paged: [kv head][keys][padded head_dim] with zeros after each row. The copy lies in a block
/// of the calling thread and is valid until the thread orders other values.
class ValueRows {
 public:
  /// All must outlive it.
  ValueRows(const Operand& v, const HeadLayout& layout, std::span<const SequencePart> parts,
            bool ordered);
  /// A key's row of a query head, of part `part` of the parts.
  const float* of(std::size_t part, std::size_t head, std::size_t key) const;
  /// Numbers from one key's row to the next.
  std::size_t stride() const;

 private:
  const Operand& values_;
  const HeadLayout& layout_;
  std::span<const SequencePart> parts_;
  float* ordered_ = nullptr;
  std::vector<std::size_t> rows_before_;  ///< of a part in the copy, for each of its heads
};

/// What all pieces of one attention share.
struct Attention {
  const TiledAttention& op;
  const HeadLayout& layout;
  const HeadLayout& values;  ///< heads of the values and of the output
  const Operand* bias;
  const float* sinks;    ///< null: none
  const Operand* first;  ///< FirstSeen's result; null: the mask says all
  float* log_sums;       ///< of Σ exp(score) [queries, heads]; null: not asked for

  /// The keys that a query of a sequence sees.
  KeyRange seen_by(const SequencePart& part, std::size_t query) const;
};

/// Soft cap, bias and mask for one row of scores of a sequence over keys [first, first + n).
void finish_scores(const Attention& a, const SequencePart& part, std::size_t head,
                   std::size_t query, std::size_t first, std::size_t n, float* row);

/// Keys [first, first + n) of one sequence, the first n of `keys`, rotated by their positions.
void rotate_keys(const TiledAttention& op, const KeyRows& keys, std::size_t first, std::size_t n,
                 float* out);

/// Several queries a sequence: tiles of queries and keys (tiled_prefill.cpp).
void attend_many(const Call& call, const Attention& a, std::span<const SequencePart> parts);
/// One query a sequence: every key and value is read once (tiled_decode.cpp).
void attend_one(const Call& call, const Attention& a, std::span<const SequencePart> parts);

}  // namespace kvcast::execute
