#include "simulate/schedules.h"

#include <bit>
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
  const std::size_t ranks = work.partition_tokens.size();
  if (ranks == 0) throw Error("partition", "no ranks", "at least one");
  for (const std::uint64_t tokens : work.partition_tokens) {
    if (tokens == 0) throw Error("partition", "a rank without tokens", "at least 1 for each");
  }
  if (work.layers.empty()) throw Error("layers", "none", "at least one");
  check_length("compute times", work.ranks, ranks);
  for (const std::size_t kind : work.layers) KVCAST_ASSERT(kind < work.bytes_per_token.size());
  for (const RankTimes& rank : work.ranks) {
    KVCAST_ASSERT(rank.kinds.size() == work.bytes_per_token.size());
  }
}

/// Of layers that are alike. The programs of a thousand ranks are gigabytes, which growing would
/// copy again and again.
void reserve_layers(std::size_t layers, Programs& programs) {
  check_instructions(layers * programs.num_instructions());
  for (Program& program : programs.ranks) program.reserve(layers * program.size() + 1);
}

void append_kvr_layer(const PrefillWork& work, std::uint32_t l, Programs& programs) {
  const std::size_t kind = work.layers[l];
  const std::uint64_t bytes_per_token = work.bytes_per_token[kind];
  const std::size_t ranks = programs.ranks.size();
  const bool exchanges = bytes_per_token > 0;
  std::uint64_t tokens = 0;
  for (std::uint32_t i = 0; i < ranks; ++i) {
    Program& program = programs.ranks[i];
    const LayerTime& time = work.ranks[i].kinds[kind];
    program.push_back(Compute{time.before_exchange_s, before_exchange});
    if (i > 0 && exchanges) program.push_back(Receive{i - 1, l});
    tokens = checked_add(tokens, work.partition_tokens[i]);
    if (i + 1 < ranks && exchanges) {
      program.push_back(Send{i + 1, l, checked_multiply(tokens, bytes_per_token)});
      if (work.send_order == SendOrder::Block) program.push_back(WaitSend{});
    }
    program.push_back(Compute{time.after_exchange_s, after_exchange});
  }
}

/// One layer. Returns the tag after its last.
std::uint32_t append_tsp_layer(const PrefillWork& work, std::uint32_t l, std::uint32_t tag,
                               Programs& programs) {
  const std::size_t kind = work.layers[l];
  const std::size_t ranks = programs.ranks.size();
  std::vector<std::uint64_t> chunks;
  for (std::size_t i = 0; i < ranks; ++i) {
    const double seconds = work.ranks[i].kinds[kind].before_exchange_s;
    programs.ranks[i].push_back(Compute{seconds, before_exchange});
    chunks.push_back(checked_multiply(work.partition_tokens[i], work.bytes_per_token[kind]));
  }
  if (work.bytes_per_token[kind] > 0) {
    tag = append_all_gather(work.all_gather, chunks, work.send_order == SendOrder::Block, tag,
                            programs);
  }
  for (std::size_t i = 0; i < ranks; ++i) {
    const double seconds = work.ranks[i].kinds[kind].after_exchange_s;
    programs.ranks[i].push_back(Compute{seconds, after_exchange});
  }
  return tag;
}

void append_ring(const std::vector<std::uint64_t>& bytes, bool block, std::uint32_t tag,
                 Programs& programs) {
  const auto n = static_cast<std::uint32_t>(bytes.size());
  for (std::uint32_t i = 0; i < n; ++i) {
    for (std::uint32_t step = 0; step + 1 < n; ++step) {
      programs.ranks[i].push_back(Send{(i + 1) % n, tag + step, bytes[(i + n - step) % n]});
      programs.ranks[i].push_back(Receive{(i + n - 1) % n, tag + step});
      if (block) programs.ranks[i].push_back(WaitSend{});
    }
  }
}

void append_recursive_doubling(const std::vector<std::uint64_t>& bytes, bool block,
                               std::uint32_t tag, Programs& programs) {
  const auto n = static_cast<std::uint32_t>(bytes.size());
  if (!std::has_single_bit(n)) {
    throw Error("all-gather by recursive doubling", fmt::format("{} ranks", n), "a power of two");
  }
  std::vector<std::uint64_t> held = bytes;
  std::uint32_t step = 0;
  for (std::uint32_t distance = 1; distance < n; distance *= 2, ++step) {
    std::vector<std::uint64_t> next = held;
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t partner = i ^ distance;
      programs.ranks[i].push_back(Send{partner, tag + step, held[i]});
      programs.ranks[i].push_back(Receive{partner, tag + step});
      if (block) programs.ranks[i].push_back(WaitSend{});
      next[i] = checked_add(held[i], held[partner]);
    }
    held = std::move(next);
  }
}

void append_direct(const std::vector<std::uint64_t>& bytes, bool block, std::uint32_t tag,
                   Programs& programs) {
  const auto n = static_cast<std::uint32_t>(bytes.size());
  for (std::uint32_t i = 0; i < n; ++i) {
    // In step s everyone sends to the s-th after itself, so that no receiver is sent to by all.
    for (std::uint32_t s = 1; s < n; ++s) {
      programs.ranks[i].push_back(Send{(i + s) % n, tag, bytes[i]});
    }
    for (std::uint32_t s = 1; s < n; ++s) {
      programs.ranks[i].push_back(Receive{(i + n - s) % n, tag});
    }
    if (block) programs.ranks[i].push_back(WaitSend{});
  }
}

}  // namespace

std::string_view name(Schedule schedule) { return word_for(schedule, schedules); }

Schedule parse_schedule(std::string_view word) { return parse_word("schedule", word, schedules); }

std::string_view name(AllGather kind) { return word_for(kind, all_gathers); }

AllGather parse_all_gather(std::string_view word) {
  return parse_word("all-gather", word, all_gathers);
}

std::uint32_t append_all_gather(AllGather kind, const std::vector<std::uint64_t>& chunk_bytes,
                                bool block, std::uint32_t first_tag, Programs& programs) {
  check_length("all-gather", chunk_bytes, programs.ranks.size());
  const auto n = static_cast<std::uint32_t>(chunk_bytes.size());
  switch (kind) {
    case AllGather::Ring:
      append_ring(chunk_bytes, block, first_tag, programs);
      return first_tag + n - 1;
    case AllGather::RecursiveDoubling:
      append_recursive_doubling(chunk_bytes, block, first_tag, programs);
      return first_tag + static_cast<std::uint32_t>(std::bit_width(n)) - 1;
    case AllGather::Direct:
      append_direct(chunk_bytes, block, first_tag, programs);
      return first_tag + 1;
  }
  KVCAST_ASSERT(false);
  return first_tag;
}

Programs prefill_programs(const PrefillWork& work) {
  check(work);
  const std::size_t ranks = work.partition_tokens.size();
  Programs programs;
  programs.labels = {"before exchange", "after exchange", "before layers", "after layers"};
  programs.ranks.resize(ranks);
  const auto append_once = [&](double RankTimes::*seconds, Label label) {
    for (std::size_t i = 0; i < ranks; ++i) {
      const double s = work.ranks[i].*seconds;
      if (s != 0) programs.ranks[i].push_back(Compute{s, label});
    }
  };
  append_once(&RankTimes::embedding_s, before_layers);
  std::uint32_t tag = 0;
  for (std::uint32_t l = 0; l < work.layers.size(); ++l) {
    if (l == 1 && work.bytes_per_token.size() == 1) reserve_layers(work.layers.size(), programs);
    if (work.schedule == Schedule::Kvr) {
      append_kvr_layer(work, l, programs);
    } else {
      tag = append_tsp_layer(work, l, tag, programs);
    }
    check_instructions(programs.num_instructions());
  }
  append_once(&RankTimes::head_s, after_layers);
  return programs;
}

}  // namespace kvcast::simulate
