#include <doctest/doctest.h>

#include "tests/execute/real_text_model.h"

namespace kvcast::execute {
namespace {

constexpr const char* file = "smollm2-135m-instruct.gguf";
constexpr const char* folder = "smollm2";

TEST_CASE("SmolLM2: greedy texts from the GGUF file are those of transformers") {
  if (RealTextModel::missing(file)) return;
  check_greedy_texts({file, folder});
}

TEST_CASE("SmolLM2: the perplexity of a text is that of transformers, within 0.1 %") {
  if (RealTextModel::missing(file)) return;
  check_perplexity({file, folder});
}

}  // namespace
}  // namespace kvcast::execute
