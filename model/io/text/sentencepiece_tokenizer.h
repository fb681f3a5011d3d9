/// SentencePiece models, run by their own library.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/io/text/added_tokens.h"
#include "model/io/text/tokenizer_backend.h"

namespace kvcast::text {

/// A serialized ModelProto. Control tokens written in a text are found there, and each stretch
/// between them is a text of its own (it gets the prefix blank), as in transformers'
/// LlamaTokenizer. `added_tokens` are found too; their ids may lie beyond the model's.
std::unique_ptr<TokenizerBackend> make_sentencepiece_tokenizer(
    std::string_view serialized, const std::string& place,
    std::vector<AddedToken> added_tokens = {});

}  // namespace kvcast::text
