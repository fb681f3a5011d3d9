#include "model/io/text/sentencepiece_proto.h"

#include <bit>
#include <cstddef>
#include <optional>

#include "model/base/error.h"

namespace kvcast::text {
namespace {

// Field numbers of sentencepiece_model.proto.
namespace field {
constexpr std::uint64_t pieces = 1, trainer_spec = 2, normalizer_spec = 3, denormalizer_spec = 5;
constexpr std::uint64_t piece = 1, score = 2, type = 3;
constexpr std::uint64_t model_type = 3, whitespace_as_suffix = 24, byte_fallback = 35;
constexpr std::uint64_t charsmap = 2, add_dummy_prefix = 3, remove_extra_whitespaces = 4,
                        escape_whitespaces = 5;
}  // namespace field

constexpr std::uint64_t model_type_bpe = 2;

enum WireType : unsigned { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

[[noreturn]] void fail(const std::string& place, const std::string& found) {
  throw Error(place, found, "a SentencePiece model");
}

struct Field {
  std::uint64_t number;
  std::uint64_t value = 0;   // of Varint
  std::string_view bytes{};  // of Bytes
};

/// The fields of one protobuf message, one after the other.
class Message {
 public:
  Message(std::string_view bytes, const std::string& place) : rest_(bytes), place_(place) {}

  std::optional<Field> next() {
    if (rest_.empty()) return std::nullopt;
    const std::uint64_t key = varint();
    Field field{key >> 3};
    switch (key & 7) {
      case Varint: field.value = varint(); break;
      case Fixed64: take(8); break;
      case Fixed32: take(4); break;
      case Bytes: field.bytes = take(varint()); break;
      default: fail(place_, "bytes that are no protobuf message");
    }
    return field;
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail(place_, "a number longer than 64 bits");
  }

  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) fail(place_, "a file that is cut off");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
  const std::string& place_;
};

std::uint32_t word_at(std::string_view bytes, std::size_t index) {
  std::uint32_t word = 0;
  for (std::size_t i = 4; i-- > 0;) {
    word = (word << 8) | static_cast<unsigned char>(bytes[4 * index + i]);
  }
  return word;
}

/// A double array: from unit i, byte c leads to unit i ^ offset ^ c, and 0 to the value.
void check_charsmap(std::string_view map, const std::string& place) {
  if (map.empty()) return;
  if (map.size() < 4) fail(place, "a character map of " + std::to_string(map.size()) + " bytes");
  const std::size_t trie_bytes = word_at(map, 0);
  map.remove_prefix(4);
  if (trie_bytes > map.size() || trie_bytes % 4 != 0 || trie_bytes == 0) {
    fail(place, "a character map whose trie has " + std::to_string(trie_bytes) + " bytes");
  }
  const std::string_view trie = map.substr(0, trie_bytes);
  const std::string_view replacements = map.substr(trie_bytes);
  if (replacements.empty() || replacements.back() != '\0') {
    fail(place, "a character map without an end");
  }
  const std::size_t units = trie_bytes / 4;
  for (std::size_t i = 0; i < units; ++i) {
    const std::uint32_t unit = word_at(trie, i);
    const bool is_value = (unit >> 31) != 0;
    if (is_value) continue;
    const std::uint32_t offset = (unit >> 10) << ((unit & (1U << 9)) >> 6);
    const std::size_t child = i ^ offset;
    if ((child | 0xFFU) >= units) fail(place, "a character map that leads outside its trie");
    const bool has_value = ((unit >> 8) & 1U) != 0;
    if (has_value && (word_at(trie, child) & 0x7FFFFFFFU) >= replacements.size()) {
      fail(place, "a character map that leads outside its replacements");
    }
  }
}

/// True if it has a character map.
bool read_normalizer(std::string_view bytes, const std::string& place, SentencePieceFacts& facts) {
  Message message(bytes, place);
  bool has_charsmap = false;
  while (const auto entry = message.next()) {
    if (entry->number == field::charsmap) {
      check_charsmap(entry->bytes, place);
      has_charsmap = !entry->bytes.empty();
    }
    if (entry->number == field::add_dummy_prefix) facts.add_dummy_prefix = entry->value != 0;
    if (entry->number == field::remove_extra_whitespaces) {
      facts.remove_extra_whitespaces = entry->value != 0;
    }
  }
  return has_charsmap;
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

void append_number(std::string& out, std::uint64_t number, std::uint64_t value) {
  append_varint(out, number << 3 | Varint);
  append_varint(out, value);
}

void append_bytes(std::string& out, std::uint64_t number, std::string_view bytes) {
  append_varint(out, number << 3 | Bytes);
  append_varint(out, bytes.size());
  out += bytes;
}

void append_float(std::string& out, std::uint64_t number, float value) {
  append_varint(out, number << 3 | Fixed32);
  auto bits = std::bit_cast<std::uint32_t>(value);
  for (int i = 0; i < 4; ++i, bits >>= 8) out += static_cast<char>(bits & 0xFF);
}

}  // namespace

SentencePieceFacts check_sentencepiece_model(std::string_view serialized,
                                             const std::string& place) {
  SentencePieceFacts facts;
  Message model(serialized, place);
  while (const auto part = model.next()) {
    if (part->number == field::normalizer_spec) read_normalizer(part->bytes, place, facts);
    SentencePieceFacts ignored;
    if (part->number == field::denormalizer_spec && read_normalizer(part->bytes, place, ignored)) {
      throw Error(place, "a denormalizer with a character map", "a model without one");
    }
    if (part->number != field::trainer_spec) continue;
    Message trainer(part->bytes, place);
    while (const auto entry = trainer.next()) {
      if (entry->number == field::whitespace_as_suffix && entry->value != 0) {
        throw Error(place, "treat_whitespace_as_suffix", "a model that marks blanks before words");
      }
    }
  }
  return facts;
}

std::string serialize_sentencepiece_bpe(const std::vector<SentencePiece>& pieces,
                                        bool byte_fallback, bool add_dummy_prefix) {
  std::string model;
  for (const SentencePiece& piece : pieces) {
    std::string entry;
    append_bytes(entry, field::piece, piece.text);
    append_float(entry, field::score, piece.score);
    append_number(entry, field::type, static_cast<std::uint64_t>(piece.type));
    append_bytes(model, field::pieces, entry);
  }
  std::string trainer;
  append_number(trainer, field::model_type, model_type_bpe);
  append_number(trainer, field::byte_fallback, byte_fallback ? 1 : 0);
  append_bytes(model, field::trainer_spec, trainer);
  std::string normalizer;
  append_number(normalizer, field::add_dummy_prefix, add_dummy_prefix ? 1 : 0);
  append_number(normalizer, field::remove_extra_whitespaces, 0);
  append_number(normalizer, field::escape_whitespaces, 1);
  append_bytes(model, field::normalizer_spec, normalizer);
  return model;
}

}  // namespace kvcast::text
