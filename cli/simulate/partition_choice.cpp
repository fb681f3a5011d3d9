#include "cli/simulate/partition_choice.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/frame/command.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "search/chain_links.h"
#include "simulate/simulation.h"

namespace kvcast::cli {
namespace {

using search::Partition;
using search::PartitionFound;

constexpr const char* partition_flag = "--partition";
constexpr std::string_view table_prefix = "table:";
constexpr auto usual_algorithm = search::PartitionAlgorithm::Balance;

Partition listed(const std::string& text, const PartitionTask& task) {
  if (text.find_first_of("0123456789") != 0) {
    throw Error(partition_flag, "'" + text + "'",
                "even, search, table:FILE, or tokens per rank such as 5,3,2,1");
  }
  Partition tokens;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    tokens.push_back(parse_token_count(rest.substr(0, comma), partition_flag));
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  const std::uint64_t devices = task.platform.num_devices();
  if (tokens.size() != devices) {
    throw Error(partition_flag, fmt::format("{} parts", tokens.size()),
                fmt::format("one for each of the {} devices", devices));
  }
  search::check_partition(tokens, task.prompt_len, partition_flag);
  return tokens;
}

Partition from_table(const PartitionFlags& f, const PartitionTask& task) {
  const std::string path = f.how.substr(table_prefix.size());
  const search::PartitionTable table = search::read_table(path);
  table_setting(table, path, "model", f.model, f.force);
  table_setting(table, path, "hardware", f.hardware, f.force);
  return search::look_up(table, task.prompt_len, task.platform.num_devices(), f.extrapolate);
}

/// Keeps the lower bound only if it holds for the simulator too.
PartitionFound searched_by_recurrence(const PartitionTask& task) {
  const search::PlatformChain chain = search::platform_chain(
      task.platform, task.send_order, task.exchange_cost, task.platform.num_devices());
  PartitionFound found = search_partition(search::Runahead(task.times, chain.link), task.prompt_len,
                                          task.platform.num_devices(), usual_algorithm);
  if (!chain.exact) found.lower_bound_s.reset();
  return found;
}

/// Starts from the partition that the recurrence finds.
PartitionFound searched_by_simulator(const PartitionTask& task) {
  PartitionFound start;
  if (task.schedule == simulate::Schedule::Kvr) start = searched_by_recurrence(task);
  const search::Objective objective = [&](std::span<const std::uint64_t> partition) {
    const simulate::RunOptions options{.send_order = task.send_order};
    const simulate::Simulation simulation(
        task.platform, prefill_programs(task.work({partition.begin(), partition.end()})));
    if (task.noise) return simulate::run_noise(simulation, options, *task.noise).mean_s;
    return simulation.run(options).ttft_s;
  };
  PartitionFound found = search_partition(objective, task.prompt_len, task.platform.num_devices(),
                                          usual_algorithm, start.tokens);
  // Holds with noise too: background traffic makes nothing faster.
  found.lower_bound_s = start.lower_bound_s;
  return found;
}

PartitionFound searched(const PartitionFlags& f, const PartitionTask& task) {
  if (f.search_objective == "simulator") return searched_by_simulator(task);
  if (!f.search_objective.empty() && f.search_objective != "recurrence") {
    throw Error("--search-objective", "'" + f.search_objective + "'", "recurrence or simulator");
  }
  if (task.schedule != simulate::Schedule::Kvr) {
    throw Error("--partition search",
                fmt::format("schedule {}, which the recurrence does not describe",
                            simulate::name(task.schedule)),
                "schedule kvr, or --search-objective simulator");
  }
  return searched_by_recurrence(task);
}

}  // namespace

ChosenPartition choose_partition(const PartitionFlags& f, const PartitionTask& task) {
  if (f.how != "search" && !f.search_objective.empty()) {
    throw Error("--search-objective", "--partition " + f.how, "--partition search");
  }
  const bool is_table = f.how.starts_with(table_prefix);
  if (f.extrapolate && !is_table) {
    throw Error("--extrapolate", "--partition " + f.how, "--partition table:FILE");
  }
  if (f.force && !is_table) {
    throw Error("--force", "--partition " + f.how, "--partition table:FILE");
  }
  if (f.how == "even") {
    return {even_partition(task.prompt_len, task.platform.num_devices())};
  }
  if (is_table) return {from_table(f, task)};
  if (f.how != "search") return {listed(f.how, task)};
  PartitionFound found = searched(f, task);
  return {found.tokens, std::move(found)};
}

std::string table_setting(const search::PartitionTable& table, const std::string& path,
                          std::string_view name, const std::string& wanted, bool force) {
  const auto found = std::find_if(table.settings.begin(), table.settings.end(),
                                  [&](const auto& setting) { return setting.first == name; });
  if (found == table.settings.end()) {
    throw Error(path + ": /settings", "no " + std::string(name),
                "a table of kvcast partition table");
  }
  if (wanted.empty() || wanted == found->second) return found->second;
  if (force) return wanted;
  throw Error(path, fmt::format("a table for {} {}", name, found->second),
              fmt::format("one for {}, or --force", wanted));
}

}  // namespace kvcast::cli
