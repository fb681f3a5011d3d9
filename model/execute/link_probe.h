/// How fast messages go from rank to rank of this run.
#pragma once

#include <vector>

#include "model/execute/messenger.h"

namespace kvcast::execute {

struct LinkSample {
  double latency_s = 0;    ///< of a message of a few bytes, one way
  double bytes_per_s = 0;  ///< of a large message, without its latency
};

/// Messages between ranks 0 and 1, as runs on several ranks send theirs. Every rank calls it; all
/// get what rank 0 measured. Throws Error as Messenger::receive does, and for less than two ranks.
std::vector<LinkSample> measure_link(Messenger& messenger, int rounds);

}  // namespace kvcast::execute
