/// Times of a served closed loop: clients that each send their next request when the last one ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "roofline/estimator.h"

namespace kvcast::measure {

/// How a measured loop's requests were drawn, and what was asked of its server.
struct LoopRequests {
  double shortest = 1;        ///< lengths are uniform from this share of the nominal ones to them
  std::uint64_t rounds = 10;  ///< requests of each client
  std::map<std::string, std::string> scheduler = {};  ///< KEY -> VALUE of `--scheduler`
  /// Experts with weights in mxfp4 multiply in Marlin's kernels (Engine::marlin_experts).
  bool marlin_mxfp4 = false;
  /// Whether the cache's dtype is known. If not, it must have room for all clients, as theirs had.
  bool says_cache = true;

  /// Of lengths that are nominally so.
  double mean(std::uint64_t nominal) const {
    return (1 + shortest) / 2 * static_cast<double>(nominal);
  }
};

/// Seconds for each token of a prompt that a server reads as text, before the scheduler sees it. So
/// a client's next prompt always misses the step that follows its last token at once; what networks
/// add to this time hardly matters then.
/// Source: measured for kvcast, Hugging Face tokenizers 0.23.2 on one idle core of an H100's host
/// (a Xeon with 300 MB of cache), texts of 1,024 and 8,192 random tokens as benchmarks send them,
/// vocabularies of Llama 3, Qwen 2 and DeepSeek, medians of 15: 3.2 to 3.4 us; tokens that follow
/// each other 3.0 to 3.6 us, prose 1.9 to 2.6 us.
constexpr double tokeniser_s = 3.3e-6;

/// Mean TTFT and TPOT of `size.batch` clients whose server has the configuration, with its engine's
/// scheduler; simulated. All clients send their first request at once, and those count too. A step
/// of a scheduler that cuts no prompt has room for the longest beside a token of each client. The
/// forecast has these two times alone. Throws Error as simulate::make_model_server does, for
/// requests that the server refuses, for a cache that cannot be the measured one, and for loops
/// that would take minutes.
std::function<roofline::Forecast(const roofline::DesignPoint&)> closed_loop_forecast(
    const roofline::Configuration& configuration, const LoopRequests& loop);

}  // namespace kvcast::measure
