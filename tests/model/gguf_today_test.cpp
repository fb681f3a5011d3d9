#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "model/families/gguf_config.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/weights/weight_map.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/gguf_architecture.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

// The families of 2024-26: what metadata and names mean. Files of llama.cpp's converter run in
// tests/execute/gguf_oracle_test.cpp.

using namespace kvcast;
using nlohmann::json;

namespace {

using Rows = std::vector<std::uint64_t>;
using Names = std::vector<std::string>;

/// Three layers of 6 heads over 3, each 4 wide, and a vocabulary of 50; the final norm's epsilon is
/// 1e-3.
GgufWriter file_of(const std::string& architecture, bool layer_norm = false,
                   const GgufSizes& sizes = {}) {
  GgufWriter w = decoder_file(architecture, sizes);
  w.whole(architecture + ".attention.head_count_kv", 3);
  w.number(architecture +
               (layer_norm ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon"),
           1e-3f);
  return w;
}

/// Experts as wide as an MLP would be.
GgufWriter wide_mixture_of(const std::string& architecture, std::uint32_t experts) {
  GgufWriter w = file_of(architecture);
  w.whole(architecture + ".expert_count", experts);
  w.whole(architecture + ".expert_used_count", 2);
  return w;
}

GgufWriter mixture_of(const std::string& architecture, std::uint32_t experts) {
  GgufWriter w = wide_mixture_of(architecture, experts);
  w.whole(architecture + ".expert_feed_forward_length", 7);
  return w;
}

std::vector<std::uint64_t> windows_of(const Architecture& a) {
  std::vector<std::uint64_t> windows;
  for (const LayerShape& layer : a.decoder.layers) windows.push_back(layer.sliding_window);
  return windows;
}

std::vector<bool> rotated_of(const Architecture& a) {
  std::vector<bool> rotated;
  for (const LayerShape& layer : a.decoder.layers) rotated.push_back(layer.rope != nullptr);
  return rotated;
}

/// A file with these tensors.
HasTensor with_tensors(const Names& names) {
  return [names](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
}

std::string stored(const Architecture& a, const std::string& weight) {
  return gguf_weight(a, weight).names[0];
}

}  // namespace

TEST_CASE("gguf_today: Qwen3 has a norm for each head") {
  GgufWriter w = file_of("qwen3");
  w.whole("qwen3.attention.key_length", 8);
  const Architecture a = architecture_of(w);
  CHECK(a.model_type == "qwen3");
  CHECK(a.decoder.query_key_norm == QueryKeyNorm::Heads);
  CHECK(a.decoder.layers[0].heads == Heads{6, 3, 8});
  CHECK_FALSE(a.decoder.query_bias);
  CHECK(stored(a, "layers.1.query_norm.weight") == "blk.1.attn_q_norm.weight");
  CHECK(gguf_weight(a, "layers.1.query.weight").rows.empty());  // not permuted
}

TEST_CASE("gguf_today: Gemma 3 has windows in five of six layers, with a base of their own") {
  const auto file = [](std::uint32_t layers) {
    GgufWriter w = file_of("gemma3", false, {.layers = layers});
    w.whole("gemma3.attention.key_length", 8);
    w.number("gemma3.rope.freq_base", 1000000);
    w.text("gemma3.rope.scaling.type", "linear");
    w.number("gemma3.rope.scaling.factor", 8);
    return w;
  };
  GgufWriter w = file(7);
  w.whole("gemma3.attention.sliding_window", 5);
  const Architecture a = architecture_of(w);
  CHECK(windows_of(a) == Rows{5, 5, 5, 5, 5, 0, 5});
  CHECK(a.decoder.query_key_norm == QueryKeyNorm::HeadsUnitOffset);
  CHECK(a.decoder.attention_scale == near(1 / std::sqrt(8)));
  CHECK(a.embedding_scale == near(std::sqrt(24)));
  CHECK(a.logit_softcap == 0);
  const RopeTable& local = *a.decoder.layers[0].rope;
  const RopeTable& global = *a.decoder.layers[5].rope;
  CHECK(local.inverse_frequencies[1] == near(std::pow(10000, -0.25)));
  CHECK(local.position_scale == 1);
  CHECK(global.inverse_frequencies[1] == near(std::pow(1000000, -0.25)));
  CHECK(global.position_scale == 8);
  // The converter adds 1 to all norms.
  CHECK(gguf_weight(a, "layers.0.query_norm.weight").offset == -1);
  CHECK(gguf_weight(a, "layers.0.post_mlp_norm.weight").names[0] == "blk.0.post_ffw_norm.weight");

  GgufWriter listed = file(3);
  listed.whole("gemma3.attention.sliding_window", 5);
  listed.list<bool>("gemma3.attention.sliding_window_pattern", gguf_id::boolean,
                    {false, true, false});
  listed.number("gemma3.final_logit_softcapping", 30);
  CHECK(windows_of(architecture_of(listed)) == Rows{0, 5, 0});
  CHECK(architecture_of(listed).logit_softcap == 30);
  GgufWriter short_list = file(3);
  short_list.whole("gemma3.attention.sliding_window", 5);
  short_list.list<bool>("gemma3.attention.sliding_window_pattern", gguf_id::boolean, {true});
  CHECK(has(refusal(short_list), "sliding_window_pattern: got 1 flags, expected 3"));

  const Architecture none = architecture_of(file(3));
  CHECK(windows_of(none) == Rows{0, 0, 0});
  CHECK(none.decoder.layers[0].rope->position_scale == 8);
}

TEST_CASE(
    "gguf_today: Gemma 3 of 62 layers is the 27B model, which scales by hidden size / heads") {
  GgufWriter w = file_of("gemma3", false,
                         {.layers = 62, .hidden = 5376, .mlp = 8, .heads = 32, .vocabulary = 2});
  w.whole("gemma3.attention.key_length", 128);
  const json c = gguf_config(read_gguf(in_memory(w.bytes(), "m.gguf")));
  CHECK(c["query_pre_attn_scalar"] == 168);  // as its config.json says
}

TEST_CASE("gguf_today: OLMo 2 has norms behind its branches; with windows it is OLMo 3") {
  GgufWriter w = file_of("olmo2");
  const Architecture a = architecture_of(w);
  CHECK_FALSE(a.decoder.pre_norms);
  CHECK(a.decoder.query_key_norm == QueryKeyNorm::Whole);
  CHECK(stored(a, "layers.0.post_attention_norm.weight") == "blk.0.post_attention_norm.weight");
  w.whole("olmo2.attention.sliding_window", 9);
  w.number("olmo2.rope.freq_base", 500);
  w.text("olmo2.rope.scaling.type", "linear");
  w.number("olmo2.rope.scaling.factor", 8);
  w.list<bool>("olmo2.attention.sliding_window_pattern", gguf_id::boolean, {true, false, true});
  const Architecture three = architecture_of(w);
  CHECK(three.model_type == "olmo3");
  CHECK(windows_of(three) == Rows{9, 0, 9});
  // Layers with windows do not scale their rotations.
  CHECK(three.decoder.layers[0].rope->position_scale == 1);
  CHECK(three.decoder.layers[0].rope->inverse_frequencies[1] == near(std::pow(500, -0.5)));
  CHECK(three.decoder.layers[1].rope->position_scale == 8);
}

TEST_CASE("gguf_today: EXAONE 4 with windows rotates in their layers alone") {
  const Architecture plain = architecture_of(file_of("exaone4"));
  CHECK(windows_of(plain) == Rows{0, 0, 0});
  CHECK(rotated_of(plain) == std::vector<bool>{true, true, true});
  GgufWriter w = file_of("exaone4", false, {.layers = 5});
  w.whole("exaone4.attention.sliding_window", 9);
  CHECK(windows_of(architecture_of(w)) == Rows{9, 9, 9, 0, 9});
  CHECK(rotated_of(architecture_of(w)) == std::vector<bool>{true, true, true, false, true});
  CHECK(
      architecture_of(file_of("exaone4", false, {.layers = 64})).decoder.layers[2].sliding_window ==
      4096);
}

TEST_CASE("gguf_today: every fourth layer of SmolLM3 does not rotate, and its rows are permuted") {
  const Architecture a = architecture_of(file_of("smollm3", false, {.layers = 5}));
  CHECK(rotated_of(a) == std::vector<bool>{true, true, true, false, true});
  CHECK(gguf_weight(a, "layers.3.key.weight").rows == Rows{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11});
}

TEST_CASE("gguf_today: Granite's multipliers") {
  GgufWriter w = file_of("granite");
  w.number("granite.logit_scale", 8);
  w.number("granite.embedding_scale", 12);
  w.number("granite.residual_scale", 0.25f);
  w.number("granite.attention.scale", 0.125f);
  const Architecture a = architecture_of(w);
  CHECK(a.logit_scale == 0.125);
  CHECK(a.embedding_scale == 12);
  CHECK(a.decoder.branch_scale == 0.25);
  CHECK(a.decoder.attention_scale == 0.125);
  CHECK_FALSE(gguf_weight(a, "layers.0.query.weight").rows.empty());  // permuted, as Llama's

  GgufWriter mixture = wide_mixture_of("granitemoe", 5);
  mixture.number("granitemoe.logit_scale", 8);
  const Architecture m = architecture_of(mixture);
  CHECK(m.model_type == "granitemoe");
  CHECK(m.decoder.layers[0].experts->routing.score == Routing::Score::SoftmaxOfBest);
  CHECK(m.decoder.layers[0].experts->intermediate_size == 40);  // feed_forward_length
  CHECK(m.decoder.attention_scale == 0.5);                      // 4^-0.5
  mixture.whole("granitemoe.expert_shared_feed_forward_length", 6);
  const Architecture shared = architecture_of(mixture);
  CHECK(shared.model_type == "granitemoehybrid");
  CHECK(shared.decoder.layers[2].experts->shared_intermediate_size == 6);
  CHECK(rotated_of(shared) == std::vector<bool>{true, true, true});
  CHECK_FALSE(shared.decoder.layers[0].state_space.has_value());
}

TEST_CASE("gguf_today: Command R scales logits, Command R7B has windows too") {
  GgufWriter w = file_of("command-r", true);
  w.number("command-r.logit_scale", 0.75f);
  w.text("command-r.rope.scaling.type", "none");
  const Architecture a = architecture_of(w);
  CHECK(a.model_type == "cohere");
  CHECK(a.decoder.norm == NormKind::LayerScale);
  CHECK(a.logit_scale == 0.75);
  CHECK(a.decoder.layers[0].rope->interleaved);
  CHECK(gguf_weight(a, "layers.0.query.weight").rows.empty());
  CHECK(a.decoder.query_key_norm == QueryKeyNorm::None);
  w.zeros("blk.0.attn_q_norm.weight", {4, 6});
  const Architecture plus = architecture_of(w);
  CHECK(plus.decoder.query_key_norm == QueryKeyNorm::LayerHeads);
  CHECK(gguf_weight(plus, "layers.0.query_norm.weight").blocks == 6);

  GgufWriter two = file_of("cohere2", true, {.layers = 5});
  two.number("cohere2.logit_scale", 0.25f);
  two.whole("cohere2.attention.sliding_window", 9);
  const Architecture r7b = architecture_of(two);
  CHECK(windows_of(r7b) == Rows{9, 9, 9, 0, 9});
  CHECK_FALSE(rotated_of(r7b)[3]);
  two.whole("cohere2.attention.key_length", 8);
  CHECK(architecture_of(two).decoder.layers[0].heads.head_dim == 8);
}

TEST_CASE("gguf_today: StarCoder2 and Nemotron, whose norms hold 1 + w") {
  GgufWriter w = file_of("starcoder2", true);
  w.zeros("blk.0.attn_q.bias", {24});
  const Architecture a = architecture_of(w);
  CHECK(a.decoder.query_bias);
  CHECK(a.decoder.mlp_bias);
  CHECK(windows_of(a) == Rows{0, 0, 0});

  GgufWriter n = file_of("nemotron", true);
  n.whole("nemotron.rope.dimension_count", 2);
  const Architecture b = architecture_of(n);
  CHECK(b.decoder.activation == Function::SquaredRelu);
  CHECK(b.decoder.layers[0].rope->inverse_frequencies.size() == 1);
  CHECK(gguf_weight(b, "layers.0.attention_norm.weight").offset == 0);
  CHECK(huggingface_weight(b, "layers.0.attention_norm.weight").offset == 1);
}

TEST_CASE("gguf_today: StableLM is parallel when it has one norm a layer") {
  GgufWriter w = file_of("stablelm", true);
  w.whole("stablelm.rope.dimension_count", 2);
  w.value("stablelm.use_parallel_residual", gguf_id::boolean, raw(true));  // whatever it is
  GgufWriter sequential = w;
  sequential.zeros("blk.0.ffn_norm.weight", {24});
  sequential.zeros("blk.0.attn_q.bias", {24});
  CHECK(architecture_of(sequential).decoder.residual == Residual::Sequential);
  CHECK(architecture_of(sequential).decoder.value_bias);
  w.zeros("blk.0.attn_q_norm.weight", {4, 6});
  const Architecture a = architecture_of(w);
  CHECK(a.decoder.residual == Residual::ParallelOneNorm);
  CHECK_FALSE(a.decoder.query_bias);
  CHECK(gguf_weight(a, "layers.2.key_norm.weight").blocks == 3);
}

TEST_CASE("gguf_today: Phi-2's files have queries, keys and values apart or in one tensor") {
  GgufWriter w = file_of("phi2", true);
  w.whole("phi2.rope.dimension_count", 2);
  const Architecture a = architecture_of(w);
  CHECK(a.model_type == "phi");
  CHECK(a.head_bias);
  CHECK(stored(a, "head.bias") == "output.bias");
  CHECK(stored(a, "layers.0.key.bias") == "blk.0.attn_k.bias");
  const WeightSource fused =
      gguf_weight(a, "layers.0.key.bias", with_tensors({"blk.0.attn_qkv.weight"}));
  CHECK(fused.names == Names{"blk.0.attn_qkv.bias"});
  CHECK(fused.rows == Rows{24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35});
}

TEST_CASE("gguf_today: a Llama file with experts is Mixtral") {
  const Architecture a = architecture_of(wide_mixture_of("llama", 8));
  CHECK(a.model_type == "mixtral");
  CHECK(a.decoder.layers[1].experts->routing ==
        Routing{.num_experts = 8, .num_experts_per_tok = 2, .normalizes = true});
  CHECK(a.decoder.layers[1].experts->intermediate_size == 40);
  CHECK(architecture_of(file_of("llama")).model_type == "llama");

  CHECK(stored(a, "layers.1.router.weight") == "blk.1.ffn_gate_inp.weight");
  const WeightSource up = gguf_weight(a, "layers.1.experts.up.weight");
  CHECK(up.names == Names{"blk.1.ffn_up_exps.weight"});
  CHECK(up.blocks == 8);
  CHECK_FALSE(up.transposed);
  const WeightSource old =
      gguf_weight(a, "layers.1.experts.up.weight", with_tensors({"blk.1.ffn_down.0.weight"}));
  CHECK(old.names == Names{"blk.1.ffn_up.{i}.weight"});
  CHECK(old.pieces == 8);
  const HasTensor fused = with_tensors({"blk.1.attn_qkv.weight", "blk.1.ffn_gate_up_exps.weight"});
  const WeightSource fused_up = gguf_weight(a, "layers.1.experts.up.weight", fused);
  CHECK(fused_up.names == Names{"blk.1.ffn_gate_up_exps.weight"});
  CHECK(fused_up.rows[39] == 79);  // 40 rows of gate, then 40 of up
  CHECK(fused_up.rows[40] == 120);
  // The fused keys are permuted like those apart.
  CHECK(gguf_weight(a, "layers.1.key.weight", fused).rows ==
        Rows{24, 26, 25, 27, 28, 30, 29, 31, 32, 34, 33, 35});
}

TEST_CASE("gguf_today: Qwen3's mixture norms its weights, OLMoE does not") {
  GgufWriter w = mixture_of("qwen3moe", 5);
  w.zeros("blk.1.ffn_gate.weight", {24, 40});
  const Architecture a = architecture_of(w);
  CHECK(a.decoder.layers[0].experts->routing.normalizes);
  CHECK(a.decoder.layers[0].experts->intermediate_size == 7);
  CHECK_FALSE(a.decoder.layers[1].experts.has_value());
  CHECK(a.decoder.layers[1].intermediate_size == 40);

  GgufWriter o = file_of("olmoe");
  o.whole("olmoe.expert_count", 5);
  o.whole("olmoe.expert_used_count", 2);
  const Architecture b = architecture_of(o);
  CHECK_FALSE(b.decoder.layers[0].experts->routing.normalizes);
  CHECK(b.decoder.layers[0].experts->intermediate_size == 40);
  CHECK(b.decoder.query_key_norm == QueryKeyNorm::Whole);
}

TEST_CASE("gguf_today: gpt-oss has sinks, biases, and a norm under another name") {
  GgufWriter w = mixture_of("gpt-oss", 5);
  w.whole("gpt-oss.attention.sliding_window", 9);
  w.number("gpt-oss.rope.freq_base", 150000);
  w.zeros("blk.0.attn_q.bias", {24});
  const Architecture a = architecture_of(w);
  CHECK(windows_of(a) == Rows{9, 0, 9});
  CHECK(a.decoder.attention_sinks);
  CHECK(a.decoder.attention_output_bias);
  CHECK(a.decoder.layers[0].experts->intermediate_size == 7);
  CHECK(a.decoder.layers[0].rope->gain == 1);  // the family's YaRN is in the file or is not
  CHECK(stored(a, "layers.0.mlp_norm.weight") == "blk.0.post_attention_norm.weight");
  CHECK(stored(a, "layers.0.sinks.weight") == "blk.0.attn_sinks.weight");
  CHECK(stored(a, "layers.0.router.bias") == "blk.0.ffn_gate_inp.bias");
  const WeightSource bias = gguf_weight(a, "layers.0.experts.gate.bias");
  CHECK(bias.names == Names{"blk.0.ffn_gate_exps.bias"});
  CHECK(bias.blocks == 5);
  CHECK(bias.rows.empty());

  w.text("gpt-oss.rope.scaling.type", "yarn");
  w.number("gpt-oss.rope.scaling.factor", 32);
  w.whole("gpt-oss.rope.scaling.original_context_length", 40);
  const RopeTable yarn = *architecture_of(w).decoder.layers[0].rope;
  CHECK(yarn.gain == near(1 + 0.1 * std::log(32)));
  // Not truncated: pairs 2·ln(40 / (r·2 pi)) / ln 150000 for 32 rotations, below 0, and for one.
  const double high = 2 * std::log(40 / (2 * std::acos(-1))) / std::log(150000);
  const double stretched = std::min(1 / high, 1.0);
  CHECK(yarn.inverse_frequencies[1] ==
        near(std::pow(150000, -0.5) * (1 - stretched + stretched / 32)));
}

TEST_CASE("gguf_today: Llama 4 has an expert that all tokens read; Maverick norms no queries") {
  const auto file = [](std::uint32_t experts) {
    GgufWriter w = mixture_of("llama4", experts);
    w.whole("llama4.interleave_moe_layer_step", 2);
    return w;
  };
  const Architecture a = architecture_of(file(16));
  CHECK(a.model_type == "llama4_text");
  CHECK_FALSE(a.decoder.layers[0].experts.has_value());
  CHECK(a.decoder.layers[0].intermediate_size == 40);
  CHECK(a.decoder.layers[1].experts->shared_intermediate_size == 7);
  CHECK(a.decoder.layers[0].attention_chunk == 8192);
  CHECK(a.decoder.query_key_norm == QueryKeyNorm::RotatedHeads);
  CHECK(a.decoder.position_scale == 0.1);
  CHECK(gguf_weight(a, "layers.0.query.weight").rows.empty());  // its pairs lie side by side
  CHECK(stored(a, "layers.1.shared_expert.up.weight") == "blk.1.ffn_up_shexp.weight");
  CHECK(architecture_of(file(128)).decoder.query_key_norm == QueryKeyNorm::None);
  GgufWriter full = file(16);
  full.whole("llama4.attention.sliding_window", 0);
  const Architecture b = architecture_of(full);
  CHECK(b.decoder.layers[0].attention_chunk == 0);
  CHECK(b.decoder.position_scale == 0);
}

TEST_CASE("gguf_today: GLM-4.5's last layer is no layer of the model") {
  GgufWriter w = mixture_of("glm4moe", 6);
  w.whole("glm4moe.nextn_predict_layers", 1);
  w.whole("glm4moe.leading_dense_block_count", 1);
  w.whole("glm4moe.expert_shared_count", 2);
  w.number("glm4moe.expert_weights_scale", 2.5f);
  w.value("glm4moe.expert_weights_norm", gguf_id::boolean, raw(true));
  w.whole("glm4moe.expert_gating_func", 2);
  w.whole("glm4moe.rope.dimension_count", 2);
  w.zeros("blk.0.attn_q_norm.weight", {4});
  w.zeros("blk.0.attn_q.bias", {24});
  const Architecture a = architecture_of(w);
  CHECK(a.num_hidden_layers() == 2);
  CHECK_FALSE(a.decoder.layers[0].experts.has_value());
  const Experts& e = *a.decoder.layers[1].experts;
  CHECK(e.shared_intermediate_size == 14);
  CHECK(e.routing.normalizes);
  CHECK(e.routing.weight_scale == 2.5);
  CHECK(e.router_correction);
  CHECK(a.decoder.query_bias);
  CHECK_FALSE(a.decoder.attention_output_bias);
  CHECK(a.decoder.query_key_norm == QueryKeyNorm::Heads);
  CHECK(stored(a, "layers.1.mlp_norm.weight") == "blk.1.post_attention_norm.weight");
  CHECK(stored(a, "layers.1.router.correction") == "blk.1.exp_probs_b.bias");
  CHECK(is_unused_in_gguf(a, "blk.2.nextn.eh_proj.weight"));
  CHECK(is_unused_in_gguf(a, "blk.2.attn_q.weight"));
  CHECK_FALSE(is_unused_in_gguf(a, "blk.1.attn_q.weight"));

  GgufWriter none = mixture_of("glm4moe", 6);
  none.whole("glm4moe.nextn_predict_layers", 3);
  CHECK(has(refusal(none), "nextn_predict_layers: got 3, expected fewer than the 3 layers"));
}

TEST_CASE("gguf_today: MiniMax-M2 turns a part of each head and norms all heads together") {
  GgufWriter w = mixture_of("minimax-m2", 6);
  w.whole("minimax-m2.rope.dimension_count", 2);
  w.whole("minimax-m2.expert_gating_func", 2);
  const Architecture a = architecture_of(w);
  CHECK(a.model_type == "minimax_m2");
  CHECK(a.decoder.query_key_norm == QueryKeyNorm::Whole);
  CHECK(a.decoder.layers[0].rope->inverse_frequencies.size() == 1);
  const Experts& e = *a.decoder.layers[0].experts;
  CHECK(e.intermediate_size == 7);
  CHECK(e.routing.score == Routing::Score::Sigmoid);
  CHECK(e.routing.normalizes);
  CHECK(stored(a, "layers.1.router.correction") == "blk.1.exp_probs_b.bias");
  CHECK(stored(a, "layers.1.query_norm.weight") == "blk.1.attn_q_norm.weight");
}

TEST_CASE("gguf_today: the text part of models that see images is the model without") {
  GgufWriter w = mixture_of("qwen3vlmoe", 5);
  w.whole("qwen3vlmoe.n_deepstack_layers", 2);
  w.list<std::uint32_t>("qwen3vlmoe.rope.dimension_sections", gguf_id::uint32, {1, 1, 0, 0});
  CHECK(architecture_of(w).model_type == "qwen3_moe");
  CHECK(architecture_of(file_of("qwen3vl")).model_type == "qwen3");
}

TEST_CASE("gguf_today: ERNIE's experts stand where the file has routers") {
  GgufWriter w = mixture_of("ernie4_5-moe", 5);
  w.whole("ernie4_5-moe.expert_shared_count", 2);
  w.whole("ernie4_5-moe.expert_shared_feed_forward_length", 13);  // of no tensor
  w.whole("ernie4_5-moe.leading_dense_block_count", 1);
  w.whole("ernie4_5-moe.interleave_moe_layer_step", 1);
  w.zeros("blk.1.ffn_gate_inp.weight", {5, 24});
  const Architecture a = architecture_of(w);
  CHECK_FALSE(a.decoder.layers[0].experts.has_value());
  CHECK(a.decoder.layers[1].experts->intermediate_size == 7);
  CHECK(a.decoder.layers[1].experts->shared_intermediate_size == 14);
  CHECK_FALSE(a.decoder.layers[2].experts.has_value());
}

TEST_CASE("gguf_today: Hunyuan's experts and the one for all tokens are equally wide") {
  GgufWriter w = mixture_of("hunyuan-moe", 5);
  CHECK(has(refusal(w), "moe_intermediate_size: got 7, expected intermediate_size"));
  w = wide_mixture_of("hunyuan-moe", 5);
  w.whole("hunyuan-moe.expert_feed_forward_length", 40);
  CHECK(architecture_of(w).decoder.layers[2].experts->shared_intermediate_size == 40);
  w.whole("hunyuan-moe.expert_shared_feed_forward_length", 80);
  CHECK(has(refusal(w), "expert_shared_feed_forward_length: got 80, expected 40"));
}

namespace {

/// Heads of 4 + 2 dims for keys and 3 for values, from latents of 10; queries from latents of 5.
GgufWriter deepseek(std::uint32_t experts, bool old_lengths,
                    const std::string& architecture = "deepseek2") {
  GgufWriter w = mixture_of(architecture, experts);
  w.whole(architecture + ".attention.q_lora_rank", 5);
  w.whole(architecture + ".attention.kv_lora_rank", 10);
  w.whole(architecture + ".rope.dimension_count", 2);
  w.whole(architecture + ".attention.key_length", old_lengths ? 6 : 12);
  w.whole(architecture + ".attention.value_length", old_lengths ? 3 : 10);
  if (!old_lengths) {
    w.whole(architecture + ".attention.key_length_mla", 6);
    w.whole(architecture + ".attention.value_length_mla", 3);
  }
  w.whole(architecture + ".leading_dense_block_count", 1);
  w.whole(architecture + ".expert_shared_count", 2);
  w.number(architecture + ".expert_weights_scale", 2.5f);
  return w;
}

}  // namespace

TEST_CASE("gguf_today: DeepSeek-V2 and V3 are told apart by their gates") {
  for (const bool old_lengths : {false, true}) {
    CAPTURE(old_lengths);
    const Architecture a = architecture_of(deepseek(8, old_lengths));
    CHECK(a.model_type == "deepseek_v2");
    CHECK(*a.decoder.layers[0].latent == Latent{5, 10, 4, 2, 3});
    CHECK(a.decoder.attention_scale == near(1 / std::sqrt(6)));
    CHECK_FALSE(a.decoder.layers[0].experts.has_value());
    const Experts& e = *a.decoder.layers[1].experts;
    CHECK(e.routing == Routing{.num_experts = 8, .num_experts_per_tok = 2, .weight_scale = 2.5});
    CHECK(e.intermediate_size == 7);
    CHECK(e.shared_intermediate_size == 14);
    GgufWriter normed = deepseek(8, old_lengths);
    normed.value("deepseek2.expert_weights_norm", gguf_id::boolean, raw(true));
    CHECK(has(refusal(normed), "expert_weights_norm: got true, expected false"));
    normed.zeros("blk.1.exp_probs_b.bias", {8});  // GLM-4.7-Flash says no gate
    CHECK(architecture_of(normed).model_type == "deepseek_v3");
    CHECK(architecture_of(normed).decoder.layers[1].experts->routing.normalizes);
  }
  GgufWriter w = deepseek(8, false);
  w.whole("deepseek2.expert_gating_func", 2);
  w.whole("deepseek2.expert_group_count", 4);
  w.whole("deepseek2.expert_group_used_count", 2);
  w.value("deepseek2.expert_weights_norm", gguf_id::boolean, raw(true));
  const Architecture v3 = architecture_of(w);
  CHECK(v3.model_type == "deepseek_v3");
  const Routing& routing = v3.decoder.layers[2].experts->routing;
  CHECK(routing.score == Routing::Score::Sigmoid);
  CHECK(routing.normalizes);
  CHECK(routing.groups == 4);
  CHECK(routing.groups_kept == 2);
  CHECK(v3.decoder.layers[2].experts->router_correction);
}

TEST_CASE("gguf_today: DeepSeek's files of before October 2025 do not say the groups") {
  const Routing v2 = architecture_of(deepseek(160, true)).decoder.layers[1].experts->routing;
  CHECK(v2.groups == 8);
  CHECK(v2.groups_kept == 3);
  GgufWriter w = deepseek(256, false);
  w.whole("deepseek2.expert_gating_func", 2);
  const Routing v3 = architecture_of(w).decoder.layers[1].experts->routing;
  CHECK(v3.groups == 8);
  CHECK(v3.groups_kept == 4);
}

TEST_CASE("gguf_today: DeepSeek's YaRN scales the scores, not the rotations") {
  GgufWriter w = deepseek(8, false);
  w.text("deepseek2.rope.scaling.type", "yarn");
  w.number("deepseek2.rope.scaling.factor", 40);
  w.whole("deepseek2.rope.scaling.original_context_length", 40);
  w.number("deepseek2.rope.scaling.yarn_log_multiplier", 0.0707f);
  const Architecture a = architecture_of(w);
  CHECK(a.decoder.layers[0].rope->gain == near(1.0));
  const double m = 1 + 0.0707 * std::log(40);
  CHECK(a.decoder.attention_scale == near(m * m / std::sqrt(6)));
}

TEST_CASE("gguf_today: latents lie in one tensor, or by head and turned") {
  const Architecture a = architecture_of(deepseek(8, false));
  CHECK(stored(a, "layers.0.query_latent.weight") == "blk.0.attn_q_a.weight");
  CHECK(stored(a, "layers.0.query_latent_norm.weight") == "blk.0.attn_q_a_norm.weight");
  CHECK(stored(a, "layers.0.query_rope.weight") == "blk.0.attn_q_b.weight");
  CHECK(stored(a, "layers.0.kv_latent.weight") == "blk.0.attn_kv_a_mqa.weight");
  CHECK(stored(a, "layers.0.kv_latent_norm.weight") == "blk.0.attn_kv_a_norm.weight");
  CHECK(gguf_weight(a, "layers.0.key_rope.weight").rows == Rows{10, 11});
  const WeightSource key = gguf_weight(a, "layers.0.key_up.weight");
  CHECK(key.names == Names{"blk.0.attn_k_b.weight"});
  CHECK(key.blocks == 6);
  CHECK(key.transposed);
  const WeightSource value = gguf_weight(a, "layers.0.value_up.weight");
  CHECK(value.names == Names{"blk.0.attn_v_b.weight"});
  CHECK(value.blocks == 6);
  CHECK_FALSE(value.transposed);
  const WeightSource old =
      gguf_weight(a, "layers.0.value_up.weight", with_tensors({"blk.0.attn_kv_b.weight"}));
  CHECK(old.names == Names{"blk.0.attn_kv_b.weight"});
  CHECK(old.blocks == 0);
  REQUIRE(old.rows.size() == 18);
  CHECK(Rows(old.rows.begin(), old.rows.begin() + 4) == Rows{4, 5, 6, 11});

  GgufWriter lite = mixture_of("deepseek2", 8);
  lite.whole("deepseek2.attention.kv_lora_rank", 10);
  lite.whole("deepseek2.rope.dimension_count", 2);
  lite.whole("deepseek2.attention.key_length", 6);
  lite.whole("deepseek2.attention.value_length", 3);
  lite.whole("deepseek2.expert_shared_count", 2);
  const Architecture b = architecture_of(lite);
  CHECK(b.decoder.layers[0].latent->query_rank == 0);
  CHECK(b.decoder.layers[0].experts->routing.weight_scale == 1);
  CHECK(stored(b, "layers.0.query_rope.weight") == "blk.0.attn_q.weight");
  lite.whole("deepseek2.attention.key_length_mla", 2);
  CHECK(has(refusal(lite), "key_length_mla: got 2, expected more than the 2 rotated dims"));
}

TEST_CASE("gguf_today: MiniCPM3 has latents and the short factors") {
  GgufWriter w = file_of("minicpm3");
  w.whole("minicpm3.attention.q_lora_rank", 5);
  w.whole("minicpm3.attention.kv_lora_rank", 10);
  w.whole("minicpm3.rope.dimension_count", 2);
  w.whole("minicpm3.attention.key_length", 6);
  w.tensor("rope_factors_short.weight", {1}, ggml_id::f32, raw_list<float>({2}));
  w.tensor("rope_factors_long.weight", {1}, ggml_id::f32, raw_list<float>({3}));
  const Architecture a = architecture_of(w);
  CHECK(*a.decoder.layers[0].latent == Latent{5, 10, 4, 2, 4});  // values: 24 / 6
  CHECK(a.decoder.layers[0].rope->inverse_frequencies == std::vector<double>{0.5});
  CHECK(a.decoder.layers[0].rope->gain == 1);
  CHECK(a.embedding_scale == 12);
  CHECK(a.decoder.branch_scale == near(1.4 / std::sqrt(3)));
  CHECK(a.logit_scale == near(256.0 / 24));
}

TEST_CASE("gguf_today: GLM-4 has norms on both sides, and no rows in the order of images' models") {
  GgufWriter w = file_of("glm4");
  w.whole("glm4.rope.dimension_count", 2);
  const Architecture plain = architecture_of(w);
  CHECK_FALSE(plain.decoder.query_bias);
  w.zeros("blk.1.attn_q.bias", {24});
  const Architecture a = architecture_of(w);
  CHECK(a.decoder.query_bias);
  CHECK(a.decoder.layers[0].rope->interleaved);
  CHECK(a.decoder.layers[0].rope->inverse_frequencies.size() == 1);
  CHECK(stored(a, "layers.0.post_mlp_norm.weight") == "blk.0.post_ffw_norm.weight");
  const WeightSource up = gguf_weight(a, "layers.0.up.weight");
  CHECK(up.names == Names{"blk.0.ffn_up.weight"});
  CHECK(up.rows.front() == 40);
  w.list<std::uint32_t>("glm4.rope.dimension_sections", gguf_id::uint32, {1, 0, 0, 0});
  CHECK(has(refusal(w), "glm4.rope.dimension_sections"));
}

TEST_CASE("gguf_today: Seed-OSS, ERNIE 4.5 and AFM") {
  GgufWriter seed = file_of("seed_oss");
  seed.zeros("blk.0.attn_q.bias", {24});
  const Architecture a = architecture_of(seed);
  CHECK(a.decoder.query_bias);
  CHECK_FALSE(a.decoder.attention_output_bias);
  CHECK(stored(a, "layers.0.mlp_norm.weight") == "blk.0.post_attention_norm.weight");

  GgufWriter ernie = file_of("ernie4_5");
  CHECK_FALSE(architecture_of(ernie).decoder.mlp_bias);
  ernie.zeros("blk.0.attn_q.bias", {24});
  const Architecture b = architecture_of(ernie);
  CHECK(b.decoder.layers[0].rope->interleaved);
  CHECK(b.tied_embeddings);
  CHECK(gguf_weight(b, "layers.0.query.weight").rows.empty());

  const Architecture c = architecture_of(file_of("arcee"));
  CHECK(c.decoder.activation == Function::SquaredRelu);
  CHECK(gguf_weight(c, "layers.0.key.weight").rows == Rows{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11});
}

TEST_CASE("gguf_today: EXAONE 3 and Jais 2 keep their rows, Jais 2 has biases") {
  const Architecture exaone = architecture_of(file_of("exaone"));
  CHECK(exaone.model_type == "exaone");
  CHECK(static_cast<float>(exaone.decoder.norm_eps) == 1e-3f);
  CHECK(gguf_weight(exaone, "layers.0.query.weight").rows.empty());
  CHECK(stored(exaone, "layers.0.mlp_norm.weight") == "blk.0.ffn_norm.weight");

  GgufWriter w = file_of("jais2", true);
  CHECK_FALSE(architecture_of(w).decoder.query_bias);
  w.zeros("blk.0.attn_q.bias", {24});
  w.zeros("blk.0.ffn_up.bias", {30});
  const Architecture jais = architecture_of(w);
  CHECK(jais.decoder.norm == NormKind::Layer);
  CHECK(jais.decoder.activation == Function::SquaredRelu);
  CHECK(jais.decoder.attention_output_bias);
  CHECK(jais.decoder.mlp_bias);
}

TEST_CASE("gguf_today: Qwen2's mixture has a gated shared expert, dots.llm1 one without a gate") {
  GgufWriter w = mixture_of("qwen2moe", 5);
  w.whole("qwen2moe.expert_shared_feed_forward_length", 9);
  const Architecture a = architecture_of(w);
  CHECK(a.model_type == "qwen2_moe");
  const Experts& e = *a.decoder.layers[0].experts;
  CHECK(e.shared_gate);
  CHECK(e.shared_intermediate_size == 9);
  CHECK_FALSE(e.routing.normalizes);
  CHECK(stored(a, "layers.0.shared_expert.router.weight") == "blk.0.ffn_gate_inp_shexp.weight");

  GgufWriter d = mixture_of("dots1", 6);
  d.whole("dots1.leading_dense_block_count", 1);
  d.whole("dots1.expert_shared_count", 2);
  const Architecture b = architecture_of(d);
  CHECK_FALSE(b.decoder.layers[0].experts.has_value());
  CHECK(b.decoder.layers[1].experts->shared_intermediate_size == 14);
  CHECK(b.decoder.layers[1].experts->routing.score == Routing::Score::Sigmoid);
  CHECK(windows_of(b) == Rows{0, 0, 0});
  d.whole("dots1.expert_gating_func", 1);
  CHECK(has(refusal(d), "dots1.expert_gating_func: got 1, expected 2, sigmoid"));
}

TEST_CASE("gguf_today: DeepSeek V3.2 keeps its indexer") {
  GgufWriter w = deepseek(8, false, "deepseek32");
  w.whole("deepseek32.expert_gating_func", 2);
  w.whole("deepseek32.attention.indexer.head_count", 7);
  w.whole("deepseek32.attention.indexer.key_length", 8);
  w.whole("deepseek32.attention.indexer.top_k", 9);
  const Architecture a = architecture_of(w);
  CHECK(a.model_type == "deepseek_v32");
  const Indexer& indexer = *a.decoder.layers[0].latent->indexer;
  CHECK(indexer.num_heads == 7);
  CHECK(indexer.head_dim == 8);
  CHECK(stored(a, "layers.1.index_query.weight") == "blk.1.indexer.attn_q_b.weight");
  CHECK(stored(a, "layers.1.index_key_norm.bias") == "blk.1.indexer.k_norm.bias");
}

TEST_CASE("gguf_today: Trinity gates its attention and rotates where windows are") {
  GgufWriter w = mixture_of("afmoe", 6);
  w.whole("afmoe.leading_dense_block_count", 1);
  w.whole("afmoe.expert_shared_count", 2);
  w.number("afmoe.expert_weights_scale", 2.5f);
  w.whole("afmoe.attention.sliding_window", 9);
  const Architecture a = architecture_of(w);
  CHECK(a.model_type == "afmoe");
  CHECK(a.unknown_keys == std::vector<std::string>{});
  CHECK(windows_of(a) == Rows{9, 9, 9});
  CHECK_FALSE(a.decoder.layers[0].experts.has_value());
  const Experts& e = *a.decoder.layers[1].experts;
  CHECK(e.shared_intermediate_size == 14);
  CHECK(e.routing.normalizes);
  CHECK(e.routing.weight_scale == 2.5);
  CHECK(a.embedding_scale == std::sqrt(static_cast<double>(a.hidden_size)));
  CHECK(stored(a, "layers.1.attention_gate.weight") == "blk.1.attn_gate.weight");
  CHECK(stored(a, "layers.1.post_mlp_norm.weight") == "blk.1.post_ffw_norm.weight");
  CHECK(stored(a, "layers.1.router.correction") == "blk.1.exp_probs_b.bias");
}

TEST_CASE("gguf_today: K-EXAONE's layers without windows do not rotate") {
  GgufWriter w = mixture_of("exaone-moe", 6);
  w.whole("exaone-moe.leading_dense_block_count", 1);
  w.whole("exaone-moe.expert_shared_count", 2);
  w.whole("exaone-moe.expert_shared_feed_forward_length", 14);
  w.whole("exaone-moe.attention.sliding_window", 9);
  w.list<bool>("exaone-moe.attention.sliding_window_pattern", gguf_id::boolean,
               {true, false, true});
  w.whole("exaone-moe.expert_gating_func", 2);
  const Architecture a = architecture_of(w);
  CHECK(a.model_type == "exaone_moe");
  CHECK(a.unknown_keys == std::vector<std::string>{});
  CHECK(windows_of(a) == Rows{9, 0, 9});
  CHECK(rotated_of(a) == std::vector<bool>{true, false, true});
  CHECK(a.decoder.layers[1].experts->shared_intermediate_size == 14);
  CHECK_FALSE(a.decoder.layers[1].experts->routing.normalizes);
  CHECK(a.decoder.pre_norms);
}

TEST_CASE("gguf_today: LFM2's mixture has experts after its first layers") {
  GgufWriter w = mixture_of("lfm2moe", 6);
  w.whole("lfm2moe.leading_dense_block_count", 1);
  w.whole("lfm2moe.shortconv.l_cache", 3);
  w.zeros("blk.1.exp_probs_b.bias", {6});
  const Architecture a = architecture_of(w);
  CHECK(a.model_type == "lfm2_moe");
  CHECK(a.unknown_keys == std::vector<std::string>{});
  CHECK_FALSE(a.decoder.layers[0].experts.has_value());
  const Experts& e = *a.decoder.layers[1].experts;
  CHECK(e.router_correction);
  CHECK(e.routing.normalizes);
  CHECK(e.intermediate_size == 7);
  CHECK(stored(a, "layers.1.router.correction") == "blk.1.exp_probs_b.bias");
  w.whole("lfm2moe.expert_gating_func", 1);
  CHECK(has(refusal(w), "lfm2moe.expert_gating_func: got 1, expected 2, sigmoid"));
}
