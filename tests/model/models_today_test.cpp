#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "model/families/config_reader.h"
#include "model/graph/work.h"
#include "model/io/weights/catalog.h"
#include "model/io/weights/weight_map.h"
#include "model/record/recording.h"
#include "model/record/step_recording.h"
#include "tests/model/message_of.h"
#include "tests/model/tiny_models.h"
#include "tests/near.h"
#include "tests/test_folder.h"

using namespace kvcast;

namespace {

/// All in 16 bits.
Recording recorded(const std::string& model, Kernels attention = Kernels::Fused) {
  Lowering lowering;
  lowering.attention = attention;
  return record(load_model(catalog(), model), {}, lowering);
}

/// The first node of this label in a graph.
const Node& node_of(const Graph& graph, std::string_view label) {
  for (const Node& node : graph.nodes()) {
    if (node.label == label) return node;
  }
  FAIL("no node " << label);
  return graph.nodes().front();
}

/// Bytes of experts that a pass, or a decode step, reads.
std::uint64_t expert_bytes(const Graph& pass, const SymbolValues& sizes) {
  std::uint64_t sum = 0;
  for (const Node& node : pass.nodes()) {
    if (!std::holds_alternative<ExpertLinear>(node.op)) continue;
    sum += work(pass, node).read[static_cast<std::size_t>(Storage::Weights)].at(sizes);
  }
  return sum;
}
std::uint64_t expert_bytes(const Recording& r, std::uint64_t batch) {
  return expert_bytes(r.decode(), r.symbols.resolve({batch, 100, 101}));
}

std::uint64_t cache_bytes(const Recording& r, std::uint64_t tokens) {
  return r.kv_cache_bytes.at(r.symbols.resolve({1, 1, tokens}));
}

/// Bytes of cache that the attentions of a decode step read with so many tokens in the cache.
std::uint64_t cache_reads(const Recording& r, std::uint64_t tokens) {
  const SymbolValues sizes = r.symbols.resolve({1, 1, tokens});
  std::uint64_t sum = 0;
  for (const Node& node : r.decode().nodes()) {
    if (!std::holds_alternative<TiledAttention>(node.op)) continue;
    sum += work(r.decode(), node).read[static_cast<std::size_t>(Storage::KvCache)].at(sizes);
  }
  return sum;
}

}  // namespace

TEST_CASE("experts: the distinct ones follow E(1 - (1 - K/E)^b)") {
  // The table of section 2 of the reference: E, K, b and the experts to a tenth.
  struct Case {
    std::uint64_t experts, chosen, tokens;
    double distinct;
  };
  const Case cases[] = {{8, 2, 1, 2},        {8, 2, 4, 5.5},    {32, 4, 16, 28.2},
                        {64, 6, 8, 34.9},    {128, 8, 1, 8},    {128, 8, 16, 82.4},
                        {128, 8, 64, 125.9}, {128, 8, 256, 128}};
  for (const Case& c : cases) {
    CAPTURE(c.experts);
    CAPTURE(c.tokens);
    Symbols symbols;
    const double chance = static_cast<double>(c.chosen) / static_cast<double>(c.experts);
    const Count hundred = symbols.expected_distinct(symbol::batch, {{chance, 100 * c.experts}});
    const double found = static_cast<double>(hundred.at(symbols.resolve({c.tokens, 1, 1}))) / 100;
    CHECK(std::abs(found - c.distinct) <= 0.051);
  }
}

TEST_CASE("experts: a step reads those of its tokens, neither K of each nor all") {
  const Recording r = recorded("qwen3-30b-a3b");
  // 48 layers of 128 experts with three matrices 2048 x 768.
  const std::uint64_t all = 48ull * 128 * 3 * 2048 * 768 * 2;
  CHECK(expert_bytes(r, 1) == all / 16);
  // Tools that take all experts are 16 times too high at one token ...
  CHECK(all / expert_bytes(r, 1) == 16);
  // ... and those that take K for any batch 16 times too low at 128.
  const double at_128 = static_cast<double>(expert_bytes(r, 128));
  CHECK(at_128 / static_cast<double>(all) == near(1 - std::pow(1 - 1.0 / 16, 128)).epsilon(1e-3));
  CHECK(at_128 / (static_cast<double>(all) / 16) > 15.9);
}

TEST_CASE("experts: a measured histogram says which are read") {
  // Mixtral's 32 layers: every token chooses expert 0, and one of the next four equally.
  const TestFolder folder;
  const std::filesystem::path file = folder / "tokens.csv";
  std::string text = "layer,expert,tokens\n";
  for (int layer = 0; layer < 32; ++layer) {
    text += fmt::format("{0},0,400\n{0},1,100\n{0},2,100\n{0},3,100\n{0},4,100\n", layer);
  }
  std::ofstream(file) << text;
  const Architecture mixtral =
      load_model(catalog(), "mixtral-8x7b", {{std::string(expert_tokens_key), file.string()}});
  Recording r = record(mixtral, {}, {});
  const std::uint64_t expert = 3ull * 4096 * 14336 * 2;
  CHECK(expert_bytes(r, 1) == 32 * 2 * expert);
  // Two tokens read 1 + 4·(1 - (3/4)^2) = 2.75 experts a layer, very many 5 of the 8.
  CHECK(expert_bytes(r, 2) == 88 * expert);
  CHECK(expert_bytes(r, 1000) == 32 * 5 * expert);
  // A server's step of two sequences expects the same.
  Recording chunks = record(mixtral, {}, {}, {.chunked = true});
  const StepSums sums = add_step(chunks);
  const SymbolValues sizes =
      step_sizes(chunks, sums, std::vector<StepSequence>{{1, 100}, {1, 300}});
  CHECK(expert_bytes(chunks.pass(step_name).graph, sizes) == 88 * expert);
}

TEST_CASE("latent attention: expanding and absorbing cross at 170.7 new tokens") {
  // With T tokens cached and s new ones, expanding multiplies all T + s latents by W_kvb, absorbing
  // only s queries and outputs, which costs as much a token; but a pair then costs more. So they
  // are equal at s·(a pair absorbed - a pair expanded) = what expanding a token costs, whatever T.
  for (const auto& [model, crossing] :
       {std::pair{"deepseek-v3", 170.67}, {"deepseek-v2-lite", 170.67}, {"minicpm3-4b", 85.33}}) {
    CAPTURE(model);
    const Recording expanded = recorded(model, Kernels::Eager);
    const Recording absorbed = recorded(model);
    const Graph& wide = expanded.decode();
    const Graph& narrow = absorbed.decode();
    // Two decode steps, so that what does not depend on the cache drops out.
    const auto growth = [&](const Recording& r, const Graph& graph, std::string_view label) {
      const Count flops = work(graph, node_of(graph, label)).flops;
      const auto at = [&](std::uint64_t kv_len) {
        return static_cast<double>(flops.at(r.symbols.resolve({1, 1, kv_len})));
      };
      return at(1001) - at(1000);
    };
    const double expands = growth(expanded, wide, "key_up") + growth(expanded, wide, "value_up");
    const double pair = growth(expanded, wide, "scores") + growth(expanded, wide, "values");
    const TiledAttention& op = std::get<TiledAttention>(node_of(narrow, "attention").op);
    const double heads = static_cast<double>(op.heads.num_attention_heads);
    const double pair_absorbed =
        2 * heads * static_cast<double>(op.heads.head_dim + op.value_heads().head_dim);
    CHECK(expands / (pair_absorbed - pair) == near(crossing).epsilon(1e-3));
    CHECK(op.values_are_keys);
  }
}

TEST_CASE("latent attention: the cache is one latent a token, whatever the heads") {
  // 61 layers of 512 + 64 numbers.
  CHECK(recorded("deepseek-v3").kv_cache_bytes_per_token == Count(61 * (512 + 64) * 2));
  CHECK(recorded("kimi-k2").kv_cache_bytes_per_token == Count(61 * (512 + 64) * 2));
}

TEST_CASE("sparse attention: scores read all keys, attention the best 2,048") {
  // DeepSeek V3.2: 61 layers of 512 + 64 latents and an index key of 128; 64 heads score it.
  const Recording r = recorded("deepseek-v3.2");
  CHECK(r.kv_cache_bytes_per_token == Count(61 * (512 + 64 + 128) * 2));
  const Graph& step = r.decode();
  for (const std::uint64_t tokens : {1u, 2047u, 2048u, 2049u, 100000u}) {
    CAPTURE(tokens);
    const std::uint64_t kept = std::min<std::uint64_t>(tokens, 2048);
    CHECK(cache_reads(r, tokens) == 61 * kept * (512 + 64) * 2);
    const SymbolValues sizes = r.symbols.resolve({1, 1, tokens});
    const Work scores = work(step, node_of(step, "choose_keys"));
    CHECK(scores.flops.at(sizes) == tokens * 64 * (2 * 128 + 3));
    CHECK(scores.read[static_cast<std::size_t>(Storage::KvCache)].at(sizes) == tokens * 128 * 2);
    // Two products of 576 and 512 features for 128 heads, and 5 more a pair with its scale.
    const Work attention = work(step, node_of(step, "attention"));
    CHECK(attention.flops.at(sizes) == 128 * (kept * (2 * 576 + 2 * 512 + 5) + 512));
  }
  // Of a prompt: each query scores the keys before it, and attends to so many at most.
  const Graph& prompt = r.prefill();
  const SymbolValues sizes = r.symbols.resolve({1, 5000, 5001});
  const std::uint64_t pairs = 2048 * 2049 / 2 + (5000 - 2048) * 2048;
  CHECK(work(prompt, node_of(prompt, "choose_keys")).flops.at(sizes) ==
        5000ULL * 5001 / 2 * 64 * (2 * 128 + 3));
  CHECK(work(prompt, node_of(prompt, "attention")).flops.at(sizes) ==
        128 * (pairs * (2 * 576 + 2 * 512 + 5) + 5000ULL * 512));
}

TEST_CASE("windows: the cache and what steps read of it stop growing") {
  // Gemma 3 1B: 26 layers of one key-value head of 256; 22 with a window of 512, 4 without.
  const Recording r = recorded("gemma-3-1b");
  const std::uint64_t row = 2 * 256 * 2;
  for (const std::uint64_t tokens : {1u, 511u, 512u, 513u, 5000u}) {
    CAPTURE(tokens);
    const std::uint64_t expected = row * (22 * std::min<std::uint64_t>(tokens, 512) + 4 * tokens);
    CHECK(cache_bytes(r, tokens) == expected);
    CHECK(cache_reads(r, tokens) == expected);
  }
  CHECK(r.kv_cache_bytes_per_token == Count(26 * row));
  CHECK(r.kv_cache_bytes_per_token_beyond_window == Count(4 * row));
}

TEST_CASE("shared keys and values: kept once, read by each layer that has none") {
  // Gemma 3n: 2 key-value heads of 256; of every five layers four with a window of 512. E4B: 35
  // layers, of which the last 15 read others' keys and values; E2B: 30 and 10.
  for (const auto& [model, layers] : {std::pair{"gemma-3n-e4b", 35u}, {"gemma-3n-e2b", 30u}}) {
    CAPTURE(model);
    const Recording r = recorded(model);
    const std::uint64_t row = 2 * 2 * 256 * 2;
    for (const std::uint64_t tokens : {1u, 512u, 513u, 5000u}) {
      CAPTURE(tokens);
      const std::uint64_t near = std::min<std::uint64_t>(tokens, 512);
      CHECK(cache_bytes(r, tokens) == row * (16 * near + 4 * tokens));
      CHECK(cache_reads(r, tokens) == row * layers / 5 * (4 * near + tokens));
    }
    CHECK(r.kv_cache_bytes_per_token == Count(40960));
    CHECK(r.kv_cache_bytes_per_token_beyond_window == Count(8192));
  }
}

TEST_CASE("inputs of layers: a step reads the rows of its tokens") {
  // All weights but the table of 262,144 rows of 35·256 are read, and a row of it; of the tied
  // embedding's 262,400 rows all, for the logits, and one more. The norm and the router of the
  // streams are read twice in each layer.
  const Recording r = recorded("gemma-3n-e4b");
  const Work decode = total_work(r.decode());
  const SymbolValues sizes = r.symbols.resolve({1, 100, 101});
  const std::uint64_t without_lookup = 4486425328;  // published/models_today.csv
  CHECK(decode.read[static_cast<std::size_t>(Storage::Weights)].at(sizes) ==
        2 * (without_lookup + 35 * 256 + 2048 + 35 * (2048 + 4 * 2048)));
}

TEST_CASE("chunks: a layer keeps at most one and reads its own") {
  // Llama 4 Scout: 48 layers of 8 heads of 128, every fourth without chunks of 8192.
  const Recording r = recorded("llama-4-scout-17b-16e");
  const std::uint64_t row = 2 * 8 * 128 * 2;
  for (const std::uint64_t tokens : {1u, 8192u, 8193u, 20000u}) {
    CAPTURE(tokens);
    const std::uint64_t seen = (tokens - 1) % 8192 + 1;
    CHECK(cache_bytes(r, tokens) ==
          row * (36 * std::min<std::uint64_t>(tokens, 8192) + 12 * tokens));
    CHECK(cache_reads(r, tokens) == row * (36 * seen + 12 * tokens));
  }
}

TEST_CASE("chunks: visible pairs of a prompt") {
  Symbols symbols;
  for (const std::uint64_t past : {0u, 3u, 4u, 9u}) {
    for (const std::uint64_t tokens : {2u, 5u, 11u}) {
      const Mask mask{true, 0, past, 4};
      std::uint64_t pairs = 0;
      for (std::uint64_t i = past; i < past + tokens; ++i) pairs += i % 4 + 1;
      CHECK(visible_pairs(mask, tokens, past + tokens, symbols) == Count(pairs));
      CHECK(visible_keys(mask, tokens, past + tokens, symbols) ==
            Count(past + tokens - past / 4 * 4));
    }
  }
}

TEST_CASE("catalog: active parameters, as counted in published/models_today.csv") {
  struct Case {
    const char* model;
    std::uint64_t active;
  };
  for (const Case& c : {Case{"qwen3-30b-a3b", 3353032704},
                        {"mixtral-8x7b", 12879925248},
                        {"gpt-oss-120b", 5711982912},
                        {"kimi-k2", 32861500928},
                        {"minimax-m2.5", 11030553088},
                        {"deepseek-v3.2", 38403822336},
                        {"llama-4-maverick-17b-128e", 17184691200},
                        {"olmoe-1b-7b", 1282017280},
                        {"gemma-3n-e4b", 6835235568},
                        {"gemma-3n-e2b", 4435182688},
                        {"qwen3-8b", 8190735360}}) {
    CAPTURE(c.model);
    CHECK(recorded(c.model).active_parameters == c.active);
  }
}

TEST_CASE("config: keys of transformers' classes are read or ignored on purpose") {
  nlohmann::json stored =
      read_json_file(std::string(KVCAST_SOURCE_DIR) + "/tests/oracle/config_classes.json");
  std::size_t classes = 0;
  for (auto& [model_type, config] : stored.at("classes").items()) {
    CAPTURE(model_type);
    // What the classes leave open: 96 heads do not divide GLM's width, V2 names no number of
    // experts, LFM2's mixture no layers with attention.
    if (model_type == "glm4_moe") config["head_dim"] = 128;
    if (model_type == "dots1") {
      config["n_routed_experts"] = 128;
      config["num_experts_per_tok"] = 6;
    }
    if (model_type == "deepseek_v2") config["num_experts_per_tok"] = 6;
    if (model_type == "lfm2_moe") config["layer_types"] = std::vector<std::string>(32, "conv");
    const Architecture a = read_config(config, model_type, model_type);
    CHECK(a.unknown_keys == std::vector<std::string>{});
    nlohmann::json odd = config;
    odd["attention_is_reversed"] = true;
    const Architecture b = read_config(odd, model_type, model_type);
    REQUIRE(b.unknown_keys == std::vector<std::string>{"attention_is_reversed"});
    CHECK(config_warnings(b).front().find("attention_is_reversed") != std::string::npos);
    ++classes;
  }
  CHECK(classes == 82);
}

TEST_CASE("config: an unknown key of rotations is warned of") {
  const nlohmann::json config = read_json_file(KVCAST_SOURCE_DIR "/tests/oracle/qwen3/config.json");
  const auto unknown = [&](const nlohmann::json& rope) {
    nlohmann::json odd = config;
    odd.erase("rope_scaling");
    odd["rope_parameters"] = rope;
    return read_config(odd, "odd", "odd").unknown_keys;
  };
  CHECK(unknown({{"rope_type", "default"}, {"rope_theta", 1000}}).empty());
  CHECK(unknown({{"rope_type", "default"}, {"rope_theta", 1000}, {"turns", 2}}) ==
        std::vector<std::string>{"rope_parameters.turns"});
  // Qwen3 rotates whole heads.
  CHECK(unknown({{"rope_theta", 1000}, {"partial_rotary_factor", 0.5}}) ==
        std::vector<std::string>{"rope_parameters.partial_rotary_factor"});
}

TEST_CASE("experts: GLM-4.7-Flash chooses 4 unless its file says otherwise") {
  nlohmann::json config =
      read_json_file(KVCAST_SOURCE_DIR "/tests/oracle/glm4_moe_lite/config.json");
  config["n_routed_experts"] = 16;
  config.erase("num_experts_per_tok");
  const Architecture a = read_config(config, "glm", "glm");
  CHECK(a.decoder.layers.back().experts->routing.num_experts_per_tok == 4);
}

TEST_CASE("config: mixtures of 2026 are those that they are made of, under other names") {
  const std::string oracle = KVCAST_SOURCE_DIR "/tests/oracle/";
  nlohmann::json plain = read_json_file(oracle + "dots1/config.json");
  plain["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  plain["sliding_window"] = 9;
  nlohmann::json latent = read_json_file(oracle + "deepseek_v3/config.json");
  const auto layers = [](const nlohmann::json& config) {
    const Architecture a = read_config(config, "tiny", "tiny.json");
    CHECK(a.unknown_keys == std::vector<std::string>{});
    return a.decoder.layers;
  };
  const auto stored = [](const nlohmann::json& config, const char* weight) {
    return huggingface_weight(read_config(config, "tiny", "tiny.json"), weight).names.front();
  };
  const auto renamed = [](nlohmann::json config, const char* type,
                          const std::vector<std::pair<const char*, const char*>>& keys) {
    config["model_type"] = type;
    for (const auto& [old, key] : keys) {
      config[key] = config[old];
      config.erase(old);
    }
    config["head_dim"] = 6;
    for (const char* gone : {"max_window_layers", "sliding_window_pattern"}) config.erase(gone);
    return config;
  };
  const char* const correction = "layers.2.router.correction";

  // EXAONE 4 does not rotate where there is no window.
  auto exaone =
      renamed(plain, "exaone_moe",
              {{"n_routed_experts", "num_experts"}, {"n_shared_experts", "num_shared_experts"}});
  exaone.erase("attention_bias");
  auto expected = layers(plain);
  expected[1].rope = nullptr;
  CHECK(layers(exaone) == expected);
  CHECK(stored(exaone, correction) == "model.layers.2.mlp.e_score_correction_bias");
  nlohmann::json listed = exaone;
  listed["mlp_layer_types"] = {"sparse", "dense", "sparse"};
  std::swap(expected[0].experts, expected[1].experts);
  CHECK(layers(listed) == expected);
  listed["is_moe_layer"] = {false, true, true};
  CHECK(message_of([&] { layers(listed); }).find("/is_moe_layer") != std::string::npos);

  plain["layer_types"] =
      nlohmann::json::array({"full_attention", "full_attention", "full_attention"});
  nlohmann::json hy = renamed(plain, "hy_v3",
                              {{"n_routed_experts", "num_experts"},
                               {"n_shared_experts", "num_shared_experts"},
                               {"routed_scaling_factor", "router_scaling_factor"}});
  for (const char* gone : {"layer_types", "sliding_window", "n_group", "topk_group"})
    hy.erase(gone);
  CHECK(layers(hy) == layers(plain));
  CHECK(stored(hy, correction) == "model.layers.2.mlp.expert_bias");
  CHECK(stored(hy, "layers.2.shared_expert.up.weight") ==
        "model.layers.2.mlp.shared_mlp.up_proj.weight");
  hy["route_norm"] = false;
  CHECK(message_of([&] { layers(hy); }).find("/route_norm") != std::string::npos);

  nlohmann::json sarvam = renamed(plain, "sarvam_moe",
                                  {{"n_routed_experts", "num_experts"},
                                   {"n_shared_experts", "num_shared_experts"},
                                   {"attention_bias", "use_qkv_bias"}});
  nlohmann::json solar = renamed(plain, "solar_open", {});
  for (const char* gone : {"layer_types", "sliding_window"}) {
    sarvam.erase(gone);
    solar.erase(gone);
  }
  CHECK(layers(sarvam) == layers(plain));
  // Keys follow the 30 rows of queries.
  CHECK(stored(sarvam, "layers.0.key.weight") == "model.layers.0.attention.query_key_value.weight");
  CHECK(huggingface_weight(read_config(sarvam, "tiny", "tiny.json"), "layers.0.key.weight")
            .rows.front() == 30);
  CHECK(stored(sarvam, "embedding.weight") == "model.word_embeddings.weight");
  CHECK(message_of([&] { layers(solar); }).find("/first_k_dense_replace") != std::string::npos);
  solar["first_k_dense_replace"] = 0;
  expected = layers(plain);
  expected[0].experts = expected[1].experts;
  for (LayerShape& layer : expected) layer.intermediate_size = 7;  // of no layer
  CHECK(layers(solar) == expected);

  nlohmann::json sarvam_mla = latent;
  sarvam_mla["model_type"] = "sarvam_mla";
  sarvam_mla["rope_scaling"]["type"] = "deepseek_yarn";
  sarvam_mla["num_experts"] = sarvam_mla["n_routed_experts"];
  sarvam_mla.erase("n_routed_experts");
  CHECK(layers(sarvam_mla) == layers(latent));
}

TEST_CASE("indexer: layers of GLM-5.2 that read another's choice, by three keys") {
  nlohmann::json config = read_json_file(KVCAST_SOURCE_DIR "/tests/oracle/glm_moe_dsa/config.json");
  config["num_hidden_layers"] = 7;
  config.erase("mlp_layer_types");
  config.erase("indexer_types");
  const auto letters = [&] {
    std::string text;
    for (const LayerShape& layer : read_config(config, "tiny", "tiny.json").decoder.layers) {
      text += layer.latent->indexer->num_heads > 0 ? 'F' : 'S';
    }
    return text;
  };
  CHECK(letters() == "FFFFFFF");
  // Of each three layers after the first two one: max(i - 1, 0) % 3 is 0.
  config["index_topk_freq"] = 3;
  CHECK(letters() == "FFSSFSS");
  config["index_topk_pattern"] = "FSSFSSF";
  CHECK(letters() == "FSSFSSF");
  config["indexer_types"] = {"full", "shared", "full", "shared", "full", "shared", "full"};
  CHECK(letters() == "FSFSFSF");
  config["indexer_types"][0] = "shared";
  CHECK(message_of(letters).find("\"full\" in the first layer") != std::string::npos);
}

TEST_CASE("experts: measured loads keep a model's origin") {
  const TestFolder folder;
  const std::filesystem::path file = folder / "tokens.csv";
  std::string text = "layer,expert,tokens\n";
  for (int layer = 0; layer < 32; ++layer) text += fmt::format("{0},0,5\n{0},1,5\n", layer);
  std::ofstream(file) << text;
  const Architecture a = load_model(catalog(), "mixtral-8x7b");
  const Architecture b =
      load_model(catalog(), "mixtral-8x7b", {{std::string(expert_tokens_key), file.string()}});
  CHECK(same_origin(a, b));
}

TEST_CASE("config: a number of streams that no model has is refused at once") {
  nlohmann::json config =
      read_json_file(std::string(KVCAST_SOURCE_DIR) + "/tests/oracle/config_classes.json")
          .at("classes")
          .at("gemma3n_text");
  config["altup_num_inputs"] = 1ULL << 40;
  CHECK(message_of([&] {
          read_config(config, "tiny", "tiny.json");
        }).starts_with("tiny.json: /altup_num_inputs: got 1099511627776, expected at most 1024"));
}

TEST_CASE("config: text models nested in others have their classes' defaults") {
  const nlohmann::json stored =
      read_json_file(std::string(KVCAST_SOURCE_DIR) + "/tests/oracle/config_classes.json");
  std::size_t wrappers = 0;
  for (const auto& [model_type, config] : stored.at("wrappers").items()) {
    CAPTURE(model_type);
    const Architecture whole = read_config(config, model_type, model_type);
    CHECK(whole.wrapper == model_type);
    CHECK(whole.unknown_keys == std::vector<std::string>{});
    CHECK(config_warnings(whole).size() == 1);
    CHECK(config_warnings(whole).front().find("images") != std::string::npos);

    nlohmann::json odd = config;
    odd["attention_is_reversed"] = true;
    odd["text_config"]["attention_is_odd"] = true;
    CHECK(read_config(odd, model_type, model_type).unknown_keys ==
          std::vector<std::string>{"attention_is_odd", "attention_is_reversed"});

    ++wrappers;
    // The class has a text model of its own for configs without any.
    if (model_type == "mistral3") continue;
    // As hub files: nothing that the class says too.
    nlohmann::json sparse{{"model_type", model_type},
                          {"text_config", {{"model_type", config["text_config"]["model_type"]}}}};
    if (config.contains("tie_word_embeddings")) {
      sparse["tie_word_embeddings"] = config["tie_word_embeddings"];
    }
    const Architecture a = read_config(sparse, model_type, model_type);
    CHECK(a.hidden_size == whole.hidden_size);
    CHECK(a.vocab_size == whole.vocab_size);
    CHECK(a.max_position_embeddings == whole.max_position_embeddings);
    CHECK(a.tied_embeddings == whole.tied_embeddings);
    CHECK(a.decoder.norm_eps == whole.decoder.norm_eps);
    CHECK(a.decoder.activation == whole.decoder.activation);
    CHECK(a.decoder.attention_scale == whole.decoder.attention_scale);
    CHECK(a.decoder.query_key_norm == whole.decoder.query_key_norm);
    CHECK(a.decoder.position_scale == whole.decoder.position_scale);
    CHECK(a.decoder.layers == whole.decoder.layers);
  }
  CHECK(wrappers == 19);
}

TEST_CASE("config: whether a wrapper's head is tied, by its key or the text model's") {
  const auto tied = [](const char* model_type, const char* outer, const char* inner) {
    nlohmann::json config{{"model_type", model_type}, {"text_config", nlohmann::json::object()}};
    const std::string key = "tie_word_embeddings";
    if (outer[0] != 0) config[key] = nlohmann::json::parse(outer);
    if (inner[0] != 0) config["text_config"][key] = nlohmann::json::parse(inner);
    return read_config(config, "tiny", "tiny.json").tied_embeddings;
  };
  CHECK(tied("gemma3", "", ""));
  CHECK_FALSE(tied("gemma3", "false", ""));
  CHECK_FALSE(tied("gemma3", "", "false"));
  // transformers 5 would tie these by the wrapper's default and then find a head in the file.
  CHECK_FALSE(tied("mistral3", "", ""));
  CHECK_FALSE(tied("kimi_k25", "", ""));
  CHECK(tied("mistral3", "true", "false"));
  CHECK_FALSE(tied("llama4", "", ""));
  CHECK(tied("llama4", "true", "false"));
  CHECK_FALSE(tied("llama4", "false", "true"));
  // The text model's key holds as well.
  CHECK(tied("llava", "false", "true"));
  CHECK(tied("llava", "true", "false"));
  CHECK_FALSE(tied("llava", "", ""));
}

TEST_CASE("config: a wrapper's overrides, errors and quantised weights are the text model's") {
  const nlohmann::json config = nlohmann::json::parse(R"({"model_type": "mistral3",
      "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
      "text_config": {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48,
                      "num_hidden_layers": 2}})");
  const auto read = [&](const std::vector<ConfigOverride>& o) {
    return read_config(config, "tiny", "tiny.json", o);
  };
  CHECK(read({{"num_hidden_layers", "3"}}).num_hidden_layers() == 3);
  CHECK(read({}).quantization == "fp8");
  CHECK(read({}).stored_weights->text.starts_with("fp8-block"));
  CHECK(message_of([&] {
          read({{"hidden_size", "\"big\""}});
        }).starts_with("tiny.json with --set hidden_size=\"big\": /text_config/hidden_size: got "));
  CHECK(message_of([&] {
          read_config(nlohmann::json::parse(R"({"model_type": "llava"})"), "tiny", "tiny.json");
        }).find("/text_config: missing") != std::string::npos);
  // Wrappers take the head's output as it is, so far as transformers' code goes.
  const auto plain = [](const char* text) {
    const Architecture a = read_config(nlohmann::json::parse(text), "tiny", "tiny.json");
    return a.logit_scale == 1 && a.logit_softcap == 0;
  };
  CHECK(plain(R"({"model_type": "cohere2_vision", "text_config": {"logit_scale": 0.25}})"));
  CHECK(plain(R"({"model_type": "gemma3", "text_config": {"final_logit_softcapping": 30}})"));
  CHECK(plain(R"({"model_type": "llava_next",
                  "text_config": {"model_type": "granite", "logits_scaling": 8}})"));
  // Qwen2-VL's files have the text model's keys beside vision_config.
  const nlohmann::json flat = nlohmann::json::parse(R"({"model_type": "qwen2_vl",
      "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 61,
      "num_hidden_layers": 2, "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, "vision_token_id": 5,
      "vision_config": {"depth": 2}, "tie_word_embeddings": true})");
  const Architecture a = read_config(flat, "tiny", "tiny.json");
  CHECK(a.model_type == "qwen2");
  CHECK(a.tied_embeddings);
  CHECK(a.unknown_keys == std::vector<std::string>{});
  CHECK(a.decoder.layers[0].heads == Heads{6, 2, 8});
}

TEST_CASE("config: patterns of layers by numbers, by letters and by their older names") {
  const auto windows = [](const nlohmann::json& keys) {
    nlohmann::json config = nlohmann::json::parse(R"({"model_type": "exaone4", "hidden_size": 12,
        "vocab_size": 61, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 4,
        "num_hidden_layers": 6, "intermediate_size": 8, "sliding_window": 9})");
    config.update(keys);
    std::string text;
    for (const LayerShape& l : read_config(config, "tiny", "tiny.json").decoder.layers) {
      text += l.sliding_window > 0 ? 'L' : 'G';
    }
    return text;
  };
  CHECK(windows(nlohmann::json::object()) == "LLLGLL");
  CHECK(windows({{"sliding_window_pattern", 3}}) == "LLGLLG");
  CHECK(windows({{"sliding_window_pattern", "LLLG"}}) == "LLLGLG");  // the last is always full
  CHECK(windows({{"sliding_window_pattern", "LG"}}) == "LGLGLG");
  CHECK(windows({{"sliding_window_pattern", "GLL"}}) == "GLLGLG");
  CHECK(windows({{"sliding_window", nullptr}, {"sliding_window_pattern", 0}}) == "GGGGGG");
  const auto refused = [&](const nlohmann::json& pattern) {
    return message_of([&] { windows({{"sliding_window_pattern", pattern}}); });
  };
  CHECK(refused("LLXG").find("letters L") != std::string::npos);
  CHECK(refused("").find("letters L") != std::string::npos);
  CHECK(refused(0).find("sliding_window_pattern") != std::string::npos);
  const std::string s = "sliding_attention";
  CHECK(windows({{"layer_types", {s, "attention", s, "full_attention", s, s}}}) == "LGLGLL");
}
