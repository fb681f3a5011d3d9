/// How long a prompt must be for what prompt methods do with it.
#pragma once

#include <cstdint>

#include "model/record/recording.h"

namespace kvcast {

/// Throws Error when a prompt of this length is shorter than the chunks that are kept or dropped,
/// or than half of the neighbours that importance is a mean over.
void check_prompt_length(const Recording& recording, std::uint64_t prompt_len);

}  // namespace kvcast
