/// The forward passes of every supported architecture, written once against the recorder.
///
/// `reference/architectures` of the field: each family's own modelling code in transformers; see
/// `architecture.h` for the settings that tell the families apart.
#pragma once

#include <vector>

#include "model/recorder.h"

namespace kvcast {

/// Which positions get logits.
enum class Logits { Last, All };

/// The shape of one pass over a decoder.
struct Pass {
  Count batch = 1;
  Count tokens = 1;   ///< new tokens of each sequence
  Count past;         ///< tokens already in the cache
  Count encoder_len;  ///< encoder-decoder models: rows of the cross-attention cache
  Logits logits = Logits::Last;
};

/// Token ids [batch, tokens] -> logits [batch, 1 or tokens, vocab_size]. Reads and appends to the
/// cache tensors "layers.I.keys" and "layers.I.values" [batch, past, G·hd], and for encoder-decoder
/// models reads "layers.I.cross_keys", "layers.I.cross_values" [batch, encoder_len, G·hd], which
/// must be `cross` when the same recording made them.
struct CrossCache {
  Value keys;
  Value values;
};
Value record_decoder(Recorder& r, const Architecture& a, const Pass& pass,
                     const std::vector<CrossCache>& cross = {});

/// Token ids [batch, length] (T5) or mel features [batch, 2·length, num_mel_bins] (Whisper)
/// -> encoder states [batch, length, hidden_size].
Value record_encoder(Recorder& r, const Architecture& a, const Count& batch, const Count& length);

/// Encoder states -> every decoder layer's cross-attention keys and values, in the cache.
std::vector<CrossCache> record_cross_cache(Recorder& r, const Architecture& a,
                                           Value encoder_states);

}  // namespace kvcast
