/// A layer's MLP: dense, or a mixture of experts.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "model/forward/recorder.h"

namespace kvcast {

/// One layer's MLP in one pass.
struct MlpSite {
  Recorder& r;
  const Architecture& architecture;
  const Stack& stack;
  const LayerShape& layer;
  const std::string& name;                 ///< "layers.3"
  std::optional<Symbol> distinct_experts;  ///< see count_experts(); set where a layer has experts
};

/// Normed inputs [batch, tokens, hidden_size] -> the MLP's output of that shape.
Value mlp(const MlpSite& site, Value x);

/// The distinct experts that a pass reads, summed over the layers of the stack, as a symbol of this
/// name; none where none has experts. `rows` of a layer: the tokens of all sequences that its
/// experts see.
std::optional<Symbol> count_experts(Symbols& symbols, const Stack& stack, const std::string& name,
                                    const std::function<Count(std::size_t layer)>& rows);

}  // namespace kvcast
