/// Shared by the readers of tokenizer.json's parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "model/base/json_file.h"
#include "model/io/text/unicode_regex.h"
#include "model/io/text/vocabulary.h"

namespace kvcast::text {

/// "FILE: /list/3"
std::string place_of_entry(const std::string& place, std::size_t index);

/// Calls `read` with each part of a "Sequence" under `key`, or with the part itself; nothing for
/// null. Sequences may contain sequences.
void for_each_part(const nlohmann::json& part, const std::string& place, const char* key,
                   const std::function<void(const JsonObject&, const std::string& type)>& read);

/// {"Regex": "..."} or {"String": "..."} under "pattern".
UnicodeRegex read_pattern(const JsonObject& part);

/// A list under `key`; throws Error when it is none.
const nlohmann::json& list_at(const JsonObject& part, const char* key);

/// A token id: a whole number below 2^32 - 1.
TokenId read_id(const nlohmann::json& value, const std::string& place);

}  // namespace kvcast::text
