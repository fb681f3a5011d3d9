/// UTF-8 as the Unicode Standard defines it (version 15, table 3-7): checked, walked and repaired.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvcast::text {

/// Bytes [begin, end) of some text.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

inline std::string_view slice(std::string_view text, Span span) {
  return text.substr(span.begin, span.end - span.begin);
}

/// What stands at the beginning of a non-empty text.
struct Utf8Character {
  enum class Form { Whole, Invalid, CutOff } form;
  /// Whole: the character's bytes; otherwise the bytes that one U+FFFD stands for (at least 1).
  std::size_t length;
};

Utf8Character first_character(std::string_view text);

/// The code point of the whole character at the beginning of valid text.
char32_t first_code_point(std::string_view text);

void append_code_point(std::string& text, char32_t code_point);

/// Position of the first byte that is no part of a character; npos if the text is valid.
std::size_t first_invalid_byte(std::string_view text);

inline bool is_utf8(std::string_view text) {
  return first_invalid_byte(text) == std::string_view::npos;
}

/// Throws Error "WHERE: got byte 0xFF at offset N, expected UTF-8 text".
void require_utf8(std::string_view text, std::string_view where);

/// How many U+FFFD stand for bytes that form no character.
enum class Repair { PerByte, PerCharacter };

/// Removes the whole characters from the front of `pending` and returns them, with U+FFFD for bytes
/// that cannot become one; a character cut off at the end stays unless `is_last`.
std::string take_characters(std::string& pending, Repair repair, bool is_last);

/// The White_Space property (Unicode's PropList.txt).
bool is_white_space(char32_t code_point);

/// The text without the white space at its beginning, or at its end.
std::string_view without_leading_space(std::string_view text);
std::string_view without_trailing_space(std::string_view text);

/// The last character of valid, non-empty text.
std::string_view last_character(std::string_view text);

}  // namespace kvcast::text
