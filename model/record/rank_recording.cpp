#include "model/record/rank_recording.h"

#include <algorithm>
#include <string>

#include "model/base/error.h"

namespace kvcast {
namespace {

std::vector<MethodSpec> without_placement(const std::vector<MethodSpec>& methods) {
  std::vector<MethodSpec> rest;
  for (const MethodSpec& spec : methods) {
    if (find_method(spec.name).kind != MethodKind::Placement) rest.push_back(spec);
  }
  return rest;
}

void check(const Plan& plan, const std::vector<MethodSpec>& methods, const RankShare& share) {
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
  for (const auto& [method, expected] : plan.not_spread) {
    throw Error(where, "method " + method + " beside it", expected);
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

}  // namespace

Recording record_rank(const Architecture& configured, const std::vector<MethodSpec>& methods,
                      const Lowering& lowering, const RankShare& share, RecordOptions options) {
  Recording recording = record(configured, without_placement(methods), lowering, options);
  Plan plan{configured, recording.symbols, symbol::prompt_len};
  plan.find_model = options.find_model;
  apply_methods(methods, plan);
  check(plan, methods, share);

  if (!share.is_last() && options.logits == Logits::Last) options.logits = Logits::None;
  const CacheExchange exchange = plan.placement->exchange(share);
  Recorder r(recording.symbols, lowering, {}, share.ranks() > 1 ? &exchange : nullptr);
  const Count past = share.rank == 0 ? Count(0) : Count(symbol::kv_len) - symbol::prompt_len;
  record_decoder(r, plan.model,
                 {.batch = symbol::batch,
                  .tokens = symbol::prompt_len,
                  .past = past,
                  .encoder_len = 0,
                  .logits = options.logits,
                  .attention = plan.base_attention(),
                  .cross = plan.cross,
                  .given_positions = recording.given_positions,
                  .later = exchange.later});
  recording.pass(prefill_name).graph = r.take();
  // Of kept tokens as many, whatever the part of the rank that goes on with them.
  if (!plan.selection) {
    const bool goes_on = share.decodes() && share.ranks() > 1;  // with all rows of the prompt
    recording.prompt_slots =
        goes_on ? Count(symbol::kv_len) : past + symbol::prompt_len + exchange.later;
  }
  return recording;
}

std::uint64_t shared_tokens(const Recording& recording, std::uint64_t prompt_len) {
  if (!recording.selection) return prompt_len;
  return recording.prompt_slots.at(recording.symbols.resolve({1, prompt_len, 1}));
}

}  // namespace kvcast
