/// Scenarios of a server with explicit costs of its steps, from JSON.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "simulate/serving/serving.h"

namespace kvcast {
class JsonObject;
}

namespace kvcast::simulate {

/// Seconds of a step: a constant, and sums over its parts, c tokens being in the cache before:
///   of a prompt's n tokens      prefill_token n + prefill_pair (n c + n (n + 1) / 2)
///   of a decode step            decode_seq + decode_kv_token (c + 1)
struct ExplicitCost : StepClock {
  double base_s = 0;
  double prefill_token_s = 0;
  double prefill_pair_s = 0;
  double decode_seq_s = 0;
  double decode_kv_token_s = 0;

  double seconds(std::span<const ScheduledPart> parts) override;
};

/// Sets what the object names: members of SchedulerSettings by their names.
void set_scheduler(const JsonObject& o, SchedulerSettings& settings);
/// The same and the policy, of "NAME[:KEY=VALUE,...]". Throws Error starting with `place`.
void set_scheduler(std::string_view text, const std::string& place, SchedulerSettings& settings);
/// That text, of values by their keys.
std::string scheduler_text(Policy policy, const std::map<std::string, std::string>& options);
/// Whether these schedulers read the option.
bool reads_setting(Policy policy, std::string_view key);

struct ServingScenario {
  SchedulerSettings settings;
  std::shared_ptr<ExplicitCost> cost;
};

/// {"policy": "vllm-v1", "cost": {"base_s": 0.006, ...}, "max_num_batched_tokens": 2048, ...}: the
/// names of SchedulerSettings and ExplicitCost. Throws Error naming the place.
ServingScenario parse_serving_scenario(const nlohmann::json& document, const std::string& place);
ServingScenario read_serving_scenario(const std::filesystem::path& path);

}  // namespace kvcast::simulate
