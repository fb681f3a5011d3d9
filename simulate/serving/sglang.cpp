#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/last_that.h"
#include "simulate/serving/policies.h"

namespace kvcast::simulate {
namespace {

/// Prompts' blocks that stay in the cache, each behind the block before it (SGLang's radix tree,
/// block by block). The tree holds them too, until they are dropped, least recently used first.
class PrefixTree {
 public:
  using Block = BlockPool::Block;
  explicit PrefixTree(BlockPool& pool) : pool_(pool) {}

  std::optional<Block> find(std::uint64_t piece) const {
    const auto found = nodes_.find(piece);
    if (found == nodes_.end()) return {};
    return found->second.block;
  }
  bool is_unused(std::uint64_t piece) const { return nodes_.at(piece).users == 0; }
  std::uint64_t num_unused() const { return unused_; }

  /// `parent`: none for the first block of a prompt.
  void insert(std::uint64_t piece, const std::optional<std::uint64_t>& parent, Block block) {
    Node node{block, parent};
    node.entered = ++entered_;
    if (parent) {
      Node& above = nodes_.at(*parent);
      drop_leaf(*parent, above);
      ++above.children;
    }
    pool_.hold(block);
    ++unused_;
    const auto added = nodes_.emplace(piece, node).first;
    add_leaf(piece, added->second);
  }

  void use(std::uint64_t piece) {
    Node& node = nodes_.at(piece);
    drop_leaf(piece, node);
    if (node.users++ == 0) --unused_;
  }
  void stop_using(std::uint64_t piece) {
    Node& node = nodes_.at(piece);
    if (--node.users == 0) ++unused_;
    add_leaf(piece, node);
  }
  void touch(std::uint64_t piece, std::uint64_t time) {
    Node& node = nodes_.at(piece);
    drop_leaf(piece, node);
    node.accessed = time;
    add_leaf(piece, node);
  }

  /// Gives the least recently used leaf back to the pool.
  void evict() {
    KVCAST_ASSERT(!leaves_.empty());
    const std::uint64_t piece = std::get<2>(*leaves_.begin());
    leaves_.erase(leaves_.begin());
    const Node node = nodes_.at(piece);
    nodes_.erase(piece);
    --unused_;
    pool_.release(node.block);
    if (!node.parent) return;
    Node& above = nodes_.at(*node.parent);
    --above.children;
    add_leaf(*node.parent, above);
  }

 private:
  struct Node {
    Block block = 0;
    std::optional<std::uint64_t> parent;
    std::uint64_t children = 0;
    std::uint64_t users = 0;
    std::uint64_t accessed = 0;
    std::uint64_t entered = 0;
  };
  bool is_leaf(const Node& n) const { return n.users == 0 && n.children == 0; }
  void add_leaf(std::uint64_t piece, const Node& n) {
    if (is_leaf(n)) leaves_.emplace(n.accessed, n.entered, piece);
  }
  void drop_leaf(std::uint64_t piece, const Node& n) {
    if (is_leaf(n)) leaves_.erase({n.accessed, n.entered, piece});
  }

  BlockPool& pool_;
  std::unordered_map<std::uint64_t, Node> nodes_;
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> leaves_;  ///< unused ones
  std::uint64_t unused_ = 0;
  std::uint64_t entered_ = 0;
};

/// SGLang 0.5.3, managers/schedule_batch.py and schedule_policy.py: prompts first and alone (with
/// mixed_chunk beside decode steps, whose tokens they leave room for), one of them cut at a time;
/// requests are taken as far as outputs are expected to fit, and taken back when they do not. A
/// pipeline's stages share max_num_seqs (pp_max_micro_batch_size).
class Sglang : public Scheduler {
 public:
  explicit Sglang(const SchedulerSettings& settings)
      : Scheduler(settings),
        tree_(pool_),
        first_ratio_(std::min(1.0, 0.7 * settings.conservativeness)),
        ratio_(first_ratio_) {}

 private:
  // schedule_policy.py and server_args.py of 0.5.3.
  static constexpr std::uint64_t most_new = 4096;  ///< CLIP_MAX_NEW_TOKENS
  static constexpr std::size_t longest_sorted = 128;
  static constexpr std::uint64_t shared_tokens = 32;  ///< IN_BATCH_PREFIX_CACHING_*_THRESHOLD
  static constexpr double last_ratio = 0.14;
  static constexpr double ratio_steps = 600;
  static constexpr std::uint64_t retract_steps = 20;

  bool cuts_prompts() const override { return true; }
  std::optional<BlockPool::Block> find_piece(std::uint64_t piece) const override {
    return tree_.find(piece);
  }

  static double expected_new(const Sequence& s) {
    return static_cast<double>(std::min(s.leaves_after - s.generated, most_new));
  }
  std::uint64_t available() const { return pool_.num_free() + tree_.num_unused(); }

  std::optional<std::string> refusal(const Sequence& s) const override {
    const std::uint64_t tokens = s.request.prompt_tokens + s.request.output_tokens;
    const std::uint64_t room = pool_.size() * settings_.block_size;
    if (tokens >= room) {
      return fmt::format("prompt and output of {} tokens, not fewer than the cache's {}", tokens,
                         room);
    }
    return Scheduler::refusal(s);
  }
  /// What requests hold; the tree's other blocks can be dropped.
  std::uint64_t peak_blocks() const override { return peak_; }

  void plan() override {
    // A cut prompt is the last of the running ones; those that start come behind it.
    const std::size_t began = running_.size() - (has_cut() ? 1 : 0);
    if (!plan_prompts()) return plan_decode();
    if (settings_.mixed_chunk && num_new_blocks(began) <= available()) decode(began);
  }

  /// The last of the running ones, if it is cut.
  bool has_cut() const { return cut_ != nullptr; }
  bool decodes(const Sequence& s) const { return &s != cut_ && s.under_way == 0; }

  /// The waiting in the order in which they are tried.
  std::vector<const Sequence*> order() const {
    std::vector<const Sequence*> queue;
    for (const Owned& s : waiting_) queue.push_back(s.get());
    if (settings_.policy != Policy::SglangLpm || !settings_.prefix_caching ||
        queue.size() > longest_sorted) {
      return queue;
    }
    std::unordered_map<const Sequence*, std::int64_t> hit_blocks;
    std::set<std::uint64_t> begun;  // of those that are not put back, the shared pieces
    const std::uint64_t shared = (shared_tokens + settings_.block_size - 1) / settings_.block_size;
    for (const Sequence* s : queue) {
      const std::uint64_t blocks = hits(*s).size();
      const bool is_long = s->pieces.size() >= shared;
      const bool again = is_long && begun.contains(s->pieces[shared - 1]);
      if (blocks * settings_.block_size <= shared_tokens && again) {
        hit_blocks[s] = -1;
        continue;
      }
      hit_blocks[s] = static_cast<std::int64_t>(blocks);
      if (is_long) begun.insert(s->pieces[shared - 1]);
    }
    std::stable_sort(queue.begin(), queue.end(), [&](const Sequence* a, const Sequence* b) {
      return hit_blocks.at(a) > hit_blocks.at(b);
    });
    return queue;
  }

  bool plan_prompts() {
    if (waiting_.empty() && !has_cut()) return false;
    const std::uint64_t size = settings_.block_size;
    double expected = 0;
    for (const Owned& s : running_) expected += s.get() != cut_ ? expected_new(*s) : 0;
    const double room = static_cast<double>(available() * size) - expected * ratio_;
    const std::uint64_t beside = settings_.mixed_chunk ? num_decoding() : 0;
    auto used = static_cast<double>(beside);
    std::uint64_t input = settings_.max_num_batched_tokens;
    std::uint64_t chunk = settings_.chunked_prefill_size;
    input -= std::min(input, beside);
    chunk -= std::min(chunk, beside);
    std::uint64_t promised = 0;  // blocks
    const auto add = [&](Sequence& s, std::uint64_t tokens) {
      promised += blocks_for(s, s.computed + tokens) - s.blocks.size();
      used += static_cast<double>(tokens);
      input -= std::min(input, tokens);
      chunk -= tokens;
      const bool whole = s.computed + tokens == s.known;
      if (whole) used += expected_new(s);
      cut_ = whole ? nullptr : &s;
      run(s, tokens);
      return whole;
    };
    bool whole = true;
    const std::uint64_t most =
        std::max<std::uint64_t>(1, settings_.max_num_seqs / settings_.pipeline_stages);
    auto here = static_cast<std::uint64_t>(std::count_if(
        running_.begin(), running_.end(), [](const Owned& s) { return s->under_way == 0; }));
    if (has_cut()) {
      Sequence& s = *running_.back();
      const std::uint64_t blocks = available() + s.blocks.size();
      const std::uint64_t tokens = last_that(1, std::min(s.left(), chunk), [&](std::uint64_t n) {
        return blocks_for(s, s.computed + n) <= blocks;
      });
      if (tokens == 0) return false;
      whole = add(s, tokens);
    }
    for (const Sequence* s : order()) {
      if (!whole || room - used <= 0 || input == 0 || chunk == 0) break;
      if (here >= most) break;
      const std::vector<BlockPool::Block> found = hits(*s);
      std::uint64_t locked = 0;  // blocks that could be dropped so far
      for (std::size_t b = 0; b < found.size(); ++b) {
        if (tree_.is_unused(s->pieces[b])) ++locked;
      }
      const auto of_hits = static_cast<double>(locked * size);
      const std::uint64_t extend = s->known - found.size() * size;
      if (static_cast<double>(extend) + expected_new(*s) >= room - used - of_hits) break;
      if (extend > input && !parts_.empty()) break;
      const std::uint64_t tokens = extend <= chunk ? extend : chunk / size * size;
      if (tokens == 0) break;
      const std::uint64_t own = blocks_for(*s, found.size() * size + tokens) - found.size();
      if (promised + own > available() - locked) break;
      const auto place = std::find_if(waiting_.begin(), waiting_.end(),
                                      [s](const Owned& w) { return w.get() == s; });
      Sequence& started = start(take_waiting(static_cast<std::size_t>(place - waiting_.begin())));
      ++here;
      take_hits(started, found);
      ++clock_;
      for (std::size_t b = 0; b < found.size(); ++b) {
        tree_.use(started.pieces[b]);
        tree_.touch(started.pieces[b], clock_);
      }
      used += of_hits;
      whole = add(started, tokens);
    }
    for (const ScheduledPart& part : parts_) take_blocks(*part.sequence, part.tokens);
    return !parts_.empty();
  }

  void plan_decode() {
    bool retracted = false;
    while (num_new_blocks(running_.size()) > available()) {
      retract();
      retracted = true;
    }
    double made = 0;
    double most = 1;
    for (const Owned& s : running_) {
      if (!decodes(*s)) continue;
      made += static_cast<double>(s->generated + retract_steps);
      most += static_cast<double>(s->leaves_after);
    }
    if (made == 0) return;
    if (retracted) {
      ratio_ = std::min(1.0, made / most);
    } else {
      const double least = last_ratio * first_ratio_;
      ratio_ = std::max(least, ratio_ - (first_ratio_ - least) / ratio_steps);
    }
    decode(running_.size());
  }

  /// Of the first `count` running ones, those that do.
  void decode(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      if (!decodes(*running_[i])) continue;
      take_blocks(*running_[i], 1);
      run(*running_[i], 1);
    }
  }

  std::uint64_t num_decoding() const {
    return static_cast<std::uint64_t>(std::count_if(
        running_.begin(), running_.end(), [this](const Owned& s) { return decodes(*s); }));
  }
  /// That these take.
  std::uint64_t num_new_blocks(std::size_t count) const {
    std::uint64_t blocks = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Sequence& s = *running_[i];
      if (decodes(s)) blocks += blocks_for(s, s.known) - s.blocks.size();
    }
    return blocks;
  }

  /// The decoding one with the fewest tokens made, of those the longest prompt, the latest; if
  /// only one decodes, the cut one.
  void retract() {
    const auto rank = [this](std::size_t i) {
      const Sequence& s = *running_[i];
      return std::pair(s.generated, ~s.request.prompt_tokens);
    };
    std::size_t worst = running_.size();
    std::size_t decoding = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (!decodes(*running_[i])) continue;
      ++decoding;
      if (worst == running_.size() || rank(i) <= rank(worst)) worst = i;
    }
    if (decoding == 1 && has_cut() && cut_->under_way == 0) {
      worst = running_.size() - 1;
      cut_ = nullptr;
    }
    preempt(worst, true);
  }

  void take_blocks(Sequence& s, std::uint64_t tokens) {
    const std::uint64_t blocks = blocks_for(s, s.computed + tokens);
    while (pool_.num_free() + s.blocks.size() < blocks) tree_.evict();
    grow(s, blocks);
    peak_ = std::max(peak_, pool_.size() - available());
  }

  void after_computing(Sequence& s, std::uint64_t computed) override {
    const std::uint64_t full = std::min<std::uint64_t>(computed / settings_.block_size,
                                                       std::min(s.pieces.size(), s.blocks.size()));
    for (; s.entered < full; ++s.entered) {
      const std::uint64_t piece = s.pieces[s.entered];
      BlockPool::Block& own = s.blocks[s.entered];
      if (const auto known = tree_.find(piece)) {  // computed twice
        pool_.hold(*known);
        pool_.release(own);
        own = *known;
      } else {
        tree_.insert(piece, s.entered == 0 ? std::nullopt : std::optional(s.pieces[s.entered - 1]),
                     own);
      }
      tree_.use(piece);
    }
  }

  void give_back(Sequence& s) override {
    ++clock_;
    for (std::size_t b = 0; b < s.entered; ++b) {
      tree_.touch(s.pieces[b], clock_);
      tree_.stop_using(s.pieces[b]);
    }
    Scheduler::give_back(s);
  }

  PrefixTree tree_;
  std::uint64_t clock_ = 0;
  std::uint64_t peak_ = 0;
  const Sequence* cut_ = nullptr;  ///< whose prompt goes on in the next step
  const double first_ratio_;
  double ratio_;
};

}  // namespace

std::unique_ptr<Scheduler> make_sglang(const SchedulerSettings& settings) {
  return std::make_unique<Sglang>(settings);
}

}  // namespace kvcast::simulate
