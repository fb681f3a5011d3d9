// Hand-solved runs. All bandwidths and sizes are round, so that every expected time is exact.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "simulate/schedules.h"
#include "simulate/simulation.h"
#include "simulate/topologies.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

namespace kvcast::simulate {
namespace {

const Topology one_switch{TopologyKind::Switch};
const Topology ring{TopologyKind::Ring};

PrefillWork network_hand_check() {
  PrefillWork work;
  work.partition_tokens = {512, 512};
  work.ranks = {{0, 0, {{0.000343597, 0.001380116}}}, {0, 0, {{0.000343597, 0.001408749}}}};
  work.bytes_per_token = {16384};
  work.layers = {0, 0, 0, 0};
  return work;
}

RunResult run(const Topology& topology, double bytes_per_s, double latency_s,
              const std::vector<Program>& ranks, const RunOptions& options = {}) {
  const Platform platform =
      make_platform(topology, static_cast<std::uint32_t>(ranks.size()), bytes_per_s, latency_s);
  return Simulation(platform, {ranks, {"work"}}).run(options);
}

RunOptions in_order(SendOrder order) {
  RunOptions options;
  options.send_order = order;
  return options;
}

TEST_CASE("simulate: four messages that share a link arrive as worked out by hand") {
  // Each message is 8,388,608 B: 8.388608 ms at 1 GB/s. They begin to flow 1.723713 ms apart, from
  // 0.343597 + 0.1 ms on; shared out by hand they end
  // at 26.528607, 31.699743, 33.423456, 33.998029.
  const Platform platform = make_platform(one_switch, 2, 1e9, 5e-5);
  const Simulation simulation(platform, prefill_programs(network_hand_check()));
  RunOptions options = in_order(SendOrder::Async);
  options.record = true;
  const RunResult r = simulation.run(options);
  std::vector<double> arrivals;
  for (const Interval& i : r.intervals) {
    if (i.kind == IntervalKind::Transfer) arrivals.push_back(i.end_s);
  }
  REQUIRE(arrivals.size() == 4);
  CHECK(arrivals[0] == near(26.528607e-3).epsilon(1e-7));
  CHECK(arrivals[1] == near(31.699743e-3).epsilon(1e-7));
  CHECK(arrivals[2] == near(33.423456e-3).epsilon(1e-7));
  // All bytes without a gap: 0.443597 + 4 * 8.388608 ms.
  CHECK(arrivals[3] == near(33.998029e-3).epsilon(1e-9));
  CHECK(r.ttft_s == near(36.613186e-3).epsilon(1e-7));
  CHECK(r.messages == 4);
  CHECK(r.message_bytes == 4 * 8388608);
}

TEST_CASE("simulate: the same messages one at a time end as worked out by hand") {
  // Each leaves when the one before is delivered, and pays its 0.1 ms then: the last arrives at
  // 0.343597 + 4 * (0.1 + 8.388608) ms, and rank 1 computes 1.408749 ms more.
  const Platform platform = make_platform(one_switch, 2, 1e9, 5e-5);
  const PrefillWork work = network_hand_check();
  const RunResult r = Simulation(platform, prefill_programs(work)).run(in_order(SendOrder::Fifo));
  CHECK(r.ttft_s == near(35.706778e-3).epsilon(1e-9));

  // Were the 0.1 ms paid by the first alone, the link would not be idle from there on and the end
  // 35.406778 ms: the same as a latency of zero after a first computation that takes 0.1 ms more.
  PrefillWork first_alone = work;
  first_alone.ranks[0].embedding_s = 1e-4;
  const Platform immediate = make_platform(one_switch, 2, 1e9, 0);
  const RunResult once =
      Simulation(immediate, prefill_programs(first_alone)).run(in_order(SendOrder::Fifo));
  CHECK(once.ttft_s == near(35.406778e-3).epsilon(1e-9));
}

// In what follows links carry 100 B/s, so 100 B alone take 1 s.

TEST_CASE("simulate: bytes flow when the latency is over, at once over all links of a route") {
  // 0.5 s of latency a link, then 1 s of bytes. A switch is two links away, and bytes hold both at
  // once: 2 * 0.5 + 1 s, not 3 s. A message of no bytes takes its latency.
  const auto ttft_s = [](const Topology& topology, std::uint64_t bytes) {
    return run(topology, 100, 0.5, {{Send{1, bytes}}, {Receive{0}}}).ttft_s;
  };
  CHECK(ttft_s(ring, 100) == 1.5);
  CHECK(ttft_s(one_switch, 100) == 2.0);
  CHECK(ttft_s(ring, 0) == 0.5);
}

TEST_CASE("simulate: TTFT is the last rank's finish, the makespan that of the last to finish") {
  const RunResult r = run(ring, 100, 0.5, {{Send{1, 100}}, {Receive{0}}, {}});
  CHECK(r.finish_s == std::vector<double>{0, 1.5, 0});
  CHECK(r.makespan_s == 1.5);
  CHECK(r.ttft_s == 0);
}

TEST_CASE("simulate: what a flow frees at its end is given to those that remain") {
  // 50 B/s each until the 100 B are through at 2 s; the other has 200 of its 300 B left and now
  // 100 B/s: 4 s. Without redistribution it would end at 6 s.
  const RunResult r =
      run(ring, 100, 0, {{Send{1, 100}, Send{1, 300}}, {Receive{0}, Compute{1, 0}, Receive{0}}},
          in_order(SendOrder::Async));
  CHECK(r.ttft_s == 4.0);
  CHECK(r.ranks[1].compute_s == 1);
  CHECK(r.ranks[1].waiting_s == 3);  // until 2 s, and from 3 s on
  CHECK(r.ranks[0].transfer_s == 4);
}

TEST_CASE("simulate: a flow that is held up elsewhere leaves its share to others") {
  // Up from device 0 go three flows: 100/3 B/s each. Down to device 3 comes one of them, and one
  // from device 4, which gets the other 200/3 B/s: 200 of its 300 B in the 3 s of the three, the
  // rest in 1 s.
  const RunResult r = run(one_switch, 100, 0,
                          {{Send{1, 100}, Send{2, 100}, Send{3, 100}},
                           {Receive{0}},
                           {Receive{0}},
                           {Receive{0}, Receive{4}},
                           {Send{3, 300}}},
                          in_order(SendOrder::Async));
  CHECK(r.finish_s[1] == near(3).epsilon(1e-12));
  CHECK(r.finish_s[2] == near(3).epsilon(1e-12));
  CHECK(r.finish_s[3] == near(4).epsilon(1e-12));
}

TEST_CASE("simulate: the narrowest link of a route holds a flow to its rate") {
  // 0 -> 1 carries 100 B/s, 1 -> 2 only 30. What goes on to 2 flows at 30 B/s from end to end, and
  // what ends in 1 has 70 B/s: 300 and 700 B both take 10 s.
  const Platform platform({{"a"}, {"b"}, {"c"}},
                          {{0, 1, 100, 0}, {1, 2, 30, 0}, {2, 1, 30, 0}, {1, 0, 100, 0}}, "test");
  const Programs programs{{{Send{2, 300}, Send{1, 700}}, {Receive{0}}, {Receive{0}}}, {}};
  const RunResult r = Simulation(platform, programs).run(in_order(SendOrder::Async));
  CHECK(r.finish_s[1] == near(10).epsilon(1e-12));
  CHECK(r.finish_s[2] == near(10).epsilon(1e-12));
  CHECK(r.link_bytes == std::vector<double>{1000, 300, 0, 0});
  CHECK(r.link_utilisation[0] == near(1).epsilon(1e-12));
}

TEST_CASE("simulate: the two directions of a wire share nothing") {
  const RunResult r = run(ring, 100, 0, {{Send{1, 100}, Receive{1}}, {Send{0, 100}, Receive{0}}});
  CHECK(r.finish_s == std::vector<double>{1, 1});
}

TEST_CASE("simulate: the order of sends decides when three messages arrive") {
  // 100 B each, latency 0.5 s, sent at once. Fifo: 0.5 + 1 s one after the other. Async: all begin
  // at 0.5 s with a third of the link. Waited for: as fifo, and the sender is held up.
  const auto arrivals = [](SendOrder order) {
    const Program sender{Send{1, 100}, Compute{0, 0}, Send{1, 100}, Compute{0, 0}, Send{1, 100}};
    RunOptions options = in_order(order);
    options.record = true;
    const RunResult r =
        run(ring, 100, 0.5, {sender, {Receive{0}, Receive{0}, Receive{0}}}, options);
    std::vector<double> times;
    for (const Interval& i : r.intervals) {
      if (i.kind == IntervalKind::Transfer) times.push_back(i.end_s);
    }
    times.push_back(r.finish_s[0]);
    return times;
  };
  CHECK(arrivals(SendOrder::Fifo) == std::vector<double>{1.5, 3.0, 4.5, 0});
  const std::vector<double> async = arrivals(SendOrder::Async);
  for (std::size_t i = 0; i < 3; ++i) CHECK(async[i] == near(3.5).epsilon(1e-12));
  CHECK(arrivals(SendOrder::Block) == std::vector<double>{1.5, 3.0, 4.5, 4.5});
}

TEST_CASE("simulate: a rank has one queue, whoever its messages go to") {
  // Fifo: the message to 2 leaves when that to 1 has arrived, though its link is free.
  const RunResult r = run(ring, 100, 0, {{Send{1, 300}, Send{2, 100}}, {Receive{0}}, {Receive{0}}});
  CHECK(r.finish_s[1] == 3.0);
  CHECK(r.finish_s[2] == 4.0);
}

TEST_CASE("simulate: background flows share links, outside the queues") {
  // Half of the message is through when 50 B of others come; then 50 B/s each, both end at 1.5 s.
  RunOptions options;
  options.background = {{0.5, 0, 1, 50}};
  const RunResult r = run(ring, 100, 0, {{Send{1, 100}}, {Receive{0}}}, options);
  CHECK(r.ttft_s == 1.5);
  CHECK(r.messages == 1);
  CHECK(r.message_bytes == 100);
  CHECK(r.link_bytes == std::vector<double>{150, 0});
}

TEST_CASE("simulate: background flows that start with one another are both there") {
  // 3 flows from 0 s: 100/3 B/s each until the two of 50 B are through at 1.5 s; 50 B are left.
  RunOptions options;
  options.background = {{0, 0, 1, 50}, {0, 0, 1, 50}, {9, 0, 1, 50}};
  const RunResult r = run(ring, 100, 0, {{Send{1, 100}}, {Receive{0}}}, options);
  CHECK(r.ttft_s == near(2.0).epsilon(1e-12));  // the third starts later: not waited for
}

TEST_CASE("simulate: computing and sending do not slow each other") {
  const RunResult r = run(
      ring, 100, 0,
      {{Send{1, 200}, Compute{2, 0}, Compute{1, 0}}, {Compute{1.5, 0}, Receive{0}, Compute{1, 0}}});
  CHECK(r.finish_s == std::vector<double>{3, 3});
  CHECK(r.ranks[0].waiting_s == 0);
  CHECK(r.ranks[1].waiting_s == 0.5);
}

TEST_CASE("simulate: receives take the messages of a sender in the order sent") {
  // One after the other of 100, 200, 300 B: they arrive at 1, 3 and 6 s; that of rank 2 at 4 s.
  const Program sender{Send{1, 100}, Send{1, 200}, Send{1, 300}};
  const auto finish = [&](const Program& receiver) {
    return run(ring, 100, 0, {sender, receiver, {Send{1, 400}}}).finish_s[1];
  };
  CHECK(finish({Receive{0}}) == 1);
  CHECK(finish({Receive{0}, Receive{0}}) == 3);
  CHECK(finish({Receive{0}, Receive{0}, Receive{2}}) == 4);
  CHECK(finish({Receive{2}, Receive{0}, Receive{0}, Receive{0}}) == 6);
}

TEST_CASE("simulate: messages of a collective are not in a rank's fifo queue") {
  // Over links of their own, 3 s to rank 1 and 1 s to rank 2.
  const auto finish = [&](const Program& sender, const Program& receiver) {
    return run(ring, 100, 0, {sender, {Receive{0}}, receiver}).finish_s[2];
  };
  CHECK(finish({Send(1, 300), Send(2, 100)}, {Receive{0}}) == 4);
  CHECK(finish({Send(1, 300), Send(2, 100, false)}, {Receive{0}}) == 1);
  // What is sent after them takes its turn.
  const Program both{Receive{0}, Receive{0}};
  CHECK(finish({Send(1, 300), Send(2, 100, false), Send(2, 100)}, both) == 4);
  CHECK(finish({Send(2, 100, false), Send(1, 300), Send(2, 100)}, both) == 4);
}

TEST_CASE(
    "simulate: block waits for sends where a rank computes, ends, or sends what it received") {
  // 200 B take 2 s. Sends one after the other go together; receiving goes on meanwhile.
  const auto finish = [&](const Program& first) {
    return run(ring, 100, 0, {first, {Receive{0}}, {Send{0, 100}}}, in_order(SendOrder::Block))
        .finish_s[0];
  };
  CHECK(finish({Send{1, 200}}) == 2);
  CHECK(finish({Send{1, 200}, Receive{2}, Compute{5, 0}}) == 7);
  CHECK(finish({Send{1, 200}, Send{2, 200}}) == 2);
  CHECK(finish({Send{1, 200}, Receive{2}, Send{2, 200}}) == 4);
}

TEST_CASE("simulate: factors stretch computations and links") {
  const Platform platform = make_platform(ring, 2, 100, 0);
  const Programs programs{{{Compute{1, 0}, Send{1, 100}}, {Receive{0}}}, {"work"}};
  RunOptions options;
  options.bandwidth_factors = {0.5, 1};
  options.message_overhead_s = 0.25;
  options.compute_factors = {3, 1};
  // 3 s of work, 0.25 s of overhead, 100 B at 50 B/s.
  CHECK(Simulation(platform, programs).run(options).ttft_s == 5.25);
}

TEST_CASE("simulate: ranks that wait for each other are named") {
  const auto failure = [](const std::vector<Program>& ranks) {
    return message_of([&] { run(ring, 100, 0, ranks); });
  };
  CHECK(failure({{Receive{1}, Send{1, 1}},
                 {Receive{2}, Send{0, 1}},
                 {Receive{1}, Receive{1}, Send{1, 1}, Send{1, 1}}}) ==
        "rank 2 waits for message 0 from rank 1, which never sends it");
  CHECK(failure({{Receive{1}, Send{1, 1}},
                 {Receive{2}, Send{0, 1}, Send{2, 1}},
                 {Receive{1}, Send{1, 1}}}) ==
        "deadlock: rank 1 waits for message 0 from rank 2, rank 2 waits for message 0 "
        "from rank 1");
}

TEST_CASE("simulate: impossible programs and options are refused") {
  const auto failure = [](const std::vector<Program>& ranks, const RunOptions& options = {}) {
    return message_of([&] { run(ring, 100, 0, ranks, options); });
  };
  CHECK(failure({{Compute{-1, 0}}, {}}) ==
        "rank 0, step 0: got -1 s, expected a duration of zero or more");
  CHECK(failure({{}, {Send{1, 1}}}) ==
        "rank 1, step 0: got peer 1, expected another one of the 2 ranks");
  CHECK(failure({{Receive{2}}, {}}) ==
        "rank 0, step 0: got peer 2, expected another one of the 2 ranks");
  CHECK(failure({{Compute{1, 1}}, {}}) ==
        "rank 0, step 0: got label 1, expected one of the 1 labels");
  RunOptions options;
  options.background = {{0, 1, 1, 5}};
  CHECK(failure({{}, {}}, options) ==
        "background flow 0: got source 1 and destination 1, expected two of the 2 devices");
  options.background = {{-1, 0, 1, 5}};
  CHECK(failure({{}, {}}, options) ==
        "background flow 0: got a start at -1 s, expected zero or later");
  const Platform two = make_platform(ring, 2, 100, 0);
  CHECK(message_of([&] {
          Simulation(two, {{{}}, {}});
        }) == "programs: got 1 ranks, expected one for each of the 2 devices");
}

}  // namespace
}  // namespace kvcast::simulate
