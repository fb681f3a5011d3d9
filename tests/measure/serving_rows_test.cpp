#include "measure/serving_rows.h"

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "measure/closed_loop.h"
#include "measure/served_requests.h"
#include "measure/serving_validation.h"
#include "model/base/error.h"
#include "roofline/estimator.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/source_catalog.h"

namespace kvcast::measure {
namespace {

/// A row, of which the tests say what differs.
struct Row {
  std::string run = "r";
  std::string source = "a page";
  std::string model = "llama-3.1-8b";
  std::string hardware = "h100-sxm";
  std::string tp = "1";
  std::string engine = "vllm";
  std::string engine_version = "0.11.0";
  std::string weight_dtype = "bf16";
  std::string scheduler = "engine defaults";
  std::string workload = "random, input 1024, output 256";
  std::string trace = {};
  std::string arrival = "closed loop";
  std::string load = "8";
  std::string metric = "mean_ttft";
  std::string value = "100";
  std::string unit = "ms";
  std::string note = {};
};

std::vector<ServedRun> read(const std::vector<Row>& rows) {
  std::string text =
      "id,run,source,model,hardware,tp,engine,engine_version,weight_dtype,scheduler,workload,trace,"
      "arrival,load,metric,value,unit,note\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    text += "row" + std::to_string(i);
    for (const std::string& cell :
         {r.run, r.source, r.model, r.hardware, r.tp, r.engine, r.engine_version, r.weight_dtype,
          r.scheduler, r.workload, r.trace, r.arrival, r.load, r.metric, r.value, r.unit, r.note}) {
      text += ",\"" + cell + "\"";
    }
    text += "\n";
  }
  return read_served_runs(CsvTable::parse(text, "f.csv"));
}

ServedRun read_one(const Row& row) { return read({row}).at(0); }

using Options = std::map<std::string, std::string>;

TEST_CASE("serving rows: rows of one run and load are figures of one server") {
  const auto runs = read({{.metric = "p50_ttft", .value = "250"},
                          {.metric = "p99_tpot", .value = "0.02", .unit = "s"},
                          {.load = "16"},
                          {.metric = "output_throughput", .value = "900", .unit = "tokens/s"}});
  REQUIRE(runs.size() == 2);
  REQUIRE(runs[0].figures.size() == 3);
  CHECK(runs[0].figures[0].measured == near(0.25));
  CHECK(runs[0].figures[0].percentile == 50);
  CHECK(kind(runs[0].figures[0]) == "ttft");
  CHECK(kind(runs[0].figures[1]) == "tail");
  CHECK(runs[0].figures[2].place == "f.csv:5");
  CHECK(kind(runs[0].figures[2]) == "throughput");
  CHECK(runs[1].workload.arrivals->users == 16);
}

TEST_CASE("serving rows: a wrong unit is refused, an unknown metric is listed") {
  CHECK(message_of([] { read_one({.unit = "tokens/s"}); }) ==
        "f.csv:2: column 'unit': got 'tokens/s', expected s or ms");
  CHECK(message_of([] { read_one({.value = "0"}); }).find("above zero") != std::string::npos);
  CHECK(read_one({.metric = "p50_goodput"}).figures[0].unusable == "its metric is 'p50_goodput'");
}

TEST_CASE("serving rows: limits of the scheduler") {
  CHECK(
      read_one({.scheduler = "prefill-first, no chunking, max_num_seqs 256, max_model_len 65536, "
                             "max_num_batched_tokens 65536, gpu_memory_utilization 0.8, no prefix "
                             "caching"})
          .scheduler == Options{{"max_num_seqs", "256"},
                                {"max_model_len", "65536"},
                                {"max_num_batched_tokens", "65536"},
                                {"prefix_caching", "false"}});
  const ServedRun blocks = read_one(
      {.scheduler = "max_num_batched_tokens 2048, max_num_seqs 256, chunked prefill, block 16, "
                    "prefix caching on; 2588 KV blocks of 16, max_model_len 32768"});
  CHECK(blocks.num_blocks == 2588);
  CHECK(!blocks.memory_share);
  // vLLM V1 keeps one block.
  const roofline::Configuration c = configuration_of(blocks, catalog());
  CHECK(scheduler_text(blocks, c) ==
        "vllm-v1:block_size=16,max_model_len=32768,max_num_batched_tokens=2048,max_num_seqs=256,"
        "num_blocks=2587,prefix_caching=true");
  const ServedRun v0 =
      read_one({.engine_version = "0.7.3 V0",
                .scheduler = "max_model_len 4096, V0: prefill-first, no prefix caching"});
  CHECK(scheduler_text(v0, configuration_of(v0, catalog())) == "vllm-v0:max_model_len=4096");
  const ServedRun v1 = read_one({.scheduler = "no prefix caching"});
  CHECK(scheduler_text(v1, configuration_of(v1, catalog())) == "vllm-v1:prefix_caching=false");
  CHECK(read_one({.scheduler = "radix cache off, defaults"}).scheduler ==
        Options{{"prefix_caching", "false"}});
  CHECK(read_one({.scheduler = "--num-scheduler-steps 10 (tokens ...), max_model_len 4096"})
            .scheduler == Options{{"num_scheduler_steps", "10"}, {"max_model_len", "4096"}});
  CHECK(read_one({.scheduler = "gpu_memory_utilization 0.9"}).memory_share == 0.9);
  const ServedRun tool = read_one(
      {.engine = "tensorrt-llm",
       .engine_version = "1.0 PyTorch backend",
       .scheduler = "trtllm-bench throughput, GUARANTEED_NO_EVICT, KV fraction 0.95 of free memory "
                    "(0.90 where that ran out), fp8 KV as the checkpoint says; max batch and max "
                    "tokens chosen by the tool"});
  CHECK(tool.memory_share == 0.95);
  CHECK(tool.fp8_cache);
  CHECK(tool.fits_longest_prompt);
  CHECK_FALSE(tool.sends_text);
}

TEST_CASE("serving rows: a run in one process has no server's time for a request") {
  const auto request_s = [](const char* source) {
    const ServedRun run = read_one({.source = source, .engine_version = "0.7.3"});
    return configuration_of(run, catalog()).engine.host.request.value;
  };
  CHECK(request_s("a page") > 0);
  CHECK(request_s("FreedomIntelligence/AccelMark") == 0);
}

TEST_CASE("serving rows: vLLM 0.6 with chunks is under Sarathi-Serve's rules") {
  const ServedRun run = read_one(
      {.engine_version = "0.6.0 V0",
       .scheduler =
           "defaults, gpu_memory_utilization 0.97, max_model_len 131072 so chunked prefill "
           "with 512 tokens is on by default"});
  CHECK(run.memory_share == 0.97);
  CHECK(scheduler_text(run, configuration_of(run, catalog())) ==
        "sarathi:max_model_len=131072,max_num_batched_tokens=512,max_num_seqs=256");
}

TEST_CASE("serving rows: the engine's version") {
  const auto version = [](const char* text) {
    return read_one({.engine_version = text}).engine_version;
  };
  CHECK(version("0.6.3.post1 V0, eager mode") == "0.6.3.post1");
  CHECK(version("main of 2025-05-09 (0.8.5 V1)") == "0.8.5");
  CHECK(version("1.0.0rc3") == "1.0.0rc3");
  CHECK(version("not stated, measured 2025-10-29") == "2025-10");
  CHECK(read_one({.engine_version = "0.6.3.post1 V0, eager mode"}).eager);
  const ServedRun nim = read_one({.engine = "nim (tensorrt-llm)", .engine_version = "1.8.0"});
  CHECK(nim.engine == "tensorrt-llm");
  CHECK(nim.engine_version != "1.8.0");
}

TEST_CASE("serving rows: types of weights and cache") {
  const auto cache = [](const Row& row) {
    return configuration_of(read_one(row), catalog()).lowering.cache;
  };
  CHECK(cache({}) == DType::BF16);
  CHECK(cache({.weight_dtype = "bf16 (not stated: the checkpoint is bf16)"}) == DType::BF16);
  CHECK(cache({.weight_dtype = "fp8"}) == DType::BF16);
  CHECK(cache({.engine = "tensorrt-llm", .engine_version = "1.0", .weight_dtype = "fp8"}) ==
        DType::FP8);
  const Lowering l =
      configuration_of(read_one({.weight_dtype = "fp8 block-wise"}), catalog()).lowering;
  CHECK(l.weights.text == "fp8");
  CHECK(l.operand_dtype() == DType::FP8);
}

TEST_CASE("serving rows: workloads with equal lengths") {
  const ServedRun all = read_one({.workload = "30000 requests, input 128, output 64, all equal",
                                  .arrival = "all at once",
                                  .load = "inf"});
  REQUIRE(all.workload.groups.size() == 1);
  CHECK(all.workload.groups[0].count == 30000);
  CHECK(all.workload.arrivals->kind == simulate::ArrivalKind::Burst);
  const auto requests = served_requests(all.workload, "", 0).requests;
  REQUIRE(requests.size() == 30000);
  CHECK(requests[7].prompt_tokens == 128);
  CHECK(requests[7].output_tokens == 64);
  // How many a closed loop had is assumed, and said.
  const ServedRun loop = read_one({});
  CHECK(loop.workload.groups[0].count == 80);
  REQUIRE(loop.assumed.size() == 1);
  CHECK(loop.assumed[0].starts_with("10 requests a client"));
}

TEST_CASE("serving rows: workloads with drawn lengths") {
  const ServedRun less = read_one(
      {.workload =
           "random, input 1000, output 500 (InferenceMAX run: nominal lengths, each request "
           "draws a little less)"});
  CHECK(less.workload.groups[0].prompt.least == 800);
  CHECK(less.sends_text);
  // Its scripts ask for more than the engine's defaults.
  const std::string drawn =
      "random, input 1024, output 1024 (InferenceMAX run: nominal lengths, each request draws a "
      "little less)";
  const auto asked = [&](const char* engine) {
    return read_one({.model = "llama-3.1-70b", .engine = engine, .workload = drawn}).scheduler;
  };
  CHECK(asked("vllm") == Options{{"schedules_ahead", "true"}});
  CHECK(asked("tensorrt-llm").at("max_num_batched_tokens") == "16384");
  CHECK(asked("tensorrt-llm").at("batch_wait_timeout_iters") == "20");
  CHECK(less.workload.groups[0].output.most == 500);
  // So does aiconfigurator, for 8 clients and prompts of 1,024 tokens.
  const auto configured = [](const char* engine) {
    return read_one({.source = "aiconfigurator: systems/silicon_sample.csv", .engine = engine});
  };
  CHECK(configured("vllm").scheduler == Options{{"max_num_batched_tokens", "2532"}});
  CHECK(configured("sglang").scheduler ==
        Options{{"max_num_batched_tokens", "2524"}, {"mixed_chunk", "true"}});
  CHECK(configured("vllm").assumed.at(0).starts_with("the scheduler's settings that aiconf"));
  CHECK(configured("lmdeploy").scheduler.empty());
  CHECK_FALSE(configured("vllm").fp8_cache);
  CHECK(read_one({.source = "silicon_sample.csv", .weight_dtype = "fp8 block-wise"}).fp8_cache);
  CHECK_FALSE(read_one({.weight_dtype = "fp8 block-wise"}).fp8_cache);
  const ServedRun quartiles = read_one(
      {.workload = "200 prompts of 28.2k/28.65k/29.2k/29.9k tokens (p25/p50/p75/p99), output 256",
       .arrival = "Poisson, 2 runs pooled",
       .load = "0.5"});
  CHECK(quartiles.workload.groups[0].count == 100);  // of each run
  CHECK(quartiles.workload.groups[0].prompt.least == 28200);
  CHECK(quartiles.workload.groups[0].prompt.most == 29900);
  CHECK(quartiles.workload.arrivals->rate == 0.5);
  const auto first = served_requests(quartiles.workload, "", 0).requests;
  const auto second = served_requests(quartiles.workload, "", 1).requests;
  CHECK(first[3].prompt_tokens == second[3].prompt_tokens);
  CHECK(first[3].arrival_s != second[3].arrival_s);
  CHECK(read_one({.workload = "what users sent"}).unusable ==
        "the lengths of its requests are not known: 'what users sent'");
  CHECK(read_one({.arrival = "as it came"}).unusable ==
        "how its requests arrive is not known: 'as it came' with a load of '8'");
}

TEST_CASE("serving rows: outputs that end by chance have the mean that is known") {
  // More than k tokens with the chance exp(-k / m), at most 512.
  const double m = unlimited_mean(345, 512);
  double mean = 0;
  for (int k = 0; k < 512; ++k) mean += std::exp(-k / m);
  CHECK(mean == near(345));
  const ServedRun run = read_one({.workload = "ShareGPT as bench_serving samples it, 20000 prompts "
                                              "(mean about 200 in, 194 out)",
                                  .arrival = "Poisson",
                                  .load = "8.0"});
  const auto requests = served_requests(run.workload, "", 0).requests;
  REQUIRE(requests.size() == 20000);
  double prompts = 0;
  double outputs = 0;
  for (const auto& r : requests) {
    CHECK_FALSE((r.output_tokens < 1 || r.output_tokens > 1024));
    prompts += static_cast<double>(r.prompt_tokens);
    outputs += static_cast<double>(r.output_tokens);
  }
  // Deviation about 200 of each, 1.4 of the mean.
  CHECK(std::abs(prompts / 20000 - 200) < 6);
  CHECK(std::abs(outputs / 20000 - 194) < 6);
  CHECK(std::abs(requests.back().arrival_s - 2500) < 100);
}

TEST_CASE("serving rows: traces give prompts and arrivals") {
  const ServedRun own = read_one({.workload = "ShareGPT 300 requests, lengths in the trace",
                                  .trace = "t.jsonl",
                                  .arrival = "trace (Poisson, 10 sessions/s)",
                                  .load = ""});
  CHECK(own.unusable.empty());
  CHECK(!own.workload.arrivals);
  CHECK(!own.workload.output);
  const ServedRun pooled = read_one(
      {.workload =
           "ShareGPT prompts 0-299, input_tokens in the trace (mean 240, up to 592), output "
           "until EOS, at most 512 (mean 345 over the first 100 in the offline runs)",
       .trace = "t.csv",
       .arrival = "Poisson, 3 runs pooled",
       .load = "25"});
  CHECK(pooled.workload.arrival_columns == std::vector<std::string>{"arrival_s_qps25_run1",
                                                                    "arrival_s_qps25_run2",
                                                                    "arrival_s_qps25_run3"});
  REQUIRE(pooled.workload.output);
  CHECK(pooled.workload.output->most == 512);
  CHECK(pooled.workload.output->mean == 345);
}

TEST_CASE("serving rows: SpecPrefill's queries and its highest rate") {
  const ServedRun run = read_one(
      {.engine_version = "0.6.3.post1 V0, eager mode",
       .scheduler = "no prefix caching; specprefill keep 0.1, speculator llama-3.1-8b bf16 TP8, "
                    "look-ahead not stated",
       .workload = "LongBench multi-doc-qa: 4 subtasks x 32 samples shuffled; prompt lengths of "
                   "LongBench with its templates; output up to the task budget, ends at EOS",
       .arrival = "one request every 1/qps s",
       .load = "",
       .metric = "max_qps",
       .value = "4.6",
       .unit = "requests/s",
       .note = "last grid point at which at most 4 of 128 requests missed 10 s (+5 s slack in the "
               "client); grid step 0.4"});
  CHECK(run.method == "specprefill:keep=0.1,speculator=llama-3.1-8b");
  REQUIRE(run.grid);
  CHECK(run.grid->limit_s == 15);
  CHECK(run.grid->may_miss == 4);
  CHECK(run.grid->step == 0.4);
  const auto requests = served_requests(run.workload, "", 0, 0.5).requests;
  REQUIRE(requests.size() == 128);
  CHECK(requests[0].arrival_s == near(2));
  CHECK(requests[127].arrival_s == near(256));
  std::map<std::uint64_t, int> prompts;
  for (const auto& r : requests) ++prompts[r.prompt_tokens];
  // 15768 characters at 0.67, the others' words at 1.4.
  CHECK(prompts == std::map<std::uint64_t, int>{{10564, 32}, {6841, 32}, {15699, 32}, {12811, 32}});
}

TEST_CASE("serving validation: one client waits for nobody") {
  Row row{.model = "llama-3.2-1b",
          .workload = "random, input 128, output 9",
          .load = "1",
          .metric = "mean_ttft"};
  std::vector<Row> rows(4, row);
  rows[1].metric = "mean_tpot";
  rows[2].metric = "output_throughput";
  rows[2].unit = "tokens/s";
  rows[3].metric = "p90_e2el";
  const ServedRun run = read(rows).at(0);
  roofline::Configuration c = configuration_of(run, catalog());
  c.engine.host.token.value += tokeniser_s;
  const roofline::Estimate e = roofline::Estimator(c).at({1, 128, 9});
  const ServingValidation v = validate_serving({run}, catalog(), "");
  REQUIRE(v.unmatched.empty());
  REQUIRE(v.cases.size() == 4);
  const double request_s = e.ttft_s + 8 * e.tpot_s;
  CHECK(v.cases[0].predicted == near(e.ttft_s));
  CHECK(v.cases[1].predicted == near(e.tpot_s));
  CHECK(v.cases[2].predicted == near(9 / request_s).epsilon(1e-9));  // one request after another
  CHECK(v.cases[3].predicted == near(request_s));
  CHECK(v.cases[0].relative_error() == near(e.ttft_s / 0.1 - 1));
  CHECK(v.facts[0].requests == 10);
  CHECK(v.facts[0].is_below_saturation());
  // Token ids are not tokenised.
  ServedRun of_ids = run;
  of_ids.sends_text = false;
  CHECK(validate_serving({of_ids}, catalog(), "").cases[0].predicted ==
        near(e.ttft_s - 128 * tokeniser_s));
}

TEST_CASE("serving validation: a run without a forecast is listed row by row with the reason") {
  const ServingValidation v =
      validate_serving(read({{.run = "a", .model = "gpt-9"},
                             {.run = "b", .workload = "what users sent"},
                             {.run = "c", .metric = "p50_goodput"},
                             {.run = "d", .hardware = "mi300x", .tp = "8"}}),
                       catalog(), "");
  CHECK(v.cases.empty());
  REQUIRE(v.unmatched.size() == 4);
  CHECK(v.unmatched[0].id == "row0");
  CHECK(v.unmatched[0].reason.find("no model 'gpt-9'") != std::string::npos);
  CHECK(v.unmatched[1].reason.find("lengths") != std::string::npos);
  CHECK(v.unmatched[2].reason == "its metric is 'p50_goodput'");
  CHECK(v.unmatched[3].reason.find("no platform joins them") != std::string::npos);
}

}  // namespace
}  // namespace kvcast::measure
