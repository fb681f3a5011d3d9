/// A model's passes under a method, recorded with symbolic batch, prompt and cache lengths.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/sharding.h"
#include "model/forward/forward.h"
#include "model/methods/method.h"

namespace kvcast {

struct Recording : MethodEffects {
  Symbols symbols;
  /// In the order in which a request runs them: helper passes, then "prefill" (the whole prompt to
  /// the first token's logits; for encoder-decoder models encoder, cross-attention cache and the
  /// decoder's first token), then "decode" (a step of every sequence; kv_len counts the new token).
  std::vector<RecordedPass> passes;
  /// Unique parameters, each tied tensor once, of the base and of all others.
  std::uint64_t parameters = 0;
  std::uint64_t helper_parameters = 0;
  /// Of the base's parameters those that serve one token: of E experts, the K that it chooses.
  std::uint64_t active_parameters = 0;
  Count weight_bytes;                                  ///< of all of them
  std::map<std::string, Count> weight_bytes_by_class;  ///< by WeightClass::group
  /// Cache slots filled in each sequence after prefill (encoder-decoder models: in the decoder).
  Count prompt_slots;
  /// All layers, the whole batch, at kv_len slots; with the cross-attention cache.
  Count kv_cache_bytes;
  /// One token of one sequence in all layers: of the decoder's own cache, and of the
  /// cross-attention cache for each encoder position.
  Count kv_cache_bytes_per_token;
  /// The same when the caches of all windows are full.
  Count kv_cache_bytes_per_token_beyond_window;
  Count cross_cache_bytes_per_token;
  /// Of kv_cache_bytes, what state-space layers keep; it does not grow with the tokens.
  Count state_bytes;

  /// The pass of that name, which must be there.
  const RecordedPass& pass(std::string_view name) const;
  RecordedPass& pass(std::string_view name);
  const Graph& prefill() const { return pass(prefill_name).graph; }
  const Graph& decode() const { return pass(decode_name).graph; }
  /// Those before the base's own.
  std::span<const RecordedPass> helpers() const;
};

struct RecordOptions {
  Logits logits = Logits::Last;
  /// Encoder-decoder models: tokens of the decoder in prefill.
  std::uint64_t decoder_tokens = 1;
  /// The prefill is a chunk: kv_len - prompt_len tokens are in the cache before it. Decoder-only
  /// models.
  bool chunked = false;
  /// The same for add_step, and methods may choose the prompt's tokens: the chunk is of chosen
  /// ones, at given positions.
  bool steps = false;
  /// Finds the models that methods name.
  FindModel find_model = {};
  /// The passes of one of several devices, which have parts of the base model, and of a speculator
  /// that tp divides; each has all of other helper models. All sizes are those of this device.
  std::optional<DevicePlace> place = {};
};

/// Throws Error when the methods do not fit the model or the place.
Recording record(const Architecture& configured, const std::vector<MethodSpec>& methods,
                 const Lowering& lowering, const RecordOptions& options = {});

/// Throws Error when the prompt is shorter than the chunks that are kept or dropped, or than half
/// of the neighbours that importance is a mean over.
void check_prompt_length(const Recording& recording, std::uint64_t prompt_len);

/// The graphs of all passes.
std::vector<const Graph*> graphs_of(const Recording& recording);

/// Elements of the experts that one token of a pass does not choose.
Count unread_by_a_token(const Graph& pass);

/// Unique parameters of a model.
std::uint64_t count_parameters(const Architecture& a);

}  // namespace kvcast
