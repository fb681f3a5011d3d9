#include "measure/serving_run.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/generate.h"
#include "model/io/weights/checkpoint.h"
#include "simulate/serving/model_server.h"
#include "simulate/serving/serving_scenario.h"
#include "simulate/serving/step_times.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

using namespace kvcast;
using simulate::Policy;
using simulate::ServingRequest;

namespace {

struct Workload {
  std::vector<ServingRequest> requests;
  simulate::SchedulerSettings settings;
};

/// Twelve requests at time zero, four of which begin alike; a cache for about three of them.
/// Nothing arrives later: the schedule must not hang on how long this machine's steps take.
Workload tight(Policy policy) {
  Workload w;
  w.settings.policy = policy;
  w.settings.block_size = 4;
  w.settings.num_blocks = 14;
  w.settings.max_num_batched_tokens = 24;
  w.settings.max_num_seqs = 6;
  w.settings.max_model_len = 40;
  w.settings.watermark = 0;
  w.settings.prefix_caching = policy != Policy::VllmV0 && policy != Policy::Static;
  w.settings.request_block_tokens = 4;
  for (std::uint64_t i = 0; i < 12; ++i) {
    ServingRequest r{i, 0, 6 + 5 * (i % 4), 3 + i % 9};
    for (std::uint64_t b = 0; b < r.prompt_tokens / 4; ++b) {
      r.blocks.push_back(i % 3 == 0 ? b : 100 * (i + 1) + b);
    }
    w.requests.push_back(std::move(r));
  }
  return w;
}

}  // namespace

TEST_CASE("serving run: whatever the schedule, each request's tokens are those of it alone") {
  for (const char* model : {"llama_gqa_llama3_rope", "gemma3_text", "mixtral", "deepseek_v3",
                            "granitemoehybrid", "qwen3_next", "jamba", "lfm2"}) {
    const Checkpoint checkpoint(std::string(KVCAST_SOURCE_DIR "/tests/oracle/") + model);
    for (const DType dtype : {DType::FP64, DType::FP32}) {
      execute::SessionOptions options;
      options.dtype = dtype;
      const execute::Session alone(checkpoint, options);
      std::uint64_t preemptions = 0;
      std::uint64_t hits = 0;
      bool shares = true;
      for (const Policy policy : {Policy::VllmV1, Policy::VllmV0, Policy::Sarathi, Policy::Static,
                                  Policy::TrtllmUtilization, Policy::SglangLpm}) {
        CAPTURE(model);
        CAPTURE(name(dtype));
        CAPTURE(name(policy));
        Workload w = tight(policy);
        execute::StepSession session(
            checkpoint, options,
            {w.settings.num_blocks, w.settings.block_size, w.settings.max_num_seqs});
        shares = !session.has_states();
        if (!shares && w.settings.prefix_caching) {
          check_line(message_of([&] { measure::ExecutedSteps(session, w.settings, false); }),
                     {"have states", "prefix_caching=false"});
        }
        w.settings.prefix_caching = w.settings.prefix_caching && shares;
        const auto steps = std::make_shared<measure::ExecutedSteps>(session, w.settings, false);
        simulate::ServingSetup setup;
        setup.servers = {w.settings, steps, 1};
        simulate::ServingWatch watch;
        watch.on_finished = [&](const simulate::Sequence& s) { steps->ended(s); };
        simulate::RequestList list(w.requests, 4);
        const simulate::ServingTimes times = serve(setup, list, {}, watch);
        REQUIRE(times.finished == w.requests.size());
        preemptions += times.counts.preemptions;
        hits += times.counts.hit_tokens;
        for (const ServingRequest& r : w.requests) {
          execute::Request request;
          request.tokens = {measure::prompt_of(r, 4, checkpoint.architecture().vocab_size)};
          request.output_len = r.output_tokens;
          CHECK(steps->made().at(r.id) == alone.run(request).tokens[0]);
        }
      }
      CHECK(preemptions > 0);
      CHECK((hits > 0) == shares);
    }
  }
}

TEST_CASE("serving run: a bounded cache, prompts in chunks") {
  const Checkpoint checkpoint(KVCAST_SOURCE_DIR "/tests/oracle/llama_gqa_llama3_rope");
  execute::SessionOptions options;
  options.dtype = DType::FP64;
  options.methods = parse_methods("streaming:sinks=2,window=6");
  const execute::Session alone(checkpoint, options);
  Workload w = tight(Policy::VllmV1);
  w.settings.num_blocks = 200;  // nobody is preempted: what is read again would be a prompt
  execute::StepSession session(checkpoint, options, {w.settings.num_blocks, w.settings.block_size});
  CHECK(message_of([&] {
          measure::ExecutedSteps(session, w.settings, false);
        }).find("prefix_caching=false") != std::string::npos);
  w.settings.prefix_caching = false;
  const auto steps = std::make_shared<measure::ExecutedSteps>(session, w.settings, false);
  simulate::ServingSetup setup;
  setup.servers = {w.settings, steps, 1};
  simulate::ServingWatch watch;
  watch.on_finished = [&](const simulate::Sequence& s) { steps->ended(s); };
  simulate::RequestList list(w.requests, 4);
  const simulate::ServingTimes times = serve(setup, list, {}, watch);
  CHECK(times.counts.preemptions == 0);
  CHECK(times.finished == w.requests.size());
  for (const ServingRequest& r : w.requests) {
    execute::Request request;
    request.tokens = {measure::prompt_of(r, 4, checkpoint.architecture().vocab_size)};
    request.output_len = r.output_tokens;
    CHECK(steps->made().at(r.id) == alone.run(request).tokens[0]);
  }
}

TEST_CASE("serving run: kept tokens of whole prompts, sequences that are preempted too") {
  const std::string oracle = KVCAST_SOURCE_DIR "/tests/oracle/";
  const Checkpoint checkpoint(oracle + "llama_gqa_llama3_rope");
  for (const std::string& method :
       {"specprefill:keep=0.5,lookahead=2,chunk=4,speculator=" + oracle + "llama_mha",
        std::string("random-prune:keep=0.6"), std::string("static-prune:keep=0.5")}) {
    execute::SessionOptions options;
    options.dtype = DType::FP64;
    options.methods = parse_methods(method);
    const execute::Session alone(checkpoint, options);
    std::uint64_t preemptions = 0;
    for (const Policy policy : {Policy::VllmV1, Policy::VllmV0, Policy::Orca}) {
      CAPTURE(method);
      CAPTURE(name(policy));
      Workload w = tight(policy);
      w.settings.num_blocks = 11;
      execute::StepSession session(checkpoint, options,
                                   {w.settings.num_blocks, w.settings.block_size});
      const auto message = [&] {
        return message_of([&] { measure::ExecutedSteps(session, w.settings, false); });
      };
      CHECK(message().find("chunked_prefill=false") != std::string::npos);
      w.settings.chunked_prefill = false;
      if (w.settings.prefix_caching) {
        CHECK(message().find("prefix_caching=false") != std::string::npos);
      }
      simulate::keep_prompts_whole(options.methods, {}, {}, w.settings);
      const auto steps = std::make_shared<measure::ExecutedSteps>(session, w.settings, false);
      simulate::ServingSetup setup;
      setup.servers = {w.settings, steps, 1};
      simulate::ServingWatch watch;
      watch.on_finished = [&](const simulate::Sequence& s) { steps->ended(s); };
      simulate::RequestList list(w.requests, 4);
      const simulate::ServingTimes times = serve(setup, list, {}, watch);
      REQUIRE(times.finished == w.requests.size());
      preemptions += times.counts.preemptions;
      for (const ServingRequest& r : w.requests) {
        execute::Request request;
        request.tokens = {measure::prompt_of(r, 4, checkpoint.architecture().vocab_size)};
        request.output_len = r.output_tokens;
        CHECK(steps->made().at(r.id) == alone.run(request).tokens[0]);
      }
    }
    CHECK(preemptions > 0);
  }
}

TEST_CASE("serving run: what its steps took, played again, gives the schedule that ran") {
  const TestFolder folder;
  const std::string file = folder / "steps.csv";
  const Checkpoint checkpoint(KVCAST_SOURCE_DIR "/tests/oracle/llama_gqa_llama3_rope");
  Workload w = tight(Policy::VllmV1);
  execute::StepSession session(checkpoint, {}, {w.settings.num_blocks, w.settings.block_size});
  simulate::ServingSetup setup;
  const auto steps = std::make_shared<measure::ExecutedSteps>(session, w.settings, false);
  setup.servers = {w.settings, steps, 1};
  simulate::StepTimesFile written(file);
  simulate::ServingWatch watch;
  watch.on_step = [&](const simulate::ServedStep& s) { written.add(s); };
  simulate::RequestList list(w.requests, 4);
  const simulate::ServingTimes ran = serve(setup, list, {}, watch);
  written.commit();
  setup.servers.clock = std::make_shared<simulate::ReplayedSteps>(file);
  simulate::RequestList again(w.requests, 4);
  const simulate::ServingTimes played = serve(setup, again);
  CHECK(played.steps == ran.steps);
  CHECK(played.duration_s == ran.duration_s);
  CHECK(played.ttft_s.p99 == ran.ttft_s.p99);
  CHECK(played.e2e_s.mean == ran.e2e_s.mean);
  // Another schedule is noticed.
  setup.servers.settings.max_num_batched_tokens = 5;
  setup.servers.clock = std::make_shared<simulate::ReplayedSteps>(file);
  simulate::RequestList third(w.requests, 4);
  CHECK(message_of([&] { serve(setup, third); }).find("as this scheduler has it") !=
        std::string::npos);
}

TEST_CASE("serving run: prompts with equal block ids have equal tokens, and no others") {
  ServingRequest a{1, 0, 10, 1, {7, 8}};
  ServingRequest b{2, 0, 10, 1, {7, 9}};
  const auto of_a = measure::prompt_of(a, 4, 1000);
  const auto of_b = measure::prompt_of(b, 4, 1000);
  REQUIRE(of_a.size() == 10);
  CHECK(std::equal(of_a.begin(), of_a.begin() + 4, of_b.begin()));
  CHECK(!std::equal(of_a.begin() + 4, of_a.begin() + 8, of_b.begin() + 4));
  CHECK(!std::equal(of_a.begin() + 8, of_a.end(), of_b.begin() + 8));
  a.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  CHECK(measure::prompt_of(a, 4, 1000) ==
        std::vector<execute::TokenId>(a.tokens.begin(), a.tokens.end()));
}
