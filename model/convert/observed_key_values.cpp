#include "model/convert/observed_key_values.h"

namespace kvcast {

ObservedRun observe_key_values(const execute::Session& session,
                               std::span<const execute::TokenId> tokens, const std::string& phase,
                               const ForKeysAndValues<std::string>& labels) {
  ObservedRun run;
  for (auto& layers : run.rows) layers.resize(session.architecture().num_hidden_layers());
  execute::Request request;
  request.tokens = {{tokens.begin(), tokens.end()}};
  request.on_node = [&](const Graph& graph, const execute::NodeRun& node_run,
                        std::span<const std::uint64_t>) {
    const Node& node = graph.nodes()[node_run.node];
    if (node.phase != phase || node.layer < 0) return;
    for (std::size_t part = 0; part < labels.size(); ++part) {
      if (node.label != labels[part]) continue;
      auto& rows = run.rows[part].at(static_cast<std::size_t>(node.layer));
      if (rows.size() > 0) continue;  // of a latent layer the rotation has the projection's label
      const execute::Operand& out = node_run.call->output;
      rows = Eigen::Map<const ActivationRows>(out.data, index(out.rows()), index(out.shape.back()));
    }
  };
  run.generation = session.run(request);
  return run;
}

}  // namespace kvcast
