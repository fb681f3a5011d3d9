#include <cmath>
#include <numbers>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "tests/near.h"

using namespace kvcast;
using nlohmann::json;

namespace {

RopeTable table_of(const std::string& patch) {
  json config = json::parse(R"({"model_type": "phi3", "hidden_size": 42, "vocab_size": 51,
    "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 8, "intermediate_size": 20,
    "max_position_embeddings": 131072, "original_max_position_embeddings": 4096})");
  config.merge_patch(json::parse(patch));
  return *read_config(config, "tiny", "tiny.json").decoder.layers[0].rope;
}

}  // namespace

TEST_CASE("config_shared: plain RoPE turns dim pair j by theta^(-2j/dims)") {
  const RopeTable t = table_of(R"({"rope_theta": 10000})");
  // 8 dims: 10000^0, 10000^(-1/4) = 0.1, 0.01, 0.001
  REQUIRE(t.inverse_frequencies.size() == 4);
  double expected = 1;
  for (const double f : t.inverse_frequencies) {
    CHECK(f == near(expected).epsilon(1e-14));
    expected /= 10;
  }
  CHECK(t.gain == 1);
  CHECK(t.position_scale == 1);
  CHECK(table_of(R"({"rope_scaling": {"rope_type": "default"}})") == t);
}

TEST_CASE("config_shared: linear scaling divides positions and leaves frequencies") {
  const RopeTable t = table_of(R"({"rope_scaling": {"type": "linear", "factor": 4}})");
  CHECK(t.position_scale == 4);
  CHECK(t.inverse_frequencies == table_of("{}").inverse_frequencies);
  // An empty object says nothing.
  CHECK(table_of(R"({"rope_scaling": {}, "rope_parameters": {"type": "linear", "factor": 4}})") ==
        t);
}

TEST_CASE("config_shared: llama3 scaling keeps short waves, stretches long ones, blends between") {
  // head_dim 8, theta 1e8: frequencies 1, 1e-2, 1e-4, 1e-6; wavelengths 2 pi times 1, 1e2, 1e4,
  // 1e6. With original 8192, low 1, high 4: below 2048 kept (the first two), above 8192 divided by
  // 8 (the last two). An original of 1000 and high 2 puts the second, 628.3, between 500 and 1000.
  // The config's own original goes before that of rope_scaling.
  const RopeTable t = table_of(R"({"rope_theta": 1e8, "original_max_position_embeddings": 8192,
    "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
    "high_freq_factor": 4, "original_max_position_embeddings": 5}})");
  CHECK(t.inverse_frequencies[0] == near(1));
  CHECK(t.inverse_frequencies[1] == near(1e-2));
  CHECK(t.inverse_frequencies[2] == near(1e-4 / 8));
  CHECK(t.inverse_frequencies[3] == near(1e-6 / 8));
  CHECK(t.gain == 1);
  const RopeTable blended = table_of(R"({"rope_theta": 1e8,
    "original_max_position_embeddings": 1000, "rope_scaling": {"rope_type": "llama3", "factor": 8,
    "low_freq_factor": 1, "high_freq_factor": 2}})");
  const double smooth = (1000 / (200 * std::numbers::pi) - 1) / (2 - 1);
  CHECK(blended.inverse_frequencies[1] == near((1 - smooth) * 1e-2 / 8 + smooth * 1e-2));
}

TEST_CASE("config_shared: longrope divides each frequency and raises cos and sin") {
  const RopeTable t =
      table_of(R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 2, 4, 5]}})");
  CHECK(t.inverse_frequencies[0] == near(1));
  CHECK(t.inverse_frequencies[1] == near(0.1 / 2));
  CHECK(t.inverse_frequencies[2] == near(0.01 / 4));
  CHECK(t.inverse_frequencies[3] == near(0.001 / 5));
  // 131072 / 4096 = 32: sqrt(1 + ln 32 / ln 4096) = sqrt(1 + 5/12) = 1.190238
  CHECK(t.gain == near(std::sqrt(17.0 / 12)));
  CHECK(table_of(R"({"rope_scaling": {"type": "su", "short_factor": [1, 2, 4, 5]}})") == t);
  // Phi3Config's own original, 4096, goes before that of rope_scaling.
  CHECK(table_of(R"({"original_max_position_embeddings": null, "rope_scaling": {"type": "su",
                     "short_factor": [1, 2, 4, 5], "original_max_position_embeddings": 64}})") ==
        t);
  // No gain when the context is not extended.
  CHECK(table_of(R"({"max_position_embeddings": 4096,
                     "rope_scaling": {"type": "su", "short_factor": [1, 2, 4, 5]}})")
            .gain == 1);
}
