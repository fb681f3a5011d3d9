#include "measure/closed_loop.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "model/base/error.h"
#include "simulate/serving/generated_requests.h"
#include "simulate/serving/model_server.h"
#include "simulate/serving/serving_scenario.h"

namespace kvcast::measure {

namespace {

/// Some ten seconds of simulation; ours.
constexpr double most_tokens = 1e8;
constexpr double most_requests = 1e5;

void check_size(const roofline::DesignPoint& size, const LoopRequests& loop) {
  const double requests = static_cast<double>(loop.rounds) * static_cast<double>(size.batch);
  const double tokens = requests * static_cast<double>(size.output_len);
  if (requests <= most_requests && tokens <= most_tokens) return;
  throw Error("closed loop",
              fmt::format("{} clients and outputs of {} tokens", size.batch, size.output_len),
              fmt::format("at most {:.0e} requests and {:.0e} tokens in {} rounds", most_requests,
                          most_tokens, loop.rounds));
}

/// Throws Error where the caches of all clients do not fit.
void check_cache(const roofline::DesignPoint& size, const simulate::SchedulerSettings& s) {
  const std::uint64_t tokens = size.prompt_len + size.output_len;
  const std::uint64_t rows = s.cache_rows ? s.cache_rows(tokens) : tokens;
  const std::uint64_t blocks = (rows + s.block_size - 1) / s.block_size;
  if (s.num_blocks / blocks >= size.batch) return;
  throw Error(
      "its cache's dtype",
      fmt::format("16 bits, with room for {} of {} clients", s.num_blocks / blocks, size.batch),
      "cache_dtype in its file");
}

}  // namespace

std::function<roofline::Forecast(const roofline::DesignPoint&)> closed_loop_forecast(
    const roofline::Configuration& configuration, const LoopRequests& loop) {
  roofline::Configuration c = configuration;
  c.engine.host.token.value += tokeniser_s;
  if (loop.marlin_mxfp4) c.engine.marlin_experts.push_back(DType::MXFP4);
  const simulate::Policy policy = simulate::default_policy(c.engine);
  std::map<std::string, std::string> options = loop.scheduler;
  std::erase_if(options, [&](const auto& o) { return !simulate::reads_setting(policy, o.first); });
  const std::string scheduler = simulate::scheduler_text(policy, options);
  const auto server = std::make_shared<const simulate::ModelServer>(
      simulate::make_model_server(c, scheduler, "scheduler"));
  return [server, loop](const roofline::DesignPoint& size) {
    check_size(size, loop);
    const auto lengths = [&](std::uint64_t nominal) {
      simulate::Lengths l{.kind = simulate::LengthKind::Uniform, .high = nominal};
      l.low = std::max<std::uint64_t>(
          1, static_cast<std::uint64_t>(std::ceil(loop.shortest * static_cast<double>(nominal))));
      return l;
    };
    if (!loop.says_cache) check_cache(size, server->servers.settings);
    simulate::ServingSetup setup{.servers = server->servers,
                                 .closed_loop = simulate::ClosedLoop{size.batch}};
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
    roofline::Forecast f;
    f.ttft_s = times.ttft_s.mean;
    f.tpot_s = times.tpot_s.mean;
    return f;
  };
}

}  // namespace kvcast::measure
