#include <utility>

#include <nlohmann/json.hpp>

#include "model/families/config_parts.h"
#include "model/families/family.h"

namespace kvcast::families {
namespace {

void refine_gpt_neox(const JsonObject& c, Architecture& a) {
  a.model_type = "gpt_neox";
  a.decoder.residual =
      c.flag_or("use_parallel_residual", true) ? Residual::ParallelTwoNorms : Residual::Sequential;
  if (c.text("model_type") == "gpt_neox_mlkv") c.whole("num_key_value_layers");  // must be there
}

void refine_falcon(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  require_flag(c, "apply_residual_connection_post_layernorm", false, "residuals after a norm");
  const bool grouped = c.flag_or("new_decoder_architecture", false);
  // Flags that grouped models ignore are read first, so that they count as known.
  const bool multi_query = c.flag_or("multi_query", true) && !grouped;
  for (LayerShape& layer : s.layers) {
    if (multi_query) layer.heads.num_key_value_heads = 1;
    if (grouped) layer.heads = read_heads(c, {.num_key_value_heads = "num_kv_heads"});
  }
  const bool parallel = c.flag_or("parallel_attn", true) || grouped;
  const std::uint64_t norms =
      c.is_null("num_ln_in_parallel_attn") ? 2 : c.whole_or("num_ln_in_parallel_attn", 2);
  const bool two_norms = grouped && norms == 2;
  s.residual = two_norms ? Residual::ParallelTwoNorms
                         : (parallel ? Residual::ParallelOneNorm : Residual::Sequential);
}

void complete_falcon(const GgufReader& r, nlohmann::json& c) {
  const std::uint64_t kv_heads = r.whole_or("attention.head_count_kv", 1);
  c["num_kv_heads"] = kv_heads;
  c["new_decoder_architecture"] = kv_heads > 1;
  c["num_ln_in_parallel_attn"] = r.has_tensor("blk.0.attn_norm_2.weight") ? 2 : 1;
}

/// LayerNorm, and biases on all projections.
Family layer_norm_family(std::vector<std::string_view> model_types, Function activation) {
  Family f{.model_types = std::move(model_types)};
  f.stack.norm = NormKind::Layer;
  f.stack.activation = activation;
  f.stack.query_bias = f.stack.key_bias = f.stack.value_bias = true;
  f.stack.attention_output_bias = f.stack.mlp_bias = true;
  return f;
}

}  // namespace

/// The authors of MLKV kept the type "gpt_neox"; others wrote down what it is.
Family gpt_neox() {
  Family f = layer_norm_family({"gpt_neox", "gpt_neox_mlkv"}, Function::Gelu);
  f.keys.norm_eps = "layer_norm_eps";
  f.keys.attention_bias = "attention_bias";
  f.keys.rope_theta = "rotary_emb_base";
  f.keys.rotary_share = "rotary_pct";
  f.keys.default_rotary_share = 0.25;
  f.refine = refine_gpt_neox;
  f.names = {.prefixes = {"gpt_neox.", ""},
             .in_layer = {{"qkv", "attention.query_key_value"},
                          {"attention_output", "attention.dense"},
                          {"attention_norm", "input_layernorm"},
                          {"mlp_norm", "post_attention_layernorm"},
                          {"up", "mlp.dense_h_to_4h"},
                          {"down", "mlp.dense_4h_to_h"}},
             .outside = {{"embedding", "embed_in"}, {"final_norm", "final_layer_norm"}},
             .head = "embed_out.weight",
             .groups_heads = true};
  f.gguf = {.architecture = "gptneox",
            .fused_qkv = true,
            .complete = [](const GgufReader& r, nlohmann::json& c) {
              c["use_parallel_residual"] = r.flag_or("use_parallel_residual", true);
            }};
  return f;
}

Family falcon() {
  Family f{.model_types = {"falcon", "RefinedWeb", "RefinedWebModel"}};
  f.stack.norm = NormKind::Layer;
  f.stack.activation = Function::Gelu;
  f.keys.intermediate_size = "ffn_hidden_size";
  f.keys.num_key_value_heads = nullptr;
  f.keys.norm_eps = "layer_norm_epsilon";
  f.keys.activation = "activation";
  f.keys.attention_bias = f.keys.mlp_bias = "bias";
  f.keys.alibi = "alibi";
  f.keys.default_mlp_ratio = 4;
  f.keys.default_max_positions = 2048;
  f.keys.default_tied = true;
  // Read with new_decoder_architecture, and without ALiBi.
  f.keys.unread = {"num_kv_heads", "rope_parameters", "rope_scaling", "rope_theta"};
  f.keys.other_names = {{"hidden_size", "n_embed"},
                        {"num_hidden_layers", "n_layer"},
                        {"num_attention_heads", "n_head"}};
  f.refine = refine_falcon;
  f.names = {.prefixes = {"transformer.", ""},
             .layer = "h.",
             .in_layer = {{"qkv", "self_attention.query_key_value"},
                          {"attention_output", "self_attention.dense"},
                          {"attention_norm", "input_layernorm"},
                          {"mlp_norm", "post_attention_layernorm"},
                          {"up", "mlp.dense_h_to_4h"},
                          {"down", "mlp.dense_4h_to_h"}},
             .outside = {{"embedding", "word_embeddings"}, {"final_norm", "ln_f"}},
             .groups_heads = true};
  f.rename = [](const Architecture& a, std::string_view, CheckpointNames& names) {
    if (a.decoder.residual != Residual::ParallelTwoNorms) return;
    names.in_layer = with(names.in_layer, {{"attention_norm", "ln_attn"}, {"mlp_norm", "ln_mlp"}});
  };
  f.gguf = {.architecture = "falcon",
            .fused_qkv = true,
            .mlp_norm_first = true,
            .complete = complete_falcon};
  return f;
}

Family gpt2() {
  Family f = layer_norm_family({"gpt2"}, Function::GeluTanh);
  f.stack.position = Position::Learned;
  f.keys.hidden_size = "n_embd";
  f.keys.intermediate_size = "n_inner";
  f.keys.num_hidden_layers = "n_layer";
  f.keys.num_attention_heads = "n_head";
  f.keys.max_position_embeddings = "n_positions";
  f.keys.norm_eps = "layer_norm_epsilon";
  f.keys.activation = "activation_function";
  f.keys.default_mlp_ratio = 4;
  f.keys.default_tied = true;
  f.keys.other_names = {{"n_embd", "hidden_size"},
                        {"n_positions", "max_position_embeddings"},
                        {"n_positions", "n_ctx", true},
                        {"n_head", "num_attention_heads"},
                        {"n_layer", "num_hidden_layers"}};
  f.refine = [](const JsonObject& c, Architecture& a) {
    if (!c.flag_or("scale_attn_weights", true)) a.decoder.attention_scale = 1;
    require_flag(c, "scale_attn_by_inverse_layer_idx", false, "scales that differ by layer");
  };
  f.names = {.prefixes = {"transformer.", ""},
             .layer = "h.",
             .in_layer = {{"qkv", "attn.c_attn"},
                          {"attention_output", "attn.c_proj"},
                          {"attention_norm", "ln_1"},
                          {"mlp_norm", "ln_2"},
                          {"up", "mlp.c_fc"},
                          {"down", "mlp.c_proj"}},
             .outside = {{"embedding", "wte"}, {"positions", "wpe"}, {"final_norm", "ln_f"}},
             .transposed = true};
  f.gguf = {.architecture = "gpt2", .fused_qkv = true};
  return f;
}

Family opt() {
  Family f = layer_norm_family({"opt"}, Function::Relu);  // eps: torch.nn.LayerNorm's default
  f.stack.position = Position::Learned;
  f.stack.position_offset = 2;  // OPTLearnedPositionalEmbedding
  f.stack.score_scale = ScoreScale::OnQuery;
  f.stack.clamps_masked_scores = true;
  f.keys.intermediate_size = "ffn_dim";
  f.keys.activation = "activation_function";
  f.keys.attention_bias = f.keys.mlp_bias = "enable_bias";
  f.keys.default_tied = true;
  f.refine = [](const JsonObject& c, Architecture& a) {
    require_flag(c, "do_layer_norm_before", true, "post-norms, as in OPT-350M,");
    require_flag(c, "layer_norm_elementwise_affine", true, "norms without weights");
    if (c.whole_or("word_embed_proj_dim", a.hidden_size) != a.hidden_size) {
      c.fail("word_embed_proj_dim",
             "hidden_size: projected embeddings (OPT-350M) are not modelled");
    }
    a.decoder.final_norm = !c.flag_or("_remove_final_layer_norm", false);
  };
  f.names = {.prefixes = {"model.decoder.", "decoder.", ""},
             .in_layer = bart_layer(),
             .outside = {{"embedding", "embed_tokens"},
                         {"positions", "embed_positions"},
                         {"final_norm", "final_layer_norm"}}};
  return f;
}

}  // namespace kvcast::families
