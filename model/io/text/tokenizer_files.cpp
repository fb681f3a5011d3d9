#include <algorithm>
#include <fstream>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/io/text/gguf_tokenizer.h"
#include "model/io/text/json_parts.h"
#include "model/io/text/json_pipeline.h"
#include "model/io/text/json_tokenizer.h"
#include "model/io/text/sentencepiece_tokenizer.h"
#include "model/io/text/tokenizer.h"

namespace kvcast::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uintmax_t max_file_bytes = 128u << 20;

std::string read_file(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) {
    throw Error(path.string() + ": cannot be opened; expected a tokenizer's file");
  }
  const auto size = fs::file_size(path, ec);
  if (ec || size > max_file_bytes) {
    throw Error(path.string(), std::to_string(size) + " bytes", "a tokenizer of at most 128 MiB");
  }
  std::string content(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(content.data(), static_cast<std::streamsize>(size))) {
    throw Error(path.string() + ": cannot be read", Fault::Run);
  }
  return content;
}

std::optional<json> read_optional_json(const fs::path& path) {
  std::error_code ec;
  if (!fs::exists(path, ec)) return std::nullopt;
  return read_json_file(path);
}

/// A token of tokenizer_config.json: its text, or an object with it.
std::optional<TokenId> configured_token(const JsonObject& config, const char* key,
                                        const TokenizerBackend& backend) {
  if (!config.has(key)) return std::nullopt;
  const json& value = config.at(key);
  const std::string text =
      value.is_object() ? config.object(key).text("content") : config.text(key);
  return backend.id_of(text);
}

/// One id or a list, under eos_token_id.
void add_end_ids(const fs::path& path, const TokenizerBackend& backend, std::set<TokenId>& ends) {
  const auto document = read_optional_json(path);
  if (!document) return;
  const JsonObject config(*document, path.string());
  if (!config.has("eos_token_id")) return;
  const json& ids = config.at("eos_token_id");
  const json list = ids.is_array() ? ids : json::array({ids});
  for (const json& id : list) {
    const TokenId end = read_id(id, config.place_of("eos_token_id"));
    if (end < backend.vocab_size()) ends.insert(end);
  }
}

std::vector<TokenId> end_of_text_in(const fs::path& folder, const TokenizerBackend& backend) {
  std::set<TokenId> ends;
  const fs::path path = folder / "tokenizer_config.json";
  if (const auto document = read_optional_json(path)) {
    const JsonObject config(*document, path.string());
    if (const auto id = configured_token(config, "eos_token", backend)) ends.insert(*id);
  }
  add_end_ids(folder / "generation_config.json", backend, ends);
  if (ends.empty()) add_end_ids(folder / "config.json", backend, ends);
  return {ends.begin(), ends.end()};
}

/// A SentencePiece model does not say which tokens every text gets; transformers' classes do.
void frame_as_configured(const fs::path& folder, TokenizerBackend& backend) {
  const fs::path path = folder / "tokenizer_config.json";
  const auto document = read_optional_json(path);
  if (!document) return;
  const JsonObject config(*document, path.string());
  const std::string name = config.text_or("tokenizer_class", "");
  const bool is_llama = name.starts_with("LlamaTokenizer") || name.starts_with("GemmaTokenizer");
  const bool is_t5 = name.starts_with("T5Tokenizer");
  const auto bos = configured_token(config, "bos_token", backend);
  const auto eos = configured_token(config, "eos_token", backend);
  if (bos && config.flag_or("add_bos_token", is_llama)) backend.prefix = {*bos};
  if (eos && config.flag_or("add_eos_token", is_t5)) backend.suffix = {*eos};
}

std::optional<fs::path> sentencepiece_file_in(const fs::path& folder) {
  std::error_code ec;
  for (const char* name : {"tokenizer.model", "spiece.model"}) {
    if (fs::exists(folder / name, ec)) return folder / name;
  }
  return std::nullopt;
}

}  // namespace

Tokenizer Tokenizer::from_folder(const fs::path& folder) {
  const fs::path json_path = folder / "tokenizer.json";
  const auto sentencepiece_path = sentencepiece_file_in(folder);
  std::unique_ptr<TokenizerBackend> backend;
  std::error_code ec;
  if (fs::exists(json_path, ec)) {
    const std::string place = json_path.string();
    const json document = parse_json(read_file(json_path), place);
    if (sentencepiece_path && model_type(document, place) == "Unigram") {
      const JsonObject root(document, place);
      const auto part = [&](const char* key) { return root.has(key) ? root.at(key) : json(); };
      backend = make_sentencepiece_tokenizer(
          read_file(*sentencepiece_path), sentencepiece_path->string(),
          read_added_tokens(part("added_tokens"), root.place_of("added_tokens")));
      Frame frame = read_post_processor(part("post_processor"), root.place_of("post_processor"));
      for (const auto* ids : {&frame.prefix, &frame.suffix}) {
        if (!ids->empty() && *std::max_element(ids->begin(), ids->end()) >= backend->vocab_size()) {
          throw Error(root.place_of("post_processor"), "an id outside the vocabulary",
                      "ids below " + std::to_string(backend->vocab_size()));
        }
      }
      backend->prefix = std::move(frame.prefix);
      backend->suffix = std::move(frame.suffix);
    } else {
      backend = make_json_tokenizer(document, place);
    }
  } else if (sentencepiece_path) {
    backend =
        make_sentencepiece_tokenizer(read_file(*sentencepiece_path), sentencepiece_path->string());
    frame_as_configured(folder, *backend);
  } else {
    throw Error(folder.string(), "no tokenizer",
                "tokenizer.json, tokenizer.model or spiece.model in the folder");
  }
  std::vector<TokenId> ends = end_of_text_in(folder, *backend);
  return Tokenizer(std::move(backend), std::move(ends));
}

Tokenizer Tokenizer::from_json_file(const fs::path& path) {
  return from_json(read_file(path), path.string());
}

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& place) {
  return Tokenizer(make_json_tokenizer(parse_json(text, place), place));
}

Tokenizer Tokenizer::from_sentencepiece_file(const fs::path& path) {
  return Tokenizer(make_sentencepiece_tokenizer(read_file(path), path.string()));
}

Tokenizer Tokenizer::from_gguf(const GgufVocabulary& vocabulary) {
  std::vector<TokenId> ends;
  if (vocabulary.eos) ends.push_back(*vocabulary.eos);
  if (vocabulary.eot) ends.push_back(*vocabulary.eot);
  return Tokenizer(make_gguf_tokenizer(vocabulary), std::move(ends));
}

}  // namespace kvcast::text
