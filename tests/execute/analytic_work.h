/// What formulas say of an operator's work, to compare with what plain loops counted.
#pragma once

#include <cstdint>
#include <span>

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

}  // namespace kvcast::execute
