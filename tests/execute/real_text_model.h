/// Real weights with their tokenizer in a GGUF file, and what transformers makes of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/io/text/tokenizer.h"
#include "tests/execute/oracle.h"
#include "tests/near.h"

namespace kvcast::execute {

struct RealTextModel {
  static std::filesystem::path path_of(const std::string& file) {
    return std::filesystem::path(KVCAST_SOURCE_DIR) / "weights" / file;
  }
  /// Says so when the weights are not there.
  static bool missing(const std::string& file) {
    if (std::filesystem::exists(path_of(file))) return false;
    MESSAGE("skipped: " << path_of(file).string() << " is not there; ./run weights fetches it");
    return true;
  }

  RealTextModel(const std::string& file, const std::string& folder)
      : checkpoint(path_of(file)),
        tokenizer(text::Tokenizer::from_gguf(*checkpoint.gguf())),
        expected(read_json_file(oracle_folder() / folder / "expected_text.json")) {}

  Checkpoint checkpoint;
  text::Tokenizer tokenizer;
  nlohmann::json expected;
};

inline void check_greedy_texts(const RealTextModel& m) {
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

inline double perplexity(const Generation& g, const std::vector<TokenId>& tokens) {
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

/// Of tests/oracle/smollm2/alice.txt, within 0.1 %.
inline void check_perplexity(const RealTextModel& m) {
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

}  // namespace kvcast::execute
