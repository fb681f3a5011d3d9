/// The forward passes of every supported architecture, written once against the recorder.
///
/// Source: each family's modelling code in transformers. `architecture.h` has the settings that
/// tell the families apart.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/forward/attention_site.h"
#include "model/forward/cross_attention.h"

namespace kvcast {

/// Which positions get logits. With None the pass ends with the last layer's hidden states.
enum class Logits { Last, All, None };
/// "last" or "all". Throws Error with the nearest word.
Logits parse_logits(std::string_view word);
/// "last", "all" or "none"
std::string_view name(Logits logits);

/// What a method sees between two layers.
struct LayerGap {
  Recorder& r;
  const Stack& stack;
  std::size_t index;                ///< of the layer below
  const OwnedKeyValues& below;      ///< its keys and queries
  std::optional<Value>& positions;  ///< of the tokens that go on: to be set with them
  std::optional<KeptKeys>& kept;    ///< the same, where they are the keys of the layers above
};

/// The next layer's input from the output [batch, tokens, hidden_size] of the one below.
using GapMethod = std::function<Value(const LayerGap&, Value x)>;

/// The prompt's tokens of which a pass has keys, where a method has dropped the others before it.
struct KeptTokens {
  double share = 1;
  Count number = {};
  Count dropped = {};
  /// Where the pass finds those before its own.
  enum class Earlier {
    Cached,  ///< in the cache "kept_tokens" [batch, past, 1], which it appends to
    Given,   ///< in its input "kept" [batch, past]; it fills that cache
    None,    ///< there are none, and the pass caches nothing
  };
  Earlier earlier = Earlier::Cached;
};

/// The shape of one pass over a decoder.
struct Pass {
  Count batch = 1;
  Count tokens = 1;        ///< new tokens of each sequence
  Count past = {};         ///< tokens already in the cache
  Count encoder_len = {};  ///< encoder-decoder models: rows of the cross-attention cache
  Logits logits = Logits::Last;
  AttentionMethod attention = plain_attention;  ///< of causal stacks
  CrossMethod cross = plain_cross_attention();
  /// The input "positions" [batch, tokens] gives the tokens' positions; else they follow the cache.
  /// Rotary or learned positions only.
  bool given_positions = false;
  std::optional<KeptTokens> kept = {};  ///< with given positions
  GapMethod between_layers = nullptr;   ///< null: a layer's output is the next one's input
  Count later = 0;                      ///< keys after the pass's tokens, see CacheExchange
  bool keeps_all_rows = false;          ///< also of caches with windows: something else reads them
  bool splits_logits = false;           ///< devices that split the vocabulary leave their parts
  /// Tokens of each sequence in a layer, where `between_layers` changes them; null: `tokens`.
  std::function<Count(std::size_t layer)> tokens_in = nullptr;
};

/// Token ids [batch, tokens] -> logits [batch, 1 or tokens, vocab_size], or hidden states. Reads
/// and appends to the cache tensors "layers.I.keys" and "layers.I.values" [batch, past, G·hd], or
/// "layers.I.latents" [batch, past, c + r]; with a window or chunk they hold what is still seen.
/// Encoder-decoder models also have "layers.I.cross_keys" and "layers.I.cross_values" [batch,
/// encoder_len, G·hd]: filled from the encoder's states where these are given, else read. Methods
/// keep other tensors.
Value record_decoder(Recorder& r, const Architecture& a, const Pass& pass,
                     std::optional<Value> encoder_states = {});

/// Token ids [batch, length] (T5) or mel features [batch, 2·length, num_mel_bins] (Whisper)
/// -> encoder states [batch, length, hidden_size].
Value record_encoder(Recorder& r, const Architecture& a, const Count& batch, const Count& length);

}  // namespace kvcast
