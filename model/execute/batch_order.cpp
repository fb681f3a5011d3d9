#include "model/execute/batch_order.h"

#include <algorithm>

namespace kvcast::execute {

bool keeps_differently_many(const Recording& recording, std::uint64_t prompt_len) {
  const auto& selection = recording.selection;
  return selection && selection->kept_tokens && prompt_len % selection->chunk != 0;
}

bool have_different_lengths(const std::vector<std::vector<TokenId>>& prompts) {
  return std::any_of(prompts.begin(), prompts.end(),
                     [&](const auto& prompt) { return prompt.size() != prompts[0].size(); });
}

Request only_sequence(const Request& request, std::size_t b) {
  Request one = request;
  one.tokens = {request.tokens[b]};
  if (!request.continuation.empty()) one.continuation = {request.continuation[b]};
  return one;
}

bool runs_one_by_one(const Recording& recording, const Request& request) {
  if (request.tokens.size() < 2) return false;
  if (have_different_lengths(request.tokens)) return true;
  if (!recording.revived.empty() && request.output_len > 1) return true;
  const bool looks_differently_far =
      recording.selection && recording.selection->queries && !request.stop_tokens.empty();
  return looks_differently_far || keeps_differently_many(recording, request.tokens[0].size());
}

bool runs_one_by_one(const Session& session, const Request& request) {
  return runs_one_by_one(session.recording(), request);
}

}  // namespace kvcast::execute
