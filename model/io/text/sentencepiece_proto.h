/// The fields of a serialized SentencePiece model that its library neither gives nor checks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcast::text {

/// What decoding piece by piece depends on.
struct SentencePieceFacts {
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
};

/// Reads the facts and checks the character maps, which the library follows without looking:
/// every position in the trie and in the replacements must lie inside them. Throws Error when the
/// file is cut off, a map leads outside, or the model marks blanks after words.
/// Source   google/sentencepiece : src/sentencepiece_model.proto, third_party/darts_clone/darts.h
SentencePieceFacts check_sentencepiece_model(std::string_view serialized, const std::string& place);

enum class PieceType : std::uint8_t {
  Normal = 1,
  Unknown = 2,
  Control = 3,
  UserDefined = 4,
  Unused = 5,
  Byte = 6
};

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::Normal;
};

/// A serialized BPE model with the identity normalizer.
std::string serialize_sentencepiece_bpe(const std::vector<SentencePiece>& pieces,
                                        bool byte_fallback, bool add_dummy_prefix);

}  // namespace kvcast::text
