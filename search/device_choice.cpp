#include "search/device_choice.h"

#include <algorithm>

namespace kvcast::search {

std::vector<DeviceCount> choose_devices(const Runahead& runahead, std::uint64_t context,
                                        std::size_t most_devices, double least_gain) {
  even_partition(context, std::min<std::size_t>(most_devices, 1));  // throws
  std::vector<DeviceCount> counts;
  for (std::size_t devices = 1; devices <= most_devices && devices <= context; devices *= 2) {
    DeviceCount c;
    c.devices = devices;
    c.found = search_partition(runahead, context, devices, PartitionAlgorithm::Balance);
    if (runahead.link().order != SendOrder::Async) {
      c.tsp_ttft_s =
          tsp_ttft_s(runahead.times(), runahead.link(), even_partition(context, devices));
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

}  // namespace kvcast::search
