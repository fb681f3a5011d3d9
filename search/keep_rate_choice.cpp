#include "search/keep_rate_choice.h"

#include <cmath>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::search {
namespace {

/// Ours: finer than a speed-up is known, and ten estimates find one of them.
constexpr std::uint64_t steps = 1000;

double share(std::uint64_t step) { return static_cast<double>(step) / static_cast<double>(steps); }

}  // namespace

KeepRate keep_rate(const KeepRateRequest& request, double keep) {
  roofline::Configuration c = request.configuration;
  MethodSpec method = request.method;
  method.options.emplace_back("keep", fmt::format("{}", keep));
  c.methods = {method};
  const roofline::Estimator estimator(c);
  const roofline::Estimate e = estimator.at(request.point);
  const Recording& r = estimator.recording();
  const roofline::DesignPoint& p = request.point;
  KeepRate rate{.keep = keep,
                .kept_tokens = r.prompt_slots.at(r.symbols.resolve({p.batch, p.prompt_len, 1})),
                .ttft_s = e.ttft_s,
                .ttft_speedup = e.ttft_speedup,
                .kv_cache_bytes = e.kv_cache_bytes,
                .fits = e.fits};
  for (const roofline::BreakdownRow& row : estimator.breakdown(p)) {
    if (row.pass != "prefill" && row.pass != "decode") rate.overhead_s += row.total.value;
  }
  return rate;
}

std::optional<KeepRate> largest_keep_rate(const KeepRateRequest& request, double target_speedup) {
  if (!(target_speedup > 0) || std::isinf(target_speedup)) {
    throw Error("a target speed-up", fmt::format("{}", target_speedup), "a finite number above 0");
  }
  std::uint64_t low = 1;  // enough, once it is known to be
  KeepRate best = keep_rate(request, share(low));
  if (best.ttft_speedup < target_speedup) return {};
  std::uint64_t high = steps + 1;  // too much
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    const KeepRate rate = keep_rate(request, share(middle));
    if (rate.ttft_speedup >= target_speedup) {
      low = middle;
      best = rate;
    } else {
      high = middle;
    }
  }
  return best;
}

}  // namespace kvcast::search
