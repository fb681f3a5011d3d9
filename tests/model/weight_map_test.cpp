#include "model/io/weights/weight_map.h"

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "tests/model/message_of.h"

using namespace kvcast;

namespace {

using Rows = std::vector<std::uint64_t>;
using Names = std::vector<std::string>;

Architecture architecture_of(const char* config) {
  return read_config(nlohmann::json::parse(config), "tiny", "tiny.json");
}

Rows rows_of(const Architecture& a, const std::string& weight) {
  return huggingface_weight(a, weight).rows;
}

Names names_of(const Architecture& a, const std::string& weight) {
  return huggingface_weight(a, weight).names;
}

Architecture llama() {
  return architecture_of(R"({"model_type": "llama", "hidden_size": 12, "intermediate_size": 20,
      "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3,
      "vocab_size": 50, "max_position_embeddings": 64, "rms_norm_eps": 1e-5})");
}

Architecture gpt2() {
  return architecture_of(R"({"model_type": "gpt2", "n_embd": 6, "n_head": 3, "n_layer": 2,
      "n_positions": 16, "vocab_size": 50})");
}

Architecture whisper() {
  return architecture_of(R"({"model_type": "whisper", "d_model": 12, "encoder_layers": 2,
      "decoder_layers": 3, "encoder_attention_heads": 3, "decoder_attention_heads": 3,
      "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "num_mel_bins": 8,
      "max_source_positions": 30, "max_target_positions": 40, "vocab_size": 50})");
}

Architecture t5(const char* feed_forward) {
  const std::string config = R"({"model_type": "t5", "d_model": 12, "d_kv": 4, "d_ff": 20,
      "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3, "vocab_size": 50,
      "relative_attention_num_buckets": 8, "feed_forward_proj": ")";
  return architecture_of((config + feed_forward + "\"}").c_str());
}

}  // namespace

TEST_CASE("weight_map: Llama's weights have tensors of their own, with and without the prefix") {
  const Architecture a = llama();
  CHECK(names_of(a, "layers.2.query.weight") ==
        Names{"model.layers.2.self_attn.q_proj.weight", "layers.2.self_attn.q_proj.weight"});
  CHECK(names_of(a, "embedding.weight") ==
        Names{"model.embed_tokens.weight", "embed_tokens.weight"});
  CHECK(names_of(a, "head.weight") == Names{"lm_head.weight"});
  CHECK(names_of(a, "final_norm.weight")[0] == "model.norm.weight");
  CHECK(names_of(a, "layers.0.mlp_norm.weight")[0] ==
        "model.layers.0.post_attention_layernorm.weight");
  for (const char* weight :
       {"layers.1.query.weight", "layers.1.key.weight", "layers.1.up.weight"}) {
    const WeightSource source = huggingface_weight(a, weight);
    CHECK(source.rows.empty());
    CHECK_FALSE(source.transposed);
    CHECK(source.offset == 0);
  }
}

TEST_CASE("weight_map: Gemma 2 has four norms a layer under names that Llama uses otherwise") {
  const Architecture a = architecture_of(R"({"model_type": "gemma2", "hidden_size": 12,
      "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
      "num_key_value_heads": 3, "head_dim": 4, "vocab_size": 50, "sliding_window": 8,
      "max_position_embeddings": 64, "rms_norm_eps": 1e-6})");
  const std::string layer = "model.layers.1.";
  CHECK(names_of(a, "layers.1.attention_norm.weight")[0] == layer + "input_layernorm.weight");
  CHECK(names_of(a, "layers.1.post_attention_norm.weight")[0] ==
        layer + "post_attention_layernorm.weight");
  CHECK(names_of(a, "layers.1.mlp_norm.weight")[0] == layer + "pre_feedforward_layernorm.weight");
  CHECK(names_of(a, "layers.1.post_mlp_norm.weight")[0] ==
        layer + "post_feedforward_layernorm.weight");
}

TEST_CASE("weight_map: GPT-NeoX's fused rows are [head, query key value, head_dim]") {
  // 3 heads of 2: head h begins at row 6h, with its query, key and value in this order.
  const Architecture a = architecture_of(R"({"model_type": "gpt_neox", "hidden_size": 6,
      "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
      "vocab_size": 50, "max_position_embeddings": 64, "rotary_pct": 1.0})");
  CHECK(rows_of(a, "layers.1.query.weight") == Rows{0, 1, 6, 7, 12, 13});
  CHECK(rows_of(a, "layers.1.key.weight") == Rows{2, 3, 8, 9, 14, 15});
  CHECK(rows_of(a, "layers.1.value.weight") == Rows{4, 5, 10, 11, 16, 17});
  CHECK(rows_of(a, "layers.1.value.bias") == Rows{4, 5, 10, 11, 16, 17});
  CHECK(rows_of(a, "layers.1.up.weight").empty());
  CHECK(names_of(a, "layers.1.key.bias")[0] == "gpt_neox.layers.1.attention.query_key_value.bias");
  CHECK(names_of(a, "head.weight") == Names{"embed_out.weight"});
}

TEST_CASE("weight_map: Falcon's fused rows hold a group's queries, then its key and its value") {
  SUBCASE("new decoder architecture: 4 heads of 2 in 2 groups, 8 rows a group") {
    const Architecture a = architecture_of(R"({"model_type": "falcon", "hidden_size": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_kv_heads": 2,
        "new_decoder_architecture": true, "vocab_size": 50})");
    CHECK(rows_of(a, "layers.0.query.weight") == Rows{0, 1, 2, 3, 8, 9, 10, 11});
    CHECK(rows_of(a, "layers.0.key.weight") == Rows{4, 5, 12, 13});
    CHECK(rows_of(a, "layers.0.value.weight") == Rows{6, 7, 14, 15});
    CHECK(names_of(a, "layers.0.attention_norm.weight")[0] == "transformer.h.0.ln_attn.weight");
    CHECK(names_of(a, "layers.0.mlp_norm.weight")[0] == "transformer.h.0.ln_mlp.weight");
  }
  SUBCASE("multi-query: all queries, then the one key and the one value") {
    const Architecture a = architecture_of(R"({"model_type": "falcon", "hidden_size": 6,
        "num_hidden_layers": 2, "num_attention_heads": 3, "multi_query": true,
        "parallel_attn": true, "vocab_size": 50})");
    CHECK(rows_of(a, "layers.0.query.weight") == Rows{0, 1, 2, 3, 4, 5});
    CHECK(rows_of(a, "layers.0.key.weight") == Rows{6, 7});
    CHECK(rows_of(a, "layers.0.value.weight") == Rows{8, 9});
    CHECK(names_of(a, "layers.0.attention_norm.weight")[0] ==
          "transformer.h.0.input_layernorm.weight");
  }
  SUBCASE("without multi-query: as in GPT-NeoX") {
    const Architecture a = architecture_of(R"({"model_type": "falcon", "hidden_size": 4,
        "num_hidden_layers": 2, "num_attention_heads": 2, "multi_query": false, "alibi": true,
        "parallel_attn": false, "vocab_size": 50})");
    CHECK(rows_of(a, "layers.1.query.weight") == Rows{0, 1, 6, 7});
    CHECK(rows_of(a, "layers.1.key.weight") == Rows{2, 3, 8, 9});
    CHECK(rows_of(a, "layers.1.value.weight") == Rows{4, 5, 10, 11});
  }
}

TEST_CASE("weight_map: Phi-3 stores queries, keys and values side by side, and gate before up") {
  // 4 query heads of 2, 2 key-value heads; 5 features in the MLP.
  const Architecture a = architecture_of(R"({"model_type": "phi3", "hidden_size": 8,
      "intermediate_size": 5, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "vocab_size": 50, "max_position_embeddings": 64,
      "rms_norm_eps": 1e-5})");
  CHECK(rows_of(a, "layers.0.query.weight") == Rows{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(rows_of(a, "layers.0.key.weight") == Rows{8, 9, 10, 11});
  CHECK(rows_of(a, "layers.0.value.weight") == Rows{12, 13, 14, 15});
  CHECK(rows_of(a, "layers.0.gate.weight") == Rows{0, 1, 2, 3, 4});
  CHECK(rows_of(a, "layers.0.up.weight") == Rows{5, 6, 7, 8, 9});
  CHECK(rows_of(a, "layers.0.down.weight").empty());
  CHECK(names_of(a, "layers.0.value.weight")[0] == "model.layers.0.self_attn.qkv_proj.weight");
  CHECK(names_of(a, "layers.0.gate.weight")[0] == "model.layers.0.mlp.gate_up_proj.weight");
}

TEST_CASE("weight_map: OpenELM's fused rows follow each layer's own heads") {
  // Layer 0: 2 query heads over 1; layer 1: 4 over 2; heads of 2.
  const Architecture a = architecture_of(R"({"model_type": "openelm", "model_dim": 8,
      "num_transformer_layers": 2, "head_dim": 2, "num_query_heads": [2, 4],
      "num_kv_heads": [1, 2], "num_gqa_groups": 2, "ffn_multipliers": [0.5, 1.0],
      "ffn_dim_divisor": 4, "ffn_with_glu": true, "vocab_size": 50, "max_context_length": 64})");
  CHECK(rows_of(a, "layers.0.key.weight") == Rows{4, 5});
  CHECK(rows_of(a, "layers.0.value.weight") == Rows{6, 7});
  CHECK(rows_of(a, "layers.1.key.weight") == Rows{8, 9, 10, 11});
  CHECK(rows_of(a, "layers.1.value.weight") == Rows{12, 13, 14, 15});
  // 0.5 · 8 = 4 features: the gate's, then the up projection's.
  CHECK(rows_of(a, "layers.0.gate.weight") == Rows{0, 1, 2, 3});
  CHECK(rows_of(a, "layers.0.up.weight") == Rows{4, 5, 6, 7});
  CHECK(names_of(a, "layers.0.query_norm.weight")[0] == "transformer.layers.0.attn.q_norm.weight");
}

TEST_CASE("weight_map: GPT-2's matrices are turned, and its fused columns are in thirds") {
  const Architecture a = gpt2();
  const WeightSource key = huggingface_weight(a, "layers.1.key.weight");
  CHECK(key.transposed);
  CHECK(key.rows == Rows{6, 7, 8, 9, 10, 11});
  CHECK(key.names == Names{"transformer.h.1.attn.c_attn.weight", "h.1.attn.c_attn.weight"});
  const WeightSource bias = huggingface_weight(a, "layers.1.value.bias");
  CHECK_FALSE(bias.transposed);
  CHECK(bias.rows == Rows{12, 13, 14, 15, 16, 17});
  for (const char* weight : {"attention_output", "up", "down"}) {
    const WeightSource source =
        huggingface_weight(a, std::string("layers.0.") + weight + ".weight");
    CHECK(source.transposed);
    CHECK(source.rows.empty());
  }
  for (const char* weight : {"embedding.weight", "positions.weight", "layers.0.mlp_norm.weight"}) {
    CHECK_FALSE(huggingface_weight(a, weight).transposed);
  }
}

TEST_CASE("weight_map: both stacks of T5 and Whisper have their names") {
  CHECK(names_of(t5("relu"), "encoder.layers.1.up.weight") ==
        Names{"encoder.block.1.layer.1.DenseReluDense.wi.weight"});
  CHECK(names_of(t5("relu"), "decoder.layers.1.down.weight") ==
        Names{"decoder.block.1.layer.2.DenseReluDense.wo.weight"});
  CHECK(names_of(t5("gated-gelu"), "encoder.layers.0.gate.weight")[0] ==
        "encoder.block.0.layer.1.DenseReluDense.wi_0.weight");
  CHECK(names_of(t5("gated-gelu"), "encoder.layers.0.up.weight")[0] ==
        "encoder.block.0.layer.1.DenseReluDense.wi_1.weight");
  CHECK(names_of(t5("relu"), "decoder.layers.2.cross_key.weight")[0] ==
        "decoder.block.2.layer.1.EncDecAttention.k.weight");
  CHECK(names_of(t5("relu"), "embedding.weight")[0] == "shared.weight");

  CHECK(names_of(whisper(), "encoder.layers.1.query.bias") ==
        Names{"model.encoder.layers.1.self_attn.q_proj.bias",
              "encoder.layers.1.self_attn.q_proj.bias"});
  CHECK(names_of(whisper(), "decoder.layers.0.cross_output.weight")[0] ==
        "model.decoder.layers.0.encoder_attn.out_proj.weight");
  CHECK(names_of(whisper(), "encoder.conv2.weight")[0] == "model.encoder.conv2.weight");
  CHECK(names_of(whisper(), "embedding.weight")[0] == "model.decoder.embed_tokens.weight");
  CHECK(names_of(whisper(), "head.weight") == Names{"proj_out.weight"});
}

TEST_CASE("weight_map: buffers and copies of tied weights are no weights, and nothing else is") {
  Architecture a = llama();
  CHECK(is_unused_buffer(a, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  CHECK_FALSE(is_unused_buffer(a, "lm_head.weight"));
  a.tied_embeddings = true;
  CHECK(is_unused_buffer(a, "lm_head.weight"));
  CHECK_FALSE(is_unused_buffer(a, "model.embed_tokens.weight"));
  CHECK_FALSE(is_unused_buffer(a, "model.layers.0.self_attn.q_proj.bias"));
  CHECK(is_unused_buffer(gpt2(), "h.0.attn.bias"));
  CHECK(is_unused_buffer(gpt2(), "transformer.h.0.attn.masked_bias"));
  CHECK_FALSE(is_unused_buffer(gpt2(), "h.0.attn.c_attn.bias"));
  CHECK(is_unused_buffer(t5("relu"), "decoder.embed_tokens.weight"));
}

TEST_CASE("weight_map: fused rows beyond reason are refused before they are listed") {
  Architecture a = gpt2();
  a.decoder.layers[1].heads.num_attention_heads = std::uint64_t{1} << 39;
  // 2^39 heads of 2.
  CHECK(message_of([&] { huggingface_weight(a, "layers.1.query.weight"); }) ==
        "tiny: the shape of layer 1: got 1099511627776 rows of a projection, expected at most "
        "4194304");
}
