#include "model/io/text/json_parts.h"

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"

namespace kvcast::text {

using nlohmann::json;

std::string place_of_entry(const std::string& place, std::size_t index) {
  return place + "/" + std::to_string(index);
}

const json& list_at(const JsonObject& part, const char* key) {
  const json& list = part.at(key);
  if (!list.is_array()) part.fail(key, "a list");
  return list;
}

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

TokenId read_id(const json& value, const std::string& place) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() < UINT32_MAX) {
    return static_cast<TokenId>(value.get<std::uint64_t>());
  }
  throw Error(place, shown(value), "a token id from 0 to 2^32 - 2");
}

}  // namespace kvcast::text
