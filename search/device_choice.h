/// How many devices pay off for the prefill of one prompt.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "search/partition_search.h"

namespace kvcast::search {

struct DeviceCount {
  std::size_t devices = 1;
  PartitionFound found;              ///< a chain with the best partition
  std::optional<double> tsp_ttft_s;  ///< none for SendOrder::Async and layers with states
  double speedup = 1;                ///< over one device
  /// Each step up to here cut TTFT by at least the gain that was asked for.
  bool pays_off = false;
};

/// 1, 2, 4, ... devices up to `most_devices` and to the prompt's tokens. Throws Error when
/// most_devices or prompt_len is 0.
std::vector<DeviceCount> choose_devices(const Runahead& runahead, std::uint64_t prompt_len,
                                        std::size_t most_devices, double least_gain);

/// Where doubling the devices to `devices` begins to pay off, to within 3 %.
struct BreakEven {
  /// The slowest link at this prompt, between 1 MB/s and 10 TB/s; empty if no link pays off.
  std::optional<double> link_bytes_per_s;
  /// The shortest prompt over this link, up to 128k tokens; empty if no length pays off.
  std::optional<std::uint64_t> prompt_len;
};
/// Some twenty searches of a partition. `devices`: an even number, as of choose_devices. Throws
/// Error as that does.
BreakEven break_even(const Runahead& runahead, std::uint64_t prompt_len, std::size_t devices,
                     double least_gain);

}  // namespace kvcast::search
