#include "simulate/serving/serving.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "simulate/serving/generated_requests.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/simulate/serving_requests.h"

using namespace kvcast;
using namespace kvcast::simulate;

namespace {

SchedulerSettings blocks_of_4(Policy policy, std::uint64_t blocks) {
  SchedulerSettings s;
  s.policy = policy;
  s.block_size = 4;
  s.num_blocks = blocks;
  s.max_num_batched_tokens = 8;
  s.max_model_len = 8;
  return s;
}

/// Every policy with room for all.
SchedulerSettings roomy(Policy policy) {
  SchedulerSettings s;
  s.policy = policy;
  s.num_blocks = 100000;
  s.max_num_batched_tokens = 100000;
  s.chunked_prefill_size = 100000;
  s.max_model_len = 4000;
  s.max_num_seqs = 1000;
  return s;
}

std::vector<Policy> all_policies() {
  std::vector<Policy> policies;
  for (const std::string& name : policy_names()) policies.push_back(parse_policy(name));
  return policies;
}

std::vector<ServingRequest> drawn(const std::string& arrivals, const std::string& prompts,
                                  const std::string& outputs, std::uint64_t count,
                                  std::uint64_t seed) {
  GeneratedLoad load;
  load.arrivals = parse_arrivals(arrivals, "a test");
  load.prompt = parse_lengths(prompts, "a test");
  load.output = parse_lengths(outputs, "a test");
  load.count = count;
  load.seed = seed;
  const auto source = generate_requests(load);
  std::vector<ServingRequest> requests;
  while (auto r = source->next()) requests.push_back(*std::move(r));
  return requests;
}

/// One seat, and a token per request: a queue with a server.
Served queue(const std::string& arrivals, const std::string& prompts, const ExplicitCost& cost,
             std::uint64_t count, std::uint64_t seed) {
  SchedulerSettings s = roomy(Policy::VllmV1);
  s.max_num_seqs = 1;
  return serve_all(one_server(s, cost), drawn(arrivals, prompts, "1", count, seed));
}

}  // namespace

/// Stages that take so long, whatever the step; between them half a second.
struct Pipeline : StepClock {
  explicit Pipeline(std::vector<double> seconds) : work(std::move(seconds)) {}
  double seconds(std::span<const ScheduledPart> /*parts*/) override { return work.at(0); }
  void stages(std::span<const std::span<const ScheduledPart>> ranks,
              std::vector<StageSeconds>& stages) override {
    CHECK(ranks.size() == 1);
    stages.clear();
    for (const double s : work) stages.push_back({s, 0.5});
    stages.back().hop = 0;
  }
  std::vector<double> work;
};

/// An explicit cost, of which each stage has an equal part, or each rank what it would have alone.
struct Divided : StepClock {
  Divided(const ExplicitCost& c, std::uint64_t stages) : cost(c), parts_of(stages) {}
  double seconds(std::span<const ScheduledPart> parts) override { return cost.seconds(parts); }
  void stages(std::span<const std::span<const ScheduledPart>> ranks,
              std::vector<StageSeconds>& stages) override {
    double most = 0;
    for (const auto& parts : ranks) most = std::max(most, cost.seconds(parts));
    stages.assign(parts_of, {most / static_cast<double>(parts_of), 0});
  }
  ExplicitCost cost;
  std::uint64_t parts_of;
};

TEST_CASE("serving: hand-worked schedules of a pipeline of two stages") {
  // 1 s, a hop of 0.5 s, 2 s.
  const auto served = [](Policy policy, const auto& requests, std::uint64_t blocks = 40) {
    SchedulerSettings s = blocks_of_4(policy, blocks);
    s.max_model_len = 20;
    s.chunked_prefill_size = 8;
    s.pipeline_stages = 2;
    ServingSetup setup;
    setup.servers = {s, std::make_shared<Pipeline>(std::vector<double>{1, 2}), 1};
    return serve_all(setup, requests_of(requests));
  };
  using List = std::vector<std::tuple<double, std::uint64_t, std::uint64_t>>;
  for (const Policy policy : all_policies()) {
    CAPTURE(name(policy));
    const Served alone = served(policy, List{{0, 8, 3}});
    CHECK(alone.first == std::vector<double>{3.5});
    CHECK(alone.finish == std::vector<double>{10.5});
    CHECK(alone.times.busy_s == near(3 * 1.5));
  }
  // A step takes one prompt. The second stage has the first until 3.5 and then the second; the
  // first one's next token comes at 7.5, after it has waited for the second stage until 5.5.
  const List two{{0, 8, 2}, {0, 8, 2}};
  for (const Policy policy : {Policy::VllmV1, Policy::VllmV0, Policy::Sarathi,
                              Policy::TrtllmGuaranteed, Policy::Sglang}) {
    CAPTURE(name(policy));
    const Served s = served(policy, two);
    CHECK(s.first == std::vector<double>{3.5, 5.5});
    CHECK(s.finish == std::vector<double>{7.5, 9.5});
    CHECK(s.times.steps == 4);
  }
  // A prompt's second chunk follows the first at once, or when it has come back.
  const List longer{{0, 16, 1}};
  CHECK(served(Policy::VllmV1, longer).first == std::vector<double>{5.5});
  CHECK(served(Policy::Sglang, longer).first == std::vector<double>{5.5});
  CHECK(served(Policy::Sarathi, longer).first == std::vector<double>{7});
  // vLLM's first scheduler and static batches divide the cache among the stages: of eight blocks
  // a stage has four, too few for a sequence of 17 tokens.
  CHECK(served(Policy::VllmV0, List{{0, 8, 9}}, 8).times.finished == 1);
  CHECK(served(Policy::VllmV0, List{{0, 8, 10}}, 8).times.rejected == 1);
}

TEST_CASE("serving: ranks step together, each with requests of its own") {
  // A step takes 1 s and 0.1 s for each token of the rank with most.
  ServingSetup setup;
  setup.servers = {blocks_of_4(Policy::VllmV1, 10), std::make_shared<Divided>(cost_of(1, 0.1), 1),
                   1, 2};
  setup.servers.settings.max_model_len = 0;
  const Served s = serve_all(setup, requests_of({{0, 4, 3}, {0, 8, 1}, {1.0, 2, 2}}));
  // To 1.8 the prompts of 4 and 8, one on each rank; then the third, on the rank that is empty,
  // beside the first one's decode step, to 3; then both to 4.
  CHECK(s.first == std::vector<double>{1.8, 1.8, 3});
  CHECK(s.finish == std::vector<double>{4, 1.8, 4});
  CHECK(s.times.steps == 3);
  CHECK(s.times.busy_s == near(4));
}

// Steps take 1 s; worked out by hand.
TEST_CASE("serving: hand-worked schedules") {
  const auto served = [](Policy policy, std::uint64_t blocks, const auto& requests) {
    return serve_all(one_server(blocks_of_4(policy, blocks), cost_of(1)), requests_of(requests));
  };
  using List = std::vector<std::tuple<double, std::uint64_t, std::uint64_t>>;
  const List two{{0, 4, 3}, {0.5, 4, 2}};
  Served s = served(Policy::VllmV1, 10, two);
  CHECK(s.first == std::vector<double>{1, 2});
  CHECK(s.finish == std::vector<double>{3, 3});
  CHECK(s.times.steps == 3);
  s = served(Policy::VllmV0, 10, two);
  CHECK(s.first == std::vector<double>{1, 2});
  CHECK(s.finish == std::vector<double>{4, 3});
  s = served(Policy::Static, 10, two);
  CHECK(s.finish == std::vector<double>{3, 5});
  // Three blocks hold no two sequences of more than four tokens: the second gives way.
  s = served(Policy::VllmV1, 3, List{{0, 4, 4}, {0, 4, 4}});
  CHECK(s.first == std::vector<double>{1, 1});
  CHECK(s.finish == std::vector<double>{4, 7});
  CHECK(s.times.counts.preemptions == 1);
  CHECK(s.times.counts.prefill_tokens == 13);
}

TEST_CASE("serving: a request waits for a row of decode steps to end") {
  SchedulerSettings settings = blocks_of_4(Policy::VllmV0, 10);
  settings.max_model_len = 0;
  const auto requests = requests_of({{0, 4, 5}, {1.5, 4, 1}});
  // The second is read from 2 to 3; with three steps in a row (1 to 4), from 4 to 5.
  Served s = serve_all(one_server(settings, cost_of(1)), requests);
  CHECK(s.first == std::vector<double>{1, 3});
  settings.num_scheduler_steps = 3;
  s = serve_all(one_server(settings, cost_of(1)), requests);
  CHECK(s.first == std::vector<double>{1, 5});
  CHECK(s.finish == std::vector<double>{6, 5});
}

TEST_CASE("serving: planned ahead, a step misses those that arrive during the one before it") {
  SchedulerSettings settings = blocks_of_4(Policy::VllmV1, 10);
  settings.schedules_ahead = true;
  // The second comes while the first's prompt is read: not in the step from 1 on, but from 2 on.
  // Nobody else is there when the third comes.
  const Served s =
      serve_all(one_server(settings, cost_of(1)), requests_of({{0, 4, 4}, {0.5, 4, 1}, {7, 4, 1}}));
  CHECK(s.first == std::vector<double>{1, 3, 8});
  CHECK(s.finish == std::vector<double>{4, 3, 8});
}

TEST_CASE("serving: TensorRT-LLM's prompts wait for others beside decode steps") {
  SchedulerSettings settings = blocks_of_4(Policy::TrtllmGuaranteed, 20);
  settings.max_model_len = 0;
  settings.max_num_batched_tokens = 10;
  settings.batch_wait_timeout_iters = 3;
  settings.batch_wait_max_tokens_ratio = 0.9;
  // The first decodes alone from 1 on; 4 tokens of the second do not fill a step of 9, so that it
  // waits for three steps, and with the third's 4, which come at 2.5, for two.
  const Served two =
      serve_all(one_server(settings, cost_of(1)), requests_of({{0, 4, 9}, {0.5, 4, 1}}));
  CHECK(two.first == std::vector<double>{1, 5});
  const Served three = serve_all(one_server(settings, cost_of(1)),
                                 requests_of({{0, 4, 9}, {0.5, 4, 1}, {2.5, 4, 1}}));
  CHECK(three.first == std::vector<double>{1, 4, 4});
}

TEST_CASE("serving: SGLang's prompts beside decode steps") {
  SchedulerSettings settings = blocks_of_4(Policy::Sglang, 20);
  settings.max_model_len = 0;
  settings.max_num_batched_tokens = 100;
  settings.chunked_prefill_size = 100;
  const auto requests = requests_of({{0, 8, 3}, {0.5, 8, 1}});
  // The second is read from 1 to 2, alone or beside the first one's second token.
  Served s = serve_all(one_server(settings, cost_of(1)), requests);
  CHECK(s.first == std::vector<double>{1, 2});
  CHECK(s.finish == std::vector<double>{4, 2});
  settings.mixed_chunk = true;
  s = serve_all(one_server(settings, cost_of(1)), requests);
  CHECK(s.first == std::vector<double>{1, 2});
  CHECK(s.finish == std::vector<double>{3, 2});
  // That token leaves room for 7 of the prompt's 8, so for one block.
  settings.chunked_prefill_size = 8;
  s = serve_all(one_server(settings, cost_of(1)), requests);
  CHECK(s.first == std::vector<double>{1, 3});
  CHECK(s.finish == std::vector<double>{3, 3});
}

TEST_CASE("serving: settings beyond their limits are refused") {
  SchedulerSettings settings = blocks_of_4(Policy::TrtllmGuaranteed, 20);
  for (const double ratio : {-0.1, 1.1}) {
    settings.batch_wait_max_tokens_ratio = ratio;
    CHECK(message_of([&] { settings.check(); }).find("a share from 0 to 1") != std::string::npos);
  }
  settings.batch_wait_max_tokens_ratio = 1;
  CHECK_NOTHROW(settings.check());
}

TEST_CASE("serving: a prompt's blocks are found again by the next with the same ids") {
  SchedulerSettings settings = blocks_of_4(Policy::VllmV1, 10);
  settings.max_model_len = 0;
  settings.prefix_caching = true;
  settings.request_block_tokens = 4;
  std::vector<ServingRequest> requests = requests_of({{0, 8, 1}, {2, 8, 1}});
  requests[0].blocks = requests[1].blocks = {7, 9};
  // One token is computed always, so that the second block is not taken over.
  Served s = serve_all(one_server(settings, cost_of(1)), requests);
  CHECK(s.times.counts.hit_tokens == 4);
  CHECK(s.times.counts.prefill_tokens == 12);
  // Ids of 8 tokens, each of two blocks here; and blocks of two ids each.
  requests[0].blocks = requests[1].blocks = {3};
  settings.request_block_tokens = 8;
  CHECK(serve_all(one_server(settings, cost_of(1)), requests).times.counts.hit_tokens == 4);
  // Ids are any 64 bits: of 2^63 and 0 the halves have different names.
  requests[0].blocks = {0};
  requests[1].blocks = {std::uint64_t{1} << 63};
  CHECK(serve_all(one_server(settings, cost_of(1)), requests).times.counts.hit_tokens == 0);
  requests[0].blocks = requests[1].blocks;
  CHECK(serve_all(one_server(settings, cost_of(1)), requests).times.counts.hit_tokens == 4);
  requests[0].blocks = requests[1].blocks = {1, 2, 3, 4};
  settings.request_block_tokens = 2;
  CHECK(serve_all(one_server(settings, cost_of(1)), requests).times.counts.hit_tokens == 4);
  requests[1].blocks = {1, 5, 6, 7};
  CHECK(serve_all(one_server(settings, cost_of(1)), requests).times.counts.hit_tokens == 0);
  settings.block_size = 3;
  CHECK(message_of([&] { settings.check(); }).find("divisor") != std::string::npos);
}

TEST_CASE("serving: what no server could do is refused") {
  const auto requests = requests_of({{0, 4, 3}});
  const auto refusal = [&](const ServingSetup& setup, const std::vector<ServingRequest>& of) {
    return message_of([&] { serve_all(setup, of); });
  };
  // TensorRT-LLM cuts prompts at blocks: a step of less than one would never begin.
  SchedulerSettings cuts = blocks_of_4(Policy::TrtllmGuaranteed, 10);
  cuts.chunked_prefill = true;
  cuts.max_num_batched_tokens = 3;
  CHECK(
      refusal(one_server(cuts, cost_of(1)), requests) ==
      "max_num_batched_tokens: got 3, expected at least block_size, 4: prompts are cut at blocks");
  cuts.max_num_batched_tokens = 4;
  CHECK(serve_all(one_server(cuts, cost_of(1)), requests).finish == std::vector<double>{3});
  // What is known of blocks would not fit a machine.
  ServingSetup many = one_server(blocks_of_4(Policy::VllmV1, 10), cost_of(1));
  many.servers.count = 30'000'000;
  CHECK(refusal(many, requests) ==
        "servers: got 30000000 with 10 blocks each, expected at most 268435456 blocks in all");
  // Steps of a second are lost beside 1e30.
  CHECK(refusal(one_server(roomy(Policy::VllmV1), cost_of(1)), requests_of({{1e30, 4, 3}}))
            .find("request 0: got an arrival at 1e+30 s") == 0);
}

TEST_CASE("serving: one seat is a queue with one server") {
  // Lindley: each waits for what the one before has left.
  const auto requests = drawn("poisson:rate=1", "uniform:1,1000", "1", 2000, 5);
  SchedulerSettings seat = roomy(Policy::VllmV1);
  seat.max_num_seqs = 1;
  const Served s = serve_all(one_server(seat, cost_of(0.1, 0.0015)), requests);
  double free_at = 0;
  for (const ServingRequest& r : requests) {
    const double service = 0.1 + 0.0015 * static_cast<double>(r.prompt_tokens);
    free_at = std::max(free_at, r.arrival_s) + service;
    CHECK(s.finish[r.id] == near(free_at).epsilon(1e-12));
  }
  // D/D/1 with gaps no shorter than the service: nobody waits.
  const Served regular = queue("uniform:rate=1", "1", cost_of(1), 100, 1);
  CHECK(regular.times.queue_s.p99 < 1e-9);
  // M/D/1: the mean wait is rho s / (2 (1 - rho)) = 0.75 s, here within four deviations of it.
  const Served constant = queue("poisson:rate=0.6", "1", cost_of(1), 200000, 3);
  CHECK(std::abs(constant.times.queue_s.mean - 0.75) < 0.02);
  // M/G/1, Pollaczek-Khinchine: s = 0 to 1.2 s in steps: E[S] 0.6, E[S^2] = 0.48 and rho 0.6.
  const Served uniform = queue("poisson:rate=1", "uniform:1,1200", cost_of(0, 1e-3), 200000, 4);
  CHECK(std::abs(uniform.times.queue_s.mean - 0.48 / (2 * 0.4)) < 0.02);
}

TEST_CASE("serving: seats enough and a step of constant length are a server for each request") {
  // M/G/infinity: requests present are Poisson with the mean rate x stay. 10 tokens of 1 s and half
  // a step until the first begins.
  const auto requests = drawn("poisson:rate=2", "1", "10", 50000, 8);
  const Served s = serve_all(one_server(roomy(Policy::VllmV1), cost_of(1)), requests);
  CHECK(s.times.mean_requests_in_system == near(2 * 10.5).epsilon(0.02));
  CHECK(s.times.e2e_s.mean == near(10.5).epsilon(0.005));
}

TEST_CASE("serving: a closed loop of full batches makes B tokens a step") {
  SchedulerSettings settings = roomy(Policy::VllmV1);
  settings.max_num_seqs = 16;
  ServingSetup setup = one_server(settings, cost_of(0.01, 0, 0.001));
  setup.closed_loop = ClosedLoop{64, 0};
  const Served s = serve_all(setup, drawn("burst", "1", "500", 640, 1));
  CHECK(s.times.finished == 640);
  CHECK(s.times.output_token_throughput == near(16 / (0.01 + 16 * 0.001)).epsilon(0.01));
  CHECK(s.times.counts.peak_running == 16);
}

TEST_CASE("serving: with all at the start and room for all, policies that mix steps agree") {
  const auto requests = drawn("burst", "uniform:1,400", "uniform:1,50", 100, 2);
  const ExplicitCost cost = cost_of(0.01, 1e-5, 1e-4);
  const Served v1 = serve_all(one_server(roomy(Policy::VllmV1), cost), requests);
  for (const Policy policy : all_policies()) {
    CAPTURE(name(policy));
    const Served s = serve_all(one_server(roomy(policy), cost), requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CHECK(s.finish[i] == near(v1.finish[i]).epsilon(1e-12));
    }
  }
}

TEST_CASE("serving: Sarathi with as many tokens as vLLM V1 is vLLM V1") {
  const auto requests =
      drawn("poisson:rate=5", "lognormal:mean=600,p50=300", "uniform:1,100", 1000, 6);
  SchedulerSettings v1 = roomy(Policy::VllmV1);
  v1.max_num_batched_tokens = v1.max_num_seqs = 512;
  v1.max_model_len = 0;
  SchedulerSettings sarathi = v1;
  sarathi.policy = Policy::Sarathi;
  const ExplicitCost cost = cost_of(0.006, 6e-5, 2e-5);
  const Served a = serve_all(one_server(v1, cost), requests);
  const Served b = serve_all(one_server(sarathi, cost), requests);
  CHECK(a.times.steps == b.times.steps);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CHECK(a.finish[i] == near(b.finish[i]).epsilon(1e-12));
  }
}

// Tight caches, budgets below prompts, shared prefixes, requests that never fit.
TEST_CASE("serving: nothing is lost or made up, whatever the policy and the load") {
  for (const Policy policy : all_policies()) {
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      CAPTURE(name(policy));
      CAPTURE(seed);
      const std::uint64_t stages = seed <= 20 ? 1 : 2 + seed % 3;
      const std::uint64_t ranks = seed <= 26 ? 1 : 2;
      SchedulerSettings s;
      s.pipeline_stages = stages;
      s.policy = policy;
      s.block_size = 1 + seed % 5;
      s.num_blocks = (60 / s.block_size + 2 * seed) * stages;
      s.max_num_batched_tokens = 3 + 3 * seed;
      s.chunked_prefill_size = s.block_size + 7 * seed;
      s.max_num_seqs = 1 + seed;
      s.max_model_len = 60;
      s.prefix_caching = seed % 2 == 0;
      s.reserve_full_prompt = seed % 3 == 0;
      s.mixed_chunk = seed % 4 < 2;
      s.request_block_tokens = s.block_size;
      auto requests = drawn("poisson:rate=3", "uniform:1,40", "uniform:1,20", 150, seed);
      for (ServingRequest& r : requests) {  // a common beginning, then something of its own
        for (std::uint64_t b = 0; b < r.prompt_tokens / s.block_size; ++b) {
          r.blocks.push_back(b < 5 ? b : 1000 * (r.id + 1) + b);
        }
      }
      std::uint64_t outputs = 0;
      std::uint64_t prompts = 0;
      std::uint64_t most_held = 0;
      double stay = 0;
      std::vector<double> last_s(stages * ranks);  // by row
      ServingWatch watch;
      watch.on_step = [&](const ServedStep& step) {
        CHECK(step.start_s >= last_s.at(step.row));
        last_s[step.row] = step.start_s + step.seconds;
        CHECK(step.scheduler->num_running() <= s.max_num_seqs * stages);
        most_held =
            std::max(most_held, step.scheduler->pool().size() - step.scheduler->pool().num_free());
        for (const ScheduledPart& part : step.parts) CHECK(part.tokens > 0);
      };
      watch.on_finished = [&](const Sequence& q) {
        CHECK(q.generated == q.request.output_tokens);
        CHECK(q.blocks.empty());
        CHECK(q.request.arrival_s <= *q.scheduled_s);
        CHECK(*q.scheduled_s < q.first_token_s);
        CHECK(q.first_token_s <= q.last_token_s);
        outputs += q.request.output_tokens;
        prompts += q.request.prompt_tokens;
        stay += q.last_token_s - q.request.arrival_s;
      };
      ServingSetup setup;
      setup.servers = {s, std::make_shared<Divided>(cost_of(0.1, 1e-3, 1e-3), stages), 1, ranks};
      const Served served = serve_all(setup, requests, watch);
      const ServingTimes& t = served.times;
      CHECK(t.requests == requests.size());
      CHECK(t.finished + t.rejected == t.requests);
      CHECK(t.finished > 0);
      CHECK(most_held <= s.num_blocks);
      CHECK(t.output_tokens == outputs);
      const std::uint64_t computed = t.counts.prefill_tokens + t.counts.hit_tokens;
      CHECK(computed >= prompts);
      if (t.counts.preemptions == 0) {
        CHECK(computed == prompts);
        CHECK(t.counts.decode_tokens == outputs - t.finished);
      }
      CHECK(t.busy_s <= t.duration_s * (1 + 1e-12));
      // Little's law.
      CHECK(t.mean_requests_in_system * t.duration_s == near(stay).epsilon(1e-9));
    }
  }
}

TEST_CASE("serving: the unit of time and the start of the clock do not matter") {
  const auto requests = drawn("poisson:rate=4", "uniform:1,300", "uniform:1,40", 300, 9);
  auto scaled = requests;
  auto shifted = requests;
  for (ServingRequest& r : scaled) r.arrival_s *= 4;
  for (ServingRequest& r : shifted) r.arrival_s += 64;
  for (const Policy policy : all_policies()) {
    CAPTURE(name(policy));
    SchedulerSettings s = roomy(policy);
    s.max_num_batched_tokens = 400;
    s.num_blocks = policy == Policy::Orca || policy == Policy::Static ? 5000 : 150;
    const Served one = serve_all(one_server(s, cost_of(0.0625, 0x1p-12, 0x1p-10)), requests);
    const Served four = serve_all(one_server(s, cost_of(0.25, 0x1p-10, 0x1p-8)), scaled);
    const Served later = serve_all(one_server(s, cost_of(0.0625, 0x1p-12, 0x1p-10)), shifted);
    CHECK(four.times.steps == one.times.steps);
    CHECK(later.times.steps == one.times.steps);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CHECK(four.finish[i] == near(4 * one.finish[i]).epsilon(1e-9));
      CHECK(later.finish[i] == near(64 + one.finish[i]).epsilon(1e-9));
    }
  }
}

TEST_CASE("serving: more servers share the requests") {
  const auto requests = drawn("poisson:rate=8", "uniform:1,300", "uniform:1,40", 400, 11);
  ServingSetup setup = one_server(roomy(Policy::VllmV1), cost_of(0.05, 1e-4, 1e-3));
  setup.servers.settings.max_num_seqs = 8;
  const double one_s = serve_all(setup, requests).times.ttft_s.mean;
  setup.servers.count = 4;
  for (const Router router : {Router::RoundRobin, Router::LeastLoaded, Router::PrefixAware}) {
    setup.router = router;
    const Served s = serve_all(setup, requests);
    CHECK(s.times.finished == requests.size());
    CHECK(s.times.ttft_s.mean < one_s / 4);
  }
  // One request at a time finds every server empty: each router gives the times of one server.
  const auto apart = drawn("uniform:rate=0.1", "uniform:1,300", "5", 50, 1);
  const Served four = serve_all(setup, apart);
  setup.servers.count = 1;
  CHECK(four.finish == serve_all(setup, apart).finish);
}

TEST_CASE("serving: a router that knows prefixes finds them, in turn they are missed") {
  SchedulerSettings s = roomy(Policy::VllmV1);
  s.prefix_caching = true;
  s.request_block_tokens = 16;
  ServingSetup setup = one_server(s, cost_of(0.01, 1e-4, 1e-4));
  setup.servers.count = 4;
  std::vector<ServingRequest> requests;
  for (std::uint64_t i = 0; i < 200; ++i) {  // five conversations, far enough apart
    ServingRequest r{i, static_cast<double>(i), 320, 2};
    for (std::uint64_t b = 0; b < 20; ++b) r.blocks.push_back(1000 * (i % 5) + b);
    requests.push_back(std::move(r));
  }
  const auto hits = [&](Router router) {
    setup.router = router;
    return serve_all(setup, requests).times.counts.hit_tokens;
  };
  // Each conversation's first prompt is missed once, or once by each server; then 19 of 20 blocks
  // are found.
  CHECK(hits(Router::PrefixAware) == 195 * 304);
  CHECK(hits(Router::RoundRobin) == 180 * 304);
}

TEST_CASE("serving: prompts here and outputs there") {
  const auto requests = drawn("poisson:rate=2", "uniform:1,500", "uniform:1,40", 200, 13);
  SchedulerSettings s = roomy(Policy::VllmV1);
  const ExplicitCost cost = cost_of(0.01, 2e-4, 1e-3);
  ServingSetup setup = one_server(s, cost);
  setup.decoders = setup.servers;
  auto prompts_only = requests;
  for (ServingRequest& r : prompts_only) r.output_tokens = 1;
  // First tokens are those of a server that only reads prompts.
  const Served apart = serve_all(setup, requests);
  const Served alone = serve_all(one_server(s, cost), prompts_only);
  CHECK(apart.first == alone.first);
  CHECK(apart.times.finished == requests.size());
  CHECK(apart.times.counts.prefill_tokens == alone.times.counts.prefill_tokens);
  // One request alone: its prompt, the way of its cache, then a step for each later token.
  setup.link = {0.5, 1e-3};
  const Served one = serve_all(setup, requests_of({{1, 300, 4}}));
  CHECK(one.first[0] == near(1 + 0.01 + 300 * 2e-4).epsilon(1e-12));
  CHECK(one.finish[0] == near(one.first[0] + 0.5 + 0.3 + 3 * 0.011).epsilon(1e-12));
  // Caches leave a server one after another.
  const Served two = serve_all(setup, requests_of({{1, 300, 2}, {1, 300, 2}}));
  CHECK(two.finish[1] - two.finish[0] == near(0.3).epsilon(1e-9));
}

TEST_CASE("serving: what can never run is rejected with its reason, and the others go on") {
  std::vector<std::string> reasons;
  ServingWatch watch;
  watch.on_rejected = [&](const ServingRequest&, const std::string& reason) {
    reasons.push_back(reason);
  };
  SchedulerSettings s = blocks_of_4(Policy::VllmV1, 3);
  s.max_model_len = 16;
  const auto requests = requests_of({{0, 4, 2}, {0, 15, 2}, {0, 12, 4}, {0, 8, 4}});
  const Served served = serve_all(one_server(s, cost_of(1)), requests, watch);
  CHECK(served.times.rejected == 2);
  CHECK(served.times.finished == 2);
  REQUIRE(reasons.size() == 2);
  CHECK(reasons[0].find("17 tokens, beyond the 16") != std::string::npos);
  CHECK(reasons[1].find("4 blocks of cache, beyond the 3") != std::string::npos);
}
