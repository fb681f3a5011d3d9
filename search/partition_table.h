/// Searched partitions of many prompt lengths and rank counts, kept in a file, and partitions
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
  std::uint64_t prompt_len = 0;
  PartitionFound found;
};

struct PartitionTable {
  TableSettings settings;
  std::vector<TableEntry> entries;  ///< by number of ranks, then by prompt_len
};

/// Searches all pairs with `threads` threads (0: all of the machine); the table does not depend on
/// how many. `on_progress` is called with the entries done, one call at a time. Throws Error as
/// search_partition does.
std::vector<TableEntry> search_table(const Runahead& runahead,
                                     std::span<const std::uint64_t> prompt_lens,
                                     std::span<const std::size_t> rank_counts,
                                     PartitionAlgorithm algorithm, std::size_t threads,
                                     const std::function<void(std::size_t done)>& on_progress);

std::string to_json(const PartitionTable& table);
/// Throws Error, naming the file and the place in it, for anything but a table as to_json writes
/// it: partitions that do not sum to their prompt_len, entries out of order or twice, unknown keys.
PartitionTable read_table(const std::filesystem::path& path);

/// `ratios` of `prompt_len` in whole tokens, at least one each, that sum to it; the largest
/// remainders are rounded up. Throws Error with fewer tokens than ratios.
Partition round_to_tokens(std::span<const double> ratios, std::uint64_t prompt_len);

/// The ratios of the two nearest prompt_lens, interpolated; those of an entry when the table has
/// the prompt_len. Throws Error when the table has no such number of ranks, and for prompt_lens
/// outside of it, where the nearest entry's ratios are taken if `extrapolate`.
Partition look_up(const PartitionTable& table, std::uint64_t prompt_len, std::size_t ranks,
                  bool extrapolate);

}  // namespace kvcast::search
