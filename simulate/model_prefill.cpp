#include "simulate/model_prefill.h"

#include "model/base/error.h"
#include "model/base/units.h"

namespace kvcast::simulate {
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
        times.of_rank(partition_tokens[i], times.keys(schedule, boundary, prompt_len),
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

}  // namespace kvcast::simulate
