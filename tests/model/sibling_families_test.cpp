#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "model/io/weights/weight_map.h"
#include "tests/model/message_of.h"

using namespace kvcast;
using nlohmann::json;

namespace {

/// A tiny model's config of this type.
Architecture read(const char* model_type, const json& changes = json::object()) {
  json config{{"vocab_size", 59},
              {"hidden_size", 24},
              {"intermediate_size", 37},
              {"num_hidden_layers", 5},
              {"num_attention_heads", 6},
              {"num_key_value_heads", 2},
              {"head_dim", 4},
              {"rope_theta", 700.0},
              {"max_position_embeddings", 64},
              {"tie_word_embeddings", false}};
  config["model_type"] = model_type;
  for (const auto& [key, value] : changes.items()) config[key] = value;
  const Architecture a = read_config(config, model_type, "tiny.json");
  CHECK(a.unknown_keys == std::vector<std::string>{});
  return a;
}

void check_same(const Architecture& a, const Architecture& b) {
  const Stack& s = a.decoder;
  const Stack& t = b.decoder;
  CHECK(a.embedding_scale == b.embedding_scale);
  CHECK(a.logit_scale == b.logit_scale);
  CHECK(a.logit_softcap == b.logit_softcap);
  CHECK(s.layers == t.layers);
  CHECK(s.norm == t.norm);
  CHECK(s.norm_eps == t.norm_eps);
  CHECK(s.pre_norms == t.pre_norms);
  CHECK(s.post_norms == t.post_norms);
  CHECK(s.query_key_norm == t.query_key_norm);
  CHECK(s.attention_scale == t.attention_scale);
  CHECK(s.query_bias == t.query_bias);
  CHECK(s.value_bias == t.value_bias);
  CHECK(s.attention_output_bias == t.attention_output_bias);
  CHECK(s.mlp_bias == t.mlp_bias);
  CHECK(s.gated_mlp == t.gated_mlp);
  CHECK(s.activation == t.activation);
  CHECK(s.attention_softcap == t.attention_softcap);
  CHECK(s.attention_sinks == t.attention_sinks);
  CHECK(s.branch_scale == t.branch_scale);
}

std::string stored(const Architecture& a, const std::string& weight) {
  return huggingface_weight(a, weight).names.front();
}

std::string refusal(const char* model_type, const json& changes) {
  return message_of([&] { read(model_type, changes); });
}

void set_interleaved(Architecture& a) {
  RopeTable table = *a.decoder.layers.front().rope;
  table.interleaved = true;
  const auto shared = std::make_shared<const RopeTable>(std::move(table));
  for (LayerShape& layer : a.decoder.layers) layer.rope = shared;
}

}  // namespace

TEST_CASE("families: InternLM3 and EXAONE 3 are Llama under other names") {
  check_same(read("internlm3", {{"qkv_bias", true}, {"bias", true}, {"rms_norm_eps", 0.01}}),
             read("llama", {{"attention_bias", true}, {"mlp_bias", true}, {"rms_norm_eps", 0.01}}));
  CHECK(refusal("internlm3", {{"qkv_bias", true}}) ==
        "tiny.json: /attention_bias: got true, expected one value for attention_bias and mlp_bias");
  // The class takes 128 dims a head where a file has no such key, and divides where it is null.
  CHECK(read("internlm3", {{"head_dim", nullptr}, {"hidden_size", 48}})
            .decoder.layers.front()
            .heads.head_dim == 8);

  const Architecture exaone = read("exaone", {{"num_hidden_layers", nullptr},
                                              {"num_layers", 3},
                                              {"layer_norm_epsilon", 0.01},
                                              {"activation_function", "gelu"}});
  check_same(
      exaone,
      read("llama", {{"num_hidden_layers", 3}, {"rms_norm_eps", 0.01}, {"hidden_act", "gelu"}}));
  CHECK(stored(exaone, "embedding.weight") == "transformer.wte.weight");
  CHECK(stored(exaone, "final_norm.weight") == "transformer.ln_f.weight");
  CHECK(stored(exaone, "layers.2.query.weight") == "transformer.h.2.attn.attention.q_proj.weight");
  CHECK(stored(exaone, "layers.2.attention_output.weight") ==
        "transformer.h.2.attn.attention.out_proj.weight");
  CHECK(stored(exaone, "layers.2.mlp_norm.weight") == "transformer.h.2.ln_2.weight");
  CHECK(stored(exaone, "layers.2.gate.weight") == "transformer.h.2.mlp.c_fc_0.weight");
}

TEST_CASE("families: CWM is Llama with windows and stretched rotations") {
  const json rope{{"rope_type", "llama3"},
                  {"factor", 16.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position_embeddings", 8192}};
  const json usual{{"rms_norm_eps", 1e-5}, {"rope_theta", 1e6}, {"rope_scaling", rope}};
  Architecture expected = read("llama", usual);
  for (const std::size_t i : {1U, 2U, 3U}) expected.decoder.layers[i].sliding_window = 8192;
  check_same(read("cwm", {{"rope_theta", nullptr}}), expected);
  check_same(read("cwm", {{"rope_theta", nullptr}, {"rope_scaling", rope}}), expected);
  for (LayerShape& layer : expected.decoder.layers) layer.sliding_window = 0;
  expected.decoder.layers[1].sliding_window = 7;
  const json types{"full_attention", "sliding_attention", "full_attention", "full_attention",
                   "full_attention"};
  check_same(read("cwm", {{"sliding_window", 7}, {"layer_types", types}, {"rope_theta", nullptr}}),
             expected);
}

TEST_CASE("families: Helium is Llama with pairs of rotated dims side by side") {
  Architecture expected = read("llama", {{"rms_norm_eps", 1e-8}, {"mlp_bias", true}});
  set_interleaved(expected);
  Stack& s = expected.decoder;
  s.query_bias = s.key_bias = s.value_bias = true;  // the output's product has none
  check_same(read("helium", {{"attention_bias", true}, {"mlp_bias", true}}), expected);
  CHECK(refusal("helium", {{"head_dim", 6}}) ==
        "tiny.json: /head_dim: got 6, expected hidden_size / num_attention_heads");
}

TEST_CASE("families: Jais 2 is Nemotron with biases and whole heads rotated") {
  const json same{{"attention_bias", true},
                  {"mlp_bias", true},
                  {"partial_rotary_factor", 1.0},
                  {"norm_eps", 0.01}};
  const Architecture jais = read("jais2", {{"layer_norm_eps", 0.01}});
  check_same(jais, read("nemotron", same));
  CHECK(huggingface_weight(jais, "layers.1.attention_norm.weight").offset == 0);
  CHECK_FALSE(read("jais2", {{"mlp_bias", false}}).decoder.mlp_bias);
}

TEST_CASE("families: VaultGemma is Gemma 2 without the norms behind the branches") {
  Architecture expected = read("gemma2");
  expected.decoder.post_norms = false;
  const Architecture a = read("vaultgemma");
  check_same(a, expected);
  CHECK(stored(a, "layers.0.mlp_norm.weight") == "model.layers.0.pre_feedforward_layernorm.weight");
}

TEST_CASE("families: FlexOlmo is OLMo 2 with OLMoE's experts") {
  const json routing{{"num_experts", 5}, {"num_experts_per_tok", 2}, {"norm_topk_prob", true}};
  Architecture expected = read("olmo2", {{"rms_norm_eps", 1e-6}});
  const Architecture experts = read("olmoe", routing);
  for (LayerShape& layer : expected.decoder.layers) {
    layer.experts = experts.decoder.layers.front().experts;
  }
  check_same(read("flex_olmo", routing), expected);
  const Routing usual = read("flex_olmo").decoder.layers.front().experts->routing;
  CHECK(usual.num_experts == 7);
  CHECK(usual.num_experts_per_tok == 5);
  CHECK_FALSE(usual.normalizes);
}

TEST_CASE("families: Granite's mixtures with an expert for all tokens") {
  const json routing{{"num_local_experts", 5}, {"num_experts_per_tok", 2}};
  check_same(read("granitemoeshared", routing), read("granitemoe", routing));
  json shared = routing;
  shared["shared_intermediate_size"] = 11;
  Architecture expected = read("granitemoe", routing);
  for (LayerShape& layer : expected.decoder.layers) layer.experts->shared_intermediate_size = 11;
  const Architecture a = read("granitemoeshared", shared);
  check_same(a, expected);
  CHECK(stored(a, "layers.1.shared_expert.up.weight") ==
        "model.layers.1.shared_mlp.input_linear.weight");
  CHECK(huggingface_weight(a, "layers.1.shared_expert.up.weight").rows.front() == 11);
}

TEST_CASE("families: Granite with sinks, windows and a base of rotations for each layer") {
  const json routing{{"num_local_experts", 5}, {"num_experts_per_tok", 2}};
  const json bases{{"sliding_window", 9}, {"layer_rope_theta", {700.0, 0, 300.0, 0, 700.0}}};
  for (const auto& [plain, windowed] :
       {std::pair{"granite", "granite_swa"}, std::pair{"granitemoe", "granitemoe_swa"}}) {
    CAPTURE(windowed);
    json changes = routing;
    changes["rms_norm_eps"] = 0.01;
    changes["residual_multiplier"] = 0.4;
    if (plain == std::string("granite")) changes.erase("num_local_experts");
    if (plain == std::string("granite")) changes.erase("num_experts_per_tok");
    Architecture expected = read(plain, changes);
    expected.decoder.attention_sinks = true;
    for (const std::size_t i : {1U, 2U, 3U}) expected.decoder.layers[i].sliding_window = 9;
    changes["sliding_window"] = 9;
    check_same(read(windowed, changes), expected);
    changes.update(bases);
    expected.decoder.layers[1].rope = expected.decoder.layers[3].rope = nullptr;
    json other = changes;
    other["rope_theta"] = 300.0;
    for (const char* key : {"sliding_window", "layer_rope_theta"}) other.erase(key);
    expected.decoder.layers[2].rope = read(plain, other).decoder.layers[2].rope;
    check_same(read(windowed, changes), expected);
  }
  const Architecture a = read("granitemoe_swa", routing);
  CHECK(stored(a, "layers.1.sinks.weight") == "model.layers.1.self_attn.sinks");
  CHECK(stored(a, "layers.1.router.weight") == "model.layers.1.block_sparse_moe.router.weight");
  CHECK(stored(a, "layers.1.experts.up.weight") ==
        "model.layers.1.block_sparse_moe.experts.gate_up_proj");
  CHECK(refusal("granite_swa", {{"layer_rope_theta", {700.0}}}) ==
        "tiny.json: /layer_rope_theta: got [700.0], expected 5 numbers from 0 on, one a layer");
}

TEST_CASE("families: Qwen3-VL's mixtures choose as Qwen3's, their experts in two tensors") {
  const json routing{{"num_experts", 5},
                     {"num_experts_per_tok", 2},
                     {"norm_topk_prob", true},
                     {"moe_intermediate_size", 7},
                     {"mlp_only_layers", {1U}}};
  const Architecture a = read("qwen3_vl_moe_text", routing);
  check_same(a, read("qwen3_moe", routing));
  CHECK(refusal("qwen3_vl_moe_text", {{"norm_topk_prob", false}})
            .starts_with("tiny.json: /norm_topk_prob: got false, expected true"));
  const WeightSource up = huggingface_weight(a, "layers.0.experts.up.weight");
  CHECK(up.names.front() == "model.layers.0.mlp.experts.gate_up_proj");
  CHECK(up.transposed);
  CHECK(up.inputs == 24);
  CHECK(huggingface_weight(a, "layers.0.experts.down.weight").inputs == 7);
}

TEST_CASE("families: Apertus is Qwen3 with xIELU in the place of a gated MLP") {
  const json rope{{"rope_type", "llama3"},
                  {"factor", 8.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position_embeddings", 8192}};
  Architecture expected =
      read("qwen3", {{"rms_norm_eps", 1e-5}, {"rope_theta", 1.2e7}, {"rope_scaling", rope}});
  expected.decoder.gated_mlp = false;
  expected.decoder.activation = Function::Xielu;
  const json published{{"rope_theta", nullptr},
                       {"qk_norm", true},
                       {"post_norm", false},
                       {"mlp_bias", false},
                       {"hidden_act", "xielu"}};
  const Architecture a = read("apertus", published);
  check_same(a, expected);
  CHECK(stored(a, "layers.1.attention_norm.weight") == "model.layers.1.attention_layernorm.weight");
  CHECK(stored(a, "layers.1.alpha_n.weight") == "model.layers.1.mlp.act_fn.alpha_n");
  CHECK(is_unused_buffer(a, "model.layers.1.mlp.act_fn.beta"));
  CHECK(read("apertus", {{"hidden_act", "gelu"}}).decoder.activation == Function::Gelu);
  CHECK(refusal("apertus", {{"qk_norm", false}}).starts_with("tiny.json: /qk_norm: got false"));
  CHECK(refusal("apertus", {{"post_norm", true}}).starts_with("tiny.json: /post_norm: got true"));
  CHECK(refusal("llama", {{"hidden_act", "xielu"}})
            .starts_with("tiny.json: /hidden_act: got \"xielu\", expected silu"));
}
