#include <algorithm>

#include "simulate/serving/policies.h"

namespace kvcast::simulate {
namespace {

/// TensorRT-LLM 1.x, batch manager. First the cache decides who is started: under
/// GUARANTEED_NO_EVICT whoever has room for its longest output beside all others, under
/// MAX_UTILIZATION whoever has room now, and the last to start is paused when there is none. Then
/// the budget of tokens decides which of the started ones are in the step. A pipeline's stages have
/// max_num_seqs each.
class TensorrtLlm : public Scheduler {
 public:
  explicit TensorrtLlm(const SchedulerSettings& settings) : Scheduler(settings) {}

 private:
  std::uint64_t most_started() const { return settings_.max_num_seqs * settings_.pipeline_stages; }
  bool guarantees() const { return settings_.policy == Policy::TrtllmGuaranteed; }

  std::uint64_t most_blocks(const Sequence& s) const override {
    return guarantees() ? blocks_at_end(s) : Scheduler::most_blocks(s);
  }
  std::uint64_t blocks_at_end(const Sequence& s) const {
    return blocks_for(s, s.request.prompt_tokens + s.leaves_after);
  }

  void plan() override {
    if (guarantees()) {
      start_guaranteed();
    } else {
      start_for_utilization();
    }
    fill_step();
  }

  void start_guaranteed() {
    std::uint64_t reserved = 0;
    for (const Owned& s : running_) {
      reserved += blocks_at_end(*s) - std::min<std::uint64_t>(blocks_at_end(*s), s->blocks.size());
    }
    for (std::size_t i = 0; i < waiting_.size() && running_.size() < most_started();) {
      const Sequence& s = *waiting_[i];
      const std::vector<BlockPool::Block> found = hits(s);
      if (waits_for_another(s, found.size())) {
        ++i;
        continue;
      }
      const std::uint64_t own = blocks_at_end(s) - found.size();
      if (own + num_free_among(found) + reserved > pool_.num_free()) break;
      take_hits(start(take_waiting(i)), found);
      reserved += own;
    }
  }

  /// The block after its hits is one that a started prompt will compute.
  bool waits_for_another(const Sequence& s, std::size_t hits) const {
    if (hits >= s.pieces.size()) return false;
    return std::any_of(running_.begin(), running_.end(), [&](const Owned& other) {
      if (other->decodes()) return false;
      const auto begin = other->pieces.begin() +
                         static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(
                             other->computed / settings_.block_size, other->pieces.size()));
      return std::find(begin, other->pieces.end(), s.pieces[hits]) != other->pieces.end();
    });
  }

  void start_for_utilization() {
    const std::uint64_t pauses = counts_.preemptions;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Sequence& s = *running_[i];
      if (s.under_way > 0) continue;
      if (!make_room(i, [&] { return has_room(s); })) break;
      grow(s, blocks_for(s, s.known));
    }
    while (counts_.preemptions == pauses && !waiting_.empty() && running_.size() < most_started()) {
      const Sequence& s = *waiting_.front();
      const std::vector<BlockPool::Block> found = hits(s);
      const std::uint64_t own = blocks_for(s, s.known) - found.size();
      if (own + num_free_among(found) > pool_.num_free()) break;
      Sequence& started = start(take_waiting());
      take_hits(started, found);
      grow(started, blocks_for(started, started.known));
    }
  }

  bool has_room(const Sequence& s) const {
    const std::uint64_t blocks = blocks_for(s, s.known);
    return blocks <= s.blocks.size() + pool_.num_free();
  }

  void fill_step() {
    std::uint64_t budget = settings_.max_num_batched_tokens;
    const auto add = [&](Sequence& s, std::uint64_t tokens) {
      run(s, tokens);
      budget -= std::min(budget, tokens);
    };
    const auto has_place = [&](const Sequence& s) {
      return s.under_way == 0 && parts_.size() < settings_.max_num_seqs;
    };
    for (const Owned& s : running_) {
      if (has_place(*s) && s->decodes() && budget > 0) add(*s, 1);
    }
    const std::size_t decodes = parts_.size();
    for (const Owned& s : running_) {
      if (!has_place(*s) || s->decodes()) continue;
      std::uint64_t tokens = s->left();
      if (tokens > budget && !settings_.chunked_prefill) {
        if (!parts_.empty()) break;  // after a pause it may be longer than a step, and runs alone
      } else if (tokens > budget) {
        tokens = budget / settings_.block_size * settings_.block_size;
        if (tokens == 0) break;
      }
      add(*s, tokens);
    }
    if (prompts_wait(decodes)) parts_.resize(decodes);
    for (const ScheduledPart& part : parts_) {
      allocate(*part.sequence, part.sequence->computed + part.tokens);
    }
  }

  /// Whether prompts wait, so that later ones join them: _torch/pyexecutor/py_executor.py,
  /// _waiting_requests, of 1.0. Tokens are those of this step.
  bool prompts_wait(std::size_t decodes) {
    if (decodes == 0 || decodes == parts_.size()) return false;
    double tokens = 0;
    for (const ScheduledPart& part : parts_) tokens += static_cast<double>(part.tokens);
    const double enough = settings_.batch_wait_max_tokens_ratio *
                          static_cast<double>(settings_.max_num_batched_tokens);
    const bool wait = steps_waited_ < settings_.batch_wait_timeout_iters && tokens < enough;
    steps_waited_ = wait ? steps_waited_ + 1 : 0;
    return wait;
  }

  std::uint64_t steps_waited_ = 0;
};

}  // namespace

std::unique_ptr<Scheduler> make_tensorrt_llm(const SchedulerSettings& settings) {
  return std::make_unique<TensorrtLlm>(settings);
}

}  // namespace kvcast::simulate
