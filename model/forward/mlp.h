/// A layer's MLP: dense, or a mixture of experts.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "model/forward/recorder.h"

namespace kvcast {

/// What a pass expects its experts to read; a run finds it.
struct ExpertCounts {
  Symbol distinct;         ///< experts, see count_experts()
  std::size_t layers = 0;  ///< with experts
  /// Where devices have experts of their own, of all these layers: the pairs of a token and an
  /// expert here, and the tokens that go to other devices and come from them. Forecasts have those
  /// that come to the device with most pairs.
  std::optional<Symbol> pairs = {};
  std::optional<Symbol> sent = {};
  std::optional<Symbol> received = {};
};

/// One layer's MLP in one pass.
struct MlpSite {
  Recorder& r;
  const Architecture& architecture;
  const Stack& stack;
  const LayerShape& layer;
  const std::string& name;             ///< "layers.3"
  std::optional<ExpertCounts> counts;  ///< set where a layer has experts
};

/// Normed inputs [batch, tokens, hidden_size] -> the MLP's output of that shape.
Value mlp(const MlpSite& site, Value x);

/// The counts of a pass; none where none of its layers has experts. `rows` of a layer: the tokens
/// of all sequences that its experts see; zero: the layer is not in the pass. The symbol of the
/// distinct experts that the pass reads, summed over the layers, has this name.
std::optional<ExpertCounts> count_experts(Symbols& symbols, const Stack& stack,
                                          const std::string& name,
                                          const std::function<Count(std::size_t layer)>& rows,
                                          const Sharding* sharding = nullptr);

}  // namespace kvcast
