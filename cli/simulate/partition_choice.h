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
  std::string model;     ///< what a table has to be for
  std::string hardware;  ///< what it has to be for too
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
  /// With objective simulator: search for the least mean TTFT under this traffic.
  std::optional<simulate::NoiseSpec> noise = {};

  simulate::PrefillWork work(const search::Partition& partition) const {
    return simulate::prefill_work(times, schedule, partition, exchange_cost, all_gather);
  }
};

struct ChosenPartition {
  search::Partition tokens;
  /// When it was searched; with a lower bound where the closed form holds on the platform.
  std::optional<search::PartitionFound> found = {};
};

/// Throws Error naming the flag.
ChosenPartition choose_partition(const PartitionFlags& flags, const PartitionTask& task);

/// What the table at `path` says under `name`, or `wanted` if that is given. Throws Error if the
/// table lacks it, and where the two differ, unless with `force`.
std::string table_setting(const search::PartitionTable& table, const std::string& path,
                          std::string_view name, const std::string& wanted = {},
                          bool force = false);

}  // namespace kvcast::cli
