#include <algorithm>
#include <cmath>

#include "simulate/serving/policies.h"

namespace kvcast::simulate {
namespace {

/// Sarathi-Serve 96f9911: decode steps first, then prompts that have begun, then new ones, within
/// one budget of tokens. All blocks of a prompt are taken when it begins.
class Sarathi : public Scheduler {
 public:
  explicit Sarathi(const SchedulerSettings& settings)
      : Scheduler(settings),
        spare_(static_cast<std::uint64_t>(
            std::floor(settings.watermark * static_cast<double>(settings.num_blocks)))) {}

 private:
  bool cuts_prompts() const override { return true; }

  /// What was known at its admission is a prompt, to its last token.
  static bool decodes(const Sequence& s) { return s.computed >= s.admitted; }

  void plan() override {
    std::stable_sort(running_.begin(), running_.end(), [](const Owned& a, const Owned& b) {
      return std::pair(a->request.arrival_s, a->request.id) <
             std::pair(b->request.arrival_s, b->request.id);
    });
    std::uint64_t budget = settings_.max_num_batched_tokens;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (running_[i]->under_way > 0 || !decodes(*running_[i])) continue;
      if (!make_room(i, [this] { return pool_.num_free() > 0; })) break;
      allocate(*running_[i], running_[i]->known);
      run(*running_[i], 1);
      budget -= std::min<std::uint64_t>(budget, 1);
    }
    for (const Owned& s : running_) {
      if (s->under_way > 0 || decodes(*s)) continue;
      const std::uint64_t tokens = std::min(s->left(), budget);
      if (tokens > 0) run(*s, tokens);
      budget -= tokens;
    }
    while (!waiting_.empty() && budget > 0 && running_.size() < settings_.max_num_seqs) {
      Sequence& s = *waiting_.front();
      if (pool_.num_free() < blocks_for(s, s.known) + (running_.empty() ? 0 : spare_)) break;
      Sequence& started = start(take_waiting());
      allocate(started, started.known);
      const std::uint64_t tokens = std::min(started.left(), budget);
      run(started, tokens);
      budget -= tokens;
    }
  }

  std::uint64_t spare_;
};

}  // namespace

std::unique_ptr<Scheduler> make_sarathi(const SchedulerSettings& settings) {
  return std::make_unique<Sarathi>(settings);
}

}  // namespace kvcast::simulate
