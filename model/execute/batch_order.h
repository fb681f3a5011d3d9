/// Whether the sequences of a batch run side by side or one after another.
#pragma once

#include <cstdint>

#include "model/execute/generate.h"

namespace kvcast::execute {

/// True where prompts of this length may keep different numbers of tokens: their last chunk is
/// shorter, and is kept or not.
bool keeps_differently_many(const Recording& recording, std::uint64_t prompt_len);

/// True for a batch whose sequences may keep or look ahead differently far: `Session::run` then
/// runs one after another.
bool runs_one_by_one(const Recording& recording, const Request& request);
bool runs_one_by_one(const Session& session, const Request& request);

}  // namespace kvcast::execute
