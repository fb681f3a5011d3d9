#include "simulate/schedules.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/units.h"
#include "model/base/words.h"

namespace kvcast::simulate {
namespace {

constexpr Words<Schedule, 2> schedules = {{{Schedule::Kvr, "kvr"}, {Schedule::Tsp, "tsp"}}};
constexpr Words<AllGather, 3> all_gathers = {{{AllGather::Ring, "ring"},
                                              {AllGather::RecursiveDoubling, "recursive-doubling"},
                                              {AllGather::Direct, "direct"}}};

enum Label : std::uint32_t { before_exchange, after_exchange, before_layers, after_layers };

template <typename List>
void check_length(const char* what, const List& list, std::size_t ranks) {
  if (list.size() == ranks) return;
  throw Error(what, fmt::format("{} entries", list.size()),
              fmt::format("one for each of the {} ranks", ranks));
}

void check(const PrefillWork& work) {
  check_parts(work.partition_tokens);
  if (work.layers.empty()) throw Error("layers", "none", "at least one");
  check_length("compute times", work.ranks, work.partition_tokens.size());
  for (const std::size_t kind : work.layers) KVCAST_ASSERT(kind < work.bytes_per_token.size());
  for (const RankTimes& rank : work.ranks) {
    KVCAST_ASSERT(rank.kinds.size() == work.bytes_per_token.size());
  }
}

/// Whether all layers send the same, so that their programs are equally long.
bool layers_send_alike(const PrefillWork& work) {
  const auto alike = [](const auto& of_kinds) {
    return std::adjacent_find(of_kinds.begin(), of_kinds.end(), std::not_equal_to<>()) ==
           of_kinds.end();
  };
  return alike(work.bytes_per_token) && alike(work.seen);
}

/// Room for the layers when the first one is there and all are as long. The programs of a thousand
/// ranks are gigabytes, which growing would copy again and again.
void reserve_layers(std::size_t layers, Programs& programs) {
  check_instructions(layers * programs.num_instructions());
  for (Program& program : programs.ranks) program.reserve(layers * program.size() + 1);
}

void append_computes(const PrefillWork& work, std::size_t kind, double LayerTime::*seconds,
                     Label label, Programs& programs) {
  for (std::size_t i = 0; i < programs.ranks.size(); ++i) {
    programs.ranks[i].push_back(Compute{work.ranks[i].kinds[kind].*seconds, label});
  }
}

/// In a chain each rank waits for the one before it.
void append_receives(Programs& programs) {
  for (std::uint32_t i = 1; i < programs.ranks.size(); ++i) {
    programs.ranks[i].push_back(Receive{i - 1});
  }
}

/// Each rank passes on what it has received, with its own part, as far as later ranks see it.
void append_sends(const std::vector<std::uint64_t>& partition, std::uint64_t bytes_per_token,
                  const SeenTokens& seen, Programs& programs) {
  std::uint64_t boundary = 0;
  for (std::uint32_t i = 0; i + 1 < partition.size(); ++i) {
    boundary = checked_add(boundary, partition[i]);
    const std::uint64_t bytes = checked_multiply(seen.of(boundary), bytes_per_token);
    programs.ranks[i].push_back(Send{i + 1, checked_add(bytes, seen.of_state(boundary))});
  }
}

SeenTokens seen_of(const PrefillWork& work, std::size_t kind) {
  return work.seen.empty() ? SeenTokens() : work.seen[kind];
}

bool waits_first(const PrefillWork& work, std::size_t kind) {
  return work.schedule == Schedule::Kvr && seen_of(work, kind).has_state();
}

void append_ring(const std::vector<std::uint64_t>& bytes, Programs& programs) {
  const auto n = static_cast<std::uint32_t>(bytes.size());
  for (std::uint32_t i = 0; i < n; ++i) {
    for (std::uint32_t step = 0; step + 1 < n; ++step) {
      programs.ranks[i].push_back(Send{(i + 1) % n, bytes[(i + n - step) % n]});
      programs.ranks[i].push_back(Receive{(i + n - 1) % n});
    }
  }
}

void append_recursive_doubling(const std::vector<std::uint64_t>& bytes, Programs& programs) {
  const auto n = static_cast<std::uint32_t>(bytes.size());
  if (!std::has_single_bit(n)) {
    throw Error("all-gather by recursive doubling", fmt::format("{} ranks", n), "a power of two");
  }
  std::vector<std::uint64_t> held = bytes;
  for (std::uint32_t distance = 1; distance < n; distance *= 2) {
    std::vector<std::uint64_t> next = held;
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t partner = i ^ distance;
      programs.ranks[i].push_back(Send{partner, held[i]});
      programs.ranks[i].push_back(Receive{partner});
      next[i] = checked_add(held[i], held[partner]);
    }
    held = std::move(next);
  }
}

void append_direct(const std::vector<std::uint64_t>& bytes, Programs& programs) {
  const auto n = static_cast<std::uint32_t>(bytes.size());
  for (std::uint32_t i = 0; i < n; ++i) {
    // The s-th message of rank i goes to rank i + s, so that no rank is sent to by all at once.
    for (std::uint32_t s = 1; s < n; ++s) {
      programs.ranks[i].push_back(Send{(i + s) % n, bytes[i]});
    }
    for (std::uint32_t s = 1; s < n; ++s) programs.ranks[i].push_back(Receive{(i + n - s) % n});
  }
}

/// The messages of one layer.
void append_exchange(const PrefillWork& work, std::size_t kind, Programs& programs) {
  const std::uint64_t bytes_per_token = work.bytes_per_token[kind];
  const SeenTokens seen = seen_of(work, kind);
  if (bytes_per_token == 0 && !seen.besides_keys()) return;
  if (work.schedule == Schedule::Kvr) {
    if (!waits_first(work, kind)) append_receives(programs);
    return append_sends(work.partition_tokens, bytes_per_token, seen, programs);
  }
  std::vector<std::uint64_t> chunk_bytes;
  for (const std::uint64_t tokens : work.partition_tokens) {
    chunk_bytes.push_back(checked_multiply(tokens, bytes_per_token));
  }
  append_all_gather(work.all_gather, chunk_bytes, programs);
}

}  // namespace

std::string_view name(Schedule schedule) { return word_for(schedule, schedules); }

Schedule parse_schedule(std::string_view word) { return parse_word("schedule", word, schedules); }

std::string_view name(AllGather kind) { return word_for(kind, all_gathers); }

AllGather parse_all_gather(std::string_view word) {
  return parse_word("all-gather", word, all_gathers);
}

void check_parts(const std::vector<std::uint64_t>& partition_tokens) {
  if (partition_tokens.empty()) throw Error("partition", "no ranks", "at least one");
  for (const std::uint64_t tokens : partition_tokens) {
    if (tokens == 0) throw Error("partition", "a rank without tokens", "at least 1 for each");
  }
}

void append_all_gather(AllGather kind, const std::vector<std::uint64_t>& chunk_bytes,
                       Programs& programs) {
  check_length("all-gather", chunk_bytes, programs.ranks.size());
  switch (kind) {
    case AllGather::Ring: return append_ring(chunk_bytes, programs);
    case AllGather::RecursiveDoubling: return append_recursive_doubling(chunk_bytes, programs);
    case AllGather::Direct: return append_direct(chunk_bytes, programs);
  }
}

Programs prefill_programs(const PrefillWork& work) {
  check(work);
  Programs programs;
  programs.labels = {"before exchange", "after exchange", "before layers", "after layers"};
  programs.ranks.resize(work.partition_tokens.size());
  const auto append_once = [&](double RankTimes::*seconds, Label label) {
    for (std::size_t i = 0; i < programs.ranks.size(); ++i) {
      const double s = work.ranks[i].*seconds;
      if (s != 0) programs.ranks[i].push_back(Compute{s, label});
    }
  };
  append_once(&RankTimes::embedding_s, before_layers);
  for (std::size_t l = 0; l < work.layers.size(); ++l) {
    if (l == 1 && layers_send_alike(work)) reserve_layers(work.layers.size(), programs);
    const std::size_t kind = work.layers[l];
    if (waits_first(work, kind)) append_receives(programs);
    append_computes(work, kind, &LayerTime::before_exchange_s, before_exchange, programs);
    append_exchange(work, kind, programs);
    append_computes(work, kind, &LayerTime::after_exchange_s, after_exchange, programs);
    check_instructions(programs.num_instructions());
  }
  append_once(&RankTimes::head_s, after_layers);
  return programs;
}

}  // namespace kvcast::simulate
