#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/model/tiny_models.h"
#include "tests/near.h"

using namespace kvcast;
using nlohmann::json;

namespace {

std::vector<std::uint64_t> windows(const Architecture& a) {
  std::vector<std::uint64_t> result;
  for (const LayerShape& layer : a.decoder.layers) result.push_back(layer.sliding_window);
  return result;
}

using Windows = std::vector<std::uint64_t>;

const std::string tiny_llama = R"({"model_type": "llama", "hidden_size": 48, "vocab_size": 51,
  "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3,
  "intermediate_size": 20})";
const std::string neox = R"({"model_type": "gpt_neox", "hidden_size": 48, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 20})";
const std::string openelm = R"({"model_type": "openelm", "model_dim": 40, "vocab_size": 51,
  "num_transformer_layers": 4, "head_dim": 8, "num_query_heads": [4, 6, 6, 8],
  "num_kv_heads": [2, 3, 2, 4], "ffn_multipliers": [0.1, 0.5, 1.52, 4.0], "ffn_dim_divisor": 16})";
const std::string falcon = R"({"model_type": "falcon", "hidden_size": 48, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6})";
const std::string gpt2 = R"({"model_type": "gpt2", "n_embd": 42, "vocab_size": 51,
  "n_layer": 3, "n_head": 6, "n_positions": 64})";
const std::string opt = R"({"model_type": "opt", "hidden_size": 42, "vocab_size": 51,
  "num_hidden_layers": 3, "num_attention_heads": 6, "ffn_dim": 20,
  "max_position_embeddings": 64})";

}  // namespace

TEST_CASE("config_decoders: keys that a saved config leaves out have the family's own defaults") {
  // transformers' configuration classes: MistralConfig 8 KV heads; GemmaConfig 16 KV heads of 256;
  // Gemma2Config 4 KV heads of 256, window 4096, caps 50 and 30; Qwen2Config 32 KV heads.
  const auto shape = [](const std::string& type, const std::string& heads) {
    return model_of(tiny_llama,
                    R"({"num_key_value_heads": null, "hidden_size": 192, "model_type": ")" + type +
                        R"(", "num_attention_heads": )" + heads + "}");
  };
  CHECK(shape("llama", "6").decoder.layers[0].heads == Heads{6, 6, 32});
  CHECK(shape("mistral", "16").decoder.layers[0].heads == Heads{16, 8, 12});
  CHECK(shape("qwen2", "32").decoder.layers[0].heads == Heads{32, 32, 6});
  CHECK(shape("gemma", "16").decoder.layers[0].heads == Heads{16, 16, 256});
  CHECK(shape("mistral", "16").decoder.norm_eps == 1e-6);
  CHECK(shape("phi3", "6").decoder.norm_eps == 1e-5);
  const Architecture gemma2 = shape("gemma2", "8");
  CHECK(gemma2.decoder.layers[0].heads == Heads{8, 4, 256});
  CHECK(gemma2.decoder.layers[0].sliding_window == 4096);
  CHECK(gemma2.decoder.attention_softcap == 50);
  CHECK(gemma2.logit_softcap == 30);
}

TEST_CASE("config_decoders: rope_parameters of transformers 5 are read like rope_scaling") {
  const Architecture a = model_of(
      tiny_llama, R"({"rope_parameters": {"rope_type": "default", "rope_theta": 500000}})");
  // The second frequency of a head of 8 is theta^(-2/8).
  CHECK(a.decoder.layers[0].rope->inverse_frequencies[1] == near(std::pow(500000, -0.25)));
  CHECK_THROWS(model_of(tiny_llama, R"({"rope_parameters": {"rope_type": "yarn"}})"));
}

TEST_CASE("config_decoders: mixtures of experts are refused") {
  CHECK_THROWS(model_of(tiny_llama, R"({"num_local_experts": 8})"));
}

TEST_CASE("config_decoders: Llama is RMSNorm, RoPE and a gated MLP without biases") {
  const Architecture a = model_of(tiny_llama);
  const Stack& s = a.decoder;
  CHECK(a.hidden_size == 48);
  CHECK(a.vocab_size == 51);
  CHECK(a.max_position_embeddings == 0);
  CHECK_FALSE(a.tied_embeddings);
  CHECK_FALSE(a.encoder_decoder);
  CHECK(unrotated(s.layers) == std::vector<LayerShape>(5, {{6, 3, 8}, 20, 0}));
  CHECK(s.norm == NormKind::Rms);
  CHECK(s.norm_eps == 1e-6);  // LlamaConfig's default
  CHECK(s.residual == Residual::Sequential);
  CHECK(s.position == Position::Rope);
  CHECK(s.layers[0].rope->inverse_frequencies.size() == 4);
  CHECK(s.attention_scale == 1 / std::sqrt(8.0));
  CHECK(s.score_scale == ScoreScale::OnScores);
  CHECK(s.gated_mlp);
  CHECK(s.activation == Function::Silu);
  CHECK(s.final_norm);
  CHECK_FALSE((s.query_bias || s.key_bias || s.value_bias || s.attention_output_bias));
  CHECK_FALSE((s.mlp_bias || normalizes_keys(s) || s.post_norms));
  CHECK(a.embedding_scale == 1);
  CHECK(a.logit_scale == 1);
}

TEST_CASE("config_decoders: Llama without KV heads has as many as heads; head_dim may differ") {
  CHECK(model_of(tiny_llama, R"({"num_key_value_heads": null})").decoder.layers[0].heads ==
        Heads{6, 6, 8});
  const Architecture a = model_of(tiny_llama, R"({"hidden_size": 41, "head_dim": 10})");
  CHECK(a.decoder.layers[0].heads == Heads{6, 3, 10});
  CHECK(a.decoder.attention_scale == 1 / std::sqrt(10.0));
}

TEST_CASE("config_decoders: Llama's attention_bias is on all four projections, mlp_bias on three") {
  const Stack s = model_of(tiny_llama, R"({"attention_bias": true, "mlp_bias": true})").decoder;
  CHECK((s.query_bias && s.key_bias && s.value_bias && s.attention_output_bias && s.mlp_bias));
}

TEST_CASE("config_decoders: Qwen2 has biases on q, k and v only, and windows when it says so") {
  const Architecture a = model_of(tiny_llama, R"({"model_type": "qwen2", "sliding_window": 9})");
  CHECK((a.decoder.query_bias && a.decoder.key_bias && a.decoder.value_bias));
  CHECK_FALSE(a.decoder.attention_output_bias);
  CHECK(windows(a) == Windows{0, 0, 0, 0, 0});
  CHECK(windows(model_of(tiny_llama, R"({"model_type": "qwen2", "sliding_window": 9,
                                "use_sliding_window": true, "max_window_layers": 2})")) ==
        Windows{0, 0, 9, 9, 9});
  CHECK(windows(model_of(tiny_llama, R"({"model_type": "qwen2", "use_sliding_window": true,
                                "max_window_layers": 4})")) ==
        Windows{0, 0, 0, 0, 4096});  // transformers' default
}

TEST_CASE(
    "config_decoders: Mistral and Phi-3 window every layer, Llama none, Gemma 2 every other") {
  const std::string window = R"("sliding_window": 9})";
  CHECK(windows(model_of(tiny_llama, "{" + window)) == Windows{0, 0, 0, 0, 0});
  CHECK(windows(model_of(tiny_llama, R"({"model_type": "mistral", )" + window)) ==
        Windows{9, 9, 9, 9, 9});
  CHECK(windows(model_of(tiny_llama, R"({"model_type": "mistral"})")) ==
        Windows{4096, 4096, 4096, 4096, 4096});  // transformers' default
  json none = json::parse(tiny_llama);
  none["model_type"] = "mistral";
  none["sliding_window"] = nullptr;
  CHECK(windows(read_config(none, "tiny", "tiny.json")) == Windows{0, 0, 0, 0, 0});
  CHECK(windows(model_of(tiny_llama, R"({"model_type": "phi3", )" + window)) ==
        Windows{9, 9, 9, 9, 9});
  CHECK(windows(model_of(tiny_llama, R"({"model_type": "gemma2", )" + window)) ==
        Windows{9, 0, 9, 0, 9});
  CHECK(windows(model_of(tiny_llama, R"({"model_type": "gemma", )" + window)) ==
        Windows{0, 0, 0, 0, 0});
}

TEST_CASE("config_decoders: OLMo's LayerNorm has no parameters") {
  const Architecture a = model_of(tiny_llama, R"({"model_type": "olmo", "rms_norm_eps": 0.5})");
  CHECK(a.decoder.norm == NormKind::LayerPlain);
  CHECK(a.decoder.norm_eps == 1e-5);
}

TEST_CASE("config_decoders: Gemma's weights are 1 + w, its embedding scaled, its head tied") {
  // The first hub configs say "gelu"; the model was trained with the tanh form.
  const Architecture a = model_of(tiny_llama, R"({"model_type": "gemma", "hidden_act": "gelu"})");
  CHECK(a.decoder.norm == NormKind::RmsUnitOffset);
  CHECK(a.decoder.activation == Function::GeluTanh);
  CHECK(a.embedding_scale == std::sqrt(48.0));
  CHECK(a.tied_embeddings);
  CHECK_FALSE(a.decoder.post_norms);
  CHECK(a.decoder.attention_softcap == 0);
}

TEST_CASE("config_decoders: Gemma 2 adds norms after its branches, caps and a query scale") {
  const Architecture a =
      model_of(tiny_llama, R"({"model_type": "gemma2", "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 144})");
  CHECK(a.decoder.post_norms);
  CHECK(a.decoder.attention_softcap == 50);
  CHECK(a.logit_softcap == 30);
  CHECK(a.decoder.attention_scale == 1.0 / 12);
  // null switches a cap off; the scale's default is 256^-0.5
  json capless = json::parse(tiny_llama);
  capless["model_type"] = "gemma2";
  capless["attn_logit_softcapping"] = nullptr;
  const Architecture b = read_config(capless, "tiny", "tiny.json");
  CHECK(b.decoder.attention_softcap == 0);
  CHECK(b.decoder.attention_scale == 1.0 / 16);
}

TEST_CASE("config_decoders: GPT-NeoX rotates a quarter of a head and adds both branches at once") {
  const Architecture a = model_of(neox);
  const Stack& s = a.decoder;
  CHECK(unrotated(s.layers) == std::vector<LayerShape>(3, {{6, 6, 8}, 20, 0}));
  CHECK(s.norm == NormKind::Layer);
  CHECK(s.residual == Residual::ParallelTwoNorms);
  CHECK(s.layers[0].rope->inverse_frequencies ==
        std::vector<double>{1.0});  // 2 of 8 dims: one pair
  CHECK((s.query_bias && s.key_bias && s.value_bias && s.attention_output_bias && s.mlp_bias));
  CHECK_FALSE(s.gated_mlp);
  CHECK(s.activation == Function::Gelu);
  CHECK_FALSE(a.tied_embeddings);
  const Stack t = model_of(neox, R"({"use_parallel_residual": false, "rotary_pct": 1.0,
    "attention_bias": false, "rotary_emb_base": 16})")
                      .decoder;
  CHECK(t.residual == Residual::Sequential);
  CHECK(t.layers[0].rope->inverse_frequencies == std::vector<double>{1, 0.5, 0.25, 0.125});
  CHECK_FALSE((t.query_bias || t.attention_output_bias));
  CHECK(t.mlp_bias);
}

TEST_CASE("config_decoders: an odd share of a head turns one dim more, at the odd number's rates") {
  // torch.arange(0, 3, 2) / 3 = 0, 2/3: two pairs.
  const Stack s = model_of(neox, R"({"rotary_pct": 0.4, "rotary_emb_base": 8})").decoder;
  const std::vector<double>& rates = s.layers[0].rope->inverse_frequencies;
  REQUIRE(rates.size() == 2);
  CHECK(rates[0] == 1);
  CHECK(rates[1] == near(0.25));
}

TEST_CASE("config_decoders: OpenELM's layers differ, their widths rounded as corenet rounds") {
  // divisible(v, 16): max(16, int(v + 8) / 16 * 16), plus 16 if below 0.9 v.
  //   0.1 · 40 = 4     -> int(12) / 16 = 0 -> at least 16
  //   0.5 · 40 = 20    -> int(28) / 16 = 1 -> 16, below 18 -> 32
  //   1.52 · 40 = 60.8 -> int(68.8) / 16 = 4 -> 64
  //   4 · 40 = 160     -> 160
  const Architecture a = model_of(openelm);
  const std::vector<LayerShape> expected{
      {{4, 2, 8}, 16, 0}, {{6, 3, 8}, 32, 0}, {{6, 2, 8}, 64, 0}, {{8, 4, 8}, 160, 0}};
  CHECK(unrotated(a.decoder.layers) == expected);
  CHECK(a.hidden_size == 40);
  CHECK(a.tied_embeddings);
  CHECK(a.max_position_embeddings == 2048);
  CHECK(a.decoder.norm == NormKind::Rms);
  CHECK(a.decoder.norm_eps == 1e-6);
  CHECK(a.decoder.query_key_norm == QueryKeyNorm::Heads);
  CHECK(a.decoder.gated_mlp);
  CHECK(a.decoder.activation == Function::Silu);
  CHECK_FALSE(model_of(openelm, R"({"share_input_output_layers": false})").tied_embeddings);
}

TEST_CASE("config_decoders: Falcon-7B has one KV head, one norm and both branches at once") {
  // The hub file says num_kv_heads 71 too; without new_decoder_architecture it is ignored.
  const Architecture a = model_of(falcon, R"({"num_kv_heads": 6})");
  CHECK(unrotated(a.decoder.layers) == std::vector<LayerShape>(3, {{6, 1, 8}, 192, 0}));  // 4 · 48
  CHECK(a.decoder.residual == Residual::ParallelOneNorm);
  CHECK(a.decoder.position == Position::Rope);
  CHECK(a.tied_embeddings);
  CHECK_FALSE((a.decoder.query_bias || a.decoder.mlp_bias));
  CHECK(a.max_position_embeddings == 2048);
}

TEST_CASE("config_decoders: Falcon-RW has ALiBi, biases, all KV heads and a sequential residual") {
  const Architecture a = model_of(falcon, R"({"multi_query": false, "alibi": true, "bias": true,
    "parallel_attn": false, "ffn_hidden_size": 20})");
  CHECK(unrotated(a.decoder.layers) == std::vector<LayerShape>(3, {{6, 6, 8}, 20, 0}));
  CHECK(a.decoder.residual == Residual::Sequential);
  CHECK(a.decoder.position == Position::Alibi);
  CHECK(a.decoder.layers[0].rope == nullptr);
  CHECK((a.decoder.query_bias && a.decoder.attention_output_bias && a.decoder.mlp_bias));
}

TEST_CASE("config_decoders: Falcon-40B groups its KV heads and has two norms; old keys are read") {
  const Architecture a =
      model_of(falcon, R"({"model_type": "RefinedWeb", "new_decoder_architecture": true,
        "num_kv_heads": 2, "num_attention_heads": null, "n_head": 6, "num_hidden_layers": null,
        "n_layer": 4})");
  CHECK(unrotated(a.decoder.layers) == std::vector<LayerShape>(4, {{6, 2, 8}, 192, 0}));
  CHECK(a.decoder.residual == Residual::ParallelTwoNorms);
  CHECK(a.model_type == "RefinedWeb");
}

TEST_CASE("config_decoders: GPT-2 learns its positions and its width defaults to 4 n_embd") {
  const Architecture a = model_of(gpt2);
  CHECK(unrotated(a.decoder.layers) == std::vector<LayerShape>(3, {{6, 6, 7}, 168, 0}));
  CHECK(a.decoder.position == Position::Learned);
  CHECK(a.decoder.position_rows == 64);
  CHECK(a.decoder.position_offset == 0);
  CHECK(a.decoder.norm == NormKind::Layer);
  CHECK(a.decoder.activation == Function::GeluTanh);
  CHECK(a.tied_embeddings);
  CHECK((a.decoder.query_bias && a.decoder.attention_output_bias && a.decoder.mlp_bias));
  CHECK(model_of(gpt2, R"({"n_inner": 20})").decoder.layers[0].intermediate_size == 20);
  CHECK(model_of(gpt2, R"({"n_inner": null})").decoder.layers[0].intermediate_size == 168);
  CHECK(model_of(gpt2, R"({"scale_attn_weights": false})").decoder.attention_scale == 1);
  CHECK(model_of(gpt2, R"({"n_positions": null, "n_ctx": 32})").decoder.position_rows == 32);
  CHECK(model_of(gpt2, R"({"n_ctx": 32})").decoder.position_rows == 64);
}

TEST_CASE("config_decoders: OPT's position table has two more rows, and it scales the queries") {
  const Architecture a = model_of(opt);
  CHECK(unrotated(a.decoder.layers) == std::vector<LayerShape>(3, {{6, 6, 7}, 20, 0}));
  CHECK(a.decoder.position_rows == 64);
  CHECK(a.decoder.position_offset == 2);
  CHECK(a.decoder.score_scale == ScoreScale::OnQuery);
  CHECK(a.decoder.activation == Function::Relu);
  CHECK(a.decoder.final_norm);
  CHECK((a.decoder.query_bias && a.decoder.attention_output_bias && a.decoder.mlp_bias));
  CHECK_FALSE(model_of(opt, R"({"enable_bias": false})").decoder.query_bias);
}

TEST_CASE("config_decoders: activations go by all the names that transformers gives them") {
  const auto activation = [](const std::string& word) {
    return model_of(neox, R"({"hidden_act": ")" + word + "\"}").decoder.activation;
  };
  CHECK(activation("silu") == Function::Silu);
  CHECK(activation("swish") == Function::Silu);
  CHECK(activation("gelu") == Function::Gelu);
  CHECK(activation("relu") == Function::Relu);
  for (const char* word : {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}) {
    CHECK(activation(word) == Function::GeluTanh);
  }
}
