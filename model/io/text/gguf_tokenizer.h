/// The vocabularies inside GGUF files.
#pragma once

#include <memory>

#include "model/io/text/tokenizer.h"
#include "model/io/text/tokenizer_backend.h"

namespace kvcast::text {

/// Throws Error when lists disagree in length, an id lies outside, or a name is unknown.
std::unique_ptr<TokenizerBackend> make_gguf_tokenizer(const GgufVocabulary& vocabulary);

}  // namespace kvcast::text
