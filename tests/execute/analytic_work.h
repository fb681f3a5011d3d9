/// What formulas say of an operator's work, to compare with what plain loops counted.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include <doctest/doctest.h>

#include "model/execute/plain_loops.h"
#include "model/graph/work.h"

namespace kvcast::execute {

inline CountedWork analytic_work(const Work& w, std::span<const std::uint64_t> symbols) {
  CountedWork analytic{.flops = w.flops.at(symbols)};
  for (std::size_t i = 0; i < num_storages; ++i) {
    analytic.read[i] = w.read[i].at(symbols);
    analytic.written[i] = w.written[i].at(symbols);
  }
  return analytic;
}

/// Checks what an operator counted against its formulas. Of experts that are not spread
/// they know the mean over layers (`mean_experts`): there the sums over layers must agree.
/// There are millions of these, and an assertion that holds costs more than what it looks at.
inline void check_counted(const Node& node, const CountedWork& counted, const Work& w,
                          std::span<const std::uint64_t> symbols, bool mean_experts = true) {
  CountedWork analytic = analytic_work(w, symbols);
  if (mean_experts && std::holds_alternative<ExpertLinear>(node.op)) {
    constexpr auto weights = static_cast<std::size_t>(Storage::Weights);
    analytic.read[weights] = counted.read[weights];
  }
  if (counted == analytic) return;
  CAPTURE(node.label);
  CHECK(counted.flops == analytic.flops);
  CHECK(counted.read == analytic.read);
  CHECK(counted.written == analytic.written);
}

}  // namespace kvcast::execute
