/// Passes that a method runs before the base model's prefill: of a speculator, an auxiliary model,
/// a part of the base model.
#pragma once

#include <cstdint>
#include <string>

#include "model/architecture.h"
#include "model/count.h"
#include "model/graph.h"
#include "model/recorder.h"

namespace kvcast {

/// Where a helper model's weights are.
enum class HelperWeights {
  Checkpoint,  ///< of its name
  BaseLayers,  ///< the base's own, of the layers that its architecture kept
  /// Tensors in a folder of its name, without a model (KV Prediction's linear maps). No name: none
  /// are there, and only random weights can stand for them.
  Tensors,
};

/// A model of its own weights beside the base.
struct HelperModel {
  std::string prefix;  ///< of its weights' names in the graphs: "speculator."
  std::string name;    ///< as the user wrote it: where the weights come from
  Architecture architecture;
  HelperWeights weights = HelperWeights::Checkpoint;
};

/// Which token ids a helper pass reads, its input "PREFIXtokens" [batch, tokens].
enum class HelperTokens {
  None,
  Prompt,  ///< the prompt's first ones
  Next,    ///< one, the most likely after the last pass with HelperResult::Logits
};

/// What leaves a helper pass besides cache tensors.
enum class HelperResult {
  Nothing,
  Logits,      ///< [batch, 1, vocab_size]
  Importance,  ///< of the prompt's tokens, [batch, prompt_len, 1]
};

struct HelperPass {
  std::string name = {};  ///< "speculator prefill", "look-ahead"; in breakdowns and profiles
  NamePrefixes prefixes = {};
  HelperTokens reads = HelperTokens::None;
  HelperResult result = HelperResult::Nothing;
  /// Prompt tokens that it works on; the pass does not run when there are none.
  Count tokens = {};
  /// It runs so many times, kv_len growing by 1 from `first_kv_len` on.
  std::uint64_t steps = 1;
  Count first_kv_len = 1;
  Graph graph = {};
  /// Of the cache tensors that no later pass makes larger, at the last step; the base's excluded.
  Count cache_bytes = {};
};

}  // namespace kvcast
