/// One pass of a request: the base model's prefill or decode step, or a helper pass that a method
/// runs before them (of a speculator, an auxiliary model or a part of the base model).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/base/count.h"
#include "model/config/architecture.h"
#include "model/forward/recorder.h"
#include "model/graph/graph.h"

namespace kvcast {

/// Where a helper model's weights are.
enum class HelperWeights {
  Checkpoint,  ///< the checkpoint of its name
  BaseLayers,  ///< the base's own, of the layers that its architecture kept
  /// Tensors in a folder of its name, without a model (KV Prediction's linear maps). Without a name
  /// there are none, and a run needs random weights.
  Tensors,
};

/// A model of its own weights beside the base.
struct HelperModel {
  std::string prefix;  ///< of its weights' names in graphs, such as "speculator."
  std::string name;    ///< as the user wrote it: where the weights come from
  Architecture architecture;
  HelperWeights weights = HelperWeights::Checkpoint;
};

/// The token ids that a helper pass reads, its input "PREFIXtokens" [batch, tokens].
enum class HelperTokens {
  None,
  Prompt,  ///< the first tokens of the prompt
  Kept,    ///< the first tokens that the selection keeps, at their own positions
  Next,    ///< the most likely token after the last pass with HelperResult::Logits
};

/// What a helper pass returns besides cache tensors.
enum class HelperResult {
  Nothing,
  Logits,      ///< [batch, 1, vocab_size]
  Importance,  ///< of the prompt's tokens, [batch, prompt_len, 1]
  /// Of the tokens that it reads, [batch, tokens, vocab_size]; with logits for every position they
  /// come before the base's own.
  PromptLogits,
};

/// A part of the time to the first token.
enum class TtftPart { Speculator, LookAhead, Score, Probe, Auxiliary, Predictor, Base };
inline constexpr std::size_t num_ttft_parts = 7;
/// The phase of those nodes of an auxiliary's pass that are the predictor's part.
inline constexpr std::string_view predictor_phase = "predictor";
/// "look_ahead"
std::string_view name(TtftPart part);

inline constexpr std::string_view prefill_name = "prefill";
inline constexpr std::string_view decode_name = "decode";

struct RecordedPass {
  std::string name = {};  ///< "speculator prefill", "prefill"; in breakdowns and profiles
  TtftPart part = TtftPart::Auxiliary;
  NamePrefixes prefixes = {};
  HelperTokens reads = HelperTokens::None;
  HelperResult result = HelperResult::Nothing;
  /// Prompt tokens that it works on; the pass does not run when there are none.
  Count tokens = {};
  /// Number of runs; kv_len starts at `first_kv_len` and grows by 1.
  std::uint64_t steps = 1;
  Count first_kv_len = 1;
  Graph graph = {};
  /// Cache tensors that no later pass makes larger, at the last step, without the base's.
  Count cache_bytes = {};
};

}  // namespace kvcast
