#include "search/device_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "model/base/error.h"

namespace kvcast::search {
namespace {

constexpr double nearest = 1.03;
constexpr double slowest_link = 1e6;
constexpr double fastest_link = 1e13;
constexpr double longest_prompt = 131072;

/// The smallest value at which `holds`, to within 3 %, where it holds above some value and below it
/// does not; empty if it does not hold at the largest.
std::optional<double> smallest(double low, double high, const std::function<bool(double)>& holds) {
  if (!holds(high)) return {};
  if (holds(low)) return low;
  while (high / low > nearest) {
    const double middle = std::sqrt(low * high);
    (holds(middle) ? high : low) = middle;
  }
  return high;
}

bool doubling_pays_off(const Runahead& runahead, std::uint64_t prompt_len, std::size_t devices,
                       double least_gain) {
  const auto ttft_s = [&](std::size_t parts) {
    return search_partition(runahead, prompt_len, parts, PartitionAlgorithm::Balance).ttft_s;
  };
  return ttft_s(devices) <= ttft_s(devices / 2) * (1 - least_gain);
}

}  // namespace

std::vector<DeviceCount> choose_devices(const Runahead& runahead, std::uint64_t prompt_len,
                                        std::size_t most_devices, double least_gain) {
  even_partition(prompt_len, std::min<std::size_t>(most_devices, 1));  // throws
  const std::vector<simulate::SeenTokens>& seen = runahead.times().seen();
  const bool has_tsp = runahead.link().order != SendOrder::Async &&
                       std::none_of(seen.begin(), seen.end(),
                                    [](const simulate::SeenTokens& s) { return s.has_state(); });
  std::vector<DeviceCount> counts;
  for (std::size_t devices = 1; devices <= most_devices && devices <= prompt_len; devices *= 2) {
    DeviceCount c;
    c.devices = devices;
    c.found = search_partition(runahead, prompt_len, devices, PartitionAlgorithm::Balance);
    if (has_tsp) {
      c.tsp_ttft_s =
          tsp_ttft_s(runahead.times(), runahead.link(), even_partition(prompt_len, devices));
    }
    c.pays_off = counts.empty();
    if (!counts.empty()) {
      const DeviceCount& before = counts.back();
      c.speedup = counts.front().found.ttft_s / c.found.ttft_s;
      c.pays_off = before.pays_off && c.found.ttft_s <= before.found.ttft_s * (1 - least_gain);
    }
    counts.push_back(std::move(c));
  }
  return counts;
}

BreakEven break_even(const Runahead& runahead, std::uint64_t prompt_len, std::size_t devices,
                     double least_gain) {
  KVCAST_ASSERT(devices >= 2 && devices % 2 == 0);
  even_partition(prompt_len, devices);  // throws
  BreakEven found;
  found.link_bytes_per_s = smallest(slowest_link, fastest_link, [&](double bytes_per_s) {
    ChainLink link = runahead.link();
    link.bytes_per_s = bytes_per_s;
    return doubling_pays_off(Runahead(runahead.times(), link), prompt_len, devices, least_gain);
  });
  const auto least_context =
      smallest(static_cast<double>(devices), longest_prompt, [&](double tokens) {
        return doubling_pays_off(runahead, static_cast<std::uint64_t>(tokens), devices, least_gain);
      });
  if (least_context) found.prompt_len = static_cast<std::uint64_t>(*least_context);
  return found;
}

}  // namespace kvcast::search
