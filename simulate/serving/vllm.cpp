/// vLLM's two schedulers.
#include <algorithm>
#include <cmath>

#include "simulate/serving/policies.h"

namespace kvcast::simulate {
namespace {

/// vLLM 0.11.0, v1/core/sched/scheduler.py: no phases; a budget of tokens is given to whoever has
/// tokens that are not computed, a prompt's next chunk while the one before it is under way. With
/// `reserve_full_prompt` as from 0.19 on (scheduler_reserve_full_isl).
class VllmV1 : public Scheduler {
 public:
  explicit VllmV1(const SchedulerSettings& settings) : Scheduler(settings) {}

 private:
  void plan() override {
    std::uint64_t budget = settings_.max_num_batched_tokens;
    const std::uint64_t preemptions = counts_.preemptions;
    bool has_room = true;
    for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
      Sequence& s = *running_[i];
      const std::uint64_t tokens = std::min(at_once(s), budget);
      if (tokens == 0) continue;  // under way
      has_room = make_room(i, [&] { return allocate(s, s.computed + tokens); });
      if (!has_room) break;
      run(s, tokens);
      budget -= tokens;
    }
    has_room &= counts_.preemptions == preemptions;
    while (has_room && !waiting_.empty() && budget > 0 &&
           running_.size() < settings_.max_num_seqs) {
      Sequence& s = *waiting_.front();
      const std::vector<BlockPool::Block> found = hits(s);
      const std::uint64_t of_hits = num_free_among(found);
      const std::uint64_t ready = std::max(found.size() * settings_.block_size, s.received);
      const std::uint64_t left = s.known - ready;
      std::uint64_t tokens = at_once(left);
      // What is not cut but longer than a step, after a preemption, runs alone.
      if (tokens > budget && !settings_.chunked_prefill && !parts_.empty()) break;
      if (settings_.chunked_prefill) tokens = std::min(tokens, budget);
      const auto fits = [&](std::uint64_t up_to) {
        return blocks_for(s, up_to) - found.size() + of_hits <= pool_.num_free();
      };
      const std::uint64_t up_to = ready + tokens;
      if (!fits(up_to) || (settings_.reserve_full_prompt && !fits(s.known))) break;
      Sequence& started = start(take_waiting());
      take_hits(started, found);
      started.computed = ready;
      allocate(started, up_to);
      run(started, tokens);
      budget -= std::min(budget, tokens);
    }
  }

  std::uint64_t at_once(std::uint64_t tokens) const {
    const std::uint64_t most = settings_.long_prefill_token_threshold;
    return most > 0 ? std::min(tokens, most) : tokens;
  }
  std::uint64_t at_once(const Sequence& s) const { return at_once(s.left()); }
};

/// vLLM 0.6.3.post1, core/scheduler.py, without chunked prefill: prompts first and alone; preempted
/// sequences are recomputed. With num_scheduler_steps as in 0.6.0 (worker/multi_step_worker.py),
/// where a batch's decode steps follow each other without the scheduler.
class VllmV0 : public Scheduler {
 public:
  explicit VllmV0(const SchedulerSettings& settings)
      : Scheduler(settings), spare_(watermark_blocks(settings)) {}

  static std::uint64_t watermark_blocks(const SchedulerSettings& s) {
    return static_cast<std::uint64_t>(std::floor(s.watermark * static_cast<double>(s.num_blocks)));
  }

 private:
  bool cuts_prompts() const override { return false; }

  void plan() override {
    if (steps_left_ > 0 && !running_.empty()) {
      --steps_left_;
    } else {
      plan_prompts();
      if (!parts_.empty()) return;
      steps_left_ = settings_.num_scheduler_steps - 1;
    }
    plan_decode();
  }

  void plan_prompts() {
    std::uint64_t tokens = 0;
    while (!waiting_.empty() && running_.size() < settings_.max_num_seqs) {
      Sequence& s = *waiting_.front();
      const std::uint64_t needed = blocks_for(s, s.known);
      if (pool_.num_free() < needed + (running_.empty() ? 0 : spare_)) break;
      if (tokens + s.known > settings_.max_num_batched_tokens && !parts_.empty()) break;
      Sequence& started = start(take_waiting());
      allocate(started, started.known);
      run(started, started.known);
      tokens += started.known;
    }
  }

  void plan_decode() {
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (!make_room(i, [this] { return pool_.num_free() > 0; })) break;
      allocate(*running_[i], running_[i]->known);
      run(*running_[i], 1);
    }
  }

  std::uint64_t spare_;
  std::uint64_t steps_left_ = 0;  ///< of a row of decode steps
};

}  // namespace

std::unique_ptr<Scheduler> make_vllm_v1(const SchedulerSettings& settings) {
  return std::make_unique<VllmV1>(settings);
}

std::unique_ptr<Scheduler> make_vllm_v0(const SchedulerSettings& settings) {
  return std::make_unique<VllmV0>(settings);
}

}  // namespace kvcast::simulate
