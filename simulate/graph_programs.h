/// Programs of recorded passes: what ranks do, operator by operator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/forward/recorder.h"
#include "model/graph/graph.h"
#include "model/record/rank_recording.h"
#include "roofline/rates.h"
#include "simulate/programs.h"

namespace kvcast::simulate {

/// The pass of one rank.
struct RankPass {
  const Graph* graph = nullptr;
  std::vector<std::uint64_t> values;  ///< of all its symbols (Symbols::resolve)
};

/// Rank i plays the graph of ranks[i], any graph that the recorder makes (record_rank): each
/// operator keeps the device busy for its time (roofline::time_of), each Send is a message of its
/// tensor's bytes, and each Receive waits for one, in the order of the nodes. With `block` a
/// rank also waits for each of its sends.
///
/// A host that issues operators one by one (Rates::host_operator_latency) has nothing issued ahead
/// after a message: where it needs longer than the device for what stands between two messages,
/// the rest is a computation of its own, labelled "host".
///
/// Throws Error when a message is to or from a rank that there is not.
Programs graph_programs(std::span<const RankPass> ranks, const Lowering& lowering,
                        const roofline::Rates& rates, bool block = false);

/// The same of the prefill of one sequence that record_rank records for each part of the prompt,
/// with a placement among the methods. Throws Error as record_rank does.
Programs recorded_programs(const Architecture& architecture, const std::vector<MethodSpec>& methods,
                           const std::vector<std::uint64_t>& partition, const Lowering& lowering,
                           const roofline::Rates& rates, bool block = false);

}  // namespace kvcast::simulate
