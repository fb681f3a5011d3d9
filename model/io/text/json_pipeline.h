/// The parts of a tokenizer.json other than its model: each reader takes the part's JSON and the
/// place where it stands, and throws Error naming what it does not know.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/io/text/added_tokens.h"
#include "model/io/text/piece_decoder.h"
#include "model/io/text/pre_tokenizer.h"
#include "model/io/text/text_normalizer.h"

namespace kvcast::text {

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
