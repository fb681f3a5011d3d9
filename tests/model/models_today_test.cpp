#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "model/families/config_reader.h"
#include "model/graph/work.h"
#include "model/io/weights/catalog.h"
#include "model/record/recording.h"
#include "tests/model/tiny_models.h"
#include "tests/near.h"

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

/// Bytes of experts that a decode step reads.
std::uint64_t expert_bytes(const Recording& r, std::uint64_t batch) {
  const SymbolValues sizes = r.symbols.resolve({batch, 100, 101});
  std::uint64_t sum = 0;
  for (const Node& node : r.decode().nodes()) {
    if (!std::holds_alternative<ExpertLinear>(node.op)) continue;
    sum += work(r.decode(), node).read[static_cast<std::size_t>(Storage::Weights)].at(sizes);
  }
  return sum;
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
    const Count hundred = symbols.expected_distinct(symbol::batch, c.experts, c.chosen, 100);
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
  // embedding's 262,400 rows all, for the logits, and one more. Each layer reads its router of four
  // rows and the router's norm twice: to predict the streams and to correct them.
  const Recording r = recorded("gemma-3n-e4b");
  const Work decode = total_work(r.decode());
  const SymbolValues sizes = r.symbols.resolve({1, 100, 101});
  const std::uint64_t without_lookup = 4486425328;  // published/models_today.csv
  CHECK(decode.read[static_cast<std::size_t>(Storage::Weights)].at(sizes) ==
        2 * (without_lookup + 35 * 256 + 2048 + 35 * 5 * 2048));
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
    // experts.
    if (model_type == "glm4_moe") config["head_dim"] = 128;
    if (model_type == "deepseek_v2") config["num_experts_per_tok"] = 6;
    const Architecture a = read_config(config, model_type, model_type);
    CHECK(a.unknown_keys == std::vector<std::string>{});
    nlohmann::json odd = config;
    odd["attention_is_reversed"] = true;
    const Architecture b = read_config(odd, model_type, model_type);
    REQUIRE(b.unknown_keys == std::vector<std::string>{"attention_is_reversed"});
    CHECK(config_warnings(b).front().find("attention_is_reversed") != std::string::npos);
    ++classes;
  }
  CHECK(classes == 36);
}
