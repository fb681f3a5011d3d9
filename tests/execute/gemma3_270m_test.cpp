#include <doctest/doctest.h>

#include "tests/execute/real_text_model.h"

namespace kvcast::execute {
namespace {

constexpr const char* file = "gemma-3-270m.gguf";
constexpr const char* folder = "gemma3_270m";

TEST_CASE("Gemma 3 270M: greedy texts from the GGUF file are those of transformers") {
  if (RealTextModel::missing(file)) return;
  check_greedy_texts({file, folder});
}

TEST_CASE("Gemma 3 270M: the perplexity of a text is that of transformers, within 0.1 %") {
  if (RealTextModel::missing(file)) return;
  check_perplexity({file, folder});
}

}  // namespace
}  // namespace kvcast::execute
