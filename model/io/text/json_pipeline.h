/// The parts of a tokenizer.json other than its model: each reader takes the part's JSON and the
/// place where it stands, and throws Error naming what it does not know.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/base/json_file.h"
#include "model/io/text/added_tokens.h"
#include "model/io/text/piece_decoder.h"
#include "model/io/text/pre_tokenizer.h"
#include "model/io/text/text_normalizer.h"

namespace kvcast::text {

/// "FILE: /list/3"
std::string place_of_entry(const std::string& place, std::size_t index);

/// A list under `key`; throws Error when it is none.
const nlohmann::json& list_at(const JsonObject& part, const char* key);

/// A token id: a whole number below 2^32 - 1.
TokenId read_id(const nlohmann::json& value, const std::string& place);

std::vector<AddedToken> read_added_tokens(const nlohmann::json& list, const std::string& place);

TextNormalizer read_normalizer(const nlohmann::json& part, const std::string& place);

PreTokenizer read_pre_tokenizer(const nlohmann::json& part, const std::string& place);

/// The ids before and after a single text.
struct Frame {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};

Frame read_post_processor(const nlohmann::json& part, const std::string& place);

PieceDecoder read_decoder(const nlohmann::json& part, const std::string& place);

}  // namespace kvcast::text
