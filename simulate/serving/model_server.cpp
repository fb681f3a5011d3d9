#include "simulate/serving/model_server.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/last_that.h"
#include "model/base/quantity.h"
#include "model/record/rank_recording.h"
#include "simulate/serving/serving_scenario.h"

namespace kvcast::simulate {
namespace {

using roofline::Configuration;
using roofline::Engine;

/// A default of the engine's scheduler.
std::optional<nlohmann::json> value_of(const Engine& engine, const std::string& key) {
  for (const roofline::EngineValue& v : engine.values) {
    if (v.key == "scheduler." + key) return nlohmann::json::parse(v.value);
  }
  return {};
}

template <typename Number>
void take(const Engine& engine, const std::string& key, Number& number) {
  if (const auto value = value_of(engine, key)) number = value->get<Number>();
}

/// vLLM takes its smaller defaults below 70 GiB and on every A100 (engine/arg_utils.py of 0.11.0;
/// A100: pull request 17885).
bool is_large(const roofline::Hardware& h) {
  return h.memory_capacity.value >= 70.0 * (1ull << 30) && !h.name.starts_with("a100");
}

class ModelClock : public StepClock {
 public:
  ModelClock(const Configuration& c, const roofline::PrefillGroup& group) {
    for (std::uint64_t stage = 0; stage < c.parallelism.pp; ++stage) {
      steps_.emplace_back(c, group, stage);
      if (stage + 1 < c.parallelism.pp) hops_.push_back(roofline::hop_to_next_stage(c, stage));
    }
  }
  /// By stage.
  const std::deque<roofline::ServerStep>& steps() const { return steps_; }

  double seconds(std::span<const ScheduledPart> parts) override {
    add(steps_[0], parts);
    return steps_[0].take().value;
  }
  void stages(std::span<const std::span<const ScheduledPart>> ranks,
              std::vector<StageSeconds>& stages) override {
    stages.resize(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      for (const auto& parts : ranks) {
        add(steps_[i], parts);
        if (ranks.size() > 1) steps_[i].next_rank();
      }
      stages[i].hop = i < hops_.size() ? hops_[i].at(steps_[i].hop_bytes()) : 0;
      stages[i].work = steps_[i].take().value;
    }
  }
  double seconds_before(const ServingRequest& /*r*/) override { return host().request.value; }
  double tokenising_seconds(const ServingRequest& r) override {
    return static_cast<double>(r.prompt_tokens) * host().token.value;
  }
  std::uint64_t dropped_tokens(const ServingRequest& r) override {
    return r.prompt_tokens - steps_[0].slots(r.prompt_tokens);
  }
  std::optional<std::string> refuses(const ServingRequest& r) override {
    try {
      steps_[0].check_prompt(r.prompt_tokens);
    } catch (const Error& e) {
      return e.what();
    }
    return {};
  }

 private:
  static void add(roofline::ServerStep& step, std::span<const ScheduledPart> parts) {
    for (const ScheduledPart& part : parts) {
      const Sequence& s = *part.sequence;
      if (part.decodes) {
        step.add_decode(s.known - s.dropped);
      } else {
        step.add_prompt({part.tokens, part.cached});
      }
    }
  }
  const roofline::HostTimes& host() const { return steps_[0].rates().host; }

  std::deque<roofline::ServerStep> steps_;
  std::vector<roofline::CollectiveCurve> hops_;  ///< from each stage to the next
};

/// Rows of cache that so many tokens and the sequence's states fill; empty: as many. In vLLM, too,
/// states are in blocks of the same pool ("Setting attention block size to 544 tokens to ensure
/// that attention page size is >= mamba page size").
std::function<std::uint64_t(std::uint64_t)> cache_rows(const roofline::ServerStep& step) {
  const Recording& r = step.recording();
  const Symbols symbols = r.symbols;
  const Count bytes = r.kv_cache_bytes;
  const double per_token = step.cache_bytes_per_token();
  const auto rows = [symbols, bytes, per_token](std::uint64_t tokens) {
    if (tokens == 0) return std::uint64_t{0};
    const double all = static_cast<double>(bytes.at(symbols.resolve({1, 1, tokens})));
    return static_cast<std::uint64_t>(std::ceil(all / per_token));
  };
  constexpr std::uint64_t many = std::uint64_t{1} << 20;
  if (rows(many) == many) return {};
  // Asked for at each step, so each length is counted once.
  return [rows, known = std::make_shared<std::vector<std::uint64_t>>()](std::uint64_t tokens) {
    if (tokens >= known->size()) known->resize(tokens + 1);
    std::uint64_t& value = (*known)[tokens];
    if (value == 0) value = rows(tokens);
    return value;
  };
}

/// The stage whose states take most rows of a cache beside them.
const roofline::ServerStep& stage_with_cache(const std::deque<roofline::ServerStep>& stages) {
  const auto rows_of_states = [](const roofline::ServerStep& step) {
    if (step.cache_bytes_per_token() == 0) return -1.0;  // none of its layers attends
    const Recording& r = step.recording();
    const Count& bytes = r.state_bytes;
    return static_cast<double>(bytes.at(r.symbols.resolve({1, 1, 1}))) /
           step.cache_bytes_per_token();
  };
  return *std::max_element(stages.begin(), stages.end(), [&](const auto& a, const auto& b) {
    return rows_of_states(a) < rows_of_states(b);
  });
}

/// Of a token in the caches that helper models keep of a prompt.
double helper_cache_bytes_per_token(const Recording& r) {
  constexpr std::uint64_t tokens = 4096;
  double bytes = 0;
  for (const RecordedPass& pass : r.helpers()) {
    bytes += static_cast<double>(pass.cache_bytes.at(r.symbols.resolve({1, tokens, tokens})));
  }
  return bytes / static_cast<double>(tokens);
}

}  // namespace

Policy default_policy(const Engine& engine) {
  const auto rules = value_of(engine, "rules");
  if (!rules) return Policy::VllmV1;
  try {
    return parse_policy(rules->get<std::string>());
  } catch (const Error& e) {
    throw Error("engine " + engine.name + ": scheduler.rules", e);
  }
}

void keep_prompts_whole(const std::vector<MethodSpec>& methods, std::string_view scheduler,
                        const std::string& place, SchedulerSettings& s) {
  const auto refuse = [&](const std::string& where, const std::string& expected) {
    throw Error(where, "method " + to_string(methods) + ", which needs prompts in one piece",
                expected);
  };
  const bool cuts =
      s.policy == Policy::Sarathi || s.policy == Policy::Sglang || s.policy == Policy::SglangLpm;
  if (cuts) {
    refuse(fmt::format("scheduler {}", name(s.policy)),
           "vllm-v0, vllm-v1, orca, static or TensorRT-LLM's");
  }
  s.chunked_prefill = false;
  s.prefix_caching = false;
  s.long_prefill_token_threshold = 0;
  s.max_num_batched_tokens = std::max(s.max_num_batched_tokens, s.max_model_len);
  if (scheduler.empty()) return;
  SchedulerSettings asked = s;
  set_scheduler(scheduler, place, asked);
  if (asked.chunked_prefill) refuse(place, "chunked_prefill=false");
  if (asked.prefix_caching) refuse(place, "prefix_caching=false");
  if (asked.long_prefill_token_threshold > 0) refuse(place, "long_prefill_token_threshold=0");
  if (asked.max_num_batched_tokens < s.max_num_batched_tokens) {
    refuse(place, fmt::format("max_num_batched_tokens={} or more, a prompt of max_model_len",
                              s.max_num_batched_tokens));
  }
}

SchedulerSettings default_settings(Policy policy, const Configuration& c,
                                   std::uint64_t max_model_len) {
  SchedulerSettings s;
  s.policy = policy;
  s.max_model_len = max_model_len > 0 ? max_model_len : c.architecture.max_position_embeddings;
  // Each policy's own, from the versions that their names stand for.
  switch (policy) {
    case Policy::VllmV1: {
      const bool large = is_large(c.hardware);
      s.max_num_batched_tokens = large ? 8192 : 2048;
      s.max_num_seqs = large ? 1024 : 256;
      s.prefix_caching = true;
      break;
    }
    case Policy::VllmV0:
      s.max_num_batched_tokens = std::max<std::uint64_t>(s.max_model_len, 2048);
      break;
    case Policy::Sarathi:
      s.max_num_batched_tokens = 512;
      s.max_num_seqs = 128;
      break;
    case Policy::Orca:
    case Policy::Static: s.max_num_seqs = 128; break;
    case Policy::TrtllmGuaranteed:
    case Policy::TrtllmUtilization:
      s.max_num_batched_tokens = 8192;
      s.max_num_seqs = 2048;
      s.block_size = 32;
      s.prefix_caching = true;
      s.chunked_prefill = false;
      s.schedules_ahead = true;
      break;
    case Policy::Sglang:
    case Policy::SglangLpm:
      s.max_num_batched_tokens = 16384;
      s.max_num_seqs = 2048;  // at least; model_runner.py of 0.5.3
      s.prefix_caching = true;
      s.schedules_ahead = true;
      break;
  }
  // vLLM 0.11 says "Hybrid or mamba-based model detected: disabling prefix caching since it is not
  // yet supported"; with it switched on, 0.26 finds no shared prefix (vllm-project/vllm, issue
  // 51250).
  const bool can_share = !has_states(c.architecture.decoder);
  s.prefix_caching = s.prefix_caching && can_share;
  const Engine& engine = c.engine;
  const bool is_sglang = policy == Policy::SglangLpm && default_policy(engine) == Policy::Sglang;
  if (!value_of(engine, "rules") || (default_policy(engine) != policy && !is_sglang)) return s;
  take(engine, "max_running_sequences", s.max_num_seqs);
  const bool in_chunks = policy == Policy::Sglang || policy == Policy::SglangLpm;
  std::uint64_t& tokens = in_chunks ? s.chunked_prefill_size : s.max_num_batched_tokens;
  take(engine, "max_batched_tokens", tokens);
  take(engine, "kv_block_tokens", s.block_size);
  if (can_share) take(engine, "prefix_caching", s.prefix_caching);
  take(engine, "chunked_prefill", s.chunked_prefill);
  take(engine, "reserve_full_prompt", s.reserve_full_prompt);
  take(engine, "schedules_ahead", s.schedules_ahead);
  if (!is_large(c.hardware)) {
    take(engine, "max_running_sequences_on_smaller_devices", s.max_num_seqs);
    take(engine, "max_batched_tokens_on_smaller_devices", tokens);
  }
  if (policy == Policy::VllmV0) {
    s.max_num_batched_tokens = std::max(s.max_num_batched_tokens, s.max_model_len);
  }
  return s;
}

namespace {

struct CacheSize {
  ServerMemory memory;  ///< of the stage with least room
  std::uint64_t blocks = all_blocks;
};

/// Of servers whose steps have so many tokens at most.
CacheSize cache_beside(const Configuration& c, const SchedulerSettings& s, const ModelClock& clock,
                       const std::optional<double>& memory_share, std::uint64_t tokens) {
  double share = 1;
  take(c.engine, "memory_share", share);
  share = memory_share.value_or(share);
  const bool of_rest = value_of(c.engine, "memory_share_of").value_or("") == "free memory";
  std::optional<CacheSize> least;
  for (const roofline::ServerStep& step : clock.steps()) {
    CacheSize size;
    ServerMemory& m = size.memory;
    m.capacity_bytes = step.rates().memory_capacity_bytes;
    m.weight_bytes = step.weight_bytes();
    m.activation_bytes = step.activation_bytes(tokens);
    m.block_bytes = static_cast<double>(s.block_size) *
                    (step.cache_bytes_per_token() + helper_cache_bytes_per_token(step.recording()));
    m.reserved_bytes = (1 - share) * (of_rest ? m.capacity_bytes - m.used() : m.capacity_bytes);
    const double blocks = (m.capacity_bytes - m.reserved_bytes - m.used()) / m.block_bytes;
    size.blocks =
        blocks < 1 ? 0
                   : static_cast<std::uint64_t>(std::min(blocks, static_cast<double>(all_blocks)));
    if (!least || size.blocks < least->blocks) least = size;
  }
  return *least;
}

/// Orca and static batches reserve the longest sequence, and may read as many whole prompts of that
/// length in one step as they have room for.
CacheSize cache_of_reserved(const Configuration& c, const SchedulerSettings& s,
                            const ModelClock& clock, const std::optional<double>& memory_share) {
  const std::uint64_t longest = s.max_model_len;
  const std::uint64_t rows = s.cache_rows ? s.cache_rows(longest) : longest;
  const std::uint64_t blocks_of_one = rows / s.block_size + (rows % s.block_size > 0 ? 1 : 0);
  const auto beside = [&](std::uint64_t sequences) {
    return cache_beside(c, s, clock, memory_share, sequences * longest);
  };
  if (s.num_blocks > 0) {
    return beside(std::clamp<std::uint64_t>(s.num_blocks / blocks_of_one, 1, s.max_num_seqs));
  }
  const std::uint64_t fit = last_that(1, s.max_num_seqs, [&](std::uint64_t sequences) {
    return beside(sequences).blocks / blocks_of_one >= sequences;
  });
  CacheSize size = beside(std::max<std::uint64_t>(fit, 1));
  size.blocks = fit * blocks_of_one;
  return size;
}

}  // namespace

ModelServer make_model_server(const Configuration& c, std::string_view scheduler,
                              const std::string& place, const std::optional<double>& memory_share,
                              roofline::PrefillGroup group) {
  const Parallelism& p = c.parallelism;
  if (p.dp > 1 && p.ep == 1) {  // replicas that share nothing
    Configuration one = c;
    one.parallelism.dp = 1;
    ModelServer server = make_model_server(one, scheduler, place, memory_share, std::move(group));
    server.servers.count *= p.dp;
    server.devices *= p.dp;
    return server;
  }
  SchedulerSettings asked;
  asked.policy = default_policy(c.engine);
  if (!scheduler.empty()) set_scheduler(scheduler, place, asked);
  SchedulerSettings s = default_settings(asked.policy, c, asked.max_model_len);
  s.num_blocks = 0;
  s.pipeline_stages = p.pp;
  if (!scheduler.empty()) set_scheduler(scheduler, place, s);
  const std::uint64_t context = c.architecture.max_position_embeddings;
  if (context > 0 && s.max_model_len > context) {
    throw Error(place + ": max_model_len", std::to_string(s.max_model_len),
                fmt::format("at most {}, the context of {}", context, c.architecture.name));
  }

  // The host prepares a row of steps once.
  Configuration of_steps = c;
  if (group) of_steps.methods = without_placement(c.methods);
  const auto in_row = static_cast<double>(s.num_scheduler_steps);
  of_steps.engine.host.step.value /= in_row;
  of_steps.engine.host.sequence.value /= in_row;
  const auto clock = std::make_shared<ModelClock>(of_steps, group);
  const roofline::ServerStep& first = clock->steps()[0];
  if (!first.takes_chunks()) keep_prompts_whole(c.methods, scheduler, place, s);
  s.cache_rows = cache_rows(stage_with_cache(clock->steps()));
  std::uint64_t most_tokens = s.max_num_batched_tokens;
  if (!first.takes_chunks() && s.max_model_len > 0) {
    most_tokens = std::min(most_tokens, s.max_model_len);
  }
  const bool reserves = s.policy == Policy::Orca || s.policy == Policy::Static;
  const CacheSize cache = reserves && first.takes_chunks() && s.max_model_len > 0
                              ? cache_of_reserved(c, s, *clock, memory_share)
                              : cache_beside(c, s, *clock, memory_share, most_tokens);
  const ServerMemory& m = cache.memory;
  if (s.num_blocks == 0) s.num_blocks = cache.blocks;
  if (s.num_blocks == 0) {
    const auto words = [](double bytes) { return format_quantity(bytes, Dimension::Bytes); };
    const std::string where = fmt::format("{} on {}", c.architecture.name, c.hardware.name);
    const double room = m.capacity_bytes - m.reserved_bytes - m.used();
    if (room > 0) {
      throw Error(where,
                  fmt::format("{} for the cache, where a block of {} tokens takes {}", words(room),
                              s.block_size, words(m.block_bytes)),
                  "smaller blocks (block_size) or more devices (--tp)");
    }
    throw Error(
        where,
        fmt::format("weights of {} and activations of {} beside {} of memory, {} of it left free",
                    words(m.weight_bytes), words(m.used() - m.weight_bytes),
                    words(m.capacity_bytes), words(m.reserved_bytes)),
        "room for a cache: more devices (--tp), narrower weights or smaller steps");
  }
  try {
    s.check();
  } catch (const Error& e) {
    throw Error(place, e);
  }
  Servers servers{std::move(s), clock, 1, p.dp};
  return {std::move(servers), m, p.devices()};
}

}  // namespace kvcast::simulate
