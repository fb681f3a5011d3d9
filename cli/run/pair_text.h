/// Texts that two models read.
#pragma once

#include <string>
#include <vector>

#include "cli/frame/command.h"
#include "model/execute/generate.h"
#include "model/io/text/tokenizer.h"

namespace kvcast::cli {

/// True where both decode the ids, as far as they know them, to one text, and know the same ones.
bool read_alike(const text::Tokenizer& a, const text::Tokenizer& b,
                const std::vector<execute::TokenId>& ids);

/// Throws Error unless the tokenizers of both, where both have one, give every id that both know
/// one text. Special tokens aside: releases of one model rename those that they do not use.
void check_pair_tokenizers(const Checkpoint& base, const Checkpoint& auxiliary);

/// The text of a file as token ids, or the ids in a .json. Throws Error naming the flag: a file
/// that cannot be read, no tokenizer, two tokenizers that give other ids or
/// read given ids as another text, ids that a model has not.
std::vector<execute::TokenId> read_pair_text(const char* flag, const std::string& file,
                                             const Checkpoint& base, const Checkpoint& auxiliary);

}  // namespace kvcast::cli
