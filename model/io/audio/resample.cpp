#include "model/io/audio/resample.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/base/error.h"

namespace kvcast::audio {
namespace {

constexpr std::size_t zero_crossings = 32;  // on each side
// Linear interpolation between this many points a crossing is off by at most 2e-6.
constexpr std::size_t points_per_crossing = 512;
constexpr double cutoff = 0.92;

/// One side of sinc(u)·blackman(u/32), u = 0..32, and a zero behind it.
std::vector<double> half_kernel() {
  using std::numbers::pi;
  std::vector<double> kernel;
  for (std::size_t i = 0; i <= zero_crossings * points_per_crossing; ++i) {
    const double u = static_cast<double>(i) / points_per_crossing;
    const double sinc = i == 0 ? 1 : std::sin(pi * u) / (pi * u);
    const double angle = pi * u / zero_crossings;
    kernel.push_back(sinc * (0.42 + 0.5 * std::cos(angle) + 0.08 * std::cos(2 * angle)));
  }
  kernel.push_back(0);
  return kernel;
}

double kernel_at(const std::vector<double>& kernel, double u) {
  const double place = std::abs(u) * points_per_crossing;
  if (place >= zero_crossings * points_per_crossing) return 0;
  const auto point = static_cast<std::size_t>(place);
  const double share = place - static_cast<double>(point);
  return (1 - share) * kernel[point] + share * kernel[point + 1];
}

}  // namespace

std::vector<float> resample(std::span<const float> samples, std::uint32_t from, std::uint32_t to,
                            std::size_t max_samples) {
  KVCAST_ASSERT(from > 0 && to > 0);
  if (from == to) {
    samples = samples.first(std::min(samples.size(), max_samples));
    return {samples.begin(), samples.end()};
  }
  const std::vector<double> kernel = half_kernel();
  const double band = cutoff * std::min(1.0, static_cast<double>(to) / from);
  const double reach = zero_crossings / band;
  const double last = static_cast<double>(samples.size()) - 1;
  std::vector<float> out;
  while (out.size() < max_samples &&
         out.size() * std::uint64_t{from} < samples.size() * std::uint64_t{to}) {
    const double centre = static_cast<double>(out.size()) * from / to;
    const double first = std::max(0.0, std::ceil(centre - reach));
    double sum = 0;
    for (double k = first; k <= std::min(last, centre + reach); ++k) {
      sum += samples[static_cast<std::size_t>(k)] * kernel_at(kernel, band * (centre - k));
    }
    out.push_back(static_cast<float>(band * sum));
  }
  return out;
}

}  // namespace kvcast::audio
