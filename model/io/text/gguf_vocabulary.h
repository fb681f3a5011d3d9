/// The tokenizer's part of a GGUF file's metadata.
#pragma once

#include "model/io/tensors/gguf.h"
#include "model/io/text/tokenizer.h"

namespace kvcast::text {

/// The keys tokenizer.ggml.*. Throws Error naming the file and the key.
GgufVocabulary gguf_vocabulary(const GgufFile& file);

}  // namespace kvcast::text
