#include "model/io/weights/weight_map.h"

#include <algorithm>
#include <map>
#include <optional>

#include "model/base/error.h"

namespace kvcast {
namespace {

/// Part of the forward pass -> stored name, relative to the layer or to the model.
using Names = std::map<std::string, std::string, std::less<>>;

struct Family {
  std::vector<std::string> prefixes;  ///< of all tensors: files with and without it exist
  std::string layer;                  ///< "layers." of "layers.3.self_attn..."
  Names in_layer;
  Names outside;
};

const Names llama_layer{{"query", "self_attn.q_proj"},
                        {"key", "self_attn.k_proj"},
                        {"value", "self_attn.v_proj"},
                        {"attention_output", "self_attn.o_proj"},
                        {"attention_norm", "input_layernorm"},
                        {"mlp_norm", "post_attention_layernorm"},
                        {"gate", "mlp.gate_proj"},
                        {"up", "mlp.up_proj"},
                        {"down", "mlp.down_proj"}};
const Names llama_outside{
    {"embedding", "embed_tokens"}, {"final_norm", "norm"}, {"head", "lm_head"}};

Names with(Names names, const Names& changes) {
  for (const auto& [part, stored] : changes) names[part] = stored;
  return names;
}

Family llama() { return {{"model.", ""}, "layers.", llama_layer, llama_outside}; }

Family phi3() {
  Family f = llama();
  f.in_layer = with(f.in_layer, {{"query", "self_attn.qkv_proj"},
                                 {"key", "self_attn.qkv_proj"},
                                 {"value", "self_attn.qkv_proj"},
                                 {"gate", "mlp.gate_up_proj"},
                                 {"up", "mlp.gate_up_proj"}});
  return f;
}

Family gemma2() {
  Family f = llama();
  f.in_layer = with(f.in_layer, {{"post_attention_norm", "post_attention_layernorm"},
                                 {"mlp_norm", "pre_feedforward_layernorm"},
                                 {"post_mlp_norm", "post_feedforward_layernorm"}});
  return f;
}

Family gpt_neox(const Architecture& a) {
  Family f{{"gpt_neox.", ""},
           "layers.",
           {{"query", "attention.query_key_value"},
            {"key", "attention.query_key_value"},
            {"value", "attention.query_key_value"},
            {"attention_output", "attention.dense"},
            {"attention_norm", "input_layernorm"},
            {"mlp_norm", "post_attention_layernorm"},
            {"up", "mlp.dense_h_to_4h"},
            {"down", "mlp.dense_4h_to_h"}},
           {{"embedding", "embed_in"}, {"final_norm", "final_layer_norm"}, {"head", "embed_out"}}};
  if (a.decoder.num_key_value_layers > 0) {  // MLKV: zaydzuhri/pythia-mlkv, convert_to_mlkv.py
    f.in_layer = with(
        f.in_layer,
        {{"query", "attention.query"}, {"key", "attention.key"}, {"value", "attention.value"}});
  }
  return f;
}

Family openelm() {
  return {{"transformer.", ""},
          "layers.",
          {{"query", "attn.qkv_proj"},
           {"key", "attn.qkv_proj"},
           {"value", "attn.qkv_proj"},
           {"query_norm", "attn.q_norm"},
           {"key_norm", "attn.k_norm"},
           {"attention_output", "attn.out_proj"},
           {"attention_norm", "attn_norm"},
           {"mlp_norm", "ffn_norm"},
           {"gate", "ffn.proj_1"},
           {"up", "ffn.proj_1"},
           {"down", "ffn.proj_2"}},
          {{"embedding", "token_embeddings"}, {"final_norm", "norm"}, {"head", "lm_head"}}};
}

Family falcon(const Architecture& a) {
  Family f{{"transformer.", ""},
           "h.",
           {{"query", "self_attention.query_key_value"},
            {"key", "self_attention.query_key_value"},
            {"value", "self_attention.query_key_value"},
            {"attention_output", "self_attention.dense"},
            {"attention_norm", "input_layernorm"},
            {"mlp_norm", "post_attention_layernorm"},
            {"up", "mlp.dense_h_to_4h"},
            {"down", "mlp.dense_4h_to_h"}},
           {{"embedding", "word_embeddings"}, {"final_norm", "ln_f"}, {"head", "lm_head"}}};
  if (a.decoder.residual == Residual::ParallelTwoNorms) {
    f.in_layer = with(f.in_layer, {{"attention_norm", "ln_attn"}, {"mlp_norm", "ln_mlp"}});
  }
  return f;
}

Family gpt2() {
  return {
      {"transformer.", ""},
      "h.",
      {{"query", "attn.c_attn"},
       {"key", "attn.c_attn"},
       {"value", "attn.c_attn"},
       {"attention_output", "attn.c_proj"},
       {"attention_norm", "ln_1"},
       {"mlp_norm", "ln_2"},
       {"up", "mlp.c_fc"},
       {"down", "mlp.c_proj"}},
      {{"embedding", "wte"}, {"positions", "wpe"}, {"final_norm", "ln_f"}, {"head", "lm_head"}}};
}

/// OPT and both stacks of Whisper.
const Names bart_layer{{"query", "self_attn.q_proj"},
                       {"key", "self_attn.k_proj"},
                       {"value", "self_attn.v_proj"},
                       {"attention_output", "self_attn.out_proj"},
                       {"attention_norm", "self_attn_layer_norm"},
                       {"cross_query", "encoder_attn.q_proj"},
                       {"cross_key", "encoder_attn.k_proj"},
                       {"cross_value", "encoder_attn.v_proj"},
                       {"cross_output", "encoder_attn.out_proj"},
                       {"cross_norm", "encoder_attn_layer_norm"},
                       {"mlp_norm", "final_layer_norm"},
                       {"up", "fc1"},
                       {"down", "fc2"}};

Family opt() {
  return {{"model.decoder.", "decoder.", ""},
          "layers.",
          bart_layer,
          {{"embedding", "embed_tokens"},
           {"positions", "embed_positions"},
           {"final_norm", "final_layer_norm"},
           {"head", "lm_head"}}};
}

Family whisper(const std::string& stack) {
  return {{"model." + stack, stack},
          "layers.",
          bart_layer,
          {{"positions", "embed_positions"},
           {"final_norm", "layer_norm"},
           {"conv1", "conv1"},
           {"conv2", "conv2"}}};
}

Family t5(const std::string& stack, bool gated) {
  const std::string mlp = stack == "encoder." ? "layer.1." : "layer.2.";
  return {{stack},
          "block.",
          {{"query", "layer.0.SelfAttention.q"},
           {"key", "layer.0.SelfAttention.k"},
           {"value", "layer.0.SelfAttention.v"},
           {"attention_output", "layer.0.SelfAttention.o"},
           {"attention_norm", "layer.0.layer_norm"},
           {"cross_query", "layer.1.EncDecAttention.q"},
           {"cross_key", "layer.1.EncDecAttention.k"},
           {"cross_value", "layer.1.EncDecAttention.v"},
           {"cross_output", "layer.1.EncDecAttention.o"},
           {"cross_norm", "layer.1.layer_norm"},
           {"mlp_norm", mlp + "layer_norm"},
           {"gate", mlp + "DenseReluDense.wi_0"},
           {"up", mlp + (gated ? "DenseReluDense.wi_1" : "DenseReluDense.wi")},
           {"down", mlp + "DenseReluDense.wo"}},
          {{"final_norm", "final_layer_norm"},
           {"relative_bias", "block.0.layer.0.SelfAttention.relative_attention_bias"}}};
}

Family family_of(const Architecture& a, const std::string& stack) {
  const std::string& type = a.model_type;
  if (type == "phi3") return phi3();
  if (type == "gemma2") return gemma2();
  if (type == "gpt_neox") return gpt_neox(a);
  if (type == "openelm") return openelm();
  if (type.starts_with("falcon") || type.starts_with("RefinedWeb")) return falcon(a);
  if (type == "gpt2") return gpt2();
  if (type == "opt") return opt();
  if (type == "whisper") return whisper(stack);
  if (type == "t5") return t5(stack, a.decoder.gated_mlp);
  return llama();
}

/// Weights that both stacks share, and heads, stand outside the family's prefix.
std::vector<std::string> shared_names(const Architecture& a, const WeightName& name) {
  if (name.stack.empty() && name.part == "embedding" && a.model_type == "t5") {
    return {"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};
  }
  if (name.stack.empty() && name.part == "embedding" && a.model_type == "whisper") {
    return {"model.decoder.embed_tokens.weight", "decoder.embed_tokens.weight", "proj_out.weight"};
  }
  if (name.part != "head") return {};
  return {a.model_type == "gpt_neox" ? "embed_out.weight" : "lm_head.weight"};
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

std::vector<std::uint64_t> fused_rows(const Architecture& a, const WeightName& name,
                                      const std::string& stored) {
  const Stack& stack = name.stack == "encoder." ? a.encoder : a.decoder;
  const LayerShape& layer = stack.layers[*name.layer];
  check_row_list(
      std::max({query_features(layer.heads), kv_features(layer.heads), layer.intermediate_size}),
      a.name + ": the shape of layer " + std::to_string(*name.layer));
  const bool qkv = name.part == "query" || name.part == "key" || name.part == "value";
  if (qkv && stored.ends_with("query_key_value")) return grouped(layer.heads, name.part);
  if (qkv && (stored.ends_with("qkv_proj") || stored.ends_with("c_attn"))) {
    return side_by_side(layer.heads, name.part);
  }
  if (name.part == "gate" && (stored.ends_with("gate_up_proj") || stored.ends_with("proj_1"))) {
    return row_range(0, layer.intermediate_size);
  }
  if (name.part == "up" && (stored.ends_with("gate_up_proj") || stored.ends_with("proj_1"))) {
    const bool gated = stack.gated_mlp;
    return row_range(gated ? layer.intermediate_size : 0, layer.intermediate_size);
  }
  return {};
}

}  // namespace

WeightSource huggingface_weight(const Architecture& a, const std::string& name) {
  WeightSource source;
  if (!a.slim.empty()) {  // converted checkpoints hold the weights as the forward pass reads them
    source.names = {name};
    return source;
  }
  const WeightName parsed = parse_weight_name(name);
  source.names = shared_names(a, parsed);
  if (!source.names.empty()) return source;

  const Family family = family_of(a, parsed.stack);
  const Names& names = parsed.layer ? family.in_layer : family.outside;
  const auto found = names.find(parsed.part);
  KVCAST_ASSERT(found != names.end());
  const std::string& stored = found->second;
  const std::string layer =
      parsed.layer ? family.layer + std::to_string(*parsed.layer) + "." : std::string();
  for (const std::string& prefix : family.prefixes) {
    source.names.push_back(prefix + layer + stored + parsed.kind);
  }
  if (parsed.layer) source.rows = fused_rows(a, parsed, stored);
  // transformers' Conv1D stores [in, out].
  const bool conv1d =
      a.model_type == "gpt2" &&
      (stored.ends_with("c_attn") || stored.ends_with("c_proj") || stored == "mlp.c_fc");
  source.transposed = conv1d && parsed.kind == ".weight";
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
