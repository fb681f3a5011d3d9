/// Slim attention: which of its forms a layer can take, and what weights each form reads.
///
/// Source: Graef, Wasielewski and Clapp 2025 (arXiv:2503.05840). With keys K = X·W_K, values are
/// V = K·W_KV, W_KV = W_K⁻¹·W_V, so that keys alone need to be kept; and the like from values, or
/// from the attention's input X.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/architecture.h"

namespace kvcast {

/// Throws Error with the nearest name.
CacheForm parse_cache_form(std::string_view word);

/// Which attention of a decoder layer.
enum class SlimSite { Self, Cross };

/// Why a layer's attention cannot be kept in this form; empty when it can.
std::string why_not(const Architecture& a, std::size_t layer, SlimSite site, CacheForm kind);

/// Whether each step computes the keys of all tokens anew in this form: rotations or norms between
/// rows and scores leave no query that could read the rows as they lie (appendix C has neither).
bool computes_keys(const Architecture& a, std::size_t layer, SlimSite site, CacheForm kind);

/// True if keys have fewer features than hidden states (grouped heads): then the first
/// hidden_size - num_key_value_heads·head_dim values are kept too (appendix G).
bool keeps_some_values(const Architecture& a, std::size_t layer);

/// What each decoder layer keeps.
std::vector<LayerCaches> layer_caches(const Architecture& a);

/// The layers' forms under an option: kcache, vcache, xcache, encdec1 (keys of both attentions),
/// encdec2 (keys, and the encoder's states for all layers), hybrid (keys, and the first layer's
/// cross keys), auto (what the checkpoint was converted to; else keys, or the input where it is
/// narrower than they). Throws Error for other options and, naming layer and reason, for a form
/// that a layer cannot take.
std::vector<LayerCaches> slim_layers(const Architecture& a, std::string_view option);

/// Whether a layer's keys are cached with their bias. Where they are neither rotated nor
/// normalised, a bias adds the same to all scores of a query.
bool keeps_key_bias(const Stack& stack, const LayerShape& layer);

/// Whether a converted model's output projections need a bias, which absorbs the bias of values and
/// of keys that are cached with theirs.
bool folds_biases(const Architecture& a);

}  // namespace kvcast
