#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "model/families/gguf_config.h"
#include "model/io/tensors/mapped_file.h"
#include "model/io/weights/weight_map.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"
#include "tests/model/tiny_models.h"
#include "tests/near.h"

using namespace kvcast;
using nlohmann::json;

namespace {

using Rows = std::vector<std::uint64_t>;

GgufWriter llama_file(const std::string& architecture = "llama") {
  GgufWriter w = decoder_file(architecture);
  w.whole(architecture + ".attention.head_count_kv", 3);
  w.number(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  w.number(architecture + ".rope.freq_base", 500000);
  return w;
}

GgufFile gguf_of(const GgufWriter& w) { return read_gguf(in_memory(w.bytes(), "m.gguf")); }

json config_of(const GgufWriter& w) { return gguf_config(gguf_of(w)); }

Architecture architecture_in(const GgufWriter& w) {
  return read_config(config_of(w), "test", "m.gguf");
}

std::string model_refusal(const GgufWriter& w) {
  return message_of([&] { architecture_in(w); });
}

}  // namespace

TEST_CASE("gguf_model: a Llama file is the model its metadata says") {
  GgufWriter w = llama_file();
  w.whole("llama.rope.dimension_count", 4);
  w.zeros("output.weight", {24, 50});
  const json config = config_of(w);
  CHECK(config["rms_norm_eps"] == 1e-5);  // not the float's 9.99999975e-06
  CHECK(config["_name_or_path"] == "Test model");
  const Architecture a = architecture_in(w);
  CHECK(a.model_type == "llama");
  CHECK(a.hidden_size == 24);
  CHECK(a.vocab_size == 50);
  CHECK(a.max_position_embeddings == 100);
  CHECK_FALSE(a.tied_embeddings);
  REQUIRE(a.decoder.layers.size() == 3);
  CHECK(unrotated(a.decoder.layers)[2] == LayerShape{{6, 3, 4}, 40, 0});
  CHECK(a.decoder.norm_eps == 1e-5);
  REQUIRE(a.decoder.layers[0].rope->inverse_frequencies.size() == 2);
  // 500000^(-2·1/4)
  CHECK(a.decoder.layers[0].rope->inverse_frequencies[1] == near(0.00141421356));
  CHECK_FALSE(a.decoder.query_bias);
}

TEST_CASE("gguf_model: a model without output.weight has a tied head") {
  CHECK(architecture_in(llama_file()).tied_embeddings);
  CHECK(architecture_in(llama_file("qwen2")).tied_embeddings);
}

TEST_CASE("gguf_model: rope_freqs divides the frequencies") {
  GgufWriter w = llama_file();
  w.tensor("rope_freqs.weight", {2}, ggml_id::f32, raw_list<float>({1, 8}));
  const Architecture plain = architecture_in(llama_file());
  const Architecture scaled = architecture_in(w);
  const auto& before = plain.decoder.layers[0].rope->inverse_frequencies;
  const auto& after = scaled.decoder.layers[0].rope->inverse_frequencies;
  CHECK(after == std::vector<double>{before[0], before[1] / 8});
  CHECK(scaled.decoder.layers[0].rope->gain == 1);
  CHECK(scaled.unknown_keys.empty());

  GgufWriter wrong = llama_file();
  wrong.tensor("rope_freqs.weight", {3}, ggml_id::f32, raw_list<float>({1, 8, 8}));
  CHECK(has(model_refusal(wrong),
            "m.gguf: /rope_scaling/factors: got [1.0,8.0,8.0], expected 2 numbers"));
  GgufWriter zero = llama_file();
  zero.zeros("rope_freqs.weight", {2});
  CHECK(has(model_refusal(zero), "a list of numbers above 0"));
}

TEST_CASE("gguf_model: keys of every architecture that change a pass are honoured or refused") {
  GgufWriter both_ways = llama_file();
  both_ways.value("llama.attention.causal", gguf_id::boolean, std::string(1, '\0'));
  CHECK(has(model_refusal(both_ways), "llama.attention.causal: got false, expected true"));
  GgufWriter gain = llama_file();
  gain.number("llama.rope.scaling.attn_factor", 2);
  CHECK(has(model_refusal(gain),
            "llama.rope.scaling.attn_factor: got 2, expected 1, or the type yarn"));
  gain.text("llama.rope.scaling.type", "yarn");
  gain.number("llama.rope.scaling.factor", 1);
  gain.whole("llama.rope.scaling.original_context_length", 64);
  CHECK(architecture_in(gain).decoder.layers[0].rope->gain == 2);
}

TEST_CASE("gguf_model: a key of the architecture that nobody reads is named, an inert one is not") {
  CHECK(architecture_in(llama_file()).unknown_keys.empty());
  GgufWriter inert = llama_file();
  inert.whole("llama.vocab_size", 50);
  inert.text("llama.tensor_data_layout", "Meta AI original pth");
  inert.whole("llama.expert_used_count", 0);
  inert.text("general.license", "mit");
  CHECK(architecture_in(inert).unknown_keys.empty());

  GgufWriter unknown = llama_file();
  unknown.number("llama.attention.temperature_scale", 0.5);
  unknown.whole("qwen2.attention.sliding_window", 8);  // of another architecture
  const Architecture a = architecture_in(unknown);
  CHECK(a.unknown_keys == std::vector<std::string>{"llama.attention.temperature_scale"});
  REQUIRE(config_warnings(a).size() == 1);
  CHECK(has(config_warnings(a)[0],
            "the configuration key llama.attention.temperature_scale is not known"));
}

TEST_CASE("gguf_model: linear scaling is read, with its type or without") {
  GgufWriter linear = llama_file();
  linear.text("llama.rope.scaling.type", "linear");
  linear.number("llama.rope.scaling.factor", 4);
  CHECK(architecture_in(linear).decoder.layers[0].rope->position_scale == 4);
  GgufWriter old = llama_file();
  old.number("llama.rope.scale_linear", 2);
  CHECK(architecture_in(old).decoder.layers[0].rope->position_scale == 2);
  GgufWriter none = llama_file();
  none.text("llama.rope.scaling.type", "none");
  CHECK(architecture_in(none).decoder.layers[0].rope->position_scale == 1);
  GgufWriter untyped = llama_file();
  untyped.number("llama.rope.scaling.factor", 3);
  CHECK(architecture_in(untyped).decoder.layers[0].rope->position_scale == 3);
  GgufWriter unknown = llama_file();
  unknown.text("llama.rope.scaling.type", "wild");
  CHECK(has(model_refusal(unknown), "rope_type: got \"wild\""));
}

TEST_CASE("gguf_model: YaRN stretches long wavelengths") {
  const auto file = [] {
    GgufWriter w = llama_file();
    w.text("llama.rope.scaling.type", "yarn");
    w.number("llama.rope.scaling.factor", 4);
    w.whole("llama.rope.scaling.original_context_length", 25);
    return w;
  };
  const RopeTable plain = *architecture_in(file()).decoder.layers[0].rope;
  CHECK(plain.gain == near(1 + 0.1 * std::log(4)));
  REQUIRE(plain.inverse_frequencies.size() == 2);
  CHECK(plain.inverse_frequencies[0] == 1);
  // A turn of the second takes 2 pi · 500000^(1/2) tokens, more than 25.
  CHECK(plain.inverse_frequencies[1] == near(std::pow(500000, -0.5) / 4));

  GgufWriter more = file();
  more.number("llama.rope.scaling.attn_factor", 2);
  CHECK(architecture_in(more).decoder.layers[0].rope->gain == near(2 + 0.2 * std::log(4)));
  GgufWriter given = file();
  given.number("llama.rope.scaling.yarn_attn_factor", 1.5f);
  CHECK(architecture_in(given).decoder.layers[0].rope->gain == 1.5);
}

TEST_CASE("gguf_model: a head may be rotated in part, whatever its size") {
  for (std::uint32_t head_dim = 4; head_dim <= 256; head_dim += 2) {
    for (std::uint32_t rotary = 2; rotary <= head_dim; rotary += 2) {
      GgufWriter w = llama_file("phi3");
      w.whole("phi3.attention.key_length", head_dim);
      w.whole("phi3.rope.dimension_count", rotary);
      // Checked where the reader cuts the product to a whole number.
      const json c = config_of(w);
      const double share = c.value("partial_rotary_factor", 1.0);
      REQUIRE(static_cast<std::uint32_t>(static_cast<double>(head_dim) * share) == rotary);
    }
    head_dim += 18;
  }
  GgufWriter whole = llama_file();
  whole.whole("llama.rope.dimension_count", 2);
  CHECK(has(model_refusal(whole), "llama.rope.dimension_count: got 2, expected 4"));
}

TEST_CASE("gguf_model: Qwen2 has biases on queries, keys and values only") {
  GgufWriter w = llama_file("qwen2");
  w.zeros("blk.0.attn_q.bias", {24});
  const Architecture a = architecture_in(w);
  CHECK(a.decoder.query_bias);
  CHECK(a.decoder.value_bias);
  CHECK_FALSE(a.decoder.attention_output_bias);
}

TEST_CASE("gguf_model: Phi-3 reads its window and the short factors") {
  GgufWriter w = llama_file("phi3");
  w.whole("phi3.attention.sliding_window", 32);
  w.whole("phi3.rope.scaling.original_context_length", 25);
  w.tensor("rope_factors_short.weight", {2}, ggml_id::f32, raw_list<float>({1, 2}));
  w.tensor("rope_factors_long.weight", {2}, ggml_id::f32, raw_list<float>({3, 5}));
  const Architecture a = architecture_in(w);
  CHECK(a.decoder.layers[1].sliding_window == 32);
  // sqrt(1 + ln(100/25) / ln 25)
  CHECK(a.decoder.layers[0].rope->gain == near(std::sqrt(1 + std::log(4) / std::log(25))));
  CHECK(a.decoder.layers[0].rope->inverse_frequencies[1] == near(std::pow(500000, -0.5) / 2));
}

TEST_CASE("gguf_model: Gemma's heads have their own size, and Gemma 2 caps and windows") {
  GgufWriter one = llama_file("gemma");
  one.whole("gemma.attention.key_length", 8);
  one.whole("gemma.attention.value_length", 8);
  const Architecture gemma = architecture_in(one);
  CHECK(gemma.decoder.layers[0].heads.head_dim == 8);
  CHECK(gemma.decoder.norm == NormKind::RmsUnitOffset);
  CHECK(gemma.tied_embeddings);

  GgufWriter two = llama_file("gemma2");
  two.whole("gemma2.attention.key_length", 8);
  two.number("gemma2.attn_logit_softcapping", 40);
  two.number("gemma2.final_logit_softcapping", 20);
  two.whole("gemma2.attention.sliding_window", 64);
  const Architecture a = architecture_in(two);
  CHECK(a.decoder.attention_softcap == 40);
  CHECK(a.logit_softcap == 20);
  CHECK(a.decoder.layers[0].sliding_window == 64);
  CHECK(a.decoder.layers[1].sliding_window == 0);
  CHECK(a.decoder.attention_scale == near(1 / std::sqrt(8)));
}

TEST_CASE(
    "gguf_model: Gemma 2 of 46 layers is the 27B model, which scales by hidden size / heads") {
  GgufWriter w = decoder_file(
      "gemma2",
      {.layers = 46, .context = 8192, .hidden = 4608, .mlp = 36864, .heads = 32, .vocabulary = 2});
  w.whole("gemma2.attention.head_count_kv", 16);
  w.whole("gemma2.attention.key_length", 128);
  w.number("gemma2.attention.layer_norm_rms_epsilon", 1e-6f);
  CHECK(config_of(w)["query_pre_attn_scalar"] == 144);  // as its config.json says
}

TEST_CASE("gguf_model: GPT-2, GPT-NeoX and OLMo have LayerNorms") {
  GgufWriter gpt2 = decoder_file("gpt2");
  gpt2.number("gpt2.attention.layer_norm_epsilon", 1e-5f);
  const Architecture a = architecture_in(gpt2);
  CHECK(a.decoder.position == Position::Learned);
  CHECK(a.decoder.position_rows == 100);
  CHECK(unrotated(a.decoder.layers)[0] == LayerShape{{6, 6, 4}, 40, 0});

  GgufWriter neox = decoder_file("gptneox");
  neox.number("gptneox.attention.layer_norm_epsilon", 1e-5f);
  neox.whole("gptneox.rope.dimension_count", 2);
  neox.value("gptneox.use_parallel_residual", gguf_id::boolean, raw(false));
  neox.zeros("blk.0.attn_qkv.bias", {72});
  const Architecture b = architecture_in(neox);
  CHECK(b.decoder.residual == Residual::Sequential);
  CHECK(b.decoder.layers[0].rope->inverse_frequencies.size() == 1);
  CHECK(b.decoder.key_bias);

  GgufWriter olmo = decoder_file("olmo");
  olmo.number("olmo.attention.layer_norm_epsilon", 1e-5f);
  CHECK(architecture_in(olmo).decoder.norm == NormKind::LayerPlain);
  olmo.number("olmo.attention.clamp_kqv", 8);
  CHECK(architecture_in(olmo).decoder.projection_clip == 8);
}

TEST_CASE("gguf_model: Falcon's two designs are told apart by heads and norms") {
  GgufWriter seven = decoder_file("falcon");
  seven.whole("falcon.attention.head_count_kv", 1);
  seven.number("falcon.attention.layer_norm_epsilon", 1e-5f);
  const Architecture a = architecture_in(seven);
  CHECK(a.decoder.residual == Residual::ParallelOneNorm);
  CHECK(unrotated(a.decoder.layers)[0] == LayerShape{{6, 1, 4}, 40, 0});

  GgufWriter forty = decoder_file("falcon");
  forty.whole("falcon.attention.head_count_kv", 3);
  forty.number("falcon.attention.layer_norm_epsilon", 1e-5f);
  forty.zeros("blk.0.attn_norm_2.weight", {24});
  const Architecture b = architecture_in(forty);
  CHECK(b.decoder.residual == Residual::ParallelTwoNorms);
  CHECK(b.decoder.layers[0].heads.num_key_value_heads == 3);
  CHECK(gguf_weight(b, "layers.0.attention_norm.bias").names[0] == "blk.0.attn_norm_2.bias");
  CHECK(gguf_weight(b, "layers.0.mlp_norm.bias").names[0] == "blk.0.attn_norm.bias");
  CHECK(gguf_weight(a, "layers.0.attention_norm.bias").names[0] == "blk.0.attn_norm.bias");
}

TEST_CASE("gguf_model: OpenELM's layers differ") {
  GgufWriter w;
  w.text("general.architecture", "openelm");
  w.whole("openelm.block_count", 2);
  w.whole("openelm.context_length", 64);
  w.whole("openelm.embedding_length", 24);
  w.list<std::uint32_t>("openelm.feed_forward_length", gguf_id::uint32, {7, 41});
  w.list<std::uint32_t>("openelm.attention.head_count", gguf_id::uint32, {4, 6});
  w.list<std::uint32_t>("openelm.attention.head_count_kv", gguf_id::uint32, {2, 3});
  w.whole("openelm.attention.key_length", 4);
  w.zeros("token_embd.weight", {24, 50});
  w.zeros("blk.0.ffn_gate.weight", {24, 7});
  w.zeros("blk.0.attn_q_norm.weight", {4});
  const Architecture a = architecture_in(w);
  CHECK(unrotated(a.decoder.layers)[0] == LayerShape{{4, 2, 4}, 7, 0});
  CHECK(unrotated(a.decoder.layers)[1] == LayerShape{{6, 3, 4}, 41, 0});
  CHECK(a.decoder.query_key_norm == QueryKeyNorm::Heads);
  CHECK(a.decoder.gated_mlp);
  CHECK(a.tied_embeddings);
  // Layer 1: 24 query rows, then 12 key rows.
  const WeightSource key = gguf_weight(a, "layers.1.key.weight");
  CHECK(key.names == std::vector<std::string>{"blk.1.attn_qkv.weight"});
  CHECK(key.rows == Rows{24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35});
  CHECK(gguf_weight(a, "layers.1.query_norm.weight").names[0] == "blk.1.attn_q_norm.weight");
}

TEST_CASE("gguf_model: metadata that makes no model is refused by key") {
  GgufWriter missing;
  missing.text("general.architecture", "llama");
  missing.zeros("token_embd.weight", {24, 50});
  CHECK(has(model_refusal(missing), "m.gguf: metadata llama."));
  CHECK(has(model_refusal(missing), "missing, expected a whole number"));
  GgufWriter none;
  CHECK(model_refusal(none) == "m.gguf: metadata general.architecture: missing, expected a string");
  CHECK(has(model_refusal(decoder_file("lama")),
            "unknown architecture 'lama'; did you mean 'llama'?"));
  GgufWriter split = llama_file();
  split.value("split.count", gguf_id::uint16, raw(std::uint16_t{3}));
  CHECK(has(model_refusal(split), "metadata split.count: got 3"));
  GgufWriter layers;
  layers.text("general.architecture", "openelm");
  layers.value("openelm.block_count", gguf_id::uint64, raw(std::uint64_t{1} << 40));
  layers.whole("openelm.embedding_length", 24);
  layers.whole("openelm.feed_forward_length", 24);
  CHECK(has(model_refusal(layers), "openelm.block_count: got 1099511627776, expected 1 to 10000"));
  GgufWriter headless;
  headless.text("general.architecture", "llama");
  headless.whole("llama.attention.head_count", 0);
  headless.whole("llama.embedding_length", 24);
  CHECK(model_refusal(headless) ==
        "m.gguf: metadata llama.attention.head_count: got 0, expected a number above 0");
  GgufWriter uneven = decoder_file("qwen2");
  uneven.number("qwen2.attention.layer_norm_rms_epsilon", 1e-5f);
  uneven.list<std::uint32_t>("qwen2.attention.head_count_kv", gguf_id::uint32, {3, 3, 2});
  CHECK(has(model_refusal(uneven), "numbers that differ between layers"));
  GgufWriter experts = llama_file("qwen2");
  experts.whole("qwen2.expert_count", 8);
  CHECK(has(model_refusal(experts), "num_local_experts: got 8"));
  GgufWriter no_table;
  no_table.text("general.architecture", "gpt2");
  for (const char* key : {"block_count", "context_length", "embedding_length",
                          "feed_forward_length", "attention.head_count"}) {
    no_table.whole(std::string("gpt2.") + key, 4);
  }
  no_table.number("gpt2.attention.layer_norm_epsilon", 1e-5f);
  CHECK(has(model_refusal(no_table), "tensor token_embd.weight: got none"));
}

TEST_CASE("gguf_model: each weight has its tensor, its rows and its offset") {
  GgufWriter norms = decoder_file("gpt2");
  norms.number("gpt2.attention.layer_norm_epsilon", 1e-5f);
  const Architecture gpt2 = architecture_in(norms);
  const Architecture llama = architecture_in(llama_file());
  const Architecture qwen2 = architecture_in(llama_file("qwen2"));
  const Architecture phi3 = architecture_in(llama_file("phi3"));
  const Architecture gemma2 = architecture_in(llama_file("gemma2"));
  struct Case {
    const Architecture& a;
    const char* weight;
    const char* stored;
    Rows rows = {};
    double offset = 0;
  };
  const auto range = [](std::uint64_t first, std::size_t count) {
    Rows rows(count);
    std::iota(rows.begin(), rows.end(), first);
    return rows;
  };
  const std::vector<Case> cases{
      {gpt2, "embedding.weight", "token_embd.weight"},
      {gpt2, "positions.weight", "position_embd.weight"},
      {gpt2, "head.weight", "output.weight"},
      {gpt2, "layers.2.attention_output.bias", "blk.2.attn_output.bias"},
      {gpt2, "layers.2.up.bias", "blk.2.ffn_up.bias"},
      {gpt2, "layers.0.key.bias", "blk.0.attn_qkv.bias", range(24, 24)},
      // Heads of 4 rows: llama.cpp stores rows 0, 2, 1, 3 of each.
      {llama, "layers.2.query.weight", "blk.2.attn_q.weight", {0,  2,  1,  3,  4,  6,  5,  7,
                                                               8,  10, 9,  11, 12, 14, 13, 15,
                                                               16, 18, 17, 19, 20, 22, 21, 23}},
      {llama, "layers.2.key.weight", "blk.2.attn_k.weight", {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11}},
      {llama, "layers.2.value.weight", "blk.2.attn_v.weight"},
      {qwen2, "layers.2.query.weight", "blk.2.attn_q.weight"},
      // 24 query rows, 12 key rows, 12 value rows; 40 gate rows, 40 up rows.
      {phi3, "layers.1.value.weight", "blk.1.attn_qkv.weight", range(36, 12)},
      {phi3, "layers.1.gate.weight", "blk.1.ffn_up.weight", range(0, 40)},
      {phi3, "layers.1.up.weight", "blk.1.ffn_up.weight", range(40, 40)},
      // The converter adds 1 to Gemma's norms.
      {gemma2, "layers.0.attention_norm.weight", "blk.0.attn_norm.weight", {}, -1},
      {gemma2, "layers.0.post_attention_norm.weight", "blk.0.post_attention_norm.weight", {}, -1},
      {gemma2, "layers.0.mlp_norm.weight", "blk.0.ffn_norm.weight", {}, -1},
      {gemma2, "layers.0.post_mlp_norm.weight", "blk.0.post_ffw_norm.weight", {}, -1},
      {gemma2, "final_norm.weight", "output_norm.weight", {}, -1},
      {gemma2, "layers.0.down.weight", "blk.0.ffn_down.weight"},
      {gemma2, "embedding.weight", "token_embd.weight"},
      {llama, "final_norm.weight", "output_norm.weight"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.stored);
    const WeightSource source = gguf_weight(c.a, c.weight);
    CHECK(source.names[0] == c.stored);
    CHECK(source.rows == c.rows);
    CHECK(source.offset == c.offset);
    CHECK_FALSE(source.transposed);  // the converter has turned GPT-2's matrices
  }
}

TEST_CASE("gguf_model: the rows undo the converter's permutation for heads of 8") {
  // The converter: weights.reshape(heads, 2, 4).swapaxes(1, 2), so the row stored at [head][j][s]
  // is the original one at [head][s][j].
  GgufWriter w = llama_file("llama");
  w.whole("llama.attention.key_length", 8);
  const Architecture a = architecture_in(w);
  Rows stored;  // which original row lies in each stored one
  for (std::uint64_t head = 0; head < 3; ++head) {
    for (std::uint64_t j = 0; j < 4; ++j) {
      for (std::uint64_t s = 0; s < 2; ++s) stored.push_back(8 * head + 4 * s + j);
    }
  }
  const Rows rows = gguf_weight(a, "layers.0.key.weight").rows;
  REQUIRE(rows.size() == 24);
  for (std::uint64_t i = 0; i < 24; ++i) CHECK(stored[rows[i]] == i);
}

TEST_CASE("gguf_model: families without such files and shapes beyond reason are refused") {
  Architecture a = architecture_in(llama_file("phi3"));
  a.decoder.layers[0].intermediate_size = std::uint64_t{1} << 40;
  CHECK(has(message_of([&] { gguf_weight(a, "layers.0.up.weight"); }),
            "got 1099511627776 rows of a projection"));
  a.model_type = "opt";
  CHECK(has(message_of([&] { gguf_weight(a, "embedding.weight"); }), "got model type opt"));
}
