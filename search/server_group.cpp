#include "search/server_group.h"

#include <memory>
#include <utility>

#include "model/base/error.h"
#include "model/record/rank_recording.h"
#include "search/placed_estimator.h"

namespace kvcast::search {

simulate::ModelServer make_server(const roofline::Configuration& c, std::string_view scheduler,
                                  const std::string& place,
                                  const std::optional<double>& memory_share,
                                  const std::optional<HardwareLink>& link) {
  const std::optional<Placement> placement = find_placement(c.methods);
  if (!placement) return simulate::make_model_server(c, scheduler, place, memory_share);
  if (!placement->partition.empty()) {
    throw Error("method " + placement->method + " on a server", "parts of one length of prompt",
                "partition=even or search, for prompts of all lengths");
  }
  const auto estimator = std::make_shared<const PlacedEstimator>(c, link);
  if (!estimator->is_placed()) {
    roofline::Configuration one = c;
    one.methods = without_placement(c.methods);
    return simulate::make_model_server(one, scheduler, place, memory_share);
  }
  simulate::ModelServer server = simulate::make_model_server(
      c, scheduler, place, memory_share, [estimator](std::uint64_t prompt_len) {
        const roofline::Estimate e = estimator->at({1, prompt_len, 1});
        const double lasting = e.weight_bytes_per_device + e.kv_cache_bytes_per_device;
        return roofline::GroupPrefill{e.ttft_s, e.peak_memory_bytes - lasting};
      });
  server.devices *= placement->ranks;
  return server;
}

}  // namespace kvcast::search
