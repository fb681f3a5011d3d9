#include "model/execute/step_rows.h"

namespace kvcast::execute {

std::vector<std::size_t> StepRows::positions(std::size_t rows) const {
  const bool of_tokens = rows == tokens;
  KVCAST_ASSERT(of_tokens || rows == tokens + cached);
  std::vector<std::size_t> places;
  places.reserve(rows);
  for (const SequenceRows& s : sequences) {
    for (std::size_t i = of_tokens ? s.cached : 0; i < s.rows(); ++i) places.push_back(i);
  }
  return places;
}

std::vector<std::size_t> StepRows::new_rows(std::optional<std::size_t> kept) const {
  std::vector<std::size_t> rows;
  rows.reserve(tokens);
  std::size_t next = 0;
  for (const SequenceRows& s : sequences) {
    next += kept.value_or(s.cached);
    for (std::size_t i = 0; i < s.tokens; ++i) rows.push_back(next++);
  }
  return rows;
}

std::vector<SequencePart> parts_of(const Call& call, const Mask& mask) {
  std::vector<SequencePart> parts;
  const Shape& q = call.inputs[0].shape;
  const Shape& k = call.inputs[1].shape;
  if (call.step == nullptr) {
    const std::size_t past = mask.causal ? call.value(mask.past) : 0;
    for (std::size_t b = 0; b < q[0]; ++b) {
      parts.push_back({b, b * q[1], q[1], b * k[1], k[1], past});
    }
    return parts;
  }
  KVCAST_ASSERT(q[1] == call.step->tokens && k[1] == call.step->tokens + call.step->cached);
  for (const SequenceRows& s : call.step->sequences) {
    parts.push_back({parts.size(), s.first_token, s.tokens, s.first_row(), s.rows(), s.cached});
  }
  return parts;
}

}  // namespace kvcast::execute
