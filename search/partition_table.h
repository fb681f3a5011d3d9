/// Searched partitions of many prompt lengths and process counts, kept in a file, and partitions
/// interpolated from them for the lengths between.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "search/partition_search.h"

namespace kvcast::search {

/// What a table's partitions are for, as text: names of settings and their values. A file keeps
/// them by name.
using TableSettings = std::vector<std::pair<std::string, std::string>>;

struct TableEntry {
  std::uint64_t context = 0;
  PartitionFound found;
};

struct PartitionTable {
  TableSettings settings;
  std::vector<TableEntry> entries;  ///< by number of processes, then by context
};

/// Searches all pairs with `threads` threads; the table does not depend on how many. `on_progress`
/// is called with the entries done, one call at a time. Throws Error as search_partition does.
std::vector<TableEntry> search_table(const Runahead& runahead,
                                     std::span<const std::uint64_t> contexts,
                                     std::span<const std::size_t> process_counts,
                                     PartitionAlgorithm algorithm, std::size_t threads,
                                     const std::function<void(std::size_t done)>& on_progress);

std::string to_json(const PartitionTable& table);
/// Throws Error, naming the file and the place in it, for anything but a table as to_json writes
/// it: partitions that do not sum to their context, entries out of order or twice, unknown keys.
PartitionTable read_table(const std::filesystem::path& path);

/// `ratios` of `context` in whole tokens, at least one each, that sum to it; the largest remainders
/// are rounded up. Throws Error with fewer tokens than ratios.
Partition round_to_tokens(std::span<const double> ratios, std::uint64_t context);

/// The ratios of the two nearest contexts, interpolated; those of an entry when the table has the
/// context. Throws Error when the table has no such number of processes, and for contexts outside
/// of it, where the nearest entry's ratios are taken if `extrapolate`.
Partition look_up(const PartitionTable& table, std::uint64_t context, std::size_t processes,
                  bool extrapolate);

}  // namespace kvcast::search
