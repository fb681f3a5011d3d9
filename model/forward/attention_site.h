/// One layer's self-attention in one pass: projections, rotations, caches, what queries see.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "model/forward/recorder.h"

namespace kvcast {

/// x times the weight PREFIX.weight [out_features, features of x], plus PREFIX.bias. Where devices
/// split x, each gets a part of a sum.
Value project(Recorder& r, std::string_view label, const std::string& prefix, Value x,
              const Count& out_features, bool bias);

/// f of the features of all devices that split a layer, of which each goes on with its own.
Value with_all_features(Recorder& r, const std::string& part, Value x,
                        const std::function<Value(Value all)>& f);

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
  /// The cached tokens that the last layer with an indexer chose for each query.
  std::optional<Value>& chosen;

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
  /// Times what grows with the position, where the model has that.
  Value scale_query(Value q, const Count& first_position) const;
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

}  // namespace kvcast
