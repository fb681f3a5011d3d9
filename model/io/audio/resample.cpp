#include "model/io/audio/resample.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <soxr.h>

#include "model/base/error.h"

namespace kvcast::audio {

std::vector<float> resample(std::span<const float> samples, std::uint32_t from, std::uint32_t to,
                            std::size_t max_samples) {
  KVCAST_ASSERT(from > 0 && to > 0);
  if (from == to) {
    samples = samples.first(std::min(samples.size(), max_samples));
    return {samples.begin(), samples.end()};
  }
  const double ratio = static_cast<double>(to) / from;
  // What lies this far after the last sample does not reach it.
  constexpr double filter_samples = 1000;
  const double needed =
      (static_cast<double>(max_samples) + filter_samples * std::max(1.0, ratio)) / ratio;
  const double ticks = std::ceil(static_cast<double>(samples.size()) * to / from);
  if (needed < static_cast<double>(samples.size())) {
    samples = samples.first(static_cast<std::size_t>(needed));
  }
  std::vector<float> out(std::min(max_samples, static_cast<std::size_t>(ticks)));
  if (out.empty()) return out;
  std::size_t written = 0;
  const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
  const soxr_error_t error =
      soxr_oneshot(from, to, 1, samples.data(), samples.size(), nullptr, out.data(), out.size(),
                   &written, nullptr, &quality, nullptr);
  if (error != nullptr) throw Error(std::string("resampling failed: ") + error, Fault::Run);
  return out;  // silence where the filter ends before the last tick
}

}  // namespace kvcast::audio
