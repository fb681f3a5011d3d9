/// Hugging Face's tokenizer.json.
#pragma once

#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "model/io/text/tokenizer_backend.h"

namespace kvcast::text {

/// Throws Error with the place in the file of whatever is wrong or not supported. "truncation" and
/// "padding" are settings for batches and do not count here.
std::unique_ptr<TokenizerBackend> make_json_tokenizer(const nlohmann::json& document,
                                                      const std::string& place);

/// The name of the file's model ("BPE", "Unigram", ...).
std::string model_type(const nlohmann::json& document, const std::string& place);

}  // namespace kvcast::text
