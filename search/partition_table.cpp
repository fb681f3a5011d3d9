#include "search/partition_table.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "simulate/parallel_for.h"

namespace kvcast::search {
namespace {

using nlohmann::ordered_json;

constexpr const char* file_kind = "kvcast partition table";

std::vector<double> ratios_of(const TableEntry& e) {
  std::vector<double> ratios;
  for (const std::uint64_t tokens : e.found.tokens) {
    ratios.push_back(static_cast<double>(tokens) / static_cast<double>(e.prompt_len));
  }
  return ratios;
}

bool before(const TableEntry& a, const TableEntry& b) {
  return std::make_pair(a.found.tokens.size(), a.prompt_len) <
         std::make_pair(b.found.tokens.size(), b.prompt_len);
}

TableEntry read_entry(const JsonObject& o) {
  TableEntry e;
  e.prompt_len = o.whole("context");
  e.found.tokens = o.wholes("partition_tokens");
  check_partition(e.found.tokens, e.prompt_len, o.place_of("partition_tokens"));
  e.found.ttft_s = o.positive("ttft_s");
  e.found.even_ttft_s = o.positive("even_ttft_s");
  e.found.lower_bound_s = o.positive("lower_bound_s");
  e.found.evaluations = o.whole("evaluations");
  o.reject_unknown_keys();
  return e;
}

}  // namespace

std::vector<TableEntry> search_table(const Runahead& runahead,
                                     std::span<const std::uint64_t> prompt_lens,
                                     std::span<const std::size_t> rank_counts,
                                     PartitionAlgorithm algorithm, std::size_t threads,
                                     const std::function<void(std::size_t done)>& on_progress) {
  struct Task {
    std::uint64_t prompt_len;
    std::size_t ranks;
  };
  std::vector<Task> tasks;
  for (const std::size_t ranks : rank_counts) {
    for (const std::uint64_t prompt_len : prompt_lens) tasks.push_back({prompt_len, ranks});
  }
  std::vector<TableEntry> entries(tasks.size());
  const auto search = [&](std::size_t i) {
    entries[i] = {tasks[i].prompt_len,
                  search_partition(runahead, tasks[i].prompt_len, tasks[i].ranks, algorithm)};
  };
  simulate::parallel_for(tasks.size(), threads, search, on_progress);
  std::sort(entries.begin(), entries.end(), before);
  return entries;
}

std::string to_json(const PartitionTable& table) {
  ordered_json document{{"file", file_kind}};
  for (const auto& [key, value] : table.settings) document["settings"][key] = value;
  document["entries"] = ordered_json::array();
  for (const TableEntry& e : table.entries) {
    document["entries"].push_back({{"context", e.prompt_len},
                                   {"partition_tokens", e.found.tokens},
                                   {"ttft_s", e.found.ttft_s},
                                   {"even_ttft_s", e.found.even_ttft_s},
                                   {"lower_bound_s", *e.found.lower_bound_s},
                                   {"evaluations", e.found.evaluations}});
  }
  return json_text(document, 1) + "\n";
}

PartitionTable read_table(const std::filesystem::path& path) {
  const nlohmann::json document = read_json_file(path);
  const JsonObject o(document, path.string());
  if (o.text("file") != file_kind) o.fail("file", fmt::format("'{}'", file_kind));
  PartitionTable table;
  const JsonObject settings = o.object("settings");
  for (const std::string& key : settings.keys())
    table.settings.emplace_back(key, settings.text(key));
  const nlohmann::json& entries = o.at("entries");
  if (!entries.is_array() || entries.empty()) o.fail("entries", "a list of at least one entry");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string place = fmt::format("{}/{}", o.place_of("entries"), i);
    table.entries.push_back(read_entry(JsonObject(entries[i], place)));
    if (i > 0 && !before(table.entries[i - 1], table.entries[i])) {
      throw Error(place, "an entry out of order",
                  "entries in increasing order of ranks, then of prompt_len, each once");
    }
  }
  o.reject_unknown_keys();
  return table;
}

Partition round_to_tokens(std::span<const double> ratios, std::uint64_t prompt_len) {
  if (prompt_len < ratios.size()) even_partition(prompt_len, ratios.size());  // throws
  const double sum = std::accumulate(ratios.begin(), ratios.end(), 0.0);
  // One token each is given out first, so that rounding cannot leave a part empty.
  const auto spare = static_cast<double>(prompt_len);
  std::vector<std::pair<double, std::size_t>> remainders;
  Partition tokens;
  std::uint64_t given = 0;
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const double exact = std::max(spare * ratios[i] / sum, 1.0);
    tokens.push_back(static_cast<std::uint64_t>(exact));
    remainders.emplace_back(std::floor(exact) - exact, i);
    given += tokens.back();
  }
  std::sort(remainders.begin(), remainders.end());  // the largest first, the first of equals first
  for (std::size_t i = 0; given < prompt_len; i = (i + 1) % remainders.size(), ++given) {
    ++tokens[remainders[i].second];
  }
  // Parts raised to one token were taken from nobody yet: the largest give.
  for (; given > prompt_len; --given) --*std::max_element(tokens.begin(), tokens.end());
  return tokens;
}

Partition look_up(const PartitionTable& table, std::uint64_t prompt_len, std::size_t ranks,
                  bool extrapolate) {
  std::vector<const TableEntry*> entries;
  std::vector<std::size_t> counts;
  for (const TableEntry& e : table.entries) {
    const std::size_t count = e.found.tokens.size();
    if (count == ranks) entries.push_back(&e);
    if (counts.empty() || counts.back() != count) counts.push_back(count);
  }
  if (entries.empty()) {
    throw Error("partition table", fmt::format("a request for {} ranks", ranks),
                fmt::format("one of {}", fmt::join(counts, ", ")));
  }
  const auto above = std::find_if(entries.begin(), entries.end(),
                                  [&](const TableEntry* e) { return e->prompt_len >= prompt_len; });
  if (above != entries.end() && (*above)->prompt_len == prompt_len) return (*above)->found.tokens;
  if (above == entries.begin() || above == entries.end()) {
    if (!extrapolate) {
      throw Error("partition table", fmt::format("a request for {} tokens", prompt_len),
                  fmt::format("{} to {} tokens, or --extrapolate", entries.front()->prompt_len,
                              entries.back()->prompt_len));
    }
    const TableEntry* edge = above == entries.begin() ? entries.front() : entries.back();
    return round_to_tokens(ratios_of(*edge), prompt_len);
  }
  const TableEntry& low = **(above - 1);
  const TableEntry& high = **above;
  const double weight = static_cast<double>(prompt_len - low.prompt_len) /
                        static_cast<double>(high.prompt_len - low.prompt_len);
  std::vector<double> ratios = ratios_of(low);
  const std::vector<double> others = ratios_of(high);
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] += weight * (others[i] - ratios[i]);
  return round_to_tokens(ratios, prompt_len);
}

}  // namespace kvcast::search
