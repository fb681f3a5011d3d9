#include "simulate/serving/model_server.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "roofline/interconnect.h"
#include "tests/near.h"

using namespace kvcast;
using namespace kvcast::simulate;

namespace {

roofline::Configuration configuration(const std::string& hardware, const std::string& engine) {
  const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  roofline::Configuration c;
  c.architecture = load_model(catalog, "llama-3.2-1b");
  c.hardware = roofline::load_hardware(catalog, hardware);
  c.engine = roofline::load_engine(catalog, engine);
  roofline::apply(c.engine, true, true, c.lowering);
  return c;
}

}  // namespace

// Engine versions and values: vLLM's engine/arg_utils.py and pull requests 17885 and 37307.
TEST_CASE("model server: an engine's version says which defaults its scheduler has") {
  const auto settings = [](const std::string& hardware, const std::string& engine) {
    const roofline::Configuration c = configuration(hardware, engine);
    return default_settings(default_policy(c.engine), c);
  };
  CHECK(settings("h100-sxm", "vllm:0.18").reserve_full_prompt == false);
  CHECK(settings("h100-sxm", "vllm:0.19").reserve_full_prompt == true);
  for (const char* late : {"vllm:0.13", "tensorrt-llm:0.17", "sglang:0.3"}) {
    CHECK_FALSE(settings("h100-sxm", late).schedules_ahead);
  }
  for (const char* ahead : {"vllm:0.14", "tensorrt-llm:1.0", "sglang:0.5.3", "sglang"}) {
    CHECK(settings("h100-sxm", ahead).schedules_ahead);
  }
  // Of another engine's policy: as the version that its name stands for.
  const roofline::Configuration vllm = configuration("h100-sxm", "vllm:0.6.3");
  CHECK(default_settings(Policy::TrtllmUtilization, vllm).schedules_ahead);
  CHECK(default_settings(Policy::SglangLpm, vllm).schedules_ahead);
  CHECK_FALSE(default_settings(Policy::Sarathi, vllm).schedules_ahead);
  CHECK(settings("h100-sxm", "vllm:0.11").max_num_batched_tokens == 8192);
  CHECK(settings("h100-sxm", "vllm:0.11").max_num_seqs == 1024);
  for (const char* small : {"a100-80gb", "rtx-4090"}) {
    CHECK(settings(small, "vllm:0.11").max_num_batched_tokens == 2048);
    CHECK(settings(small, "vllm:0.11").max_num_seqs == 256);
  }
  CHECK(settings("h100-sxm", "vllm:0.6.3").policy == Policy::VllmV0);
  CHECK(settings("h100-sxm", "tensorrt-llm:1").schedules_ahead);  // 1 is 1.0
}

TEST_CASE("model server: an engine's file says whether prompts are read in chunks") {
  roofline::Configuration c = configuration("h100-sxm", "ideal");
  for (const auto& [rules, policy] : {std::pair{"vllm-v1", Policy::VllmV1},
                                      std::pair{"trtllm-utilization", Policy::TrtllmUtilization}}) {
    for (const bool chunks : {false, true}) {
      CAPTURE(rules);
      c.engine.values = {
          {"scheduler.rules", '"' + std::string(rules) + '"', "assumed", "a test", ""},
          {"scheduler.chunked_prefill", chunks ? "true" : "false", "assumed", "a test", ""}};
      CHECK(default_settings(policy, c).chunked_prefill == chunks);
    }
  }
}

TEST_CASE("model server: vLLM's first scheduler reads as many tokens as a sequence may have") {
  const roofline::Configuration c = configuration("h100-sxm", "vllm:0.6.3");
  // The model has 131072 positions.
  CHECK(make_model_server(c, "vllm-v0", "a test").servers.settings.max_num_batched_tokens ==
        131072);
  const ModelServer s = make_model_server(c, "vllm-v0:max_model_len=4096", "a test");
  CHECK(s.servers.settings.max_num_batched_tokens == 4096);
}

TEST_CASE("model server: the cache fills its share of the memory") {
  const roofline::Configuration c = configuration("h100-sxm", "vllm:0.11");
  const ModelServer s = make_model_server(c, "vllm-v1", "a test", 0.5);
  // Llama 3.2 1B: 16 layers, 8 key-value heads of 64, in 2 bytes; 16 tokens a block.
  CHECK(s.memory.block_bytes == near(16 * 16 * 2 * 8 * 64 * 2));
  const double room =
      0.5 * s.memory.capacity_bytes - s.memory.weight_bytes - s.memory.activation_bytes;
  const auto blocks = static_cast<double>(s.servers.settings.num_blocks);
  CHECK(blocks * s.memory.block_bytes <= room);
  CHECK((blocks + 1) * s.memory.block_bytes > room);
}

TEST_CASE("model server: states are in the blocks of their sequence, which shares none") {
  roofline::Configuration c = configuration("h100-sxm", "vllm:0.11");
  c.architecture = load_model(Catalog(KVCAST_SOURCE_DIR "/data"), "lfm2-350m");
  const SchedulerSettings s = make_model_server(c, "vllm-v1", "a test").servers.settings;
  CHECK_FALSE(s.prefix_caching);
  // In 2 bytes: 6 layers with 8 key-value heads of 64, and 10 whose convolutions see 3 rows of
  // 1024, which is as much as 5 tokens have.
  constexpr std::uint64_t token_bytes = 6 * 2 * 8 * 64 * 2;
  constexpr std::uint64_t state_bytes = 10 * 3 * 1024 * 2;
  static_assert(state_bytes == 5 * token_bytes);
  REQUIRE(s.cache_rows);
  CHECK(s.cache_rows(1) == 6);
  CHECK(s.cache_rows(1000) == 1005);
  CHECK(s.cache_rows(0) == 0);
  // The states of max_num_seqs sequences at once would leave no room.
  c.architecture = load_model(Catalog(KVCAST_SOURCE_DIR "/data"), "falcon-h1-34b");
  CHECK(make_model_server(c, "vllm-v1", "a test").servers.settings.num_blocks > 100);
}

TEST_CASE("model server: each scheduler serves sequences whose states take many blocks") {
  roofline::Configuration c = configuration("h100-sxm", "vllm:0.11");
  c.architecture = load_model(Catalog(KVCAST_SOURCE_DIR "/data"), "falcon-h1-0.5b");
  for (const char* scheduler : {"vllm-v1", "vllm-v0", "sarathi", "orca", "static", "sglang",
                                "sglang-lpm", "trtllm-guaranteed", "trtllm-utilization"}) {
    CAPTURE(scheduler);
    const std::string of = std::string(scheduler) + ":num_blocks=1500,max_model_len=8192";
    ServingSetup setup;
    setup.servers = make_model_server(c, of, "a test").servers;
    setup.servers.settings.chunked_prefill_size = 4096;
    CHECK(setup.servers.settings.cache_rows(1) > 1000);
    std::vector<ServingRequest> requests;
    for (std::uint64_t i = 0; i < 12; ++i) requests.push_back({i, 0, 6720, 5 + i});
    RequestList list(requests);
    CHECK(serve(setup, list).finished == requests.size());
  }
}

// Orca and static batches may read all prompts that they have reserved room for in one step.
TEST_CASE("model server: reserved sequences leave room for their prompts") {
  const roofline::Configuration c = configuration("h100-sxm", "vllm:0.11");
  for (const char* scheduler : {"orca:max_model_len=8000", "static:max_model_len=8000"}) {
    CAPTURE(scheduler);
    const ModelServer s = make_model_server(c, scheduler, "a test");
    const std::uint64_t sequences = s.servers.settings.num_blocks / 500;
    CHECK(s.servers.settings.num_blocks == sequences * 500);
    CHECK(sequences > 1);
    CHECK(sequences <= 128);
    roofline::ServerStep step(c);
    CHECK(s.memory.activation_bytes == near(step.activation_bytes(8000 * sequences)));
    const auto needed = [&](std::uint64_t n) {
      const auto cache = static_cast<double>(500 * n) * s.memory.block_bytes;
      return s.memory.weight_bytes + step.activation_bytes(8000 * n) + cache;
    };
    const double room = s.memory.capacity_bytes - s.memory.reserved_bytes;
    CHECK(needed(sequences) <= room);
    CHECK((sequences == 128 || needed(sequences + 1) > room));
  }
}

TEST_CASE(
    "model server: replicas that share nothing are servers, those with common experts ranks") {
  roofline::Configuration c = configuration("h100-sxm", "vllm:0.11");
  c.parallelism.dp = 3;
  ModelServer s = make_model_server(c, "", "a test");
  CHECK(s.servers.count == 3);
  CHECK(s.servers.ranks == 1);
  CHECK(s.devices == 3);
  c.architecture = load_model(Catalog(KVCAST_SOURCE_DIR "/data"), "qwen3-30b-a3b");
  c.parallelism.dp = c.parallelism.ep = 2;
  c.interconnect = std::make_shared<const roofline::Interconnect>(
      roofline::load_interconnect(Catalog(KVCAST_SOURCE_DIR "/data"), "hgx-h100"));
  s = make_model_server(c, "", "a test");
  CHECK(s.servers.count == 1);
  CHECK(s.servers.ranks == 2);
  CHECK(s.devices == 2);
}

TEST_CASE("model server: the host prepares a row of decode steps once") {
  roofline::Configuration c = configuration("h100-sxm", "vllm:0.6.3");
  c.engine.host.step = Seconds{1};
  c.engine.host.sequence = Seconds{0};
  Sequence decoding;
  decoding.request.prompt_tokens = 100;
  decoding.generated = 1;
  decoding.known = 101;
  decoding.computed = 101;
  const std::vector<ScheduledPart> step{{&decoding, 1, 100, true, true}};
  const double alone = make_model_server(c, "vllm-v0", "a test").servers.clock->seconds(step);
  const double in_row =
      make_model_server(c, "vllm-v0:num_scheduler_steps=10", "a test").servers.clock->seconds(step);
  CHECK(alone - in_row == near(0.9));
}

TEST_CASE("model server: prompts are tokenised one after another before the scheduler sees them") {
  roofline::Configuration c = configuration("h100-sxm", "vllm:0.13");
  c.engine.host.request = Seconds{0.5};
  c.engine.host.token = Seconds{1e-3};
  ServingSetup setup;
  setup.servers = make_model_server(c, "", "a test").servers;
  RequestList list({{0, 0, 100, 1}, {1, 0, 200, 1}, {2, 5, 100, 1}}, 0);
  std::vector<double> scheduled;
  ServingWatch watch;
  watch.on_finished = [&](const Sequence& s) { scheduled.push_back(*s.scheduled_s); };
  serve(setup, list, {}, watch);
  REQUIRE(scheduled.size() == 3);
  CHECK(scheduled[0] == near(0.6));
  CHECK(scheduled[1] == near(0.8));  // its 0.2 s begin at 0.1
  CHECK(scheduled[2] == near(5.6));
}
