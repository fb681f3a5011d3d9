#include "simulate/serving/scheduler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include <boost/functional/hash.hpp>
#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/words.h"
#include "simulate/serving/policies.h"

namespace kvcast::simulate {
namespace {

constexpr Words<Policy, 9> policies = {{{Policy::VllmV1, "vllm-v1"},
                                        {Policy::VllmV0, "vllm-v0"},
                                        {Policy::Sarathi, "sarathi"},
                                        {Policy::Orca, "orca"},
                                        {Policy::Static, "static"},
                                        {Policy::TrtllmGuaranteed, "trtllm-guaranteed"},
                                        {Policy::TrtllmUtilization, "trtllm-utilization"},
                                        {Policy::Sglang, "sglang"},
                                        {Policy::SglangLpm, "sglang-lpm"}}};

/// Names part `i` of n of a block: ids are any 64 bits, so that large ones need a hash.
std::uint64_t piece_of(std::uint64_t block, std::uint64_t i, std::uint64_t n) {
  if (block < std::numeric_limits<std::uint64_t>::max() / n) return block * n + i;
  std::size_t name = block;
  boost::hash_combine(name, i);
  return name;
}

/// What full block `b` of the prompt holds, if the request says so. Its own blocks may be longer or
/// shorter than the cache's, if one divides the other.
std::optional<std::uint64_t> piece_at(const ServingRequest& r, const SchedulerSettings& s,
                                      std::uint64_t b) {
  const std::uint64_t of_request = s.request_block_tokens;
  if (!s.prefix_caching || of_request == 0 || b >= r.prompt_tokens / s.block_size) return {};
  const bool longer = of_request >= s.block_size;
  const std::uint64_t in_each = longer ? of_request / s.block_size : 1;
  const std::uint64_t own = longer ? b / in_each : (b + 1) * s.block_size / of_request - 1;
  if (own >= r.blocks.size()) return {};
  return longer ? piece_of(r.blocks[own], b % in_each, in_each) : r.blocks[own];
}

}  // namespace

std::string_view name(Policy policy) { return word_for(policy, policies); }

Policy parse_policy(std::string_view text) { return parse_word("scheduler", text, policies); }

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const auto& [policy, word] : policies) names.emplace_back(word);
  return names;
}

void SchedulerSettings::check() const {
  const auto above_zero = [](const char* what, std::uint64_t value) {
    if (value == 0) throw Error(what, "0", "at least 1");
  };
  above_zero("max_num_batched_tokens", max_num_batched_tokens);
  above_zero("max_num_seqs", max_num_seqs);
  above_zero("num_blocks", num_blocks);
  above_zero("block_size", block_size);
  above_zero("chunked_prefill_size", chunked_prefill_size);
  above_zero("num_scheduler_steps", num_scheduler_steps);
  above_zero("pipeline_stages", pipeline_stages);
  if (num_blocks > all_blocks) {
    throw Error("num_blocks", std::to_string(num_blocks), fmt::format("at most {}", all_blocks));
  }
  const auto cut_at_blocks = [this](const char* what, std::uint64_t tokens) {
    if (tokens >= block_size) return;
    throw Error(what, std::to_string(tokens),
                fmt::format("at least block_size, {}: prompts are cut at blocks", block_size));
  };
  if (policy == Policy::Sglang || policy == Policy::SglangLpm) {
    cut_at_blocks("chunked_prefill_size", chunked_prefill_size);
  }
  const bool is_trtllm = policy == Policy::TrtllmGuaranteed || policy == Policy::TrtllmUtilization;
  if (is_trtllm && chunked_prefill) cut_at_blocks("max_num_batched_tokens", max_num_batched_tokens);
  if (!(watermark >= 0 && watermark < 1)) {
    throw Error("watermark", fmt::format("{:g}", watermark), "a share from 0 to below 1");
  }
  if (!(batch_wait_max_tokens_ratio >= 0 && batch_wait_max_tokens_ratio <= 1)) {
    throw Error("batch_wait_max_tokens_ratio", fmt::format("{:g}", batch_wait_max_tokens_ratio),
                "a share from 0 to 1");
  }
  if (!(conservativeness > 0 && std::isfinite(conservativeness))) {
    throw Error("conservativeness", fmt::format("{:g}", conservativeness), "a number above 0");
  }
  const bool reserves = policy == Policy::Orca || policy == Policy::Static;
  if (reserves && max_model_len == 0) {
    throw Error(fmt::format("scheduler {}", name(policy)), "no max_model_len",
                "the length that it reserves for each sequence");
  }
  if (!prefix_caching || request_block_tokens == 0) return;
  if (request_block_tokens % block_size != 0 && block_size % request_block_tokens != 0) {
    throw Error("block_size", std::to_string(block_size),
                fmt::format("a divisor or a multiple of the requests' blocks of {} tokens",
                            request_block_tokens));
  }
}

Scheduler::Scheduler(const SchedulerSettings& settings)
    : settings_(settings), pool_(settings.num_blocks) {}

std::uint64_t Scheduler::most_blocks(const Sequence& s) const {
  return blocks_for(s, s.most_cached());
}

std::optional<std::string> Scheduler::refusal(const Sequence& s) const {
  const ServingRequest& r = s.request;
  const std::uint64_t tokens = r.prompt_tokens + r.output_tokens;
  if (settings_.max_model_len > 0 && tokens > settings_.max_model_len) {
    return fmt::format("prompt and output of {} tokens, beyond the {} of max_model_len", tokens,
                       settings_.max_model_len);
  }
  if (!cuts_prompts() && r.prompt_tokens > settings_.max_num_batched_tokens) {
    return fmt::format("a prompt of {} tokens, beyond the {} of a step", r.prompt_tokens,
                       settings_.max_num_batched_tokens);
  }
  if (most_blocks(s) > pool_.size()) {
    return fmt::format("{} blocks of cache, beyond the {} that there are", most_blocks(s),
                       pool_.size());
  }
  return {};
}

std::optional<std::string> Scheduler::add(std::unique_ptr<Sequence>& s) {
  if (s->leaves_after == 0) s->leaves_after = s->request.output_tokens;
  s->known = s->request.prompt_tokens + s->generated;
  if (auto reason = refusal(*s)) {
    ++counts_.rejected;
    return reason;
  }
  s->pieces.clear();
  while (const auto piece = piece_at(s->request, settings_, s->pieces.size())) {
    s->pieces.push_back(*piece);
  }
  arrived_.push_back(std::move(s));
  if (!settings_.schedules_ahead) let_in();
  return {};
}

void Scheduler::let_in() {
  std::move(arrived_.begin(), arrived_.end(), std::back_inserter(waiting_));
  arrived_.clear();
}

const std::vector<ScheduledPart>& Scheduler::schedule() {
  while (true) {
    if (waiting_.empty() && running_.empty()) let_in();  // nothing was planned
    parts_.clear();
    const std::uint64_t preemptions = counts_.preemptions;
    plan();
    if (!parts_.empty() || waiting_.empty()) break;
    if (counts_.preemptions > preemptions) continue;  // there is room now
    if (!running_.empty()) break;
    // What an empty server cannot take would wait for ever.
    ++counts_.rejected;
    rejected_.push_back(take_waiting());
  }
  KVCAST_ASSERT(!parts_.empty() || running_.empty() || !under_way_.empty());
  let_in();
  for (ScheduledPart& part : parts_) {
    Sequence& s = *part.sequence;
    part.decodes = part.tokens == 1 && s.decodes();
    part.cached = s.computed;
    s.computed += part.tokens;
    KVCAST_ASSERT(s.computed <= s.known);
    part.makes_token = s.left() == 0;
    ++s.under_way;
    (part.decodes ? counts_.decode_tokens : counts_.prefill_tokens) += part.tokens;
  }
  counts_.peak_running = std::max<std::uint64_t>(counts_.peak_running, running_.size());
  if (parts_.empty()) return parts_;
  under_way_.push_back(std::exchange(parts_, std::move(spare_)));
  return under_way_.back();
}

std::vector<Scheduler::Owned> Scheduler::end_step(const std::function<void(Sequence&)>& told) {
  std::vector<ScheduledPart> parts = std::move(under_way_.front());
  under_way_.pop_front();
  std::vector<Owned> leave;
  bool some_leave = false;
  for (const ScheduledPart& part : parts) {
    Sequence& s = *part.sequence;
    --s.under_way;
    after_computing(s, part.cached + part.tokens);
    if (!part.makes_token) continue;
    ++s.known;
    ++s.generated;
    told(s);
    some_leave |= s.generated == s.leaves_after;
  }
  if (some_leave) {
    for (const ScheduledPart& part : parts) {  // in the order of the step
      if (part.sequence->generated == part.sequence->leaves_after) give_back(*part.sequence);
    }
    for (Owned& s : running_) {
      if (s->generated == s->leaves_after) leave.push_back(std::move(s));
    }
    std::erase(running_, nullptr);
  }
  spare_ = std::move(parts);
  return leave;
}

std::uint64_t Scheduler::pending_tokens() const {
  std::uint64_t tokens = 0;
  for (const Owned& s : arrived_) tokens += s->left();
  for (const Owned& s : waiting_) tokens += s->left();
  for (const Owned& s : running_) tokens += s->left();
  return tokens;
}

void Scheduler::give_back(Sequence& s) {
  for (auto b = s.blocks.rbegin(); b != s.blocks.rend(); ++b) pool_.release(*b);
  s.blocks.clear();
  s.entered = 0;
}

std::vector<BlockPool::Block> Scheduler::hits(const Sequence& s) const {
  std::vector<BlockPool::Block> found;
  const std::uint64_t most =
      std::min<std::uint64_t>(s.pieces.size(), (s.known - 1) / settings_.block_size);
  while (found.size() < most) {
    const std::optional<BlockPool::Block> block = find_piece(s.pieces[found.size()]);
    if (!block) break;
    found.push_back(*block);
  }
  return found;
}

std::size_t Scheduler::num_hits(const ServingRequest& request) const {
  const std::uint64_t most = (request.prompt_tokens - 1) / settings_.block_size;
  std::size_t hits = 0;  // piece by piece: a prompt that no server takes may be long
  while (hits < most) {
    const std::optional<std::uint64_t> piece = piece_at(request, settings_, hits);
    if (!piece || !find_piece(*piece)) break;
    ++hits;
  }
  return hits;
}

std::uint64_t Scheduler::num_free_among(const std::vector<BlockPool::Block>& blocks) const {
  return static_cast<std::uint64_t>(std::count_if(
      blocks.begin(), blocks.end(), [this](BlockPool::Block b) { return pool_.is_free(b); }));
}

void Scheduler::take_hits(Sequence& s, const std::vector<BlockPool::Block>& found) {
  for (const BlockPool::Block block : found) pool_.hold(block);
  s.blocks = found;
  s.entered = found.size();
  s.computed = found.size() * settings_.block_size;
  // What another server has sent was not to be computed.
  const std::uint64_t spared = s.computed - std::min(s.computed, s.received);
  s.hit_tokens += spared;
  counts_.hit_tokens += spared;
}

bool Scheduler::allocate(Sequence& s, std::uint64_t tokens) {
  const std::uint64_t blocks = blocks_for(s, tokens);
  if (blocks > s.blocks.size() && blocks - s.blocks.size() > pool_.num_free()) return false;
  grow(s, blocks);
  enter_pieces(s, tokens);
  return true;
}

void Scheduler::grow(Sequence& s, std::uint64_t blocks) {
  while (s.blocks.size() < blocks) s.blocks.push_back(pool_.take());
}

void Scheduler::enter_pieces(Sequence& s, std::uint64_t tokens) {
  const std::uint64_t full = std::min<std::uint64_t>(tokens / settings_.block_size,
                                                     std::min(s.pieces.size(), s.blocks.size()));
  for (; s.entered < full; ++s.entered) pool_.enter(s.blocks[s.entered], s.pieces[s.entered]);
}

Scheduler::Owned Scheduler::take_waiting(std::size_t index) {
  Owned s = std::move(waiting_[index]);
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
  return s;
}

Sequence& Scheduler::start(Owned s) {
  running_.push_back(std::move(s));
  running_.back()->admitted = running_.back()->known;
  return *running_.back();
}

void Scheduler::preempt(std::size_t index, bool behind) {
  Owned s = std::move(running_[index]);
  KVCAST_ASSERT(s->under_way == 0);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  give_back(*s);
  s->computed = 0;
  s->received = 0;
  ++s->preemptions;
  ++counts_.preemptions;
  if (behind) {
    waiting_.push_back(std::move(s));
  } else {
    waiting_.push_front(std::move(s));
  }
}

std::unique_ptr<Scheduler> make_scheduler(const SchedulerSettings& settings) {
  settings.check();
  switch (settings.policy) {
    case Policy::VllmV1: return make_vllm_v1(settings);
    case Policy::VllmV0: return make_vllm_v0(settings);
    case Policy::Sarathi: return make_sarathi(settings);
    case Policy::Orca:
    case Policy::Static: return make_reserving(settings);
    case Policy::TrtllmGuaranteed:
    case Policy::TrtllmUtilization: return make_tensorrt_llm(settings);
    case Policy::Sglang:
    case Policy::SglangLpm: return make_sglang(settings);
  }
  KVCAST_ASSERT(false);
  return {};
}

}  // namespace kvcast::simulate
