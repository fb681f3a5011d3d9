#include "model/base/utf8_text.h"

#include <array>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>
#include <utf8proc.h>

#include "model/base/error.h"

namespace kvcast::text {
namespace {

constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

struct Lead {
  std::size_t length;        // 0: no character starts so
  unsigned char low = 0x80;  // bounds of the second byte
  unsigned char high = 0xBF;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

}  // namespace

Utf8Character first_character(std::string_view text) {
  using Form = Utf8Character::Form;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  if (lead.length == 0) return {Form::Invalid, 1};
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Form::CutOff, i};
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Form::Invalid, i};
  }
  return {Form::Whole, lead.length};
}

char32_t first_code_point(std::string_view text) {
  utf8proc_int32_t code_point = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &code_point);
  return static_cast<char32_t>(code_point);
}

void append_code_point(std::string& text, char32_t code_point) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  text.append(bytes.begin(), bytes.begin() + size);
}

std::size_t first_invalid_byte(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t eight = 0;
    while (i + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if ((eight & 0x8080808080808080U) != 0) break;
      i += sizeof eight;
    }
    if (i == text.size()) break;
    const Utf8Character character = first_character(text.substr(i));
    if (character.form != Utf8Character::Form::Whole) return i;
    i += character.length;
  }
  return std::string_view::npos;
}

void require_utf8(std::string_view text, std::string_view where) {
  const std::size_t at = first_invalid_byte(text);
  if (at == std::string_view::npos) return;
  throw Error(where,
              fmt::format("byte 0x{:02X} at offset {}", static_cast<unsigned char>(text[at]), at),
              "UTF-8 text");
}

std::string take_characters(std::string& pending, Repair repair, bool is_last) {
  std::string taken;
  const std::string_view text = pending;
  std::size_t i = 0;
  while (i < text.size()) {
    const Utf8Character character = first_character(text.substr(i));
    if (character.form == Utf8Character::Form::Whole) {
      taken += text.substr(i, character.length);
    } else {
      if (character.form == Utf8Character::Form::CutOff && !is_last) break;
      const std::size_t marks = repair == Repair::PerByte ? character.length : 1;
      for (std::size_t mark = 0; mark < marks; ++mark) taken += replacement_character;
    }
    i += character.length;
  }
  pending.erase(0, i);
  return taken;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string_view without_leading_space(std::string_view text) {
  while (!text.empty() && is_white_space(first_code_point(text))) {
    text.remove_prefix(first_character(text).length);
  }
  return text;
}

std::string_view last_character(std::string_view text) {
  std::size_t i = text.size() - 1;
  while (i > 0 && is_continuation(text[i])) --i;
  return text.substr(i);
}

std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const std::string_view last = last_character(text);
    if (!is_white_space(first_code_point(last))) break;
    text.remove_suffix(last.size());
  }
  return text;
}

}  // namespace kvcast::text
