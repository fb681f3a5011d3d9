#include "model/io/weights/weight_map.h"

#include <algorithm>

#include "model/base/error.h"
#include "model/families/family.h"

namespace kvcast {
namespace {

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
  const Stack& stack = name.stack == "encoder." ? a.encoder : a.decoder;
  const LayerShape& layer = stack.layers[*name.layer];
  check_row_list(
      std::max({query_features(layer.heads), kv_features(layer.heads), layer.intermediate_size}),
      a.name + ": the shape of layer " + std::to_string(*name.layer));
  if (name.part == "gate") return row_range(0, layer.intermediate_size);
  if (name.part == "up") {
    return row_range(stack.gated_mlp ? layer.intermediate_size : 0, layer.intermediate_size);
  }
  return groups_heads ? grouped(layer.heads, name.part) : side_by_side(layer.heads, name.part);
}

/// The fused tensor that a part may be stored in.
std::string_view fused_name(std::string_view part) {
  return part == "gate" || part == "up" ? "gate_up" : "qkv";
}

}  // namespace

WeightSource huggingface_weight(const Architecture& a, const std::string& name) {
  WeightSource source;
  if (!a.converted_for
           .empty()) {  // converted checkpoints hold the weights as the forward pass reads them
    source.names = {name};
    return source;
  }
  const WeightName parsed = parse_weight_name(name);
  const Family* const family = find_family(a.model_type);
  CheckpointNames names = (family != nullptr ? *family : all_families().front()).names;
  if (family != nullptr && family->rename != nullptr) family->rename(a, parsed.stack, names);
  if (parsed.part == "head") {
    source.names = {names.head};
    return source;
  }
  if (parsed.stack.empty() && parsed.part == "embedding" && !names.embedding.empty()) {
    source.names = names.embedding;
    return source;
  }
  const TensorNames& parts = parsed.layer ? names.in_layer : names.outside;
  auto found = parts.find(parsed.part);
  const bool fused = found == parts.end();
  if (fused) found = parts.find(fused_name(parsed.part));
  KVCAST_ASSERT(found != parts.end());
  const std::string layer =
      parsed.layer ? names.layer + std::to_string(*parsed.layer) + "." : std::string();
  for (std::string prefix : names.prefixes) {
    constexpr std::string_view stack = "{stack}";
    const std::size_t at = prefix.find(stack);
    if (at != std::string::npos) prefix.replace(at, stack.size(), parsed.stack);
    source.names.push_back(prefix + layer + found->second + parsed.kind);
  }
  if (fused) source.rows = fused_rows(a, parsed, names.groups_heads);
  source.transposed = parsed.layer && names.transposed && parsed.kind == ".weight" &&
                      !parsed.part.ends_with("_norm");
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
