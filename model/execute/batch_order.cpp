#include "model/execute/batch_order.h"

namespace kvcast::execute {

bool keeps_differently_many(const Recording& recording, std::uint64_t prompt_len) {
  const auto& selection = recording.selection;
  return selection && selection->kept_tokens && prompt_len % selection->chunk != 0;
}

bool runs_one_by_one(const Recording& recording, const Request& request) {
  if (request.tokens.size() < 2) return false;
  if (!recording.revived.empty() && request.output_len > 1) return true;
  const bool looks_differently_far =
      recording.selection && recording.selection->queries && !request.stop_tokens.empty();
  return looks_differently_far || keeps_differently_many(recording, request.tokens[0].size());
}

bool runs_one_by_one(const Session& session, const Request& request) {
  return runs_one_by_one(session.recording(), request);
}

}  // namespace kvcast::execute
