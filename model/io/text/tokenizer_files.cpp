#include <utility>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/read_file.h"
#include "model/io/text/json_pipeline.h"
#include "model/io/text/tokenizer_parts.h"

namespace kvcast::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A file of the folder, or an empty object where there is none.
json read_optional_json(const fs::path& path) {
  std::error_code ec;
  return fs::exists(path, ec) ? read_json_file(path) : json::object();
}

/// A token of tokenizer_config.json: its text, or an object with it.
std::optional<TokenId> configured_token(const JsonObject& config, const char* key,
                                        const TokenizerParts& parts) {
  if (!config.has(key)) return std::nullopt;
  return parts.id_of(config.at(key).is_object() ? config.object(key).text("content")
                                                : config.text(key));
}

/// The ids under eos_token_id: one or a list.
std::vector<TokenId> end_ids(const fs::path& path, const TokenizerParts& parts) {
  const json document = read_optional_json(path);
  const JsonObject config(document, path.string());
  std::vector<TokenId> ends;
  if (!config.has("eos_token_id")) return ends;
  const json& ids = config.at("eos_token_id");
  for (const json& id : ids.is_array() ? ids : json::array({ids})) {
    const TokenId end = read_id(id, config.place_of("eos_token_id"));
    if (end < parts.vocab_size()) ends.push_back(end);
  }
  return ends;
}

/// The tokens that end a text, as the configurations say, and for a SentencePiece model, which does
/// not say them, those that every text gets: as transformers' classes do.
void configure(const fs::path& folder, bool frames_texts, TokenizerParts& parts) {
  const fs::path path = folder / "tokenizer_config.json";
  const json document = read_optional_json(path);
  const JsonObject config(document, path.string());
  const auto eos = configured_token(config, "eos_token", parts);
  parts.end_of_text = end_ids(folder / "generation_config.json", parts);
  if (eos) parts.end_of_text.push_back(*eos);
  if (parts.end_of_text.empty()) parts.end_of_text = end_ids(folder / "config.json", parts);
  if (!frames_texts) return;
  const std::string name = config.text_or("tokenizer_class", "");
  const bool is_llama = name.starts_with("LlamaTokenizer") || name.starts_with("GemmaTokenizer");
  const auto bos = configured_token(config, "bos_token", parts);
  if (bos && config.flag_or("add_bos_token", is_llama)) parts.prefix = {*bos};
  if (eos && config.flag_or("add_eos_token", name.starts_with("T5Tokenizer"))) {
    parts.suffix = {*eos};
  }
}

std::optional<fs::path> sentencepiece_file_in(const fs::path& folder) {
  std::error_code ec;
  for (const char* name : {"tokenizer.model", "spiece.model"}) {
    if (fs::exists(folder / name, ec)) return folder / name;
  }
  return std::nullopt;
}

}  // namespace

std::string read_tokenizer_file(const fs::path& path) {
  constexpr std::uint64_t max_file_bytes = 128u << 20;
  return read_file(path, "a tokenizer's file", max_file_bytes);
}

Tokenizer Tokenizer::from_folder(const fs::path& folder) {
  const fs::path json_path = folder / "tokenizer.json";
  const auto sentencepiece_path = sentencepiece_file_in(folder);
  TokenizerParts parts{.place = folder.string(), .vocabulary = Vocabulary(0, folder.string())};
  std::error_code ec;
  const bool has_json = fs::exists(json_path, ec);
  if (has_json) {
    const std::string place = json_path.string();
    parts = json_tokenizer(parse_json(read_tokenizer_file(json_path), place), place,
                           sentencepiece_path);
  } else if (sentencepiece_path) {
    parts = sentencepiece_tokenizer(read_tokenizer_file(*sentencepiece_path),
                                    sentencepiece_path->string());
  } else {
    throw Error(folder.string(), "no tokenizer",
                "tokenizer.json, tokenizer.model or spiece.model in the folder");
  }
  configure(folder, !has_json, parts);
  return Tokenizer(std::move(parts));
}

Tokenizer Tokenizer::from_json_file(const fs::path& path) {
  return from_json(read_tokenizer_file(path), path.string());
}

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& place) {
  return Tokenizer(json_tokenizer(parse_json(text, place), place));
}

Tokenizer Tokenizer::from_sentencepiece_file(const fs::path& path) {
  return Tokenizer(sentencepiece_tokenizer(read_tokenizer_file(path), path.string()));
}

Tokenizer Tokenizer::from_gguf(const GgufFile& file) { return Tokenizer(gguf_tokenizer(file)); }

}  // namespace kvcast::text
