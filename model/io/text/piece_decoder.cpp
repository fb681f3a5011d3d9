#include "model/io/text/piece_decoder.h"

#include <cctype>
#include <cstdlib>

#include "model/io/text/byte_alphabet.h"

namespace kvcast::text {
namespace {

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) return std::string(text);
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = 0; (at = text.find(from, done)) != std::string_view::npos;) {
    result += text.substr(done, at - done);
    result += to;
    done = at + from.size();
  }
  return result += text.substr(done);
}

std::string step(const ReplaceInPiece& replace, const std::string& piece, bool is_first) {
  const bool differs = is_first && replace.to_in_first;
  return replaced(piece, replace.from, differs ? *replace.to_in_first : replace.to);
}

std::string step(const StripPiece& strip, std::string piece, bool is_first) {
  if (strip.only_first && !is_first) return piece;
  strip_front(piece, strip.content, strip.start);
  if (strip.content.empty()) return piece;
  for (std::size_t i = 0; i < strip.stop && piece.ends_with(strip.content); ++i) {
    piece.resize(piece.size() - strip.content.size());
  }
  return piece;
}

}  // namespace

std::size_t strip_front(std::string& text, std::string_view content, std::size_t most) {
  if (content.empty()) return 0;
  std::size_t count = 0;
  while (count < most && std::string_view(text).substr(count * content.size()).starts_with(content))
    ++count;
  text.erase(0, count * content.size());
  return count;
}

std::optional<unsigned char> byte_of_piece(std::string_view token) {
  const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
                       std::isxdigit(static_cast<unsigned char>(token[3])) != 0 &&
                       std::isxdigit(static_cast<unsigned char>(token[4])) != 0;
  if (!is_byte) return std::nullopt;
  return static_cast<unsigned char>(
      std::strtoul(std::string(token.substr(3, 2)).c_str(), nullptr, 16));
}

DecodedPiece PieceDecoder::decode(std::string_view token, bool is_first) const {
  if (!unknown.empty() && token == unknown) return {unknown_text};
  std::string piece(token);
  for (const PieceStep& one : steps) {
    piece = std::visit([&](const auto& how) { return step(how, piece, is_first); }, one);
  }
  if (bytes == PieceBytes::ByteAlphabet) return {bytes_from_alphabet(piece)};
  if (bytes == PieceBytes::ByteFallback) {
    if (const auto byte = byte_of_piece(piece)) {
      return {std::string(1, static_cast<char>(*byte)), true};
    }
  }
  return {std::move(piece)};
}

}  // namespace kvcast::text
