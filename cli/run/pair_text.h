/// A text that two models read as the same token ids.
#pragma once

#include <string>
#include <vector>

#include "cli/frame/command.h"
#include "model/execute/generate.h"
#include "model/io/text/tokenizer.h"

namespace kvcast::cli {

/// True when both know the same ids and decode them to the same text.
bool read_alike(const text::Tokenizer& a, const text::Tokenizer& b,
                const std::vector<execute::TokenId>& ids);

/// Throws Error when both have a tokenizer and these give an id different texts. Special tokens are
/// not compared: releases of one model rename those that they do not use.
void check_pair_tokenizers(const Checkpoint& base, const Checkpoint& auxiliary);

/// The text of a file as token ids, or the ids in a .json. Throws Error naming the flag: a file
/// that cannot be read, no tokenizer, two tokenizers that give other ids or
/// read given ids as another text, ids that a model has not.
std::vector<execute::TokenId> read_pair_text(const char* flag, const std::string& file,
                                             const Checkpoint& base, const Checkpoint& auxiliary);

}  // namespace kvcast::cli
