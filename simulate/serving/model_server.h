/// Servers of one model on its devices, as an engine runs it: what steps take and what fits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "roofline/server_step.h"
#include "simulate/serving/serving.h"

namespace kvcast::simulate {

/// How a server's memory is spent, on the device with least room for a cache.
struct ServerMemory {
  double capacity_bytes = 0;
  double weight_bytes = 0;
  double activation_bytes = 0;  ///< of a step with as many tokens as it may have
  double block_bytes = 0;
  double reserved_bytes = 0;  ///< left free

  double used() const { return weight_bytes + activation_bytes; }
};

struct ModelServer {
  Servers servers;
  ServerMemory memory;
  std::uint64_t devices = 1;  ///< of all `servers`
};

/// A policy's values as its engine has them by default. `max_model_len`: 0: as the model has it.
SchedulerSettings default_settings(Policy policy, const roofline::Configuration& configuration,
                                   std::uint64_t max_model_len = 0);

/// For methods that need prompts in one piece: no prompt is cut or found in the cache. `scheduler`,
/// `place`: as make_model_server. Throws Error for a scheduler that cuts them all the same or is
/// asked to.
void keep_prompts_whole(const std::vector<MethodSpec>& methods, std::string_view scheduler,
                        const std::string& place, SchedulerSettings& settings);

/// `scheduler`: "NAME[:KEY=VALUE,...]" as set_scheduler takes it, num_blocks too; empty: the
/// engine's. `place` names it in errors. `memory_share`: instead of the engine's, of the device's
/// memory or of what is left of it, as the engine has it. `group`: see ServerStep; of the
/// placement among the methods (search::make_server). Prompts that a method or a group needs whole
/// are not cut, and no cache of theirs is found again. Throws Error as roofline::ServerStep does,
/// for a scheduler that cuts such prompts, and where no block of cache fits.
ModelServer make_model_server(const roofline::Configuration& configuration,
                              std::string_view scheduler, const std::string& place,
                              const std::optional<double>& memory_share = {},
                              roofline::PrefillGroup group = {});
/// The scheduler that the engine has by default.
Policy default_policy(const roofline::Engine& engine);

}  // namespace kvcast::simulate
