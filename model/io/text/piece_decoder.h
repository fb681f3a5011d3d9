/// From tokens back to text, token by token.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/base/utf8_text.h"

namespace kvcast::text {

/// Every occurrence of a text inside a token, in the first token perhaps by another text.
struct ReplaceInPiece {
  std::string from;
  std::string to;
  std::optional<std::string> to_in_first{};
};

/// Up to `start` occurrences of `content` before a token's text, and up to `stop` after it.
struct StripPiece {
  std::string content;
  std::size_t start = 0;
  std::size_t stop = 0;
  bool only_first = false;  ///< only in the first token
};

using PieceStep = std::variant<ReplaceInPiece, StripPiece>;

enum class PieceBytes {
  Text,          ///< a token is its text
  ByteAlphabet,  ///< a token is written in GPT-2's byte alphabet
  ByteFallback,  ///< a token <0x41> is a byte, others are their text
};

/// The bytes that a token adds to the text.
struct DecodedPiece {
  std::string bytes;
  bool is_byte = false;  ///< a <0x41> of ByteFallback
};

struct PieceDecoder {
  std::vector<PieceStep> steps;
  PieceBytes bytes = PieceBytes::Text;
  /// From the beginning of the whole text: up to so many occurrences.
  StripPiece strip_whole{};
  /// Between tokens, where the file names no decoder.
  std::string separator;
  /// A token that stands for what has none, and its text.
  std::string unknown;
  std::string unknown_text;
  /// A run of byte tokens is UTF-8 as a whole, or U+FFFD for each of its bytes.
  bool whole_byte_runs = false;
  bool skips_empty = false;  ///< a token without text is not the first

  Repair repair() const {
    return bytes == PieceBytes::ByteFallback ? Repair::PerByte : Repair::PerCharacter;
  }

  DecodedPiece decode(std::string_view token, bool is_first) const;
};

/// The byte of a token "<0x41>".
std::optional<unsigned char> byte_of_piece(std::string_view token);

/// Removes up to `most` occurrences of `content` from the front; says how many.
std::size_t strip_front(std::string& text, std::string_view content, std::size_t most);

}  // namespace kvcast::text
