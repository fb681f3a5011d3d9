/// The kernel launches of a pass: each is one operator, or several that an engine fuses.
#pragma once

#include <cstddef>
#include <vector>

#include "model/forward/recorder.h"
#include "model/graph/graph.h"
#include "model/graph/work.h"

namespace kvcast::roofline {

/// A step of one token for each sequence.
bool is_decode_step(const Graph& graph);

/// The nodes of each launch, messages left out, in the order of first nodes. A node joins the last
/// launch of its layer or of the one before in whose list its label stands behind those of the
/// nodes that are in it already; labels of the list that no node has are passed over.
std::vector<std::vector<std::size_t>> launches_of(const Graph& graph, const Lowering& lowering);

/// The work of a launch: what its nodes hand to each other does not go through memory, and what
/// several of them read is read once.
Work launch_work(const Graph& graph, const std::vector<std::size_t>& nodes,
                 const std::vector<std::size_t>& uses);
/// How many nodes read each tensor, or outlive the pass with it.
std::vector<std::size_t> uses_of(const Graph& graph);

}  // namespace kvcast::roofline
