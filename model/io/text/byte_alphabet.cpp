#include "model/io/text/byte_alphabet.h"

#include <array>
#include <cstddef>

#include "model/base/utf8_text.h"

namespace kvcast::text {
namespace {

constexpr std::size_t num_bytes = 256;
constexpr char32_t first_stand_in = 0x100;
constexpr std::size_t num_stand_ins = 68;

constexpr bool stands_for_itself(std::size_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<std::string, num_bytes> characters;
  std::array<std::uint8_t, num_stand_ins> stood_for{};

  Alphabet() {
    std::size_t stand_ins = 0;
    for (std::size_t byte = 0; byte < num_bytes; ++byte) {
      auto code_point = static_cast<char32_t>(byte);
      if (!stands_for_itself(byte)) {
        stood_for.at(stand_ins) = static_cast<std::uint8_t>(byte);
        code_point = first_stand_in + static_cast<char32_t>(stand_ins++);
      }
      append_code_point(characters[byte], code_point);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet the_one;
  return the_one;
}

}  // namespace

std::string_view character_of_byte(std::uint8_t byte) { return alphabet().characters[byte]; }

std::optional<std::uint8_t> byte_of_character(char32_t code_point) {
  if (code_point < num_bytes) {
    if (!stands_for_itself(code_point)) return std::nullopt;
    return static_cast<std::uint8_t>(code_point);
  }
  if (code_point >= first_stand_in + num_stand_ins) return std::nullopt;
  return alphabet().stood_for[code_point - first_stand_in];
}

void append_in_byte_alphabet(std::string_view bytes, std::string& out) {
  const auto& characters = alphabet().characters;
  for (const char c : bytes) out += characters[static_cast<unsigned char>(c)];
}

std::string bytes_from_alphabet(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += first_character(text.substr(i)).length) {
    const auto byte = byte_of_character(first_code_point(text.substr(i)));
    if (!byte) return std::string(text);
    bytes += static_cast<char>(*byte);
  }
  return bytes;
}

}  // namespace kvcast::text
