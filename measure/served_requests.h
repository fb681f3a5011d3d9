/// The requests that a measured server was sent, as its rows describe them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "measure/serving_rows.h"
#include "simulate/serving/requests.h"

namespace kvcast::measure {

struct ServedRequests {
  std::vector<simulate::ServingRequest> requests;
  std::uint64_t block_tokens = 0;  ///< of the ids of their prefixes; 0: they have none
};

/// Of the `number`-th of the pooled runs, from 0, which have other arrivals and the same lengths.
/// `traces`: the folder of trace files. `rate`: instead of the workload's own. Throws Error as
/// simulate::open_requests does.
ServedRequests served_requests(const ServedWorkload& workload, const std::filesystem::path& traces,
                               std::uint64_t number, const std::optional<double>& rate = {});

/// For lengths that end with the same chance after each token: the mean without a limit that has
/// this one with it.
double unlimited_mean(double mean, std::uint64_t most);

}  // namespace kvcast::measure
