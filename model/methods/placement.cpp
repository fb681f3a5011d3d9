#include "model/methods/placement.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/units.h"
#include "model/methods/method.h"

namespace kvcast {
namespace {

/// More than any machine has, and small enough for a list of them.
constexpr std::uint64_t max_ranks = 65536;

std::string joined(const std::vector<std::uint64_t>& parts) {
  std::string text;
  for (const std::uint64_t part : parts) text += (text.empty() ? "" : "/") + std::to_string(part);
  return text;
}

std::vector<std::uint64_t> parse_partition(const MethodSpec& spec, const std::string& text) {
  const std::string where = "method " + spec.name + ": option partition";
  std::vector<std::uint64_t> parts;
  const char* const end = text.data() + text.size();
  for (const char* next = text.data();;) {
    std::uint64_t part = 0;
    const auto [rest, error] = std::from_chars(next, end, part);
    const bool ends = rest == end;
    if (error != std::errc() || part == 0 || (!ends && *rest != '/')) {
      throw Error(where, "'" + text + "'",
                  "even, search, or the tokens of each rank, at least 1, as in 5/3/2/1");
    }
    parts.push_back(part);
    if (ends) break;
    next = rest + 1;
  }
  return parts;
}

}  // namespace

std::uint64_t RankShare::first() const {
  return std::accumulate(partition.begin(), partition.begin() + static_cast<std::ptrdiff_t>(rank),
                         std::uint64_t{0});
}

std::uint64_t RankShare::prompt_len() const {
  return std::accumulate(partition.begin(), partition.end(), std::uint64_t{0});
}

std::vector<std::uint64_t> even_partition(std::uint64_t prompt_len, std::uint64_t ranks) {
  if (ranks == 0 || prompt_len < ranks) {
    throw Error(fmt::format("a prompt of {} tokens", prompt_len), fmt::format("{} ranks", ranks),
                "at least 1 rank, and a token for each");
  }
  std::vector<std::uint64_t> parts(ranks, prompt_len / ranks);
  std::fill_n(parts.begin(), prompt_len % ranks, prompt_len / ranks + 1);
  return parts;
}

std::vector<std::uint64_t> partition_tokens(const Placement& placement, std::uint64_t prompt_len) {
  const std::string where = "method " + placement.method;
  const std::string prompt = "a prompt of " + std::to_string(prompt_len) + " tokens";
  if (placement.partition.empty()) {
    if (prompt_len < placement.ranks) {
      throw Error(where, prompt, fmt::format("at least one token per rank ({})", placement.ranks));
    }
    return even_partition(prompt_len, placement.ranks);
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : placement.partition) sum = checked_add(sum, part);
  if (sum != prompt_len) {
    throw Error(where, prompt, std::to_string(sum) + ", the sum of " + joined(placement.partition));
  }
  return placement.partition;
}

std::optional<Placement> find_placement(const std::vector<MethodSpec>& methods) {
  for (const MethodSpec& spec : methods) {
    const Method& method = find_method(spec.name);
    if (method.kind != MethodKind::Placement) continue;
    Symbols symbols;
    Plan plan{{}, symbols};
    method.apply(spec, plan);
    return plan.placement;
  }
  return {};
}

Placement parse_placement(const MethodSpec& spec) {
  const std::string partition = text_option(spec, "partition", "even");
  const bool is_listed = partition != "even" && partition != "search";
  const bool says_ranks = std::any_of(spec.options.begin(), spec.options.end(),
                                      [](const auto& option) { return option.first == "p"; });
  Placement placement{to_string({spec}), 1};
  // A list says how many they are.
  if (says_ranks || !is_listed) placement.ranks = whole_option(spec, "p", 1);
  if (placement.ranks > max_ranks) {
    throw Error("method " + spec.name + ": option p", std::to_string(placement.ranks),
                "at most " + std::to_string(max_ranks) + " ranks");
  }
  if (is_listed) {
    placement.partition = parse_partition(spec, partition);
    if (!says_ranks) placement.ranks = placement.partition.size();
    if (placement.partition.size() != placement.ranks) {
      throw Error("method " + spec.name + ": option partition",
                  fmt::format("{} parts", placement.partition.size()),
                  fmt::format("{}, one for each rank", placement.ranks));
    }
  }
  return placement;
}

std::string_view cache_part(std::string_view name) {
  const std::size_t separator = name.find_last_of("._");
  return separator == std::string_view::npos ? name : name.substr(separator + 1);
}

}  // namespace kvcast
