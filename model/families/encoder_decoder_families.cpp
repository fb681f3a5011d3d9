#include <nlohmann/json.hpp>

#include "model/families/config_parts.h"
#include "model/families/family.h"
#include "model/families/gguf_reader.h"

namespace kvcast::families {
namespace {

Architecture read_t5(const JsonObject& c) {
  Architecture a;
  a.encoder_decoder = true;
  a.hidden_size = c.whole("d_model");
  a.vocab_size = c.whole("vocab_size");
  a.max_position_embeddings = c.whole_or("n_positions", 512);
  a.tied_embeddings = c.flag_or("tie_word_embeddings", true);
  // The tied head of v1.0 scales its input by hidden_size^-0.5.
  if (c.flag_or("scale_decoder_outputs", a.tied_embeddings)) {
    a.logit_scale = inverse_root(a.hidden_size);
  }

  Stack s;
  LayerShape layer;
  const std::uint64_t num_heads = c.whole("num_heads");
  layer.heads = {num_heads, num_heads, c.whole("d_kv")};
  layer.intermediate_size = c.whole("d_ff");
  s.norm_eps = c.positive_or("layer_norm_epsilon", 1e-6);
  s.position = Position::Relative;
  s.relative_buckets = c.whole_or("relative_attention_num_buckets", 32);
  s.relative_max_distance = c.whole_or("relative_attention_max_distance", 128);
  s.attention_scale = 1;
  s.score_scale = ScoreScale::None;
  const std::string projection = c.text_or("feed_forward_proj", "relu");
  const bool gated = projection.starts_with("gated-");
  const std::string function = gated ? projection.substr(6) : projection;
  if (function == "relu") {
    s.activation = Function::Relu;
  } else if (function == "gelu") {
    // transformers reads gated-gelu as gelu_new
    s.activation = gated ? Function::GeluTanh : Function::Gelu;
  } else if (function == "silu") {
    s.activation = Function::Silu;
  } else {
    c.fail("feed_forward_proj", "relu, gelu or silu, or one of them after \"gated-\"");
  }
  // transformers derives both from feed_forward_proj, and takes them from files that say otherwise.
  s.activation = read_activation(c, "dense_act_fn", s.activation);
  s.gated_mlp = c.flag_or("is_gated_act", gated);

  a.encoder = s;
  a.encoder.causal = false;
  const std::uint64_t encoder_layers = read_num_layers(c, "num_layers");
  a.encoder.layers.assign(encoder_layers, layer);
  a.decoder = s;
  a.decoder.cross_attention = true;
  const bool own_depth = c.has("num_decoder_layers");
  a.decoder.layers.assign(own_depth ? read_num_layers(c, "num_decoder_layers") : encoder_layers,
                          layer);
  return a;
}

/// Source: ggml-org/llama.cpp, conversion/t5.py, src/models/t5.cpp.
void complete_t5(const GgufReader& r, nlohmann::json& c) {
  const std::uint64_t layers = r.num_layers();
  c.update({{"d_model", r.whole("embedding_length")},
            {"d_ff", r.whole("feed_forward_length")},
            {"d_kv", r.head_dim()},
            {"num_heads", r.whole("attention.head_count")},
            {"num_layers", layers},
            {"num_decoder_layers", r.whole_or("decoder_block_count", layers)},
            {"n_positions", r.whole("context_length")},
            {"layer_norm_epsilon", r.number("attention.layer_norm_rms_epsilon")},
            {"relative_attention_num_buckets", r.whole("attention.relative_buckets_count")}});
  const bool gated = r.has_tensor("enc.blk.0.ffn_gate.weight");
  c["feed_forward_proj"] = gated ? "gated-gelu" : "relu";
  const char* const start = "decoder_start_token_id";
  if (r.has(start)) c[start] = r.whole(start);
}

/// The MLP is the last of two blocks in the encoder, of three in the decoder.
void rename_t5(const Architecture& a, std::string_view stack, CheckpointNames& names) {
  const std::string mlp = stack == "encoder." ? "layer.1." : "layer.2.";
  names.in_layer["mlp_norm"] = mlp + "layer_norm";
  names.in_layer["gate"] = mlp + "DenseReluDense.wi_0";
  names.in_layer["up"] = mlp + (a.decoder.gated_mlp ? "DenseReluDense.wi_1" : "DenseReluDense.wi");
  names.in_layer["down"] = mlp + "DenseReluDense.wo";
}

Architecture read_whisper(const JsonObject& c) {
  Architecture a;
  a.encoder_decoder = true;
  a.hidden_size = c.whole("d_model");
  a.vocab_size = c.whole("vocab_size");
  a.tied_embeddings = c.flag_or("tie_word_embeddings", true);
  a.num_mel_bins = c.whole_or("num_mel_bins", 80);
  a.max_source_positions = c.whole_or("max_source_positions", 1500);
  a.max_position_embeddings = c.whole_or("max_target_positions", 448);

  Stack s;
  s.norm = NormKind::Layer;
  s.norm_eps = 1e-5;  // torch.nn.LayerNorm's default
  s.score_scale = ScoreScale::OnQuery;
  s.query_bias = s.value_bias = s.attention_output_bias = s.mlp_bias = true;
  s.activation = read_activation(c, "activation_function", Function::Gelu);
  const auto layer_of = [&](const char* heads_key, const char* ffn_key) {
    LayerShape layer;
    layer.heads = read_heads(c, {.hidden_size = "d_model",
                                 .num_attention_heads = heads_key,
                                 .num_key_value_heads = nullptr});
    layer.intermediate_size = c.whole(ffn_key);
    s.attention_scale = inverse_root(layer.heads.head_dim);
    return layer;
  };

  const LayerShape encoder_layer = layer_of("encoder_attention_heads", "encoder_ffn_dim");
  a.encoder = s;
  a.encoder.layers.assign(read_num_layers(c, "encoder_layers"), encoder_layer);
  a.encoder.causal = false;
  a.encoder.position = Position::Sinusoid;
  a.encoder.position_rows = a.max_source_positions;

  const LayerShape decoder_layer = layer_of("decoder_attention_heads", "decoder_ffn_dim");
  a.decoder = s;
  a.decoder.layers.assign(read_num_layers(c, "decoder_layers"), decoder_layer);
  a.decoder.cross_attention = true;
  a.decoder.position = Position::Learned;
  a.decoder.position_rows = a.max_position_embeddings;
  return a;
}

}  // namespace

Family t5() {
  Family f{.model_types = {"t5"}, .read = read_t5};
  f.keys.other_names = {{"d_model", "hidden_size"},
                        {"num_heads", "num_attention_heads"},
                        {"num_layers", "num_hidden_layers"},
                        {"d_kv", "head_dim"}};
  f.names = {
      .prefixes = {"{stack}"},
      .layer = "block.",
      .in_layer = {{"query", "layer.0.SelfAttention.q"},
                   {"key", "layer.0.SelfAttention.k"},
                   {"value", "layer.0.SelfAttention.v"},
                   {"attention_output", "layer.0.SelfAttention.o"},
                   {"attention_norm", "layer.0.layer_norm"},
                   {"cross_query", "layer.1.EncDecAttention.q"},
                   {"cross_key", "layer.1.EncDecAttention.k"},
                   {"cross_value", "layer.1.EncDecAttention.v"},
                   {"cross_output", "layer.1.EncDecAttention.o"},
                   {"cross_norm", "layer.1.layer_norm"}},
      .outside = {{"final_norm", "final_layer_norm"},
                  {"relative_bias", "block.0.layer.0.SelfAttention.relative_attention_bias"}},
      .embedding = {"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}};
  f.rename = rename_t5;
  f.gguf = {.architecture = "t5",
            .names = {{"attention_output", "attn_o"},
                      {"cross_query", "cross_attn_q"},
                      {"cross_key", "cross_attn_k"},
                      {"cross_value", "cross_attn_v"},
                      {"cross_output", "cross_attn_o"},
                      {"cross_norm", "cross_attn_norm"},
                      {"relative_bias", "blk.0.attn_rel_b"}},
            .complete = complete_t5};
  return f;
}

Family whisper() {
  Family f{.model_types = {"whisper"}, .read = read_whisper};
  f.keys.other_names = {{"d_model", "hidden_size"},
                        {"encoder_layers", "num_hidden_layers"},
                        {"encoder_attention_heads", "num_attention_heads"},
                        {"encoder_attention_heads", "num_key_value_heads"}};
  f.keys.unread = {"scale_embedding"};  // transformers computes it and does not use it
  f.names = {.prefixes = {"model.{stack}", "{stack}"},
             .in_layer = bart_layer(),
             .outside = {{"positions", "embed_positions"},
                         {"final_norm", "layer_norm"},
                         {"conv1", "conv1"},
                         {"conv2", "conv2"}},
             .embedding = {"model.decoder.embed_tokens.weight", "decoder.embed_tokens.weight",
                           "proj_out.weight"},
             .head = "proj_out.weight"};
  return f;
}

}  // namespace kvcast::families
