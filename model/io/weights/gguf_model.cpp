#include "model/io/weights/gguf_model.h"

#include <optional>

#include "model/base/error.h"
#include "model/families/family.h"

namespace kvcast {
namespace {

/// Undoes LlamaModel.permute: it puts rows j and j + head_dim/2 of a head, which one rotary pair
/// turns, beside each other.
std::vector<std::uint64_t> uninterleaved(std::uint64_t num_heads, std::uint64_t head_dim) {
  std::vector<std::uint64_t> rows = row_range(0, checked_multiply(num_heads, head_dim));
  const std::uint64_t half = head_dim / 2;
  if (head_dim % 2 != 0) return rows;  // no rotary pairs
  for (std::uint64_t i = 0; i < rows.size(); ++i) {
    const std::uint64_t row = i % head_dim;
    rows[i] = i - row + 2 * (row % half) + row / half;
  }
  return rows;
}

/// Norms, by the recorder's names.
std::optional<std::string> norm_tensor(const Architecture& a, const GgufForm& form,
                                       const std::string& part) {
  const bool swapped = form.mlp_norm_first && a.decoder.residual == Residual::ParallelTwoNorms;
  if (part == "attention_norm") return swapped ? "attn_norm_2" : "attn_norm";
  if (part == "mlp_norm") return swapped ? "attn_norm" : "ffn_norm";
  if (part == "post_attention_norm") return "post_attention_norm";
  if (part == "post_mlp_norm") return "post_ffw_norm";
  if (part == "final_norm") return "output_norm";
  return {};
}

/// The tensor of a layer's projection, and its rows.
std::optional<std::string> projection_tensor(const Architecture& a, const GgufForm& form,
                                             const WeightName& name, WeightSource& source) {
  if (!name.layer) return {};
  const LayerShape& layer = a.decoder.layers[*name.layer];
  const std::uint64_t queries = query_features(layer.heads);
  const std::uint64_t keys = kv_features(layer.heads);
  const std::string& part = name.part;
  if (part == "query" || part == "key" || part == "value") {
    const bool is_query = part == "query";
    if (form.fused_qkv) {
      const std::uint64_t first = is_query ? 0 : part == "key" ? queries : queries + keys;
      source.rows = row_range(first, is_query ? queries : keys);
      return "attn_qkv";
    }
    if (form.interleaved_heads && part != "value") {
      const Heads& heads = layer.heads;
      source.rows = uninterleaved(is_query ? heads.num_attention_heads : heads.num_key_value_heads,
                                  heads.head_dim);
    }
    return is_query ? "attn_q" : part == "key" ? "attn_k" : "attn_v";
  }
  if (part == "gate" || part == "up") {
    if (form.fused_gate_up) {
      const std::uint64_t width = layer.intermediate_size;
      source.rows = row_range(part == "gate" ? 0 : width, width);
      return "ffn_up";
    }
    return part == "gate" ? "ffn_gate" : "ffn_up";
  }
  if (part == "attention_output") return "attn_output";
  if (part == "down") return "ffn_down";
  if (part == "query_norm") return "attn_q_norm";
  if (part == "key_norm") return "attn_k_norm";
  return {};
}

}  // namespace

WeightSource gguf_weight(const Architecture& a, const std::string& name) {
  const Family* const family = find_family(a.model_type);
  if (family == nullptr || family->gguf.architecture == nullptr) {
    throw Error("weights of a GGUF file", "model type " + a.model_type,
                "a family that llama.cpp writes");
  }
  WeightSource source;
  const WeightName logical = parse_weight_name(name);
  KVCAST_ASSERT(!logical.layer || *logical.layer < a.decoder.layers.size());
  const auto use = [&](const std::string& tensor) {
    const std::string prefix =
        logical.layer ? "blk." + std::to_string(*logical.layer) + "." : std::string();
    source.names.push_back(prefix + tensor + logical.kind);
  };
  if (logical.part == "embedding") {
    use("token_embd");
  } else if (logical.part == "positions") {
    use("position_embd");
  } else if (logical.part == "head") {
    use("output");
    use("token_embd");  // what llama.cpp falls back to
  } else if (const auto norm = norm_tensor(a, family->gguf, logical.part)) {
    use(*norm);
    if (a.decoder.norm == NormKind::RmsUnitOffset) source.offset = -1;
  } else if (const auto tensor = projection_tensor(a, family->gguf, logical, source)) {
    use(*tensor);
  }
  KVCAST_ASSERT(!source.names.empty());
  return source;
}

}  // namespace kvcast
