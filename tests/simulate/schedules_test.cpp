#include "simulate/schedules.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "simulate/simulation.h"
#include "simulate/topologies.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

namespace kvcast::simulate {
namespace {

PrefillWork work_of(Schedule schedule, std::vector<std::uint64_t> tokens, std::size_t layers) {
  PrefillWork work;
  work.schedule = schedule;
  work.bytes_per_token = {10};
  work.ranks.assign(tokens.size(), {0, 0, {{0.5, 2}}});
  work.layers.assign(layers, 0);
  work.partition_tokens = std::move(tokens);
  return work;
}

RunResult run(const PrefillWork& work, double bytes_per_s, double latency_s = 0,
              SendOrder order = SendOrder::Fifo) {
  const Platform ring =
      make_platform({TopologyKind::Ring}, static_cast<std::uint32_t>(work.partition_tokens.size()),
                    bytes_per_s, latency_s);
  RunOptions options;
  options.send_order = order;
  return Simulation(ring, prefill_programs(work)).run(options);
}

TEST_CASE("simulate: kvr sends the cache up to its own last token, tsp every chunk to all") {
  // Runahead: S_0 + S_1 = 4 + 7 token-KVs of a prompt_len of 9 cut into 4, 3, 2 (KV-Runahead, Fig.
  // 5); TSP: (p - 1) C = 18.
  const std::vector<std::uint64_t> tokens{4, 3, 2};
  const RunResult kvr = run(work_of(Schedule::Kvr, tokens, 5), 1e3);
  CHECK(kvr.message_bytes == 5 * 10 * 11);
  CHECK(kvr.messages == 5 * 2);
  const RunResult tsp = run(work_of(Schedule::Tsp, tokens, 5), 1e3);
  CHECK(tsp.message_bytes == 5 * 10 * 18);
  CHECK(tsp.messages == 5 * 3 * 2);
}

TEST_CASE("simulate: kvr over free links is a pipeline of layers") {
  // Every rank waits for the one before by 0 s in its first layer: all are computing the same
  // layer at once. With a latency of 1 s, rank i is i s behind in every layer.
  CHECK(run(work_of(Schedule::Kvr, {4, 3, 2}, 5), 1e30).finish_s ==
        std::vector<double>{12.5, 12.5, 12.5});
  const RunResult late = run(work_of(Schedule::Kvr, {4, 3, 2}, 5), 1e30, 1);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(late.finish_s[i] == near(12.5 + static_cast<double>(i)).epsilon(1e-12));
  }
}

TEST_CASE("simulate: in kvr a message leaves before the sender's attention") {
  // One layer, 40 B at 20 B/s: rank 0 computes 0.5 s, sends until 2.5 s, meanwhile ends at
  // 2.5 s; rank 1 waits until 2.5 s, then 2 s. Sent after attention it would be 6.5 s. Waiting
  // for the send holds rank 0 up until 4.5 s.
  const PrefillWork work = work_of(Schedule::Kvr, {4, 3}, 1);
  CHECK(run(work, 20).finish_s == std::vector<double>{2.5, 4.5});
  CHECK(run(work, 20, 0, SendOrder::Block).finish_s == std::vector<double>{4.5, 4.5});
}

TEST_CASE("simulate: a step of tsp's all-gather waits for the step before") {
  // Chunks of 10, 20, 30 B at 10 B/s round a ring of three, from 0.5 s on; one at a time. Into
  // rank 0 come chunk 2 (3 s), then chunk 1, which rank 2 got at 0.5 + 2 s and sends when its
  // own is through, at 3.5 s: 5.5 s. Into 1 chunk 0 (1 s), then chunk 2 from 3.5 to 6.5 s. Into 2
  // chunk 1 (2.5 s), then chunk 0, at rank 1 since 1.5 s, from 2.5 to 3.5 s. Then 2 s each.
  const RunResult r = run(work_of(Schedule::Tsp, {1, 2, 3}, 1), 10);
  REQUIRE(r.finish_s.size() == 3);
  CHECK(r.finish_s[0] == near(7.5).epsilon(1e-12));
  CHECK(r.finish_s[1] == near(8.5).epsilon(1e-12));
  CHECK(r.finish_s[2] == near(5.5).epsilon(1e-12));
  CHECK(r.ttft_s == r.finish_s[2]);
  CHECK(r.makespan_s == r.finish_s[1]);
}

TEST_CASE("simulate: embedding and head stand before and after the layers") {
  PrefillWork work = work_of(Schedule::Kvr, {4, 3}, 2);
  for (RankTimes& rank : work.ranks) rank.embedding_s = 0.25;
  work.ranks[1].head_s = 4;
  CHECK(run(work, 1e30).finish_s == std::vector<double>{5.25, 9.25});
}

TEST_CASE("simulate: every all-gather brings every chunk to every rank") {
  // Sent bytes: each chunk must enter every other rank once.
  const std::vector<std::uint64_t> chunks{3, 5, 7, 11, 13, 17, 19, 23};
  std::uint64_t total = 0;
  for (const std::uint64_t c : chunks) total += c;
  struct Case {
    AllGather kind;
    std::uint64_t messages;
    double seconds;  ///< over links of no latency on a crossbar, chunks of 1 B and 1 B/s
    double block_seconds;
  };
  // Equal chunks: 7 steps of 1 B; 1 + 2 + 4 B; 7 at once, each on a link of its own, or one after
  // the other.
  for (const Case& c :
       {Case{AllGather::Ring, 56, 7, 7}, Case{AllGather::RecursiveDoubling, 24, 7, 7},
        Case{AllGather::Direct, 56, 7, 1}}) {
    CAPTURE(name(c.kind));
    const auto gather = [&](const std::vector<std::uint64_t>& bytes, SendOrder order) {
      Programs programs;
      programs.ranks.resize(bytes.size());
      append_all_gather(c.kind, bytes, programs);
      RunOptions options;
      options.send_order = order;
      const Platform crossbar = make_platform({TopologyKind::Crossbar}, 8, 1, 0);
      return Simulation(crossbar, programs).run(options);
    };
    const RunResult r = gather(chunks, SendOrder::Fifo);
    CHECK(r.message_bytes == 7 * total);
    CHECK(r.messages == c.messages);
    const std::vector<std::uint64_t> equal(8, 1);
    CHECK(gather(equal, SendOrder::Fifo).makespan_s == c.seconds);
    CHECK(gather(equal, SendOrder::Block).makespan_s == c.block_seconds);
  }
}

TEST_CASE("simulate: any all-gather serves tsp, layer after layer") {
  for (const AllGather kind : {AllGather::Ring, AllGather::RecursiveDoubling, AllGather::Direct}) {
    CAPTURE(name(kind));
    PrefillWork work = work_of(Schedule::Tsp, {1, 2, 3, 4}, 3);
    work.all_gather = kind;
    const RunResult r = run(work, 1e30);
    CHECK(r.finish_s == std::vector<double>{7.5, 7.5, 7.5, 7.5});
    CHECK(r.message_bytes == 3 * 10 * 3 * 10);
  }
}

TEST_CASE("simulate: layers of different kinds take their own times and bytes") {
  PrefillWork work = work_of(Schedule::Kvr, {4, 3}, 0);
  work.bytes_per_token = {10, 0};
  for (RankTimes& rank : work.ranks) rank.kinds = {{0.5, 2}, {0.5, 1}};
  work.layers = {0, 1, 0};
  const RunResult r = run(work, 1e30);
  CHECK(r.message_bytes == 2 * 4 * 10);
  CHECK(r.messages == 2);  // none for the layer that caches nothing
  CHECK(r.finish_s[1] == near(3 * 0.5 + 2 + 1 + 2).epsilon(1e-12));
}

TEST_CASE("simulate: impossible schedules are refused") {
  const auto failure = [](const PrefillWork& work) {
    return message_of([&] { prefill_programs(work); });
  };
  CHECK(failure(work_of(Schedule::Kvr, {}, 1)) == "partition: got no ranks, expected at least one");
  CHECK(failure(work_of(Schedule::Kvr, {3, 0}, 1)) ==
        "partition: got a rank without tokens, expected at least 1 for each");
  CHECK(failure(work_of(Schedule::Kvr, {3, 1}, 0)) == "layers: got none, expected at least one");
  PrefillWork three = work_of(Schedule::Tsp, {3, 1, 1}, 1);
  three.all_gather = AllGather::RecursiveDoubling;
  CHECK(failure(three) == "all-gather by recursive doubling: got 3 ranks, expected a power of two");
  three.ranks.pop_back();
  CHECK(failure(three) == "compute times: got 2 entries, expected one for each of the 3 ranks");
}

}  // namespace
}  // namespace kvcast::simulate
