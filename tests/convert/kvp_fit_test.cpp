#include "model/convert/kvp_fit.h"

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/json_file.h"
#include "model/config/layer_pruning.h"
#include "model/convert/dense_matrix.h"
#include "model/io/weights/catalog.h"
#include "tests/execute/random_checkpoint.h"
#include "tests/execute/stored_numbers.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

namespace kvcast {
namespace {

namespace fs = std::filesystem;
using execute::TokenId;
using nlohmann::json;

json llama_config(int layers, int hidden, int heads, int kv_heads, int vocab = 53) {
  return {{"model_type", "llama"},
          {"hidden_size", hidden},
          {"vocab_size", vocab},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},
          {"intermediate_size", 2 * hidden},
          {"max_position_embeddings", 64}};
}

std::map<std::string, std::vector<double>> tensors_of(const fs::path& folder) {
  return stored_numbers<double>(folder / "model.safetensors");
}

std::vector<TokenId> text_of(std::size_t length, std::uint64_t vocab = 53) {
  std::vector<TokenId> text;
  std::uint64_t state = 12345;
  for (std::size_t i = 0; i < length; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    text.push_back(static_cast<TokenId>((state >> 33) % vocab));
  }
  return text;
}

/// Two one-layer models of one embedding, the base's keys and values known products of the
/// auxiliary's.
struct KnownPair {
  static constexpr std::size_t from = 8, to = 12;  // one head of 8; 1.5 as many features
  KnownPair() {
    write_random_checkpoint(llama_config(1, 16, 2, 1), folder / "auxiliary", 3);
    auto tensors = tensors_of(folder / "auxiliary");
    json config = llama_config(1, 16, 4, 3);
    config["num_attention_heads"] = 3;
    config["head_dim"] = 4;
    std::mt19937 random(11);
    std::normal_distribution<double> normal;
    for (const char* part : {"k", "v"}) {
      std::vector<double>& w =
          tensors[std::string("model.layers.0.self_attn.") + part + "_proj.weight"];
      REQUIRE(w.size() == from * 16);
      maps[part] = DenseMatrix::NullaryExpr(to, from, [&] { return normal(random); });
      const DenseMatrix product = maps[part] * Eigen::Map<const DenseMatrix>(w.data(), from, 16);
      w.assign(product.data(), product.data() + product.size());
    }
    for (const char* part : {"q", "o"}) {
      tensors[std::string("model.layers.0.self_attn.") + part + "_proj.weight"].assign(to * 16,
                                                                                       0.1);
    }
    std::vector<TensorToWrite> plans;
    for (const auto& [name, info] : weights_of(record(read_config(config, "x", "x"), {}, {}))) {
      plans.push_back(
          tensor_to_write(huggingface_weight(read_config(config, "x", "x"), name).names.front(),
                          info, DType::FP32));
    }
    CheckpointWriter writer(folder / "base", config, plans);
    for (const TensorToWrite& plan : plans) writer.write(tensors.at(plan.name));
    writer.commit();
  }
  TestFolder folder;
  std::map<std::string, DenseMatrix> maps;  ///< "k" and "v": [to, from]
};

TEST_CASE("kvp fit: a known linear map between two models is found again") {
  KnownPair pair;
  const Checkpoint base(pair.folder / "base"), auxiliary(pair.folder / "auxiliary");
  KvpFit fit;
  fit.map = {0};
  fit.ridge = 0;
  fit.window = 16;
  const KvpFitReport r = fit_predictor(base, auxiliary, text_of(200), pair.folder / "out", fit);
  // 13 windows, the last one of 8; the tenth is held out.
  CHECK(r.fitted_tokens == 184);
  CHECK(r.held_out_tokens == 16);
  CHECK(r.parameters == 2 * (8 + 1) * 12);
  auto written = tensors_of(pair.folder / "out");
  for (const auto& [part, name] :
       {std::pair{"k", "predictor.layers.0.key."}, std::pair{"v", "predictor.layers.0.value."}}) {
    const std::vector<double>& found = written.at(std::string(name) + "weight");
    const auto expected = numbers_of(pair.maps[part]);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(std::abs(found[i] - expected[i]) < 1e-4);
    }
    for (const double b : written.at(std::string(name) + "bias")) CHECK(std::abs(b) < 1e-4);
  }
  for (const auto& errors : {r.key_layers, r.value_layers, r.key_positions, r.value_positions}) {
    for (const PredictionError& e : errors) {
      CHECK(e.l1 < 1e-4);
      CHECK(e.r2 > 0.99999);
    }
  }
  CHECK(r.key_layers.size() == 1);
  CHECK(r.value_positions.size() == 16);
}

// Of latents of 13 and a rotated part of 6: the projections before the norm and the rotation.
TEST_CASE("kvp fit: a model with latents finds itself") {
  const Checkpoint model(fs::path(KVCAST_SOURCE_DIR) / "tests" / "oracle" / "deepseek_v3");
  const TestFolder folder;
  KvpFit fit;
  fit.map = {0, 1, 2};
  fit.ridge = 0;
  fit.window = 16;
  const KvpFitReport r = fit_predictor(model, model, text_of(400, 61), folder / "out", fit);
  CHECK(r.parameters == 3 * (7 * 6 + 14 * 13));
  CHECK(r.config.base.kv_lora_rank == std::vector<std::uint64_t>{13, 13, 13});
  auto written = tensors_of(folder / "out");
  CHECK(written.at("predictor.layers.2.key.weight").size() == 6 * 6);
  const std::vector<double>& latents = written.at("predictor.layers.1.value.weight");
  REQUIRE(latents.size() == 13 * 13);
  for (std::size_t i = 0; i < latents.size(); ++i) {
    CHECK(std::abs(latents[i] - (i % 14 == 0 ? 1 : 0)) < 1e-3);
  }
  for (const auto& errors : {r.key_layers, r.value_layers}) {
    for (const PredictionError& e : errors) CHECK(e.r2 > 0.99999);
  }
  const Checkpoint other(fs::path(KVCAST_SOURCE_DIR) / "tests" / "oracle" / "llama_mha");
  const std::string line =
      message_of([&] { fit_predictor(model, other, text_of(400, 61), folder / "mixed", fit); });
  CAPTURE(line);
  CHECK(line.find("maps lead from like to like") != std::string::npos);
}

// 8 inputs and the bias: 9 unknowns of each output. Half of so short a text is held out.
TEST_CASE("kvp fit: as many tokens as unknowns are asked for") {
  KnownPair pair;
  const Checkpoint base(pair.folder / "base"), auxiliary(pair.folder / "auxiliary");
  KvpFit fit;
  fit.map = {0};
  const std::string line =
      message_of([&] { fit_predictor(base, auxiliary, text_of(17), pair.folder / "few", fit); });
  CAPTURE(line);
  CHECK(line.find("got 8 tokens to fit") != std::string::npos);
  CHECK(line.find("at least 9") != std::string::npos);
  CHECK_FALSE(fs::exists(pair.folder / "few"));
  const KvpFitReport r = fit_predictor(base, auxiliary, text_of(18), pair.folder / "out", fit);
  CHECK(r.fitted_tokens == 9);
}

// 2 windows of 16 and one of 8: with the last one held out, nothing would measure positions 8
// to 15.
TEST_CASE("kvp fit: a short last window is never all that is held out") {
  const TestFolder folder;
  write_random_checkpoint(llama_config(3, 16, 4, 2), folder / "base", 1);
  write_random_checkpoint(llama_config(2, 8, 2, 1), folder / "small", 2);
  KvpFit fit;
  fit.map = {0, 0, 1};
  fit.window = 16;
  const KvpFitReport r = fit_predictor(Checkpoint(folder / "base"), Checkpoint(folder / "small"),
                                       text_of(40), folder / "out", fit);
  CHECK(r.held_out_tokens == 16);
  CHECK(r.fitted_tokens == 24);
  REQUIRE(r.key_positions.size() == 16);
  for (const auto& errors : {r.key_positions, r.value_positions}) {
    for (const PredictionError& e : errors) CHECK(e.l1 > 0);
  }
}

TEST_CASE("kvp fit: the written config says what the predictor is for") {
  const TestFolder folder;
  write_random_checkpoint(llama_config(3, 16, 4, 2), folder / "base", 1);
  write_random_checkpoint(llama_config(2, 8, 2, 1), folder / "small", 2);
  const Checkpoint base(folder / "base"), small(folder / "small");
  KvpFit fit;
  fit.map = code_layer_map(base.architecture(), small.architecture());
  fit.window = 8;
  const KvpFitReport r = fit_predictor(base, small, text_of(60), folder / "out", fit);
  const PredictorConfig c =
      read_predictor_config(read_json_file(folder / "out" / "config.json"), "config.json");
  CHECK(c.map == LayerMap{0, 0, 1});
  CHECK(c.base.num_key_value_heads == std::vector<std::uint64_t>{2, 2, 2});
  CHECK(c.auxiliary.head_dim == std::vector<std::uint64_t>{4, 4});
  check_predictor(c, "out", base.architecture(), small.architecture());
  const auto refused = [&](const Architecture& b, const Architecture& a, const std::string& part) {
    const std::string line = message_of([&] { check_predictor(c, "out", b, a); });
    CAPTURE(line);
    CHECK(line.find(part) != std::string::npos);
  };
  refused(small.architecture(), small.architecture(), "made for the base model base, 3 layers");
  Architecture other = small.architecture();
  other.decoder.layers[1].heads.head_dim = 8;
  refused(base.architecture(), other, "1 key-value heads of 4 in layer 1");
  other = small.architecture();
  other.vocab_size = 54;
  refused(base.architecture(), other, "a vocabulary of 53");
  // 3 layers, 4 -> 8 features.
  CHECK(r.parameters == 3 * 2 * (4 + 1) * 8);
}

TEST_CASE("kvp fit: parameter counts of OpenELM's predictors are those of the released shapes") {
  const Catalog catalog(std::string(KVCAST_SOURCE_DIR) + "/data");
  const auto model = [&](const std::string& name) { return load_model(catalog, name); };
  const auto count = [&](const Architecture& base, const Architecture& auxiliary) {
    return predictor_parameters(base, auxiliary, code_layer_map(base, auxiliary));
  };
  // Σ_i 2·(G_A·hd_A·G_B·hd_B + G_B·hd_B) with apple/OpenELM's head counts, summed by hand
  // elsewhere.
  const Architecture small = model("openelm-1.1b"), large = model("openelm-3b");
  CHECK(count(small, model("openelm-450m")) == 6'206'592);
  CHECK(count(small, model("openelm-270m")) == 5'436'544);
  CHECK(count(large, small) == 16'032'768);
  CHECK(count(large, model("openelm-450m")) == 12'264'448);
  CHECK(count(large, model("openelm-270m")) == 10'691'584);
  const auto pruned = [&](const Architecture& a, double keep) {
    return count(a, prune_layers(a, retained_layers(a.num_hidden_layers(), keep)));
  };
  CHECK(pruned(small, 0.75) == 8'672'384);
  CHECK(pruned(small, 0.50) == 8'672'384);
  CHECK(pruned(small, 0.25) == 8'459'392);
  CHECK(pruned(large, 0.75) == 25'469'952);
  CHECK(pruned(large, 0.50) == 25'469'952);
  CHECK(pruned(large, 0.25) == 24'749'056);
}

TEST_CASE("kvp fit: bad input is refused and nothing is written") {
  const TestFolder folder;
  write_random_checkpoint(llama_config(3, 16, 4, 2), folder / "base", 1);
  write_random_checkpoint(llama_config(2, 8, 2, 1), folder / "small", 2);
  write_random_checkpoint(llama_config(2, 8, 2, 1, 53 + 257), folder / "other", 2);
  const Checkpoint base(folder / "base"), small(folder / "small"), other(folder / "other");
  KvpFit fit;
  fit.map = {0, 0, 1};
  fit.window = 8;
  const auto refused = [&](const Checkpoint& auxiliary, const KvpFit& f, std::size_t length,
                           const std::string& part) {
    const auto files = folder.num_files();
    const std::string line =
        message_of([&] { fit_predictor(base, auxiliary, text_of(length), folder / "out", f); });
    CAPTURE(line);
    CHECK(line.find(part) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
    CHECK(folder.num_files() == files);
  };
  refused(small, fit, 15, "text: got 15 tokens, expected at least 16");
  refused(other, fit, 60, "a vocabulary of 310, expected the 53");
  KvpFit wrong = fit;
  wrong.map = {0, 1};
  refused(small, wrong, 60, "got 2 indices, expected 3");
  wrong.map = {0, 1, 0};
  refused(small, wrong, 60, "indices that do not descend");
  wrong = fit;
  wrong.ridge = -1;
  refused(small, wrong, 60, "--ridge");
  wrong = fit;
  wrong.window = 4;
  refused(small, wrong, 60, "window: got 4 tokens");
  wrong = fit;
  wrong.ridge = 0;  // 8 rows of 4 inputs would do, but the auxiliary's first layer sees 2 tokens
  const std::vector<TokenId> same(16, 7);
  CHECK(message_of([&] {
          fit_predictor(base, small, same, folder / "out", wrong);
        }).find("undetermined") != std::string::npos);
  refused(Checkpoint(fs::path(KVCAST_SOURCE_DIR) / "tests/oracle/t5"), fit, 60,
          "an encoder-decoder model");
}

TEST_CASE("kvp fit: identity hands on what it gets, and only where shapes agree") {
  const TestFolder folder;
  write_random_checkpoint(llama_config(2, 16, 4, 2), folder / "base", 1);
  write_random_checkpoint(llama_config(2, 8, 2, 1), folder / "small", 2);
  const Checkpoint base(folder / "base"), small(folder / "small");
  KvpFit fit;
  fit.map = {0, 1};
  write_identity_predictor(base, base, folder / "out", fit);
  const auto written = tensors_of(folder / "out");
  CHECK(written.size() == 8);
  const std::vector<double>& w = written.at("predictor.layers.1.value.weight");
  REQUIRE(w.size() == 64);
  for (std::size_t i = 0; i < 64; ++i) CHECK(w[i] == (i % 9 == 0 ? 1 : 0));
  CHECK(written.at("predictor.layers.0.key.bias") == std::vector<double>(8, 0));
  CHECK(message_of([&] {
          write_identity_predictor(base, small, folder / "no", fit);
        }).find("got 8 key features in layer 0 of base and 4 in layer 0 of small") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(folder / "no"));
}

}  // namespace
}  // namespace kvcast
