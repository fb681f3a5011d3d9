/// The forward passes of every supported architecture, written once against the recorder.
///
/// Source: each family's modelling code in transformers. `architecture.h` has the settings that
/// tell the families apart.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/forward/recorder.h"

namespace kvcast {

/// A layer's keys and values, for the layers that share them. With a latent, keys and values
/// are the rows of latents that attention reads.
struct OwnedKeyValues {
  Value past_keys;     ///< the cache before the pass, rotated
  Value new_keys;      ///< of this pass, not rotated
  Value keys;          ///< the cache with this pass's rows, rotated
  Value values;        ///< the cache with this pass's rows
  Value queries = {};  ///< of this pass, rotated, of the layer that attended last
  /// With a latent, unless the queries are absorbed: their rotated part, `queries` are the other.
  std::optional<Value> query_ropes = {};
};

/// The tokens of a pass's keys where some of the prompt's were dropped before them: their places in
/// the cache are no longer their positions, by which windows and chunks go.
struct KeptKeys {
  Value tokens;          ///< ascending, [batch, keys] or [batch, keys, 1]
  double share = 1;      ///< of the prompt's tokens; estimates take them as spread evenly
  Count of_prompt = {};  ///< that are kept
  Count dropped = {};
};

/// One layer's self-attention, from the normed input to the heads' outputs, as a method sees it.
struct AttentionSite {
  Recorder& r;
  const Architecture& architecture;
  const Stack& stack;
  const LayerShape& layer;
  std::size_t index;                      ///< 3
  const std::string& name;                ///< "layers.3"
  const Value x;                          ///< [batch, tokens, hidden_size]
  const Count& past;                      ///< tokens before the pass
  const std::optional<Value>& bias;       ///< T5's or ALiBi's, for past + tokens keys
  const std::optional<Value>& positions;  ///< [batch, tokens], see Pass::given_positions
  /// Of layer.kv_layer; of this layer, which fills it, if there is none.
  OwnedKeyValues& shared;
  const std::optional<KeptKeys>& kept;
  bool keeps_all_rows = false;  ///< Pass::keeps_all_rows

  Count batch() const { return r.info(x).shape[0]; }
  Count tokens() const { return r.info(x).shape[1]; }
  /// Positions that the layer's cache begins after: those before the pass that no query of it sees.
  Count before_cache() const { return unseen_before(past); }
  /// Positions that no query from `position` on sees.
  Count unseen_before(const Count& position) const;
  /// Rows of the layer's cache before the pass: the earlier tokens that some query of it may see.
  Count held() const { return past - before_cache(); }
  /// Projections of x, query and key with the family's norms, not rotated.
  Value query() const;
  Value key() const;
  /// The two steps of key().
  Value projected_key() const;
  Value normed_key(Value k) const;
  Value value() const;
  /// Rotated if the layer has rotary embeddings, from `first_position` on or at given positions.
  Value rotate_query(Value q, const Count& first_position) const;
  Value rotate_key(Value k, const Count& first_position) const;
  /// The layer's cache "NAME.PART" with `rows` rows before the pass, of `features` (0: of keys). It
  /// slides with a window where the cache holds held() rows.
  Value cache(const std::string& part, const Count& rows, std::uint64_t features = 0) const;
  /// How queries see keys; the first query is at `first_position` among the keys.
  Recorder::Attention attention(const Count& queries, const Count& keys,
                                const Count& first_position) const;
  /// The pairs that a window or chunk of the layer is expected to show, of one sequence, where
  /// tokens were dropped: as much of each as was kept of the prompt.
  Count expected_pairs(const Count& queries) const;
  /// That attention, of values with the keys' heads.
  Value attend(Value q, Value k, Value v, const Count& first_position) const;
};

/// x times the weight PREFIX.weight [out_features, features of x], plus PREFIX.bias.
Value project(Recorder& r, std::string_view label, const std::string& prefix, Value x,
              const Count& out_features, bool bias);

/// What a method puts in the place of `plain_attention`.
using AttentionMethod = std::function<Value(const AttentionSite&)>;

/// Keys rotated as they enter the cache "keys", values in "values", everything before visible. A
/// layer with a kv_layer has neither keys nor values and reads those of that layer. One with a
/// latent keeps that, in "latents".
Value plain_attention(const AttentionSite& site);

/// The same for a prompt that no later pass continues: values are not cached.
Value keys_cached_attention(const AttentionSite& site);

/// Which latents attention reads, where they are not those that the layer's cache holds.
struct LatentRows {
  std::optional<Value> past = {};                    ///< before the pass, [batch, rows, c + r]
  std::function<Value(Value all)> read = nullptr;    ///< what attention reads of all; null: all
  std::optional<Recorder::Attention> settings = {};  ///< how; absent: as the layer's mask says
  /// Rows are cached unrotated, and turn by their places in the cache as they are read; this is the
  /// place of the pass's first. Absent: they are cached rotated by their positions.
  std::optional<Count> place = {};
  /// Gets all rows, the pass's own included, before attention reads them; null: they stay cached.
  std::function<void(Value all)> keep = nullptr;
  bool uncached = false;  ///< attention reads the pass's own rows alone, and nothing is cached
  /// Gets the pass's own projections, the latent before its norm and the key before its rotation.
  std::function<void(Value latent, Value key_rope)> projected = nullptr;
};
/// The latent as it is cached, from its projection, of the layer called `name`.
Value normed_latent(Recorder& r, const std::string& name, Value projected);
/// Multi-head latent attention.
Value latent_attention(const AttentionSite& site, const LatentRows& rows = {});

/// A layer's cross-attention cache; layers may share one.
struct CrossCache {
  Value keys;
  Value values;
};

/// One layer's cross-attention, as a method sees it.
struct CrossSite {
  Recorder& r;
  const Architecture& architecture;
  std::size_t index;
  const std::string& name;  ///< "decoder.layers.3"
  const Count& batch;
  const Count& length;          ///< the encoder's
  std::optional<Value> states;  ///< [batch, length, hidden_size], in the pass that fills the cache

  const LayerShape& layer() const { return architecture.decoder.layers[index]; }
  /// The projection "NAME.cross_PART" to `features`, with its bias if the stack has one there.
  Value project(std::string_view part, Value x, const Count& features, bool bias) const;
  /// The cache of that name: `rows` of the encoder's states in the pass that fills it, later as
  /// that pass left it.
  Value cache(const std::string& cache_name, const Count& features, std::string_view label,
              const std::function<Value(Value states)>& rows) const;
  Recorder::Attention attention() const;
};

/// What is kept of the encoder's states for a layer, and how its attention reads that.
struct CrossMethod {
  /// `before` holds the caches of the layers below.
  std::function<CrossCache(const CrossSite&, const std::vector<CrossCache>& before)> cache;
  /// From the normed input [batch, tokens, hidden_size] to the heads' outputs.
  std::function<Value(const CrossSite&, Value x, const CrossCache&)> attend;
};

/// Keys and values of each layer in "cross_keys" and "cross_values".
CrossMethod plain_cross_attention();

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

/// The settings of a layer's attention, without mask and bias.
Recorder::Attention attention_of(const Stack& stack, const Heads& heads);

/// The heads of scores of cached rows: the layer's, or with a latent one head of latents.
Heads scored_heads(const LayerShape& layer);
/// The query of the pass's last token for such scores, of the layer called `name`.
Value scored_query(Recorder& r, const LayerShape& layer, const std::string& name,
                   const OwnedKeyValues& attended);

/// Projected queries ("query") or keys ("key") of a layer with the family's norm and clip.
Value normed_heads(Recorder& r, const Stack& stack, const std::string& layer_name,
                   const std::string& part, Value x, std::uint64_t num_heads);
/// The same, rotated, if the layer rotates: `num_heads` queries or keys from `first_position` on or
/// at given positions.
Value rotated_heads(Recorder& r, const Stack& stack, const LayerShape& layer,
                    const std::string& layer_name, const std::string& part, Value x,
                    std::uint64_t num_heads, const Count& first_position,
                    const std::optional<Value>& positions);

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
