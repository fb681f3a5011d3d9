#include "roofline/pipeline_schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "model/base/error.h"

namespace kvcast::roofline {
namespace {

/// Ours: the passes of all devices lie in memory.
constexpr std::uint64_t most_passes = 1'000'000;

/// Forward passes before the first one back.
std::uint64_t passes_ahead(const PipelineShape& s, std::uint64_t device) {
  const std::uint64_t all = s.micro_batches * s.chunks;
  const std::uint64_t behind = s.devices - device - 1;
  if (s.chunks == 1) return std::min(all, behind);
  if (s.micro_batches == s.devices) return all;
  return std::min(all, 2 * behind + (s.chunks - 1) * s.devices);
}

/// The n-th forward or backward pass of a device.
PartPass nth_pass(const PipelineShape& s, std::uint64_t device, bool is_forward, std::uint64_t n) {
  const std::uint64_t round = s.devices * s.chunks;
  std::uint64_t chunk = n % round / s.devices;
  if (!is_forward) chunk = s.chunks - 1 - chunk;
  if (s.chunks == 1) return {is_forward, device, n};
  return {is_forward, chunk * s.devices + device, n / round * s.devices + n % s.devices};
}

}  // namespace

std::vector<PartPass> passes_of(const PipelineShape& s, std::uint64_t device) {
  if (s.chunks > 1 && s.micro_batches % s.devices != 0) {
    throw Error("--micro-batches", std::to_string(s.micro_batches),
                "a multiple of the " + std::to_string(s.devices) +
                    " devices that take chunks of layers in turn");
  }
  const std::uint64_t all = s.micro_batches * s.chunks;
  const std::uint64_t ahead = passes_ahead(s, device);
  std::vector<PartPass> passes;
  passes.reserve(2 * all);
  for (std::uint64_t n = 0; n < ahead; ++n) passes.push_back(nth_pass(s, device, true, n));
  for (std::uint64_t n = 0; n < all; ++n) {
    if (ahead + n < all) passes.push_back(nth_pass(s, device, true, ahead + n));
    passes.push_back(nth_pass(s, device, false, n));
  }
  return passes;
}

std::vector<double> play(const PipelineShape& s,
                         const std::function<double(const PartPass&)>& seconds,
                         const std::function<double(const PartPass&)>& hop) {
  if (s.micro_batches > most_passes / s.parts()) {
    throw Error("--micro-batches", std::to_string(s.micro_batches),
                "at most " + std::to_string(most_passes / s.parts()) + " of " +
                    std::to_string(s.parts()) + " parts of a model");
  }
  constexpr double not_done = std::numeric_limits<double>::quiet_NaN();
  // By direction, part and micro-batch: when it ended.
  std::vector<double> ended(2 * s.parts() * s.micro_batches, not_done);
  const auto end_of = [&](bool is_forward, std::uint64_t part,
                          std::uint64_t micro_batch) -> double& {
    return ended[((is_forward ? 0 : s.parts()) + part) * s.micro_batches + micro_batch];
  };
  // When what a pass reads has come; NaN: it has not been sent.
  const auto ready = [&](const PartPass& p) {
    const std::uint64_t last = s.parts() - 1;
    if (p.is_forward) {
      return p.part == 0 ? 0.0 : end_of(true, p.part - 1, p.micro_batch) + hop(p);
    }
    return p.part == last ? end_of(true, last, p.micro_batch)
                          : end_of(false, p.part + 1, p.micro_batch) + hop(p);
  };
  std::vector<std::vector<PartPass>> passes;
  for (std::uint64_t d = 0; d < s.devices; ++d) passes.push_back(passes_of(s, d));
  std::vector<std::size_t> next(s.devices, 0);
  std::vector<double> now(s.devices, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t d = 0; d < s.devices; ++d) {
      for (; next[d] < passes[d].size(); ++next[d]) {
        const PartPass& p = passes[d][next[d]];
        const double from = ready(p);
        if (std::isnan(from)) break;
        now[d] = std::max(now[d], from) + seconds(p);
        end_of(p.is_forward, p.part, p.micro_batch) = now[d];
        moved = true;
      }
    }
  }
  for (std::size_t d = 0; d < s.devices; ++d) KVCAST_ASSERT(next[d] == passes[d].size());
  return now;
}

}  // namespace kvcast::roofline
