#include "simulate/serving/serving_scenario.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <variant>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "simulate/serving/option_text.h"

namespace kvcast::simulate {
namespace {

/// A member of SchedulerSettings by its name.
struct Setting {
  const char* key;
  std::variant<std::uint64_t SchedulerSettings::*, double SchedulerSettings::*,
               bool SchedulerSettings::*>
      member;
  std::uint64_t least = 1;
  /// How the names of the schedulers begin that read it; empty: all do.
  std::vector<std::string_view> of = {};

  bool is_of(Policy policy) const {
    const auto is = [policy](std::string_view word) { return name(policy).starts_with(word); };
    return of.empty() || std::any_of(of.begin(), of.end(), is);
  }
};
const Setting settings[]{
    {"max_num_batched_tokens",
     &SchedulerSettings::max_num_batched_tokens,
     1,
     {"vllm", "sarathi", "trtllm", "sglang"}},
    {"max_num_seqs", &SchedulerSettings::max_num_seqs},
    {"num_blocks", &SchedulerSettings::num_blocks},
    {"block_size", &SchedulerSettings::block_size},
    {"max_model_len", &SchedulerSettings::max_model_len},
    {"watermark", &SchedulerSettings::watermark, 1, {"vllm-v0", "sarathi"}},
    {"prefix_caching", &SchedulerSettings::prefix_caching, 1, {"vllm-v1", "trtllm", "sglang"}},
    {"reserve_full_prompt", &SchedulerSettings::reserve_full_prompt, 1, {"vllm-v1"}},
    {"num_scheduler_steps", &SchedulerSettings::num_scheduler_steps, 1, {"vllm-v0"}},
    {"schedules_ahead", &SchedulerSettings::schedules_ahead},
    {"batch_wait_timeout_iters", &SchedulerSettings::batch_wait_timeout_iters, 0, {"trtllm"}},
    {"batch_wait_max_tokens_ratio", &SchedulerSettings::batch_wait_max_tokens_ratio, 0, {"trtllm"}},
    {"chunked_prefill", &SchedulerSettings::chunked_prefill, 1, {"vllm-v1", "trtllm"}},
    {"long_prefill_token_threshold",
     &SchedulerSettings::long_prefill_token_threshold,
     0,
     {"vllm-v1"}},
    {"chunked_prefill_size", &SchedulerSettings::chunked_prefill_size, 1, {"sglang"}},
    {"conservativeness", &SchedulerSettings::conservativeness, 0, {"sglang"}},
    {"mixed_chunk", &SchedulerSettings::mixed_chunk, 1, {"sglang"}}};

double cost_at(const JsonObject& o, const char* key) {
  const double seconds = o.number_or(key, 0);
  if (seconds < 0) o.fail(key, "zero or a number of seconds above it");
  return seconds;
}

}  // namespace

double ExplicitCost::seconds(std::span<const ScheduledPart> parts) {
  double sum = base_s;
  for (const ScheduledPart& part : parts) {
    const auto n = static_cast<double>(part.tokens);
    const auto c = static_cast<double>(part.cached);
    sum += part.decodes ? decode_seq_s + decode_kv_token_s * (c + 1)
                        : prefill_token_s * n + prefill_pair_s * (n * c + n * (n + 1) / 2);
  }
  return sum;
}

void set_scheduler(const JsonObject& o, SchedulerSettings& s) {
  for (const Setting& setting : settings) {
    std::visit(
        [&](auto member) {
          auto& value = s.*member;
          using Value = std::remove_reference_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, bool>) {
            value = o.flag_or(setting.key, value);
          } else if constexpr (std::is_same_v<Value, double>) {
            value = o.number_or(setting.key, value);
          } else {
            value = o.whole_or(setting.key, value, setting.least);
          }
        },
        setting.member);
  }
}

void set_scheduler(std::string_view text, const std::string& place, SchedulerSettings& s) {
  const OptionText o(text, place);
  try {
    s.policy = parse_policy(o.name());
  } catch (const Error& e) {
    throw Error(place, e);
  }
  for (const Setting& setting : settings) {
    if (!setting.is_of(s.policy)) continue;
    std::visit(
        [&](auto member) {
          auto& value = s.*member;
          using Value = std::remove_reference_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, bool>) {
            value = o.flag(setting.key, value);
          } else if constexpr (std::is_same_v<Value, double>) {
            value = o.number(setting.key, 0, 1e6, value);
          } else {
            value = o.whole(setting.key, setting.least, max_request_tokens, value);
          }
        },
        setting.member);
  }
  o.reject_unknown();
}

bool reads_setting(Policy policy, std::string_view key) {
  return std::any_of(std::begin(settings), std::end(settings),
                     [&](const Setting& s) { return s.key == key && s.is_of(policy); });
}

std::string scheduler_text(Policy policy, const std::map<std::string, std::string>& options) {
  std::string text(name(policy));
  char before = ':';
  for (const auto& [key, value] : options) {
    text += before + key + '=' + value;
    before = ',';
  }
  return text;
}

ServingScenario parse_serving_scenario(const nlohmann::json& document, const std::string& place) {
  const JsonObject o(document, place);
  ServingScenario scenario;
  const std::string policy = o.text("policy");
  try {
    scenario.settings.policy = parse_policy(policy);
  } catch (const Error& e) {
    throw Error(o.place_of("policy"), e);
  }
  o.whole("num_blocks");
  set_scheduler(o, scenario.settings);
  const JsonObject c = o.object("cost");
  scenario.cost = std::make_shared<ExplicitCost>();
  scenario.cost->base_s = cost_at(c, "base_s");
  scenario.cost->prefill_token_s = cost_at(c, "prefill_token_s");
  scenario.cost->prefill_pair_s = cost_at(c, "prefill_pair_s");
  scenario.cost->decode_seq_s = cost_at(c, "decode_seq_s");
  scenario.cost->decode_kv_token_s = cost_at(c, "decode_kv_token_s");
  c.reject_unknown_keys();
  o.reject_unknown_keys();
  try {
    scenario.settings.check();
  } catch (const Error& e) {
    throw Error(place, e);
  }
  return scenario;
}

ServingScenario read_serving_scenario(const std::filesystem::path& path) {
  return parse_serving_scenario(read_json_file(path), path.string());
}

}  // namespace kvcast::simulate
