/// How many of a prompt's tokens Speculative Prefill may keep for a wanted speed-up, and what a
/// share of them gains.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "roofline/estimator.h"

namespace kvcast::search {

struct KeepRateRequest {
  roofline::Configuration configuration;  ///< the base; its methods are not used
  /// A method of the kind prompt without its option keep: "specprefill:speculator=llama-3.1-8b".
  MethodSpec method;
  roofline::DesignPoint point;
};

struct KeepRate : roofline::Estimate {
  double keep = 1;
  std::uint64_t kept_tokens = 0;
  double overhead_s = 0;  ///< the part of ttft_s before the base's prefill
};

/// What a keep rate gains. Throws Error as Estimator does.
KeepRate keep_rate(const KeepRateRequest& request, double keep);

/// The largest keep rate, in steps of a thousandth, with at least that speed-up; none if even the
/// smallest is slower. More kept tokens never make a prompt faster, so it is found by halving.
std::optional<KeepRate> largest_keep_rate(const KeepRateRequest& request, double target_speedup);

}  // namespace kvcast::search
