/// One layer's cross-attention in one pass.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/forward/recorder.h"

namespace kvcast {

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

}  // namespace kvcast
