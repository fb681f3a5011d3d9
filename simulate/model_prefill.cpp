#include "simulate/model_prefill.h"

#include <algorithm>
#include <numeric>

#include "model/base/error.h"
#include "model/base/units.h"

namespace kvcast::simulate {
namespace {

/// When the last rank ends if a message arrives as it is sent: in TSP all ranks go on
/// together, in a chain none before those in front of it.
double without_links_s(const PrefillWork& work) {
  std::vector<double> now = work.before_layers_s;
  for (const std::size_t kind : work.layers) {
    const LayerWork& layer = work.kinds[kind];
    double ready = 0;
    for (std::size_t i = 0; i < now.size(); ++i) {
      now[i] += layer.before_exchange_s[i];
      ready = std::max(ready, now[i]);
      if (work.schedule == Schedule::Kvr && layer.bytes_per_token > 0) now[i] = ready;
    }
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (work.schedule == Schedule::Tsp && layer.bytes_per_token > 0) now[i] = ready;
      now[i] += layer.after_exchange_s[i];
    }
  }
  return now.back() + work.after_layers_s.back();
}

}  // namespace

PrefillWork prefill_work(const LayerTimes& times, Schedule schedule,
                         const std::vector<std::uint64_t>& partition_tokens,
                         const ExchangeCost& cost) {
  std::uint64_t prompt_len = 0;
  for (const std::uint64_t tokens : partition_tokens) {
    if (tokens == 0) throw Error("partition", "a rank without tokens", "at least 1 for each");
    prompt_len = checked_add(prompt_len, tokens);
  }
  if (prompt_len == 0) throw Error("partition", "no ranks", "at least one");
  PrefillWork work;
  work.schedule = schedule;
  work.partition_tokens = partition_tokens;
  work.layers.assign(times.kinds().begin(), times.kinds().end());
  std::uint64_t boundary = 0;
  for (std::size_t i = 0; i < partition_tokens.size(); ++i) {
    boundary += partition_tokens[i];
    const RankTimes rank =
        times.rank(partition_tokens[i], times.keys(schedule, boundary, prompt_len),
                   i + 1 == partition_tokens.size(),
                   exchange_pace(schedule, cost, i, partition_tokens.size()));
    work.kinds.resize(rank.kinds.size());
    for (std::size_t k = 0; k < rank.kinds.size(); ++k) {
      work.kinds[k].before_exchange_s.push_back(rank.kinds[k].before_exchange_s);
      work.kinds[k].after_exchange_s.push_back(rank.kinds[k].after_exchange_s);
      work.kinds[k].bytes_per_token = times.bytes_per_token(k);
    }
    work.before_layers_s.push_back(rank.embedding_s);
    work.after_layers_s.push_back(rank.head_s);
  }
  return work;
}

PrefillBounds prefill_bounds(const LayerTimes& times, const PrefillWork& work) {
  PrefillBounds bounds;
  const std::uint64_t prompt_len =
      std::accumulate(work.partition_tokens.begin(), work.partition_tokens.end(), std::uint64_t{0});
  bounds.one_device_s = times.total_s(times.rank(prompt_len, prompt_len, true));
  const auto p = static_cast<double>(work.partition_tokens.size());
  bounds.star_s = bounds.one_device_s / 2 * (1 / p + 1 / (p * p));
  bounds.no_communication_s = without_links_s(work);
  return bounds;
}

}  // namespace kvcast::simulate
