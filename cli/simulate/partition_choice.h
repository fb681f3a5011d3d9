/// `simulate prefill --partition`: even, searched, from a table, or as listed.
#pragma once

#include <optional>
#include <string>

#include "search/partition_search.h"
#include "search/partition_table.h"
#include "simulate/layer_times.h"
#include "simulate/noise.h"
#include "simulate/scenario.h"

namespace kvcast::cli {

struct PartitionFlags {
  std::string how = "even";  ///< or search, table:FILE, A,B,C
  std::string search_objective;
  bool extrapolate = false;
  bool force = false;    ///< take a table for another model or hardware
  std::string model;     ///< the model that a table must be for
  std::string hardware;  ///< the device that a table must be for
};

/// What a partition is for.
struct PartitionTask {
  const simulate::LayerTimes& times;
  simulate::ExchangeCost exchange_cost;
  simulate::Schedule schedule = simulate::Schedule::Kvr;
  simulate::AllGather all_gather = simulate::AllGather::Ring;
  search::SendOrder send_order = search::SendOrder::Fifo;
  const simulate::Platform& platform;
  std::uint64_t prompt_len = 0;
  /// The objective simulator minimises the mean TTFT under this traffic.
  std::optional<simulate::NoiseSpec> noise = {};

  simulate::PrefillWork work(const search::Partition& partition) const {
    return simulate::prefill_work(times, schedule, partition, exchange_cost, all_gather);
  }
};

struct ChosenPartition {
  search::Partition tokens;
  /// Set by a search; has a lower bound if the closed form holds on the platform.
  std::optional<search::PartitionFound> found = {};
};

/// Throws Error naming the flag.
ChosenPartition choose_partition(const PartitionFlags& flags, const PartitionTask& task);

/// The setting `name` of the table at `path`. A given `wanted` must equal it, or replaces it with
/// `force`. Throws Error if the table lacks the setting or the two differ.
std::string table_setting(const search::PartitionTable& table, const std::string& path,
                          std::string_view name, const std::string& wanted = {},
                          bool force = false);

}  // namespace kvcast::cli
