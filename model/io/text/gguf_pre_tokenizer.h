/// How the byte-level vocabularies of GGUF files cut words, by the name in tokenizer.ggml.pre.
#pragma once

#include <string_view>
#include <vector>

namespace kvcast::text {

struct GgufPreTokenizer {
  std::vector<std::string_view> names;
  /// Oniguruma patterns; each in turn cuts the words around and between its matches.
  std::vector<std::string_view> patterns;
  bool ignore_merges = false;
  bool add_bos = false;  ///< where the file does not say
};

/// Throws Error with the known names. An empty name is "default".
/// Source   ggml-org/llama.cpp : src/llama-vocab.cpp
const GgufPreTokenizer& gguf_pre_tokenizer(std::string_view name, std::string_view place);

}  // namespace kvcast::text
