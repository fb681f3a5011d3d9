#include "model/io/text/gguf_pre_tokenizer.h"

#include <algorithm>
#include <string>

#include "model/base/error.h"
#include "model/io/text/pre_tokenizer.h"

namespace kvcast::text {
namespace {

constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen35_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view tekken_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view gpt4o_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view deepseek3_pattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view bloom_pattern = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view digit = R"(\p{N})";
constexpr std::string_view three_digits = "[0-9][0-9][0-9]";
constexpr std::string_view up_to_three_digits = R"(\p{N}{1,3})";
constexpr std::string_view chinese_and_kana = "[一-龥぀-ゟ゠-ヿ]+";

const std::vector<GgufPreTokenizer>& pre_tokenizers() {
  static const std::vector<GgufPreTokenizer> all = {
      {{"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", gpt2_pattern, R"(\p{N}+)", three_digits}},
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4",
        "gigachat", "a.x-4.0", "mellum", "modern-bert"},
       {gpt2_pattern}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {llama3_pattern},
       true,
       true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, {llama3_pattern}},
      {{"qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"},
       {qwen2_pattern}},
      {{"qwen35"}, {qwen35_pattern}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
        "mellum2"},
       {digit, gpt2_pattern}},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", gpt2_pattern, three_digits}},
      {{"tekken"}, {tekken_pattern}, true, true},
      {{"gpt-4o", "llama4", "kanana2", "minimax-m2"}, {gpt4o_pattern}},
      {{"deepseek-v3", "hunyuan-dense"}, {up_to_three_digits, chinese_and_kana, deepseek3_pattern}},
      {{"deepseek-coder"},
       {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", digit}},
      {{"bloom", "poro-chat", "gpt3-finnish"}, {bloom_pattern}},
      {{"viking"}, {bloom_pattern, digit}},
  };
  return all;
}

}  // namespace

const GgufPreTokenizer& gguf_pre_tokenizer(std::string_view name, std::string_view place) {
  if (name.empty()) name = "default";
  std::vector<std::string> known;
  for (const GgufPreTokenizer& one : pre_tokenizers()) {
    for (const std::string_view known_name : one.names) {
      if (known_name == name) return one;
      known.emplace_back(known_name);
    }
  }
  std::sort(known.begin(), known.end());
  std::string list;
  for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
  throw Error(place, "'" + std::string(name) + "'", "one of: " + list);
}

}  // namespace kvcast::text
