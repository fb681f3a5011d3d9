#include "measure/closed_loop.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "model/base/error.h"
#include "simulate/serving/generated_requests.h"
#include "simulate/serving/model_server.h"

namespace kvcast::measure {

double seconds_between_requests(double prompt_tokens) { return 1.2e-6 * prompt_tokens; }

std::function<roofline::Forecast(const roofline::DesignPoint&)> closed_loop_forecast(
    const roofline::Configuration& configuration, const ClosedLoop& loop) {
  const auto server = std::make_shared<const simulate::ModelServer>(
      simulate::make_model_server(configuration, "", "scheduler"));
  return [server, loop](const roofline::DesignPoint& size) {
    const auto lengths = [&](std::uint64_t nominal) {
      simulate::Lengths l{.kind = simulate::LengthKind::Uniform, .high = nominal};
      l.low = std::max<std::uint64_t>(
          1, static_cast<std::uint64_t>(std::ceil(loop.shortest * static_cast<double>(nominal))));
      return l;
    };
    const double prompt_tokens = (1 + loop.shortest) / 2 * static_cast<double>(size.prompt_len);
    simulate::ServingSetup setup{
        .servers = server->servers,
        .closed_loop = simulate::ClosedLoop{size.batch, seconds_between_requests(prompt_tokens)}};
    simulate::SchedulerSettings& settings = setup.servers.settings;
    settings.max_num_seqs = std::max(settings.max_num_seqs, size.batch);
    if (!settings.chunked_prefill) {
      settings.max_num_batched_tokens =
          std::max(settings.max_num_batched_tokens, size.prompt_len + size.batch);
    }
    const auto requests = simulate::generate_requests(
        {.arrivals = {.kind = simulate::ArrivalKind::Closed, .users = size.batch},
         .prompt = lengths(size.prompt_len),
         .output = lengths(size.output_len),
         .count = loop.rounds * size.batch});
    simulate::ServingWatch watch;
    watch.on_rejected = [](const simulate::ServingRequest&, const std::string& reason) {
      throw Error("a server refuses its requests: " + reason);
    };
    const simulate::ServingTimes times = simulate::serve(setup, *requests, {}, watch);
    if (!loop.says_cache && times.counts.peak_running < size.batch) {
      throw Error("its cache's dtype",
                  fmt::format("16 bits, with room for {} of {} clients", times.counts.peak_running,
                              size.batch),
                  "cache_dtype in its file");
    }
    roofline::Forecast f;
    f.ttft_s = times.ttft_s.mean;
    f.tpot_s = times.tpot_s.mean;
    return f;
  };
}

}  // namespace kvcast::measure
