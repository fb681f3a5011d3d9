/// State-space mixers: Mamba-1, Mamba-2, Gated DeltaNet; and short convolutions.
#pragma once

#include <string>
#include <string_view>

#include "model/forward/recorder.h"

namespace kvcast {

/// One layer's mixer in one pass.
struct StateSpaceSite {
  Recorder& r;
  const StateSpace& shape;
  const std::string& name;  ///< "layers.3"
  const Count& past;        ///< tokens before the pass
  double norm_eps;
  bool norms_together;  ///< all heads of the model, where a device may have a part of them
};

/// Normed inputs [batch, tokens, hidden_size] -> the mixer's output of that shape. Reads and leaves
/// the states "NAME.state.heads" [batch, 1, H·N·P] in fp32 and, of the last tokens,
/// "NAME.state.values", "NAME.state.keys", "NAME.state.queries" [batch, kernel - 1, features];
/// before the first token they are empty. Without a scan there are the values' alone, and so with
/// keys and queries that are projections of the values.
/// Sources: transformers, models/granitemoehybrid, models/qwen3_next, models/jamba, models/lfm2.
Value state_space(const StateSpaceSite& site, Value x);

/// Whether a cache of this name is such a state, which does not grow with the tokens.
bool is_state(std::string_view cache_name);
/// Rows of a sequence that a state, as it stands before a pass, keeps between passes.
std::uint64_t kept_state_rows(const TensorInfo& state);

}  // namespace kvcast
