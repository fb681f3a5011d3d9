/// GPT-2's alphabet: one visible character for each byte, so that a vocabulary is printable text.
#pragma once

#include <string>
#include <string_view>

namespace kvcast::text {

/// Each byte of the text by its character: itself for ! to ~, U+00A1 to U+00AC and U+00AE to
/// U+00FF, otherwise the next unused one from U+0100 on (a blank is U+0120).
/// Source   openai/gpt-2 : src/encoder.py, bytes_to_unicode
void append_in_byte_alphabet(std::string_view bytes, std::string& out);

/// The bytes that valid UTF-8 text stands for; the text itself when one of its characters stands
/// for no byte.
std::string bytes_from_alphabet(std::string_view text);

}  // namespace kvcast::text
