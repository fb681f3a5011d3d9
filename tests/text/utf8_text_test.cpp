#include "model/base/utf8_text.h"

#include <string>

#include <doctest/doctest.h>

#include "model/io/text/byte_alphabet.h"

using namespace kvcast::text;

TEST_CASE("utf8_text: what is no character is found where it begins") {
  CHECK(is_utf8("plain"));
  CHECK(is_utf8("\u00E9\u20AC\U0001F600"));
  CHECK(first_invalid_byte("123456789\x80") == 9);
  CHECK(first_invalid_byte("a\xC0\xAF") == 1);          // an overlong '/'
  CHECK(first_invalid_byte("a\xE0\x9F\xBF") == 1);      // overlong in three bytes
  CHECK(first_invalid_byte("a\xED\xA0\x80") == 1);      // a surrogate
  CHECK(first_invalid_byte("a\xF4\x90\x80\x80") == 1);  // U+110000
  CHECK(first_invalid_byte("a\xF0\x9F\x98") == 1);      // cut off
}

TEST_CASE("utf8_text: code points come back as they went in") {
  for (const char32_t c :
       {U'\x7F', U'\x80', U'\x7FF', U'\x800', U'\xFFFF', U'\x10000', U'\x10FFFF'}) {
    std::string text;
    append_code_point(text, c);
    CHECK(is_utf8(text));
    CHECK(first_code_point(text) == c);
  }
}

TEST_CASE("utf8_text: an unfinished character waits, a broken one becomes U+FFFD") {
  std::string pending = "a\xE2\x82";
  CHECK(take_characters(pending, Repair::PerCharacter, false) == "a");
  CHECK(pending == "\xE2\x82");
  pending += "\xAC";
  CHECK(take_characters(pending, Repair::PerCharacter, false) == "\u20AC");
  CHECK(pending.empty());
  // The Unicode Standard, section 3.9: one U+FFFD for E2 82, the beginning of a character.
  pending = "\xE2\x82z\xFF";
  CHECK(take_characters(pending, Repair::PerCharacter, false) == "\uFFFDz\uFFFD");
  pending = "\xE2\x82z";
  CHECK(take_characters(pending, Repair::PerByte, false) == "\uFFFD\uFFFDz");
  pending = "\xE2\x82";
  CHECK(take_characters(pending, Repair::PerByte, true) == "\uFFFD\uFFFD");
}

TEST_CASE("utf8_text: white space is taken off either end") {
  CHECK(without_leading_space("\u2003 \ta ") == "a ");
  CHECK(without_trailing_space(" a\u3000\n") == " a");
  CHECK(without_trailing_space("\u3000").empty());
  CHECK(last_character("a\u20AC") == "\u20AC");
}

TEST_CASE("byte_alphabet: the known stand-ins, and every byte comes back") {
  std::string written;
  append_in_byte_alphabet({" \na\0\xAD", 5}, written);
  CHECK(written == "\u0120\u010Aa\u0100\u0143");  // U+0143 is the last of the 68 stand-ins
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  written.clear();
  append_in_byte_alphabet(bytes, written);
  CHECK(is_utf8(written));
  CHECK(bytes_from_alphabet(written) == bytes);
  CHECK(bytes_from_alphabet("a b") == "a b");  // a blank stands for no byte
}
