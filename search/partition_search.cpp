#include "search/partition_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/interrupt.h"
#include "model/base/words.h"
#include "search/partition_bound.h"

namespace kvcast::search {
namespace {

constexpr Words<PartitionAlgorithm, 4> algorithms = {
    {{PartitionAlgorithm::Balance, "balance"},
     {PartitionAlgorithm::Grid, "grid"},
     {PartitionAlgorithm::Coordinate, "coordinate"},
     {PartitionAlgorithm::Golden, "golden"}}};
constexpr std::size_t most_grid_ranks = 9;
/// An exchange tries P^2 pairs, each in time P, from dozens of starts. Chosen so that a search over
/// 64 devices ends within seconds, 2.3 % above its bound for Llama 7B at 32k.
constexpr std::uint64_t most_evaluated_ranks = 2'000'000;

/// The best partition so far.
class Incumbent {
 public:
  Incumbent(const Objective& objective, std::uint64_t prompt_len, std::size_t ranks)
      : objective_(objective), prompt_len_(prompt_len) {
    found.tokens = even_partition(prompt_len, ranks);
    found.ttft_s = found.even_ttft_s = evaluate(found.tokens);
  }

  PartitionFound found;
  std::uint64_t prompt_len() const { return prompt_len_; }

  double try_out(const Partition& candidate) {
    const double ttft = evaluate(candidate);
    if (ttft < found.ttft_s) {
      found.ttft_s = ttft;
      found.tokens = candidate;
    }
    return ttft;
  }
  /// Whether it is better than all before, and so the best now.
  bool improve(const Partition& candidate) {
    const double before = found.ttft_s;
    return try_out(candidate) < before;
  }

 private:
  double evaluate(const Partition& candidate) {
    stop_if_interrupted();
    ++found.evaluations;
    return objective_(candidate);
  }
  const Objective& objective_;
  std::uint64_t prompt_len_;
};

/// The ends of all parts but the last, as signed numbers for moving them about.
using Cuts = std::vector<std::int64_t>;

Cuts cuts_of(const Partition& tokens) {
  const std::vector<std::uint64_t> boundaries = boundaries_of(tokens);
  return {boundaries.begin() + 1, boundaries.end() - 1};
}

/// Nothing when a part would be empty.
std::optional<Partition> partition_of(const Cuts& cuts, std::uint64_t prompt_len) {
  Partition tokens;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i <= cuts.size(); ++i) {
    const std::int64_t end = i < cuts.size() ? cuts[i] : static_cast<std::int64_t>(prompt_len);
    if (end <= begin) return {};
    tokens.push_back(static_cast<std::uint64_t>(end - begin));
    begin = end;
  }
  return tokens;
}

void grid(Incumbent& best, std::uint64_t prompt_len) {
  for (auto stride = static_cast<std::int64_t>(first_stride(prompt_len)); stride >= 1;
       stride /= 2) {
    const Cuts center = cuts_of(best.found.tokens);
    std::vector<int> step(center.size(), -2);
    for (bool more = true; more;) {
      Cuts cuts = center;
      for (std::size_t i = 0; i < cuts.size(); ++i) cuts[i] += step[i] * stride;
      if (const auto candidate = partition_of(cuts, prompt_len)) best.improve(*candidate);
      std::size_t i = 0;
      while (i < step.size() && ++step[i] > 2) step[i++] = -2;
      more = i < step.size();
    }
  }
}

void coordinate(Incumbent& best, std::uint64_t prompt_len) {
  for (auto stride = static_cast<std::int64_t>(first_stride(prompt_len)); stride >= 1;
       stride /= 2) {
    for (bool improved = true; improved;) {
      improved = false;
      for (std::size_t i = 0; i + 1 < best.found.tokens.size(); ++i) {
        const Cuts center = cuts_of(best.found.tokens);
        for (const int step : {-2, -1, 1, 2}) {
          Cuts cuts = center;
          cuts[i] += step * stride;
          if (const auto candidate = partition_of(cuts, prompt_len))
            improved |= best.improve(*candidate);
        }
      }
    }
  }
}

void golden(Incumbent& best, std::uint64_t prompt_len) {
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  std::uint64_t low = 1;
  std::uint64_t high = prompt_len - 1;
  const auto at = [&](std::uint64_t cut) { return best.try_out({cut, prompt_len - cut}); };
  const auto inner = [&] {
    return static_cast<std::uint64_t>(std::lround(ratio * static_cast<double>(high - low)));
  };
  std::uint64_t left = high - inner();
  std::uint64_t right = low + inner();
  double left_s = at(left);
  double right_s = at(right);
  while (high - low > 4 && left < right) {
    if (left_s <= right_s) {
      high = right;
      right = left;
      right_s = left_s;
      left = high - inner();
      left_s = at(left);
    } else {
      low = left;
      left = right;
      left_s = right_s;
      right = low + inner();
      right_s = at(right);
    }
  }
  for (std::uint64_t cut = low; cut <= high; ++cut) at(cut);
}

/// From `tokens`, which take `ttft_s`, moves tokens from any rank to any other as long as that
/// helps, many first, at last one by one.
void exchange_tokens(Incumbent& best, Partition tokens, double ttft_s) {
  const std::size_t ranks = tokens.size();
  const std::uint64_t limit = most_evaluated_ranks / ranks;
  for (std::uint64_t moved = first_stride(best.prompt_len()); moved >= 1; moved /= 2) {
    for (bool improved = true; improved;) {
      improved = false;
      for (std::size_t from = 0; from < ranks; ++from) {
        for (std::size_t to = 0; to < ranks; ++to) {
          if (from == to || tokens[from] <= moved) continue;
          if (best.found.evaluations >= limit) return;
          Partition candidate = tokens;
          candidate[from] -= moved;
          candidate[to] += moved;
          const double candidate_s = best.try_out(candidate);
          if (candidate_s >= ttft_s) continue;
          ttft_s = candidate_s;
          tokens = std::move(candidate);
          improved = true;
        }
      }
    }
  }
}

/// Partitions whose boundaries lie where a TTFT a little above the bound leaves room for them.
std::vector<Partition> partitions_near(PartitionBound& bound, double lower_bound_s,
                                       const Incumbent& best) {
  std::vector<Partition> partitions;
  for (const double above : {1e-5, 1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 4e-2, 8e-2, 0.16}) {
    const double target = lower_bound_s * (1 + above);
    if (target > best.found.ttft_s) break;
    const BoundaryRanges r = bound.ranges(target);
    if (!r.feasible) continue;
    for (const std::uint64_t quarter : {0u, 1u, 2u, 3u, 4u}) {
      Cuts cuts;
      for (std::size_t i = 0; i + 1 < r.lowest.size(); ++i) {
        const std::uint64_t width = r.highest[i] - r.lowest[i];
        cuts.push_back(static_cast<std::int64_t>(r.lowest[i] + width * quarter / 4));
      }
      const auto candidate = partition_of(cuts, best.prompt_len());
      if (candidate) partitions.push_back(*candidate);
    }
  }
  return partitions;
}

/// Descends from the best of the partitions near the bound, and from each of them if that leaves a
/// gap.
void balance(Incumbent& best, PartitionBound& bound) {
  constexpr double small_gap = 1e-3;
  const double lower = bound.lower_bound_s(best.found.ttft_s);
  best.found.lower_bound_s = lower;
  const std::vector<Partition> starts = partitions_near(bound, lower, best);
  for (const Partition& start : starts) best.improve(start);
  exchange_tokens(best, best.found.tokens, best.found.ttft_s);
  for (const Partition& start : starts) {
    if (best.found.ttft_s <= lower * (1 + small_gap)) return;
    exchange_tokens(best, start, best.try_out(start));
  }
}

void check_algorithm(PartitionAlgorithm algorithm, std::size_t ranks) {
  const std::string where = fmt::format("partition search --algorithm {}", name(algorithm));
  if (algorithm == PartitionAlgorithm::Golden && ranks != 2) {
    throw Error(where, fmt::format("{} devices", ranks), "2");
  }
  if (algorithm == PartitionAlgorithm::Grid && ranks > most_grid_ranks) {
    throw Error(where, fmt::format("{} devices", ranks),
                fmt::format("at most {} (grid tries 5^(P-1) partitions per level); balance and "
                            "coordinate take any number",
                            most_grid_ranks));
  }
}

void run(PartitionAlgorithm algorithm, Incumbent& best) {
  switch (algorithm) {
    case PartitionAlgorithm::Grid: return grid(best, best.prompt_len());
    case PartitionAlgorithm::Coordinate: return coordinate(best, best.prompt_len());
    case PartitionAlgorithm::Golden: return golden(best, best.prompt_len());
    case PartitionAlgorithm::Balance:
      coordinate(best, best.prompt_len());
      return exchange_tokens(best, best.found.tokens, best.found.ttft_s);
  }
}

}  // namespace

std::string_view name(PartitionAlgorithm algorithm) { return word_for(algorithm, algorithms); }

PartitionAlgorithm parse_partition_algorithm(std::string_view word) {
  return parse_word("algorithm", word, algorithms);
}

std::uint64_t first_stride(std::uint64_t prompt_len) {
  return std::bit_floor(std::max<std::uint64_t>(prompt_len / 12, 1));
}

PartitionFound search_partition(const Objective& objective, std::uint64_t prompt_len,
                                std::size_t ranks, PartitionAlgorithm algorithm,
                                const Partition& start) {
  check_algorithm(algorithm, ranks);
  Incumbent best(objective, prompt_len, ranks);
  if (!start.empty()) {
    check_partition(start, prompt_len, "partition to start from");
    best.improve(start);
  }
  if (ranks > 1) run(algorithm, best);
  return best.found;
}

PartitionFound search_partition(const Runahead& runahead, std::uint64_t prompt_len,
                                std::size_t ranks, PartitionAlgorithm algorithm) {
  check_algorithm(algorithm, ranks);
  RunaheadScratch scratch;
  const Objective recursion = [&](std::span<const std::uint64_t> partition) {
    return runahead.ttft_s(partition, scratch);
  };
  Incumbent best(recursion, prompt_len, ranks);
  PartitionBound bound(runahead, prompt_len, ranks);
  if (algorithm == PartitionAlgorithm::Balance) {
    balance(best, bound);
  } else {
    if (ranks > 1) run(algorithm, best);
    best.found.lower_bound_s = bound.lower_bound_s(best.found.ttft_s);
  }
  KVCAST_ASSERT(*best.found.lower_bound_s <= best.found.ttft_s * (1 + bound_rounding));
  best.found.lower_bound_s = std::min(*best.found.lower_bound_s, best.found.ttft_s);
  return best.found;
}

}  // namespace kvcast::search
