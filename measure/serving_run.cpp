#include "measure/serving_run.h"

#include <chrono>
#include <thread>

#include "model/base/error.h"
#include "model/base/random.h"

namespace kvcast::measure {

using execute::TokenId;

std::vector<TokenId> prompt_of(const simulate::ServingRequest& r, std::uint64_t block_tokens,
                               std::uint64_t vocab_size) {
  if (!r.tokens.empty()) return {r.tokens.begin(), r.tokens.end()};
  std::vector<TokenId> prompt;
  while (prompt.size() < r.prompt_tokens) {
    // Past its ids a prompt has tokens of its own.
    const std::uint64_t block = block_tokens > 0 ? prompt.size() / block_tokens : 0;
    const bool shared = block_tokens > 0 && block < r.blocks.size();
    Random random(shared ? r.blocks[block] : r.id, shared ? 1 : 2 + block);
    const std::uint64_t end =
        block_tokens > 0 ? std::min((block + 1) * block_tokens, r.prompt_tokens) : r.prompt_tokens;
    while (prompt.size() < end) {
      prompt.push_back(static_cast<TokenId>(random.next() % vocab_size));
    }
  }
  return prompt;
}

ExecutedSteps::ExecutedSteps(execute::StepSession& session,
                             const simulate::SchedulerSettings& settings, bool waits)
    : session_(session),
      block_tokens_(settings.request_block_tokens),
      waits_(waits),
      is_bounded_(session.recording().bound.has_value()) {
  if (!is_bounded_ || !settings.prefix_caching) return;
  throw Error("prefix_caching",
              "a method that drops rows of the cache, whose blocks none can share",
              "prefix_caching=false");
}

double ExecutedSteps::seconds(std::span<const simulate::ScheduledPart> parts) {
  std::vector<execute::StepPart> step;
  for (const simulate::ScheduledPart& part : parts) {
    const simulate::Sequence& s = *part.sequence;
    std::vector<TokenId>& known = known_[s.request.id];
    if (known.empty()) {
      known = prompt_of(s.request, block_tokens_, session_.architecture().vocab_size);
    }
    KVCAST_ASSERT(known.size() == s.known);
    const bool begins = s.computed == 0;
    const std::uint64_t rows = is_bounded_ && !begins ? rows_.at(s.request.id) : s.computed;
    step.push_back({.tokens = std::span(known).subspan(s.computed, part.tokens),
                    .cached = rows,
                    .blocks = s.blocks,
                    .prompt_goes_on = part.tokens < s.left()});
  }
  const std::vector<TokenId> next = session_.step(step);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const simulate::Sequence& s = *parts[i].sequence;
    if (is_bounded_) rows_[s.request.id] = session_.rows_after(step[i]);
    if (parts[i].tokens == s.left()) known_.at(s.request.id).push_back(next[i]);
  }
  const double seconds = since_.seconds();
  since_ = Stopwatch();
  return seconds;
}

void ExecutedSteps::idle(double seconds) {
  if (waits_) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  since_ = Stopwatch();
}

void ExecutedSteps::ended(const simulate::Sequence& s) {
  const auto known = known_.find(s.request.id);
  KVCAST_ASSERT(known != known_.end());
  const auto made = known->second.begin() + static_cast<std::ptrdiff_t>(s.request.prompt_tokens);
  made_[s.request.id].assign(made, known->second.end());
  known_.erase(known);
  rows_.erase(s.request.id);
}

}  // namespace kvcast::measure
