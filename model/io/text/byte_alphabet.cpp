#include "model/io/text/byte_alphabet.h"

#include <array>
#include <cstddef>

#include "model/base/utf8_text.h"

namespace kvcast::text {
namespace {

constexpr std::size_t num_bytes = 256;
constexpr std::size_t num_stand_ins = 68;
constexpr int no_byte = -1;

struct Alphabet {
  std::array<std::string, num_bytes> characters;
  std::array<int, num_bytes + num_stand_ins> bytes{};  ///< by code point

  Alphabet() {
    bytes.fill(no_byte);
    std::size_t next_stand_in = num_bytes;
    for (std::size_t byte = 0; byte < num_bytes; ++byte) {
      const bool stands_for_itself =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const std::size_t code_point = stands_for_itself ? byte : next_stand_in++;
      append_code_point(characters[byte], static_cast<char32_t>(code_point));
      bytes.at(code_point) = static_cast<int>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet the_one;
  return the_one;
}

}  // namespace

void append_in_byte_alphabet(std::string_view bytes, std::string& out) {
  const auto& characters = alphabet().characters;
  for (const char c : bytes) out += characters[static_cast<unsigned char>(c)];
}

std::string bytes_from_alphabet(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += first_character(text.substr(i)).length) {
    const char32_t code_point = first_code_point(text.substr(i));
    const auto& known = alphabet().bytes;
    if (code_point >= known.size() || known[code_point] == no_byte) return std::string(text);
    bytes += static_cast<char>(known[code_point]);
  }
  return bytes;
}

}  // namespace kvcast::text
