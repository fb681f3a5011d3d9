#include "model/io/weights/weight_map.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "model/base/error.h"
#include "model/families/family.h"

namespace kvcast {
namespace {

/// Rows are listed one by one; no model is near this many, a file may claim more.
constexpr std::uint64_t max_listed_rows = 1u << 22;

/// Rows first ... first + count - 1.
std::vector<std::uint64_t> row_range(std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> rows(count);
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

/// The shape of a weight's layer. Throws Error when its rows are too many to list.
const LayerShape& layer_of(const Architecture& a, const WeightName& name) {
  const Stack& stack = name.stack == "encoder." ? a.encoder : a.decoder;
  KVCAST_ASSERT(*name.layer < stack.layers.size());
  const LayerShape& layer = stack.layers[*name.layer];
  const std::uint64_t most =
      std::max({query_features(layer.heads), kv_features(layer.heads), layer.intermediate_size});
  if (most <= max_listed_rows) return layer;
  throw Error(a.name + ": the shape of layer " + std::to_string(*name.layer),
              std::to_string(most) + " rows of a projection",
              "at most " + std::to_string(max_listed_rows));
}

/// Rows of all query, then all key, then all value heads.
std::vector<std::uint64_t> side_by_side(const Heads& heads, const std::string& part) {
  const std::uint64_t q = query_features(heads);
  const std::uint64_t kv = kv_features(heads);
  if (part == "query") return row_range(0, q);
  return row_range(part == "key" ? q : q + kv, kv);
}

/// Rows where each key-value head's group holds its query heads, then its key and its value head.
std::vector<std::uint64_t> grouped(const Heads& heads, const std::string& part) {
  const std::uint64_t queries = heads.num_attention_heads / heads.num_key_value_heads;
  std::vector<std::uint64_t> rows;
  for (std::uint64_t g = 0; g < heads.num_key_value_heads; ++g) {
    const std::uint64_t first_head =
        g * (queries + 2) + (part == "query" ? 0 : queries + (part == "value" ? 1 : 0));
    const std::uint64_t num_heads = part == "query" ? queries : 1;
    const auto group = row_range(first_head * heads.head_dim, num_heads * heads.head_dim);
    rows.insert(rows.end(), group.begin(), group.end());
  }
  return rows;
}

/// The rows of a part in a fused tensor.
std::vector<std::uint64_t> fused_rows(const Architecture& a, const WeightName& name,
                                      bool groups_heads) {
  const LayerShape& layer = layer_of(a, name);
  if (name.part == "gate") return row_range(0, layer.intermediate_size);
  if (name.part == "up") {
    const Stack& stack = name.stack == "encoder." ? a.encoder : a.decoder;
    return row_range(stack.gated_mlp ? layer.intermediate_size : 0, layer.intermediate_size);
  }
  return groups_heads ? grouped(layer.heads, name.part) : side_by_side(layer.heads, name.part);
}

/// Where files with these names keep the weight.
WeightSource source_in(const CheckpointNames& names, const Architecture& a,
                       const WeightName& weight) {
  WeightSource source;
  const TensorNames& parts = weight.layer ? names.in_layer : names.outside;
  auto found = parts.find(weight.part);
  const bool fused = found == parts.end();
  if (fused) found = parts.find(weight.part == "gate" || weight.part == "up" ? "gate_up" : "qkv");
  KVCAST_ASSERT(found != parts.end());
  const std::string layer =
      weight.layer ? names.layer + std::to_string(*weight.layer) + "." : std::string();
  for (std::string prefix : names.prefixes) {
    constexpr std::string_view stack = "{stack}";
    const std::size_t at = prefix.find(stack);
    if (at != std::string::npos) prefix.replace(at, stack.size(), weight.stack);
    source.names.push_back(prefix + layer + found->second + weight.kind);
  }
  if (fused) source.rows = fused_rows(a, weight, names.groups_heads);
  source.transposed = weight.layer && names.transposed && weight.kind == ".weight" &&
                      !weight.part.ends_with("_norm");
  return source;
}

/// The names of llama.cpp's files.
CheckpointNames gguf_names(const GgufForm& form, Residual residual) {
  CheckpointNames names{.prefixes = {""},
                        .layer = "blk.",
                        .in_layer = {{"attention_norm", "attn_norm"},
                                     {"mlp_norm", "ffn_norm"},
                                     {"post_attention_norm", "post_attention_norm"},
                                     {"post_mlp_norm", "post_ffw_norm"},
                                     {"query_norm", "attn_q_norm"},
                                     {"key_norm", "attn_k_norm"},
                                     {"attention_output", "attn_output"},
                                     {"down", "ffn_down"}},
                        .outside = {{"embedding", "token_embd"},
                                    {"positions", "position_embd"},
                                    {"final_norm", "output_norm"},
                                    {"head", "output"}}};
  names.in_layer.merge(
      form.fused_qkv ? TensorNames{{"qkv", "attn_qkv"}}
                     : TensorNames{{"query", "attn_q"}, {"key", "attn_k"}, {"value", "attn_v"}});
  names.in_layer.merge(form.fused_gate_up ? TensorNames{{"gate_up", "ffn_up"}}
                                          : TensorNames{{"gate", "ffn_gate"}, {"up", "ffn_up"}});
  if (form.mlp_norm_first && residual == Residual::ParallelTwoNorms) {
    names.in_layer["attention_norm"] = "attn_norm_2";
    names.in_layer["mlp_norm"] = "attn_norm";
  }
  return names;
}

/// Undoes LlamaModel.permute: it puts rows j and j + head_dim/2 of a head, which one rotary pair
/// turns, beside each other.
std::vector<std::uint64_t> uninterleaved(std::uint64_t num_heads, std::uint64_t head_dim) {
  std::vector<std::uint64_t> rows = row_range(0, num_heads * head_dim);
  const std::uint64_t half = head_dim / 2;
  if (head_dim % 2 != 0) return rows;  // no rotary pairs
  for (std::uint64_t i = 0; i < rows.size(); ++i) {
    const std::uint64_t row = i % head_dim;
    rows[i] = i - row + 2 * (row % half) + row / half;
  }
  return rows;
}

}  // namespace

WeightName parse_weight_name(const std::string& name) {
  WeightName parsed;
  std::string_view rest = name;
  for (const std::string_view stack : {"encoder.", "decoder."}) {
    if (rest.starts_with(stack)) {
      parsed.stack = stack;
      rest.remove_prefix(stack.size());
      break;
    }
  }
  if (rest.starts_with("layers.")) {
    rest.remove_prefix(7);
    std::size_t layer = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    KVCAST_ASSERT(error == std::errc());
    parsed.layer = layer;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
  }
  const std::size_t dot = rest.rfind('.');
  KVCAST_ASSERT(dot != std::string_view::npos);
  parsed.part = rest.substr(0, dot);
  parsed.kind = rest.substr(dot);
  return parsed;
}

WeightSource huggingface_weight(const Architecture& a, const std::string& name) {
  // Converted checkpoints hold the weights as the forward pass reads them.
  if (!a.converted_for.empty()) return {{name}, {}};
  const WeightName parsed = parse_weight_name(name);
  const Family* const family = find_family(a.model_type);
  CheckpointNames names = (family != nullptr ? *family : all_families().front()).names;
  if (family != nullptr && family->rename != nullptr) family->rename(a, parsed.stack, names);
  if (parsed.part == "head") return {{names.head}, {}};
  if (parsed.stack.empty() && parsed.part == "embedding" && !names.embedding.empty()) {
    return {names.embedding, {}};
  }
  return source_in(names, a, parsed);
}

WeightSource gguf_weight(const Architecture& a, const std::string& name) {
  const Family* const family = find_family(a.model_type);
  if (family == nullptr || family->gguf.architecture == nullptr) {
    throw Error("weights of a GGUF file", "model type " + a.model_type,
                "a family that llama.cpp writes");
  }
  const GgufForm& form = family->gguf;
  const WeightName parsed = parse_weight_name(name);
  WeightSource source = source_in(gguf_names(form, a.decoder.residual), a, parsed);
  if (parsed.part == "head") source.names.push_back("token_embd" + parsed.kind);  // tied
  if (form.interleaved_heads && (parsed.part == "query" || parsed.part == "key")) {
    const Heads& heads = layer_of(a, parsed).heads;
    source.rows = uninterleaved(
        parsed.part == "query" ? heads.num_attention_heads : heads.num_key_value_heads,
        heads.head_dim);
  }
  const bool is_unit_offset_norm =
      a.decoder.norm == NormKind::RmsUnitOffset && parsed.part.ends_with("_norm");
  if (is_unit_offset_norm) source.offset = -1;
  return source;
}

bool is_unused_buffer(const Architecture& a, std::string_view stored_name) {
  static constexpr std::string_view suffixes[] = {"rotary_emb.inv_freq",
                                                  ".attn.bias",
                                                  ".attn.masked_bias",
                                                  ".attention.bias",
                                                  ".masked_bias",
                                                  "embed_positions.weights",
                                                  "EncDecAttention.relative_attention_bias.weight"};
  const auto ends = [&](std::string_view suffix) { return stored_name.ends_with(suffix); };
  if (std::any_of(std::begin(suffixes), std::end(suffixes), ends)) return true;
  const bool head = ends("lm_head.weight") || ends("proj_out.weight") || ends("embed_out.weight");
  if (head && a.tied_embeddings) return true;
  return a.encoder_decoder && ends("embed_tokens.weight");
}

}  // namespace kvcast
