/// Whether the sequences of a batch run side by side or one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/execute/generate.h"

namespace kvcast::execute {

/// True where prompts of this length may keep different numbers of tokens: their last chunk is
/// shorter, and is kept or not.
bool keeps_differently_many(const Recording& recording, std::uint64_t prompt_len);

/// True for prompts that are not all of one length.
bool have_different_lengths(const std::vector<std::vector<TokenId>>& prompts);

/// True for a batch whose prompts have different lengths or may keep or look ahead differently far:
/// `Session::run` then runs one after another.
bool runs_one_by_one(const Recording& recording, const Request& request);
bool runs_one_by_one(const Session& session, const Request& request);

/// A request for sequence b of a batch alone.
Request only_sequence(const Request& request, std::size_t b);

}  // namespace kvcast::execute
