// llama.cpp's files of families with states, and of Gemma 3n: what metadata and names mean. Files
// of its converter run in tests/execute/gguf_oracle_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "model/families/gguf_config.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/weights/checkpoint.h"
#include "model/io/weights/weight_map.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/gguf_architecture.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

using namespace kvcast;

namespace {

using Rows = std::vector<std::uint64_t>;
using Names = std::vector<std::string>;

/// Layers of 6 heads over 3, each 4 wide, and a mixer of 4 heads, 12 wide, in 2 groups of 5.
GgufWriter file_of(const std::string& architecture, const GgufSizes& sizes = {}) {
  GgufWriter w = decoder_file(architecture, sizes);
  w.number(architecture + ".attention.layer_norm_rms_epsilon", 1e-3f);
  w.whole(architecture + ".ssm.inner_size", 48);
  w.whole(architecture + ".ssm.time_step_rank", 4);
  w.whole(architecture + ".ssm.group_count", 2);
  w.whole(architecture + ".ssm.state_size", 5);
  w.whole(architecture + ".ssm.conv_kernel", 3);
  return w;
}

std::vector<bool> mixers_of(const Architecture& a) {
  std::vector<bool> mixers;
  for (const LayerShape& layer : a.decoder.layers) mixers.push_back(layer.state_space.has_value());
  return mixers;
}

HasTensor with_tensors(const Names& names) {
  return [names](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
}

}  // namespace

TEST_CASE("gguf_state: Jamba's attention comes every so many layers") {
  GgufWriter w = decoder_file("jamba", {.layers = 5});
  w.number("jamba.attention.layer_norm_rms_epsilon", 1e-3f);
  w.whole("jamba.ssm.inner_size", 48);
  w.whole("jamba.ssm.time_step_rank", 4);
  w.whole("jamba.ssm.state_size", 5);
  w.whole("jamba.ssm.conv_kernel", 3);
  w.list<std::uint32_t>("jamba.attention.head_count_kv", gguf_id::uint32, {0, 3, 0, 3, 0});
  w.whole("jamba.expert_count", 4);
  w.whole("jamba.expert_used_count", 2);
  w.zeros("blk.2.ffn_gate_inp.weight", {4, 24});
  GgufWriter uneven = w;
  const Architecture a = architecture_of(w);
  CHECK(mixers_of(a) == std::vector<bool>{true, false, true, false, true});
  for (std::size_t i = 0; i < 5; ++i) CHECK(a.decoder.layers[i].experts.has_value() == (i == 2));
  uneven.zeros("blk.3.ffn_gate_inp.weight", {4, 24});
  CHECK(has(refusal(uneven), "expert layers at unequal distances"));
}

TEST_CASE("gguf_state: Granite 4 has a mixer where it has no key-value heads") {
  GgufWriter w = file_of("granitehybrid");
  w.list<std::uint32_t>("granitehybrid.attention.head_count_kv", gguf_id::uint32, {0, 3, 0});
  w.number("granitehybrid.logit_scale", 8);
  w.value("granitehybrid.rope.scaling.finetuned", gguf_id::boolean, raw(false));
  w.zeros("blk.2.ssm_conv1d.bias", {68});
  const Architecture a = architecture_of(w);
  CHECK(mixers_of(a) == std::vector<bool>{true, false, true});
  CHECK(a.decoder.layers[1].heads == Heads{6, 3, 4});
  CHECK(a.decoder.layers[1].rope == nullptr);
  CHECK(a.decoder.layers[0].intermediate_size == 40);
  const StateSpace& s = *a.decoder.layers[0].state_space;
  CHECK(s.num_heads == 4);
  CHECK(s.value_dim == 12);
  CHECK(s.num_groups == 2);
  CHECK(s.key_dim == 5);
  CHECK(s.kernel == 3);
  CHECK(s.conv_bias);
  CHECK_FALSE(s.projection_bias);

  const WeightSource time = gguf_weight(a, "layers.0.state.time_step.weight");
  CHECK(time.names == Names{"blk.0.ssm_in.weight"});
  CHECK(time.rows == Rows{116, 117, 118, 119});  // behind 48 + 48 + 10 + 10
  CHECK(gguf_weight(a, "layers.0.state.time_step_bias.weight").names == Names{"blk.0.ssm_dt.bias"});
  const WeightSource decay = gguf_weight(a, "layers.0.state.decay.weight");
  CHECK(decay.names == Names{"blk.0.ssm_a"});
  CHECK(decay.negated_exponent);
  CHECK(decay.shape == Rows{4});
  const WeightSource conv = gguf_weight(a, "layers.0.state.conv_key.weight");
  CHECK(conv.names == Names{"blk.0.ssm_conv1d.weight"});
  CHECK(conv.shape == Rows{68, 1, 3});
  CHECK(conv.rows.front() == 48);
  CHECK(gguf_weight(a, "layers.0.state.norm.weight").shape == Rows{48});
  CHECK_FALSE(gguf_weight(a, "layers.1.query.weight").rows.empty());  // permuted, as Llama's

  w.number("granitehybrid.attention.scale", 0.5f);
  GgufWriter odd = file_of("granitehybrid", {.hidden = 42, .heads = 6});
  odd.whole("granitehybrid.attention.head_count_kv", 0);
  odd.number("granitehybrid.logit_scale", 8);
  CHECK(has(refusal(odd), "ssm.inner_size: got 48, expected a multiple of the embedding"));
}

TEST_CASE("gguf_state: a decay is stored as -exp(w), and other signs are refused") {
  StoredTensor stored;
  const auto file = in_memory(raw_list<float>({-1, -std::exp(1.5f), 2}), "weights.bin");
  stored = {"a", DType::FP32, {1, 3}, file->bytes(), file};
  WeightSource source;
  source.shape = {3};
  source.negated_exponent = true;
  const WeightReader reader({stored}, source);
  CHECK(reader.shape() == Rows{3});
  std::vector<float> two(2);
  reader.read_rows(0, std::span<float>(two));
  CHECK(two[0] == 0);
  CHECK(two[1] == doctest::Approx(1.5).epsilon(1e-6));
  std::vector<float> third(1);
  CHECK(has(message_of([&] { reader.read_rows(2, std::span<float>(third)); }),
            "got 2, expected numbers below 0"));
}

TEST_CASE("gguf_state: columns are read in their order") {
  const auto file = in_memory(raw_list<float>({1, 2, 3, 4, 5, 6}), "weights.bin");
  const StoredTensor stored{"a", DType::FP32, {2, 3}, file->bytes(), file};
  WeightSource source;
  source.columns = {2, 0, 1};
  const WeightReader reader({stored}, source);
  std::vector<float> all(6);
  reader.read_rows(0, std::span<float>(all));
  CHECK(all == std::vector<float>{3, 1, 2, 6, 4, 5});
}

TEST_CASE("gguf_state: Falcon-H1's multipliers are in its weights") {
  GgufWriter w = file_of("falcon-h1");
  w.whole("falcon-h1.attention.head_count_kv", 3);
  const Architecture plain = architecture_of(w);
  CHECK(plain.decoder.layers[2].state_space->norm_groups == 0);
  w.zeros("blk.0.ssm_norm.weight", {24, 2});
  const Architecture a = architecture_of(w);
  const StateSpace& s = *a.decoder.layers[0].state_space;
  CHECK(s.norm_groups == 2);
  CHECK(s.gate_before_norm);
  CHECK(s.gate_scale == 1);
  CHECK(a.decoder.layers[0].heads == Heads{6, 3, 4});
  CHECK(gguf_weight(a, "layers.0.mlp_norm.weight").names == Names{"blk.0.ffn_norm"});
  CHECK(gguf_weight(a, "layers.0.query.weight").rows.empty());
}

TEST_CASE("gguf_state: a block of Nemotron-H is what has heads or an MLP, else a mixer") {
  GgufWriter w;
  const auto fill = [&](const std::string& architecture) {
    w = GgufWriter();
    w.text("general.architecture", architecture);
    w.whole(architecture + ".block_count", 4);
    w.whole(architecture + ".context_length", 100);
    w.whole(architecture + ".embedding_length", 24);
    w.list<std::uint32_t>(architecture + ".feed_forward_length", gguf_id::uint32, {0, 40, 0, 40});
    w.whole(architecture + ".attention.head_count", 6);
    w.list<std::uint32_t>(architecture + ".attention.head_count_kv", gguf_id::uint32, {0, 0, 3, 0});
    w.whole(architecture + ".attention.key_length", 8);
    w.number(architecture + ".attention.layer_norm_epsilon", 1e-3f);
    w.whole(architecture + ".rope.dimension_count", 4);  // of no layer
    w.whole(architecture + ".ssm.inner_size", 48);
    w.whole(architecture + ".ssm.time_step_rank", 4);
    w.whole(architecture + ".ssm.group_count", 2);
    w.whole(architecture + ".ssm.state_size", 5);
    w.whole(architecture + ".ssm.conv_kernel", 3);
    w.zeros("token_embd.weight", {24, 50});
  };
  fill("nemotron_h");
  const Architecture a = architecture_of(w);
  CHECK(mixers_of(a) == std::vector<bool>{true, false, false, false});
  CHECK(a.decoder.layers[1].intermediate_size == 40);
  CHECK(a.decoder.layers[2].heads == Heads{6, 3, 8});
  CHECK(a.decoder.layers[2].rope == nullptr);
  CHECK(gguf_weight(a, "layers.1.mlp_norm.weight").names == Names{"blk.1.attn_norm.weight"});

  fill("nemotron_h_moe");
  const std::string moe = "nemotron_h_moe.";
  w.whole(moe + "expert_count", 6);
  w.whole(moe + "expert_used_count", 2);
  w.whole(moe + "expert_feed_forward_length", 7);
  w.whole(moe + "expert_shared_feed_forward_length", 9);
  w.number(moe + "expert_weights_scale", 2.5f);
  w.value(moe + "expert_weights_norm", gguf_id::boolean, raw(true));
  const Architecture mixture = architecture_of(w);
  CHECK(mixture.model_type == "nemotron_h");
  const Experts& e = *mixture.decoder.layers[3].experts;
  CHECK(e.intermediate_size == 7);
  CHECK(e.shared_intermediate_size == 9);
  CHECK(e.routing.weight_scale == 2.5);
  CHECK_FALSE(mixture.decoder.layers[0].experts.has_value());
  w.whole(moe + "nextn_predict_layers", 1);
  CHECK(architecture_of(w).num_hidden_layers() == 3);
}

namespace {

/// `experts` also: 5 of them, 7 wide, and a shared one of 9.
GgufWriter delta_file(const std::string& architecture, bool experts) {
  GgufWriter w = file_of(architecture, {.layers = 4});
  w.whole(architecture + ".attention.head_count_kv", 3);
  w.whole(architecture + ".attention.key_length", 8);
  w.whole(architecture + ".rope.dimension_count", 2);
  if (!experts) return w;
  w.whole(architecture + ".expert_count", 5);
  w.whole(architecture + ".expert_used_count", 2);
  w.whole(architecture + ".expert_feed_forward_length", 7);
  w.whole(architecture + ".expert_shared_feed_forward_length", 9);
  return w;
}

}  // namespace

TEST_CASE(
    "gguf_state: Qwen3-Next's mixers have one projection in its first files, three in later") {
  GgufWriter w = delta_file("qwen3next", true);
  const Architecture usual = architecture_of(w);
  CHECK(mixers_of(usual) == std::vector<bool>{true, true, true, false});
  w.list<bool>("qwen3next.attention.recurrent_layers", gguf_id::boolean, {false, true, true, true});
  const Architecture a = architecture_of(w);
  CHECK(mixers_of(a) == std::vector<bool>{false, true, true, true});
  CHECK(a.decoder.layers[0].heads == Heads{6, 3, 8});
  const StateSpace& s = *a.decoder.layers[1].state_space;
  CHECK(s.delta);
  CHECK(s.num_heads == 4);
  CHECK(s.num_groups == 2);
  CHECK(s.key_dim == 5);
  CHECK(s.value_dim == 12);
  const Experts& e = *a.decoder.layers[1].experts;
  CHECK(e.shared_gate);
  CHECK(e.intermediate_size == 7);
  CHECK(e.shared_intermediate_size == 9);
  CHECK(gguf_weight(a, "layers.1.shared_expert.router.weight").shape == Rows{1, 24});

  const HasTensor later = with_tensors({"blk.1.attn_gate.weight", "blk.1.attn_qkv.weight"});
  CHECK(gguf_weight(a, "layers.1.state.gate.weight", later).names ==
        Names{"blk.1.attn_gate.weight"});
  const WeightSource key = gguf_weight(a, "layers.1.state.key.weight", later);
  CHECK(key.names == Names{"blk.1.attn_qkv.weight"});
  CHECK(key.rows == Rows{10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
  // In each of two groups 5 rows of queries, 5 of keys, 24 of values and 24 of gates.
  const WeightSource first = gguf_weight(a, "layers.1.state.key.weight");
  CHECK(first.names == Names{"blk.1.ssm_in.weight"});
  CHECK(first.rows == Rows{5, 6, 7, 8, 9, 63, 64, 65, 66, 67});
  const WeightSource beta = gguf_weight(a, "layers.1.state.beta.weight");
  CHECK(beta.names == Names{"blk.1.ssm_ba.weight"});
  CHECK(beta.rows == Rows{0, 1, 4, 5});
  const WeightSource query = gguf_weight(a, "layers.0.query.weight");
  CHECK(query.names == Names{"blk.0.attn_q.weight"});
  CHECK(query.rows[8] == 16);  // behind a head's gate
  CHECK(gguf_weight(a, "layers.0.mlp_norm.weight").offset == -1);
  CHECK(gguf_weight(a, "layers.1.state.norm.weight").offset == 0);
}

TEST_CASE("gguf_state: Qwen3.5's value heads go by their place in a group") {
  const Architecture a = architecture_of(delta_file("qwen35", false));
  CHECK(a.model_type == "qwen3_5_text");
  CHECK(a.decoder.layers[0].intermediate_size == 40);
  // Heads 0, 1 of group 0 and 2, 3 of group 1 are stored as 0, 2, 1, 3.
  CHECK(gguf_weight(a, "layers.0.state.beta.weight").rows == Rows{0, 2, 1, 3});
  CHECK(gguf_weight(a, "layers.0.state.decay.weight").rows == Rows{0, 2, 1, 3});
  CHECK(gguf_weight(a, "layers.0.state.time_step.weight").names == Names{"blk.0.ssm_alpha.weight"});
  const WeightSource value = gguf_weight(a, "layers.0.state.value.weight");
  CHECK(value.names == Names{"blk.0.attn_qkv.weight"});
  CHECK(value.rows[0] == 20);  // behind queries and keys
  CHECK(value.rows[12] == 20 + 24);
  CHECK(value.rows[24] == 20 + 12);
  const WeightSource out = gguf_weight(a, "layers.0.state.output.weight");
  CHECK(out.rows.empty());
  CHECK(out.columns[12] == 24);
  CHECK(gguf_weight(a, "layers.0.state.query.weight").rows.front() == 0);

  const Architecture mixture = architecture_of(delta_file("qwen35moe", true));
  CHECK(mixture.model_type == "qwen3_5_moe_text");
  CHECK(mixture.decoder.layers[3].experts->routing.num_experts == 5);
  CHECK(is_unused_in_gguf(mixture, "blk.4.nextn.eh_proj.weight"));
}

TEST_CASE("gguf_state: Gemma 3n has streams, shared keys and gates that are cut off") {
  GgufWriter w = decoder_file("gemma3n", {.layers = 5});
  w.whole("gemma3n.attention.head_count_kv", 3);
  w.number("gemma3n.attention.layer_norm_rms_epsilon", 1e-3f);
  w.whole("gemma3n.attention.sliding_window", 9);
  w.whole("gemma3n.altup.num_inputs", 4);
  w.whole("gemma3n.altup.active_idx", 1);
  w.whole("gemma3n.embedding_length_per_layer_input", 6);
  w.whole("gemma3n.attention.shared_kv_layers", 1);
  w.list<bool>("gemma3n.attention.sliding_window_pattern", gguf_id::boolean,
               {true, false, true, true, true});
  const float none = -std::numeric_limits<float>::infinity();
  w.list<float>("gemma3n.activation_sparsity_scale", gguf_id::float32,
                {1.6448536f, none, none, 0, none});
  w.zeros("per_layer_token_embd.weight", {30, 50});
  w.zeros("blk.0.laurel_l.weight", {24, 7});
  const Architecture a = architecture_of(w);
  CHECK(a.model_type == "gemma3n_text");
  CHECK(a.decoder.altup->num_streams == 4);
  CHECK(a.decoder.altup->active == 1);
  CHECK(a.decoder.altup->laurel_rank == 7);
  CHECK(a.decoder.altup->layer_features == 6);
  CHECK(a.decoder.altup->layer_rows == 50);
  CHECK(a.decoder.layers[4].kv_layer == 3);
  CHECK(a.decoder.layers[0].gate_cutoff.value() == doctest::Approx(1.6448536).epsilon(1e-6));
  CHECK_FALSE(a.decoder.layers[1].gate_cutoff.has_value());
  CHECK(std::abs(a.decoder.layers[3].gate_cutoff.value()) < 1e-12);
  CHECK(a.decoder.layers[1].sliding_window == 0);
  const WeightSource stream = gguf_weight(a, "stream.2.weight");
  CHECK(stream.names == Names{"altup_proj.weight"});
  CHECK(stream.blocks == 3);
  CHECK(stream.rows.front() == 24);
  CHECK(stream.rows.size() == 24);
  CHECK(gguf_weight(a, "unstream.1.weight").names == Names{"altup_unembd_proj.weight"});
  CHECK(gguf_weight(a, "layers.0.laurel_norm.weight").offset == 0);
  CHECK(is_unused_in_gguf(a, "blk.4.attn_k.weight"));
  CHECK_FALSE(is_unused_in_gguf(a, "blk.3.attn_k.weight"));
}
