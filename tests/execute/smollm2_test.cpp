#include <cmath>
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>

#include "model/io/text/tokenizer.h"
#include "tests/execute/oracle.h"
#include "tests/near.h"

namespace kvcast::execute {
namespace {

/// SmolLM2 with its tokenizer, and what transformers makes of the same weights.
struct SmolLm2 {
  static std::filesystem::path file() {
    return std::filesystem::path(KVCAST_SOURCE_DIR) / "weights" / "smollm2-135m-instruct.gguf";
  }
  /// Says so when the weights are not there.
  static bool missing() {
    if (std::filesystem::exists(file())) return false;
    MESSAGE("skipped: " << file().string() << " is not there; ./run weights fetches it");
    return true;
  }

  Checkpoint checkpoint{file()};
  text::Tokenizer tokenizer = text::Tokenizer::from_gguf(*checkpoint.gguf());
  nlohmann::json expected = read_json_file(oracle_folder() / "smollm2" / "expected_text.json");
};

double perplexity(const Generation& g, const std::vector<TokenId>& tokens) {
  const std::size_t vocab = g.logits_shape.back();
  double loss = 0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    const float* row = &g.logits[i * vocab];
    const double peak = *std::max_element(row, row + vocab);
    double sum = 0;
    for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - peak);
    loss += peak + std::log(sum) - row[tokens[i + 1]];
  }
  return std::exp(loss / static_cast<double>(tokens.size() - 1));
}

TEST_CASE("SmolLM2: greedy texts from the GGUF file are those of transformers") {
  if (SmolLm2::missing()) return;
  const SmolLm2 m;
  const Session session(m.checkpoint, {});
  for (const nlohmann::json& expected : m.expected.at("greedy")) {
    CAPTURE(expected.at("prompt"));
    Request request;
    request.tokens = {m.tokenizer.encode(expected.at("prompt").get<std::string>())};
    CHECK(request.tokens[0] == expected.at("prompt_tokens").get<std::vector<TokenId>>());
    const auto greedy = expected.at("greedy").get<std::vector<TokenId>>();
    request.output_len = greedy.size();
    const Generation g = session.run(request);
    CHECK(g.tokens[0] == greedy);
    CHECK(m.tokenizer.decode(g.tokens[0]) == expected.at("text").get<std::string>());
  }
}

TEST_CASE("SmolLM2: the perplexity of a text is that of transformers, within 0.1 %") {
  if (SmolLm2::missing()) return;
  const SmolLm2 m;
  std::ifstream file(oracle_folder() / "smollm2" / "alice.txt");
  std::ostringstream text;
  text << file.rdbuf();
  Request request;
  request.tokens = {m.tokenizer.encode(text.str())};
  REQUIRE(request.tokens[0].size() == m.expected.at("text_tokens").get<std::size_t>());
  for (const Kernels attention : {Kernels::Fused, Kernels::Eager}) {
    SessionOptions o{.attention = attention, .elementwise = attention};
    o.logits = Logits::All;
    const Session session(m.checkpoint, o);
    const double ours = perplexity(session.run(request), request.tokens[0]);
    CHECK(ours == near(m.expected.at("perplexity").get<double>()).epsilon(0.001));
  }
}

}  // namespace
}  // namespace kvcast::execute
