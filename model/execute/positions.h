/// Where queries and keys stand, and what follows from it: rotation angles, visible keys, position
/// biases. No arithmetic of these is counted as work.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "model/execute/operand.h"

namespace kvcast::execute {

/// A key range [first, end).
struct KeyRange {
  std::size_t first = 0;
  std::size_t end = 0;
};

/// The keys that a query at `position` sees among `keys` of them.
KeyRange visible_range(const Mask& mask, std::size_t position, std::size_t keys);

/// Whether a query's window and chunk (Mask::window, Mask::chunk) reach a token not after it.
bool reaches(std::uint64_t window, std::uint64_t chunk, std::size_t query, std::size_t token);

/// What the additive mask holds for an invisible pair: fp32's lowest number, as in transformers.
extern const float masked_score;

/// The position that a rotary table turns by: divided by its scale.
double rope_position(const RopeTable& table, std::size_t position);

/// cos and sin for the positions from 0 on, [positions][frequencies], with the table's gain;
/// `inverse` rotates back. N is float or double, and so is the angle: in fp32 it is what
/// transformers takes.
template <typename N>
class RopeAngleTable {
 public:
  RopeAngleTable(const RopeTable& table, std::size_t positions, bool inverse);
  std::size_t positions() const { return positions_; }
  const N* cosines(std::size_t position) const { return &cosines_[position * frequencies_]; }
  const N* sines(std::size_t position) const { return &sines_[position * frequencies_]; }

 private:
  std::size_t positions_;
  std::size_t frequencies_;
  std::vector<N> cosines_;
  std::vector<N> sines_;
};

/// Angles for at least `positions` positions, computed once for a table and kept as long as it.
/// Thread-safe.
template <typename N>
const RopeAngleTable<N>& rope_angles(const std::shared_ptr<const RopeTable>& table,
                                     std::size_t positions, bool inverse = false);

/// The table of a pass whose last token stands before position `end`: beyond max_positions with
/// other frequencies. Thread-safe.
std::shared_ptr<const RopeTable> table_of_pass(const std::shared_ptr<const RopeTable>& table,
                                               std::size_t end);

/// T5's bucket of key position - query position.
/// Source: transformers, models/t5/modeling_t5.py, _relative_position_bucket, in fp32.
std::size_t relative_bucket(const RelativePositionBias& op, std::size_t query, std::size_t key);

/// Falcon's slope of one head, rounded to bf16. Source: transformers,
/// models/falcon/modeling_falcon.py, build_alibi_tensor.
float alibi_slope(std::size_t head, std::size_t num_heads);
/// The unscaled bias of key j: slope and key index in bf16, and so their product.
float alibi_bias(float slope, std::size_t key);

/// Adds to the call's Skipped what a SparseValues did not do: `kept` by probability, `wanted` by
/// row.
void note_skipped(const Call& call, const SparseValues& op, const std::vector<bool>& kept,
                  const std::vector<bool>& wanted);

/// Ascending indices of the last token and of the others with the largest sums, `kept` in all, at
/// least 1; the first among equals, and NaNs after all numbers.
template <typename N>
std::vector<std::size_t> kept_tokens(std::span<const N> sums, std::size_t kept);

/// The K experts of the best scores, the best first; of equal ones the earlier. With groups only
/// those of the best groups are in the choice.
template <typename N>
std::vector<std::size_t> chosen_experts(std::span<const N> scores, const Routing& routing);

/// Ascending indices of the `kept` best scores, or of all; of equal ones the earlier.
template <typename N>
std::vector<std::size_t> kept_keys(std::span<const N> scores, std::size_t kept);

/// What ScaleByPosition multiplies by.
double position_factor(const ScaleByPosition& op, std::size_t position);

/// Element of a bias [H or 1, queries or 1, keys] for a pair.
std::size_t bias_index(const Shape& bias, std::size_t head, std::size_t query, std::size_t key);

}  // namespace kvcast::execute
