#include "model/record/rank_recording.h"

#include <algorithm>
#include <string>

#include "model/base/error.h"

namespace kvcast {
namespace {

void check(const Plan& plan, const std::vector<MethodSpec>& methods, const RankShare& share,
           const std::optional<DevicePlace>& place) {
  if (!plan.placement) {
    throw Error("methods " + to_string(methods), "no placement", "kvr:p=P or tsp:p=P among them");
  }
  const std::string where = "method " + plan.placement->method;
  if (share.ranks() != plan.placement->ranks) {
    throw Error(where, std::to_string(share.ranks()) + " ranks",
                std::to_string(plan.placement->ranks));
  }
  KVCAST_ASSERT(share.rank < share.ranks());
  if (plan.model.encoder_decoder) {
    throw Error(where, "the encoder-decoder model " + plan.model.name, "a decoder-only model");
  }
  if (place && (place->plan.pp > 1 || place->plan.dp > 1)) {
    throw Error(where, to_string(place->plan), "tp alone: each rank is such a group of devices");
  }
  for (const auto& [method, reason] : plan.not_spread) {
    throw Error(where + ": cannot be combined with " + method + ", " + reason);
  }
  if (share.ranks() == 1) return;
  if (plan.whole_prompt && !plan.selection) {
    throw Error(where, "methods " + to_string(methods) + " that read the prompt in one piece",
                "one rank");
  }
  if (plan.model.decoder.shared_keys == SharedKeys::Released) {
    throw Error(where, "the released semantics of MLKV, where parts of a prompt give other logits",
                "semantics=paper");
  }
}

/// What the methods plan for the passes of `recording`, whose symbols it uses.
Plan plan_of(Recording& recording, const Architecture& configured,
             const std::vector<MethodSpec>& methods, const RecordOptions& options) {
  Plan plan{{configured}, recording.symbols};
  plan.find_model = options.find_model;
  apply_methods(methods, plan);
  return plan;
}

Count past_of(const RankShare& share) {
  return share.rank == 0 ? Count(0) : Count(symbol::kv_len) - symbol::prompt_len;
}

Graph record_prefill(const Plan& plan, const Lowering& lowering, const RankShare& share,
                     const CacheExchange& exchange, bool given_positions,
                     const RecordOptions& options) {
  Logits logits = options.logits;
  if (!share.is_last() && logits == Logits::Last) logits = Logits::None;
  std::optional<Sharding> sharding;
  if (options.place && !options.place->plan.is_one()) sharding.emplace(plan.model, *options.place);
  Recorder r(plan.symbols, lowering, {}, share.ranks() > 1 ? &exchange : nullptr,
             sharding ? &*sharding : nullptr);
  record_decoder(r, sharding ? sharding->part() : plan.model,
                 {.batch = symbol::batch,
                  .tokens = symbol::prompt_len,
                  .past = past_of(share),
                  .encoder_len = 0,
                  .logits = logits,
                  .attention = plan.base_attention(),
                  .cross = plan.cross,
                  .given_positions = given_positions,
                  .later = exchange.later});
  return r.take();
}

}  // namespace

std::vector<MethodSpec> without_placement(std::vector<MethodSpec> methods) {
  std::erase_if(methods, [](const MethodSpec& spec) {
    return find_method(spec.name).kind == MethodKind::Placement;
  });
  return methods;
}

Recording record_rank(const Architecture& configured, const std::vector<MethodSpec>& methods,
                      const Lowering& lowering, const RankShare& share,
                      const RecordOptions& options) {
  return record_rank(record(configured, without_placement(methods), lowering, options), configured,
                     methods, lowering, share, options);
}

Recording record_rank(Recording recording, const Architecture& configured,
                      const std::vector<MethodSpec>& methods, const Lowering& lowering,
                      const RankShare& share, const RecordOptions& options) {
  const Plan plan = plan_of(recording, configured, methods, options);
  check(plan, methods, share, options.place);
  const CacheExchange exchange = plan.placement->exchange(share);
  recording.pass(prefill_name).graph =
      record_prefill(plan, lowering, share, exchange, recording.given_positions, options);
  // With a selection the slots are those of all kept tokens, whatever the rank's part.
  if (!plan.selection) {
    const bool goes_on = share.decodes() && share.ranks() > 1;  // with all rows of the prompt
    recording.prompt_slots =
        goes_on ? Count(symbol::kv_len) : past_of(share) + symbol::prompt_len + exchange.later;
  }
  return recording;
}

ChainPasses record_chain(Recording whole, const Architecture& configured,
                         const std::vector<MethodSpec>& methods, const Lowering& lowering,
                         const RecordOptions& options) {
  const Plan plan = plan_of(whole, configured, methods, options);
  const auto prefill = [&](std::size_t rank) {
    const RankShare share{{1, 1, 1}, rank};
    return record_prefill(plan, lowering, share, chain_exchange(share), whole.given_positions,
                          options);
  };
  ChainPasses passes{{}, prefill(1), prefill(2)};
  passes.symbols = whole.symbols;
  return passes;
}

std::uint64_t shared_tokens(const Recording& recording, std::uint64_t prompt_len) {
  if (!recording.selection) return prompt_len;
  return recording.prompt_slots.at(recording.symbols.resolve({1, prompt_len, 1}));
}

}  // namespace kvcast
