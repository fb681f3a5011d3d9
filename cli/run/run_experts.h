/// The experts that a run reads.
#pragma once

#include "model/execute/generate.h"
#include "model/io/weights/routed_tokens.h"

namespace kvcast::cli {

/// Throws Error where --expert-tokens counts nothing: a model without experts, several ranks.
void check_routes(const execute::Session& session, bool ranks);

/// Adds what a node has routed, if it routes in a pass of the session's own model.
void add_routed_tokens(RoutedTokens& routed, const execute::Session& session, const Graph& graph,
                       const execute::NodeRun& run);

}  // namespace kvcast::cli
