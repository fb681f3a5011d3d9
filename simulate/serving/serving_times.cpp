#include "simulate/serving/serving_times.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace kvcast::simulate {

Latency summary(std::vector<Repeated> values) {
  Latency latency;
  if (values.empty()) return latency;
  std::sort(values.begin(), values.end(),
            [](const Repeated& a, const Repeated& b) { return a.value < b.value; });
  std::uint64_t n = 0;
  double sum = 0;
  for (Repeated& v : values) {
    n += v.times;
    sum += v.value * static_cast<double>(v.times);
    v.times = n;  // how many are not above
  }
  latency.values = n;
  const auto nth = [&](std::uint64_t i) {
    return std::upper_bound(values.begin(), values.end(), i,
                            [](std::uint64_t at, const Repeated& v) { return at < v.times; })
        ->value;
  };
  const auto percentile = [&](double share) {
    const double place = share * static_cast<double>(n - 1);
    const auto below = static_cast<std::uint64_t>(place);
    const double low = nth(below);
    const double high = nth(std::min(below + 1, n - 1));
    return low + (place - static_cast<double>(below)) * (high - low);
  };
  latency.mean = sum / static_cast<double>(n);
  latency.p50 = percentile(0.5);
  latency.p90 = percentile(0.9);
  latency.p95 = percentile(0.95);
  latency.p99 = percentile(0.99);
  return latency;
}

std::string ServingTimes::rejection() const {
  if (rejected == 0) return {};
  return fmt::format("{} of {} requests are rejected: {}", rejected, requests, first_reason);
}

void ServingMeter::step(double seconds) {
  ++times_.steps;
  times_.busy_s += seconds;
}

void ServingMeter::token(Sequence& s, double now) {
  const double arrival = s.request.arrival_s;
  if (s.generated == 1) {
    s.first_token_s = now;
  } else {
    const double gap = now - s.last_token_s;
    if (!itl_.empty() && itl_.back().value == gap) {
      ++itl_.back().times;
    } else {
      itl_.push_back({gap, 1});
    }
  }
  s.last_token_s = now;
  if (!s.is_done()) return;
  const std::uint64_t tokens = s.request.output_tokens;
  const double ttft = s.first_token_s - arrival;
  ttft_.push_back({ttft, 1});
  queue_.push_back({s.scheduled_s.value_or(s.first_token_s) - arrival, 1});
  const double e2e = now - arrival;
  double tpot = 0;
  if (tokens > 1) {
    tpot = (now - s.first_token_s) / static_cast<double>(tokens - 1);
    tpot_.push_back({tpot, 1});
  }
  e2e_.push_back({e2e, 1});
  const bool keeps = (!slo_.ttft_s || ttft <= *slo_.ttft_s) &&
                     (!slo_.tpot_s || tpot <= *slo_.tpot_s) && (!slo_.e2e_s || e2e <= *slo_.e2e_s);
  good_ += keeps ? 1 : 0;
  ++times_.finished;
  times_.input_tokens += s.request.prompt_tokens;
  times_.output_tokens += tokens;
  times_.duration_s = std::max(times_.duration_s, now);
}

void ServingMeter::add(const Scheduler& scheduler) {
  const SchedulerCounts& c = scheduler.counts();
  times_.counts.preemptions += c.preemptions;
  times_.counts.prefill_tokens += c.prefill_tokens;
  times_.counts.decode_tokens += c.decode_tokens;
  times_.counts.hit_tokens += c.hit_tokens;
  times_.counts.peak_running = std::max(times_.counts.peak_running, c.peak_running);
  times_.counts.rejected += c.rejected;
  times_.peak_kv_blocks = std::max(times_.peak_kv_blocks, scheduler.peak_blocks());
}

ServingTimes ServingMeter::take() {
  ServingTimes t = times_;
  t.e2e_s = summary(std::move(e2e_));
  t.ttft_s = summary(std::move(ttft_));
  t.tpot_s = summary(std::move(tpot_));
  t.itl_s = summary(std::move(itl_));
  t.queue_s = summary(std::move(queue_));
  if (t.requests > 0)
    t.slo_attainment = static_cast<double>(good_) / static_cast<double>(t.requests);
  if (t.duration_s > 0) {
    t.request_throughput = static_cast<double>(t.finished) / t.duration_s;
    t.output_token_throughput = static_cast<double>(t.output_tokens) / t.duration_s;
    t.goodput_requests_per_s = static_cast<double>(good_) / t.duration_s;
    t.mean_requests_in_system = t.e2e_s.mean * static_cast<double>(t.finished) / t.duration_s;
  }
  return t;
}

}  // namespace kvcast::simulate
