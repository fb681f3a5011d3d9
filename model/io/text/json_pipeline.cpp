#include "model/io/text/json_pipeline.h"

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <utility>

#include <nlohmann/json.hpp>

#include "model/base/error.h"

namespace kvcast::text {
namespace {

using nlohmann::json;

/// Calls `read` with each part of a "Sequence" under `key`, or with the part itself; nothing for
/// null. Sequences may contain sequences.
void for_each_part(const json& part, const std::string& place, const char* key,
                   const std::function<void(const JsonObject&, const std::string& type)>& read) {
  if (part.is_null()) return;
  const JsonObject object(part, place);
  const std::string type = object.text("type");
  if (type == "Sequence") {
    const json& list = list_at(object, key);
    object.reject_unknown_keys();
    for (std::size_t i = 0; i < list.size(); ++i) {
      for_each_part(list[i], place_of_entry(object.place_of(key), i), key, read);
    }
    return;
  }
  read(object, type);
  object.reject_unknown_keys();
}

template <typename Step>
std::vector<Step> read_steps(const json& part, const std::string& place, const char* key,
                             Step (*read)(const JsonObject&, const std::string& type)) {
  std::vector<Step> steps;
  for_each_part(part, place, key, [&](const JsonObject& one, const std::string& type) {
    steps.push_back(read(one, type));
  });
  return steps;
}

/// Keys that mean nothing here: offsets, pairs of texts, copies of other keys in old files.
void ignore(const JsonObject& part, std::initializer_list<const char*> keys) {
  for (const char* key : keys) static_cast<void>(part.has(key));
}

/// {"Regex": "..."} or {"String": "..."} under "pattern".
UnicodeRegex read_pattern(const JsonObject& part) {
  const JsonObject pattern = part.object("pattern");
  if (pattern.has("String")) {
    const std::string text = pattern.text("String");
    pattern.reject_unknown_keys();
    return {text, pattern.place(), UnicodeRegex::Syntax::Text};
  }
  const std::string regex = pattern.text("Regex");
  pattern.reject_unknown_keys();
  return {regex, pattern.place()};
}

[[noreturn]] void unknown_type(const JsonObject& part, const std::string& type,
                               const std::vector<std::string>& known) {
  throw Error(part.place(), unknown_name("type", type, known));
}

/// One of some names.
template <typename Value, std::size_t size>
Value read_name(const JsonObject& part, const char* key,
                const std::array<std::pair<const char*, Value>, size>& names) {
  const std::string text = part.text(key);
  std::vector<std::string> known;
  for (const auto& [name, value] : names) {
    if (text == name) return value;
    known.emplace_back(name);
  }
  throw Error(part.place_of(key), unknown_name("value", text, known));
}

NormalizerStep read_normalizer_step(const JsonObject& part, const std::string& type) {
  if (type == "NFC") return UnicodeForm::Nfc;
  if (type == "NFD") return UnicodeForm::Nfd;
  if (type == "NFKC") return UnicodeForm::Nfkc;
  if (type == "NFKD") return UnicodeForm::Nfkd;
  if (type == "Lowercase") return Lowercase{};
  if (type == "Prepend") return PrependText{part.text("prepend")};
  if (type == "Replace") return ReplaceText{read_pattern(part), part.text("content")};
  if (type == "Strip") {
    return StripSpace{part.flag_or("strip_left", true), part.flag_or("strip_right", true)};
  }
  unknown_type(
      part, type,
      {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "Strip", "Sequence"});
}

SplitBehavior read_behavior(const JsonObject& part) {
  using enum SplitBehavior;
  static constexpr std::array<std::pair<const char*, SplitBehavior>, 5> names = {
      {{"Removed", Removed},
       {"Isolated", Isolated},
       {"MergedWithPrevious", MergedWithPrevious},
       {"MergedWithNext", MergedWithNext},
       {"Contiguous", Contiguous}}};
  return read_name(part, "behavior", names);
}

ToMetaspace::Prepend read_prepend(const JsonObject& part) {
  using enum ToMetaspace::Prepend;
  static constexpr std::array<std::pair<const char*, ToMetaspace::Prepend>, 3> names = {
      {{"first", First}, {"never", Never}, {"always", Always}}};
  const bool adds = part.flag_or("add_prefix_space", true);  // before tokenizers 0.15
  if (!part.has("prepend_scheme")) return adds ? Always : Never;
  return read_name(part, "prepend_scheme", names);
}

std::string read_replacement(const JsonObject& part) {
  const std::string text = part.text("replacement");
  if (text.empty() || first_character(text).length != text.size()) {
    part.fail("replacement", "one character");
  }
  ignore(part, {"str_rep"});
  return text;
}

PreTokenizerStep read_pre_tokenizer_step(const JsonObject& part, const std::string& type) {
  const auto split = [&part](const std::string& pattern, SplitBehavior behavior,
                             bool invert = false) {
    return SplitByPattern{UnicodeRegex(pattern, part.place()), behavior, invert};
  };
  if (type == "ByteLevel") {
    ToByteAlphabet step{part.flag_or("add_prefix_space", true), std::nullopt};
    ignore(part, {"trim_offsets"});
    if (part.flag_or("use_regex", true)) {
      step.pattern = UnicodeRegex(gpt2_pattern, part.place());
    }
    return step;
  }
  if (type == "Split") {
    return SplitByPattern{read_pattern(part), read_behavior(part), part.flag_or("invert", false)};
  }
  if (type == "Digits") {
    const bool individual = part.flag_or("individual_digits", false);
    return split(R"(\p{N})", individual ? SplitBehavior::Isolated : SplitBehavior::Contiguous);
  }
  if (type == "Punctuation") {
    const auto behavior = part.has("behavior") ? read_behavior(part) : SplitBehavior::Isolated;
    return split(R"([\p{P}!-/:-@\[-`{-~])", behavior);
  }
  if (type == "Whitespace") {
    static const std::string word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D})";
    return split("[" + word + R"(]+|[^)" + word + R"(\p{White_Space}]+)", SplitBehavior::Removed,
                 true);
  }
  if (type == "WhitespaceSplit") return split(R"(\p{White_Space})", SplitBehavior::Removed);
  if (type == "Metaspace") {
    return ToMetaspace{read_replacement(part), read_prepend(part), part.flag_or("split", true)};
  }
  unknown_type(part, type,
               {"ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit",
                "Metaspace", "Sequence"});
}

/// The ids of a template's special token.
std::vector<TokenId> special_token_ids(const JsonObject& tokens, const std::string& name) {
  const JsonObject token = tokens.object(name);
  const json& list = list_at(token, "ids");
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < list.size(); ++i) {
    ids.push_back(read_id(list[i], place_of_entry(token.place_of("ids"), i)));
  }
  return ids;
}

Frame read_template(const JsonObject& part) {
  ignore(part, {"pair"});
  const json& single = list_at(part, "single");
  const JsonObject tokens = part.object("special_tokens");
  Frame frame;
  bool after_text = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const JsonObject entry(single[i], place_of_entry(part.place_of("single"), i));
    if (entry.has("Sequence")) {
      if (after_text) throw Error(entry.place(), "a second text", "one text in 'single'");
      after_text = true;
      continue;
    }
    const JsonObject special = entry.object("SpecialToken");
    auto& ids = after_text ? frame.suffix : frame.prefix;
    const auto added = special_token_ids(tokens, special.text("id"));
    ids.insert(ids.end(), added.begin(), added.end());
  }
  if (!after_text) throw Error(part.place_of("single"), "no text", "one entry {\"Sequence\": ...}");
  return frame;
}

/// ["[SEP]", 102]
TokenId read_token_and_id(const JsonObject& part, const char* key) {
  const json& pair = part.at(key);
  if (!pair.is_array() || pair.size() != 2) part.fail(key, "a token and its id");
  return read_id(pair[1], part.place_of(key));
}

void read_decoder_step(const JsonObject& part, const std::string& type, PieceDecoder& decoder,
                       bool& is_fused) {
  if (is_fused && type != "Strip" && type != "Fuse") {
    throw Error(part.place(), "'" + type + "' after 'Fuse'", "nothing but 'Strip' there");
  }
  // A step that rewrites tokens would see what the byte step made of them.
  if (decoder.bytes == PieceBytes::ByteAlphabet && type != "Fuse") {
    throw Error(part.place(), "'" + type + "' after 'ByteLevel'", "'ByteLevel' as the last step");
  }
  if (type == "ByteLevel") {
    ignore(part, {"add_prefix_space", "trim_offsets", "use_regex"});
    if (decoder.bytes != PieceBytes::Text) {
      throw Error(part.place(), "'ByteLevel' after 'ByteFallback'", "one of them");
    }
    decoder.bytes = PieceBytes::ByteAlphabet;
  } else if (type == "ByteFallback") {
    decoder.bytes = PieceBytes::ByteFallback;
    decoder.whole_byte_runs = true;
  } else if (type == "Fuse") {
    is_fused = true;
  } else if (type == "Strip") {
    StripPiece strip{part.text("content"), part.whole("start", 0), part.whole("stop", 0)};
    if (!is_fused && decoder.bytes != PieceBytes::Text) {
      throw Error(part.place(), "'Strip' between byte tokens", "'Fuse' before it");
    }
    if (!is_fused) {
      decoder.steps.emplace_back(std::move(strip));
    } else if (strip.stop > 0 || decoder.strip_whole.start > 0) {
      throw Error(part.place(), "'Strip' at the end of the whole text, or twice",
                  "one at its beginning");
    } else {
      decoder.strip_whole = std::move(strip);
    }
  } else if (type == "Replace" || type == "Metaspace") {
    if (decoder.bytes != PieceBytes::Text && type == "Replace") {
      throw Error(part.place(), "'Replace' after 'ByteFallback'", "'Replace' before it");
    }
    if (type == "Replace") {
      decoder.steps.emplace_back(
          ReplaceInPiece{part.object("pattern").text("String"), part.text("content")});
    } else {
      ReplaceInPiece blank{read_replacement(part), " "};
      if (read_prepend(part) != ToMetaspace::Prepend::Never) blank.to_in_first = "";
      ignore(part, {"split"});
      decoder.steps.emplace_back(std::move(blank));
    }
  } else {
    unknown_type(
        part, type,
        {"ByteLevel", "ByteFallback", "Fuse", "Strip", "Replace", "Metaspace", "Sequence"});
  }
}

}  // namespace

std::string place_of_entry(const std::string& place, std::size_t index) {
  return place + "/" + std::to_string(index);
}

const json& list_at(const JsonObject& part, const char* key) {
  const json& list = part.at(key);
  if (!list.is_array()) part.fail(key, "a list");
  return list;
}

TokenId read_id(const json& value, const std::string& place) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() < UINT32_MAX) {
    return static_cast<TokenId>(value.get<std::uint64_t>());
  }
  throw Error(place, shown(value), "a token id from 0 to 2^32 - 2");
}

std::vector<AddedToken> read_added_tokens(const json& list, const std::string& place) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (!list.is_array()) throw Error(place, "no list", "a list of tokens");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonObject entry(list[i], place_of_entry(place, i));
    AddedToken token;
    token.content = entry.text("content");
    token.id = read_id(entry.at("id"), entry.place_of("id"));
    token.special = entry.flag_or("special", false);
    token.single_word = entry.flag_or("single_word", false);
    token.lstrip = entry.flag_or("lstrip", false);
    token.rstrip = entry.flag_or("rstrip", false);
    token.normalized = entry.flag_or("normalized", !token.special);
    entry.reject_unknown_keys();
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

TextNormalizer read_normalizer(const json& part, const std::string& place) {
  return {read_steps(part, place, "normalizers", read_normalizer_step)};
}

PreTokenizer read_pre_tokenizer(const json& part, const std::string& place) {
  return {read_steps(part, place, "pretokenizers", read_pre_tokenizer_step)};
}

Frame read_post_processor(const json& part, const std::string& place) {
  Frame frame;
  for_each_part(part, place, "processors", [&](const JsonObject& one, const std::string& type) {
    Frame around;
    if (type == "TemplateProcessing") {
      around = read_template(one);
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      around = {{read_token_and_id(one, "cls")}, {read_token_and_id(one, "sep")}};
      ignore(one, {"trim_offsets", "add_prefix_space"});
    } else if (type == "ByteLevel") {
      ignore(one, {"add_prefix_space", "trim_offsets", "use_regex"});
    } else {
      unknown_type(
          one, type,
          {"TemplateProcessing", "RobertaProcessing", "BertProcessing", "ByteLevel", "Sequence"});
    }
    frame.prefix.insert(frame.prefix.begin(), around.prefix.begin(), around.prefix.end());
    frame.suffix.insert(frame.suffix.end(), around.suffix.begin(), around.suffix.end());
  });
  return frame;
}

PieceDecoder read_decoder(const json& part, const std::string& place) {
  PieceDecoder decoder;
  if (part.is_null()) decoder.separator = " ";
  bool is_fused = false;
  for_each_part(part, place, "decoders", [&](const JsonObject& one, const std::string& type) {
    read_decoder_step(one, type, decoder, is_fused);
  });
  return decoder;
}

}  // namespace kvcast::text
