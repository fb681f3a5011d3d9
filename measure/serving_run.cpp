#include "measure/serving_run.h"

#include <algorithm>
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
      is_bounded_(session.recording().bound.has_value()),
      chooses_(session.recording().selection.has_value()) {
  if (chooses_ && settings.chunked_prefill) {
    throw Error("chunked_prefill", "a method that chooses the tokens of whole prompts",
                "chunked_prefill=false");
  }
  if (!settings.prefix_caching) return;
  const auto refuse = [](const char* found) {
    throw Error("prefix_caching", found, "prefix_caching=false");
  };
  if (chooses_) refuse("a method whose sequences keep tokens of their own");
  if (is_bounded_) refuse("a method that drops rows of the cache, whose blocks none can share");
  if (session.has_states()) refuse("a model whose layers have states, which no block holds");
}

ExecutedSteps::Known ExecutedSteps::begin(const simulate::ServingRequest& r) {
  Known known;
  known.tokens = prompt_of(r, block_tokens_, session_.architecture().vocab_size);
  if (!chooses_) return known;
  known.positions = session_.choose_tokens(known.tokens);
  for (std::size_t i = 0; i < known.positions.size(); ++i) {
    known.tokens[i] = known.tokens[known.positions[i]];
  }
  known.tokens.resize(known.positions.size());
  known.dropped = r.prompt_tokens - known.tokens.size();
  return known;
}

/// A place among the states that no sequence with blocks has; preempted sequences lose theirs.
std::size_t ExecutedSteps::free_state() {
  std::vector<bool> taken(session_.cache_size().states);
  for (auto& [id, known] : known_) {
    if (known.state && known.sequence->blocks.empty()) known.state.reset();
    if (known.state) taken[*known.state] = true;
  }
  const auto found = std::find(taken.begin(), taken.end(), false);
  KVCAST_ASSERT(found != taken.end());
  return static_cast<std::size_t>(found - taken.begin());
}

double ExecutedSteps::seconds(std::span<const simulate::ScheduledPart> parts) {
  std::vector<execute::StepPart> step;
  for (const simulate::ScheduledPart& part : parts) {
    const simulate::Sequence& s = *part.sequence;
    const auto [place, is_new] = known_.try_emplace(s.request.id);
    Known& known = place->second;
    if (is_new) known = begin(s.request);
    known.sequence = &s;
    if (session_.has_states() && part.cached == 0 && !known.state) known.state = free_state();
    KVCAST_ASSERT(known.dropped + known.tokens.size() == s.known);
    // A preempted sequence keeps its choice, and computes what is chosen again.
    const std::uint64_t first = part.cached == 0 ? 0 : part.cached - known.dropped;
    const std::uint64_t tokens = part.tokens - (part.cached == 0 ? known.dropped : 0);
    KVCAST_ASSERT(first > 0 || known.dropped == 0 || part.makes_token);
    if (part.cached == 0 || !is_bounded_) known.rows = first;
    step.push_back({.tokens = std::span(known.tokens).subspan(first, tokens),
                    .cached = known.rows,
                    .blocks = s.blocks,
                    .prompt_goes_on = !part.makes_token,
                    .state = known.state.value_or(0)});
    if (chooses_) step.back().positions = std::span(known.positions).subspan(first, tokens);
  }
  const std::vector<TokenId> next = session_.step(step);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const simulate::Sequence& s = *parts[i].sequence;
    Known& known = known_.at(s.request.id);
    known.rows = session_.rows_after(step[i]);
    if (!parts[i].makes_token) continue;
    known.tokens.push_back(next[i]);
    if (chooses_) known.positions.push_back(s.known);
  }
  const double seconds = since_.seconds();
  since_ = Stopwatch();
  return seconds;
}

std::uint64_t ExecutedSteps::dropped_tokens(const simulate::ServingRequest& r) {
  return chooses_ ? r.prompt_tokens - session_.most_chosen(r.prompt_tokens) : 0;
}

std::optional<std::string> ExecutedSteps::refuses(const simulate::ServingRequest& r) {
  if (!chooses_) return {};
  try {
    session_.most_chosen(r.prompt_tokens);
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

void ExecutedSteps::idle(double seconds) {
  if (waits_) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  since_ = Stopwatch();
}

void ExecutedSteps::ended(const simulate::Sequence& s) {
  const auto known = known_.find(s.request.id);
  KVCAST_ASSERT(known != known_.end());
  const std::vector<TokenId>& tokens = known->second.tokens;
  const std::uint64_t prompt = s.request.prompt_tokens - known->second.dropped;
  made_[s.request.id].assign(tokens.begin() + static_cast<std::ptrdiff_t>(prompt), tokens.end());
  known_.erase(known);
}

}  // namespace kvcast::measure
