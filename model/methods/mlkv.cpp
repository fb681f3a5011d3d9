#include "model/methods/mlkv.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/base/error.h"
#include "model/base/words.h"
#include "model/methods/method.h"

namespace kvcast {
namespace {

constexpr Words<MlpWidening, 3> widenings = {{{MlpWidening::None, "none"},
                                              {MlpWidening::Copy, "copy"},
                                              {MlpWidening::Preserve, "preserve"}}};
constexpr Words<SharedKeys, 2> semantics_words = {
    {{SharedKeys::Rotated, "paper"}, {SharedKeys::Released, "released"}}};

std::uint64_t rounded_half_to_even(std::uint64_t dividend, std::uint64_t divisor) {
  const std::uint64_t quotient = dividend / divisor;
  const std::uint64_t rest = dividend % divisor;
  const bool up = rest > divisor - rest || (rest == divisor - rest && quotient % 2 == 1);
  return quotient + (up ? 1 : 0);
}

/// ": 1, 2, 4"; nothing for numbers that no model has.
std::string divisors(std::uint64_t number) {
  if (number > 10000) return "";
  std::vector<std::uint64_t> all;
  for (std::uint64_t i = 1; i <= number; ++i) {
    if (number % i == 0) all.push_back(i);
  }
  return fmt::format(": {}", fmt::join(all, ", "));
}

/// The keys of a layer can serve the layers of its group.
void check_groups(const std::string& where, const Stack& s, std::uint64_t owners) {
  const std::size_t group = s.layers.size() / owners;
  const auto differ = [&](std::size_t owner, std::size_t reader, std::string_view what) {
    return Error(
        where,
        fmt::format("a group of layers {} to {}, where layers {} and {} differ in their {}", owner,
                    owner + group - 1, owner, reader, what),
        "groups of layers that can read the same keys");
  };
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    const std::size_t owner = i / group * group;
    const LayerShape& a = s.layers[owner];
    const LayerShape& b = s.layers[i];
    // One cache holds keys rotated in one way.
    const bool same_rope = a.rope && b.rope ? *a.rope == *b.rope : a.rope == b.rope;
    if (!same_rope) throw differ(owner, i, "rotations");
    if (a.sliding_window != b.sliding_window || a.attention_chunk != b.attention_chunk) {
      throw differ(owner, i, "windows");
    }
  }
}

/// One number of heads is that of all layers.
void check_heads(const std::string& where, const Stack& s) {
  const Heads& first = s.layers.front().heads;
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    const Heads& heads = s.layers[i].heads;
    if (heads.num_key_value_heads == first.num_key_value_heads && heads.head_dim == first.head_dim)
      continue;
    throw Error(where,
                fmt::format("layer {} with {} key-value heads of {}, and layer 0 with {} of {}", i,
                            heads.num_key_value_heads, heads.head_dim, first.num_key_value_heads,
                            first.head_dim),
                "layers with equal heads");
  }
}

void check(const Architecture& a, const MlkvShape& shape) {
  const std::string where = "MLKV form of " + a.name;
  const Stack& s = a.decoder;
  if (a.encoder_decoder) {
    throw Error(where, "a model with an encoder", "a decoder-only model");
  }
  if (has_states(s)) {
    throw Error(where, "a model with layers that keep a state",
                "a model whose layers all have keys and values");
  }
  if (s.layers.front().latent) {
    throw Error(where, "a model that caches latents, which all its heads share already",
                "a model with keys and values in its cache");
  }
  if (shares_key_values(s) && s.num_key_value_layers == 0) {
    throw Error(where, "a model where layers read the keys and values of others already",
                "a model whose layers all have keys and values of their own");
  }
  const std::uint64_t heads = s.layers.front().heads.num_key_value_heads;
  if (s.num_key_value_layers > 0) {
    throw Error(where,
                fmt::format("an MLKV model already, {} key-value layers of {} heads",
                            s.num_key_value_layers, heads),
                "a model whose layers all have keys and values of their own");
  }
  check_heads(where, s);
  if (shape.layers == 0 || s.layers.size() % shape.layers != 0) {
    throw Error(
        where, fmt::format("{} key-value layers", shape.layers),
        fmt::format("a divisor of its {} layers{}", s.layers.size(), divisors(s.layers.size())));
  }
  if (shape.heads == 0 || heads % shape.heads != 0) {
    throw Error(where, fmt::format("{} key-value heads", shape.heads),
                fmt::format("a divisor of its {} in each layer{}", heads, divisors(heads)));
  }
  check_groups(where, s, shape.layers);
}

void apply_mlkv(const MethodSpec& spec, Plan& plan) {
  Architecture& a = plan.model;
  const bool experts = layers_with_experts(a.decoder) > 0;
  const MlkvShape shape{
      whole_option(spec, "layers", 1), whole_option(spec, "heads", 1),
      parse_mlp_widening(text_option(spec, "widen", experts ? "none" : "preserve"))};
  const std::string semantics = text_option(spec, "semantics", "");
  // A model without shared keys has as many layers that own them as layers.
  const Stack& s = a.decoder;
  const std::uint64_t owners =
      s.num_key_value_layers > 0 ? s.num_key_value_layers : s.layers.size();
  const bool same =
      owners == shape.layers && s.layers.front().heads.num_key_value_heads == shape.heads;
  if (!same) {
    a = to_mlkv(a, shape);
    plan.conversion = fmt::format("kvcast convert mlkv IN OUT --kv-layers {} --kv-heads {}{}",
                                  shape.layers, shape.heads, experts ? " --widen none" : "");
  }
  if (!semantics.empty()) a.decoder.shared_keys = parse_shared_keys(semantics);
}

}  // namespace

MlpWidening parse_mlp_widening(std::string_view word) {
  return parse_word("widening", word, widenings);
}

SharedKeys parse_shared_keys(std::string_view word) {
  return parse_word("semantics", word, semantics_words);
}

std::uint64_t added_neurons(const Architecture& a, const MlkvShape& shape) {
  if (shape.widening == MlpWidening::None) return 0;
  const Stack& s = a.decoder;
  const Heads& heads = s.layers.front().heads;
  const std::uint64_t all = checked_multiply(heads.num_key_value_heads, s.layers.size());
  const std::uint64_t lost_heads = all - checked_multiply(shape.heads, shape.layers);
  const std::uint64_t biases = (s.key_bias ? 1u : 0u) + (s.value_bias ? 1u : 0u);
  const std::uint64_t head =  // its rows in the matrices of keys and values, and their biases
      checked_multiply(heads.head_dim, 2 * a.hidden_size + biases);
  const std::uint64_t lost_in_layer = checked_multiply(lost_heads, head) / s.layers.size();
  return rounded_half_to_even(lost_in_layer, a.hidden_size) / (s.gated_mlp ? 3 : 2);
}

Architecture to_mlkv(const Architecture& a, const MlkvShape& shape) {
  check(a, shape);
  Architecture m = a;
  m.origin.clear();
  const std::uint64_t added = added_neurons(a, shape);
  if (added > 0 && layers_with_experts(a.decoder) > 0) {
    throw Error("MLKV form of " + a.name, "experts to widen", "no widening");
  }
  for (LayerShape& layer : m.decoder.layers) {
    if (added > layer.intermediate_size) {
      throw Error("MLKV form of " + a.name,
                  fmt::format("MLPs of {} neurons to widen by {}", layer.intermediate_size, added),
                  "at most as many copies as neurons, or no widening");
    }
    layer.heads.num_key_value_heads = shape.heads;
    layer.intermediate_size += added;
  }
  share_key_values(m.decoder, shape.layers);
  return m;
}

Method mlkv() {
  return {
      "mlkv",
      MethodKind::Cache,
      "layers=M,heads=G: M layers keep keys and values with G heads; the other layers reuse them "
      "(MLKV)",
      {"layers", "heads", "widen", "semantics"},
      apply_mlkv,
      "mlkv:layers=1,heads=1"};
}

}  // namespace kvcast
