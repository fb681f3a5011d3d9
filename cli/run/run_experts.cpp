#include "cli/run/run_experts.h"

#include <variant>
#include <vector>

#include "model/base/error.h"

namespace kvcast::cli {

void check_routes(const execute::Session& session, bool ranks) {
  const Architecture& a = session.architecture();
  if (layers_with_experts(a.decoder) == 0) {
    throw Error("--expert-tokens", "the model " + a.name + " without experts",
                "a mixture of experts");
  }
  if (ranks) throw Error("--expert-tokens", "several ranks", "one process");
}

void add_routed_tokens(RoutedTokens& routed, const execute::Session& session, const Graph& graph,
                       const execute::NodeRun& run) {
  const Recording& recording = session.recording();
  if (&graph != &recording.prefill() && &graph != &recording.decode()) return;
  const Node& node = graph.nodes()[run.node];
  const auto* route = std::get_if<Route>(&node.op);
  if (route == nullptr) return;
  std::vector<std::uint64_t>& tokens = routed[static_cast<std::uint64_t>(node.layer)];
  tokens.resize(route->routing.num_experts);
  const execute::Operand& chosen = run.call->output;
  execute::with_numbers(session.options().dtype, chosen.data, [&](const auto* experts) {
    for (std::size_t i = 0; i < chosen.shape.elements(); ++i) {
      ++tokens[static_cast<std::size_t>(experts[i])];
    }
  });
}

}  // namespace kvcast::cli
