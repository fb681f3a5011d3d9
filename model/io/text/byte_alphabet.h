/// GPT-2's alphabet: one visible character for each byte, so that a vocabulary is printable text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvcast::text {

/// The character that stands for a byte, in UTF-8: itself for ! to ~, U+00A1 to U+00AC and U+00AE
/// to U+00FF, otherwise the next unused one from U+0100 on (a blank is U+0120).
/// Source   openai/gpt-2 : src/encoder.py, bytes_to_unicode
std::string_view character_of_byte(std::uint8_t byte);

/// The byte that a character stands for.
std::optional<std::uint8_t> byte_of_character(char32_t code_point);

/// Each byte of the text by its character.
void append_in_byte_alphabet(std::string_view bytes, std::string& out);

/// The bytes that valid UTF-8 text stands for; the text itself when one of its characters stands
/// for no byte.
std::string bytes_from_alphabet(std::string_view text);

}  // namespace kvcast::text
