#include "simulate/serving/policies.h"

namespace kvcast::simulate {
namespace {

/// Orca (OSDI 2022) and FasterTransformer's static batches as Vidur 7d47513 has them: each sequence
/// reserves the cache of the longest one. Orca takes requests at each step, a static batch only
/// when the last of its members has ended. Of a pipeline's stages each has max_num_seqs of Orca's.
class Reserving : public Scheduler {
 public:
  explicit Reserving(const SchedulerSettings& settings) : Scheduler(settings) {}

 private:
  bool cuts_prompts() const override { return true; }

  std::uint64_t most_blocks(const Sequence& s) const override {
    return blocks_for(s, settings_.max_model_len);
  }

  void plan() override {
    const bool takes = settings_.policy == Policy::Orca || running_.empty();
    const std::uint64_t most = settings_.max_num_seqs * settings_.pipeline_stages;
    while (takes && !waiting_.empty() && running_.size() < most &&
           pool_.num_free() >= most_blocks(*waiting_.front())) {
      Sequence& started = start(take_waiting());
      grow(started, most_blocks(started));
    }
    for (const Owned& s : running_) {
      if (s->under_way == 0 && parts_.size() < settings_.max_num_seqs) run(*s, s->left());
    }
  }
};

}  // namespace

std::unique_ptr<Scheduler> make_reserving(const SchedulerSettings& settings) {
  return std::make_unique<Reserving>(settings);
}

}  // namespace kvcast::simulate
