#include <utility>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/io/text/json_pipeline.h"
#include "model/io/text/tokenizer_parts.h"

namespace kvcast::text {
namespace {

using nlohmann::json;

Vocabulary read_vocabulary(const JsonObject& model) {
  const json& tokens = model.at("vocab");
  if (!tokens.is_object()) model.fail("vocab", "an object from tokens to ids");
  Vocabulary vocabulary(tokens.size(), model.place_of("vocab"));
  for (const auto& [token, id] : tokens.items()) {
    vocabulary.add(token, read_id(id, vocabulary.place()));
  }
  return vocabulary;
}

/// "left right", or ["left", "right"] where tokens may contain blanks.
template <typename Place>
std::pair<std::string, std::string> read_pair(const json& entry, const Place& place) {
  if (entry.is_string()) {
    const std::string text = entry.get<std::string>();
    const std::size_t blank = text.find(' ');
    if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos) {
      return {text.substr(0, blank), text.substr(blank + 1)};
    }
  } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
             entry[1].is_string()) {
    return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  }
  throw Error(place(), shown(entry), "two tokens");
}

std::vector<Merge> read_merges(const JsonObject& model, const Vocabulary& vocabulary) {
  const json& list = list_at(model, "merges");
  std::vector<Merge> merges;
  merges.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto place = [&] { return place_of_entry(model.place_of("merges"), i); };
    if (i == 0 && list[i].is_string() && list[i].get<std::string>().starts_with("#version")) {
      continue;
    }
    const auto [left, right] = read_pair(list[i], place);
    merges.push_back(merge_of(vocabulary, left, right, place));
  }
  return merges;
}

void reject_text(const JsonObject& model, const char* key) {
  if (model.has(key) && !model.text(key).empty()) model.fail(key, "null; affixes are unknown here");
}

BpeOptions read_options(const JsonObject& model, const Vocabulary& vocabulary) {
  BpeOptions options;
  if (model.has("dropout") && model.at("dropout") != 0) model.fail("dropout", "null or 0");
  reject_text(model, "continuing_subword_prefix");
  reject_text(model, "end_of_word_suffix");
  options.fuse_unknown = model.flag_or("fuse_unk", false);
  options.ignore_merges = model.flag_or("ignore_merges", false);
  const std::string unknown = model.text_or("unk_token", "");
  if (!unknown.empty()) {
    options.unknown = vocabulary.id_of(unknown);
    if (!options.unknown) model.fail("unk_token", "a token of the vocabulary");
  }
  if (model.flag_or("byte_fallback", false)) {
    options.byte_tokens.emplace();
    for (std::size_t byte = 0; byte < options.byte_tokens->size(); ++byte) {
      constexpr std::string_view digits = "0123456789ABCDEF";
      const std::string token = std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">";
      (*options.byte_tokens)[byte] = vocabulary.id_of(token);
    }
  }
  return options;
}

const json& part_or_null(const json& document, const char* key) {
  static const json null;
  const auto part = document.find(key);
  return part == document.end() ? null : *part;
}

}  // namespace

TokenizerParts json_tokenizer(const json& document, const std::string& place,
                              const std::optional<std::filesystem::path>& sentencepiece) {
  const JsonObject root(document, place);
  const JsonObject model = root.object("model");
  // Files from before tokenizers 0.5 leave the type out, and then it is BPE if it has merges.
  const std::string type = model.text_or("type", model.has("merges") ? "BPE" : "none");
  const auto read = [&](auto reader, const char* key) {
    return reader(part_or_null(document, key), root.place_of(key));
  };
  TokenizerParts parts{.place = place, .vocabulary = Vocabulary(0, place)};
  if (type == "Unigram" && sentencepiece) {
    parts = sentencepiece_tokenizer(read_tokenizer_file(*sentencepiece), sentencepiece->string(),
                                    read(read_added_tokens, "added_tokens"));
    parts.place = place;
  } else if (type == "BPE") {
    parts.vocabulary = read_vocabulary(model);
    parts.merges = read_merges(model, parts.vocabulary);
    parts.options = read_options(model, parts.vocabulary);
    model.reject_unknown_keys();
    parts.added_tokens = read(read_added_tokens, "added_tokens");
    parts.normalizer = read(read_normalizer, "normalizer");
    parts.pre_tokenizer = read(read_pre_tokenizer, "pre_tokenizer");
    parts.decoder = read(read_decoder, "decoder");
  } else {
    throw Error(model.place_of("type"), "'" + type + "'",
                "'BPE'; for 'Unigram', load the SentencePiece model next to the file");
  }
  Frame frame = read(read_post_processor, "post_processor");
  parts.prefix = std::move(frame.prefix);
  parts.suffix = std::move(frame.suffix);
  return parts;
}

}  // namespace kvcast::text
