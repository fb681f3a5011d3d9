#include "search/keep_rate_choice.h"

#include <cmath>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/last_that.h"

namespace kvcast::search {
namespace {

/// Our choice: finer than any speed-up is known, and ten estimates find one of them.
constexpr std::uint64_t steps = 1000;

double share(std::uint64_t step) { return static_cast<double>(step) / static_cast<double>(steps); }

}  // namespace

KeepRate keep_rate(const KeepRateRequest& request, double keep) {
  roofline::Configuration c = request.configuration;
  MethodSpec method = request.method;
  method.options.emplace_back("keep", fmt::format("{}", keep));
  c.methods = {method};
  const roofline::Estimator estimator(c);
  const Recording& r = estimator.recording();
  const roofline::DesignPoint& p = request.point;
  KeepRate rate{estimator.at(p), keep,
                r.prompt_slots.at(r.symbols.resolve({p.batch, p.prompt_len, 1}))};
  for (const roofline::BreakdownRow& row : estimator.breakdown(p)) {
    if (row.pass != "prefill" && row.pass != "decode") rate.overhead_s += row.total.value;
  }
  return rate;
}

std::optional<KeepRate> largest_keep_rate(const KeepRateRequest& request, double target_speedup) {
  if (!(target_speedup > 0) || std::isinf(target_speedup)) {
    throw Error("a target speed-up", fmt::format("{}", target_speedup), "a finite number above 0");
  }
  const std::uint64_t largest = last_that(1, steps, [&](std::uint64_t step) {
    return keep_rate(request, share(step)).ttft_speedup >= target_speedup;
  });
  if (largest == 0) return {};
  return keep_rate(request, share(largest));
}

}  // namespace kvcast::search
