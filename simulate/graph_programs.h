/// Programs of recorded passes: what ranks do, operator by operator.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/graph/graph.h"
#include "model/record/rank_recording.h"
#include "roofline/rates.h"
#include "simulate/layer_times.h"
#include "simulate/programs.h"

namespace kvcast::simulate {

/// The pass of one rank.
struct RankPass {
  Graph graph;
  std::vector<std::uint64_t> values;  ///< of all its symbols (Symbols::resolve)
};

/// Rank i plays the graph of pass_of(i), any graph that the recorder makes: each operator keeps the
/// device busy for its time (roofline::time_of), each Send is a message of its tensor's bytes, and
/// each Receive waits for one, in the order of the nodes.
///
/// A host that issues operators one by one (Rates::host_operator_latency) issues nothing ahead of a
/// message. Where it needs longer than the device for what stands between two messages, the rest is
/// a computation of its own, labelled "host". `cost` is what LayerTimes takes too: the host's time
/// for each message and for the exchange of each layer, half of it before the layer's first message
/// and half after its last, and the lockstep of all operators in layers.
///
/// Throws Error when a message is to or from a rank that there is not.
Programs graph_programs(std::size_t ranks, const std::function<RankPass(std::size_t)>& pass_of,
                        const Lowering& lowering, const roofline::Rates& rates,
                        const ExchangeCost& cost = {});

/// The same of the prefill of one sequence that record_rank records for each part of the prompt.
/// `methods`: without a placement. Throws Error as record_rank does.
Programs recorded_programs(const Architecture& architecture, std::vector<MethodSpec> methods,
                           Schedule schedule, const std::vector<std::uint64_t>& partition,
                           const Lowering& lowering, const roofline::Rates& rates,
                           ExchangeCost cost = {});

}  // namespace kvcast::simulate
