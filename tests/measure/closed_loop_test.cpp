#include "measure/closed_loop.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "measure/validation.h"
#include "simulate/serving/model_server.h"
#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

namespace kvcast::measure {
namespace {

using roofline::Configuration;
using roofline::DesignPoint;

TEST_CASE("closed loop: of clients that start together the first begins alone, the others next") {
  // Texts are tokenised in turn, so the first prompt is read before the next one is seen.
  const Configuration c = a100_configuration("llama-3.1-8b", "plain");
  const roofline::Estimate alone = roofline::Estimator(c).at({1, 400, 2});
  const auto clock = simulate::make_model_server(c, "", "a test").servers.clock;
  simulate::Sequence first;
  first.request.prompt_tokens = 400;
  first.generated = 1;
  first.known = 401;
  first.computed = 401;
  simulate::Sequence next;
  next.request.prompt_tokens = next.known = 400;
  const std::vector<simulate::ScheduledPart> step{
      {&first, 1, 400, true, true}, {&next, 400}, {&next, 400}, {&next, 400}};
  const double step_s = clock->seconds(step);
  REQUIRE(4 * 400 * tokeniser_s < alone.ttft_s);
  const auto f = closed_loop_forecast(c, {.shortest = 1, .rounds = 1})({4, 400, 2});
  const double first_s = 400 * tokeniser_s + alone.ttft_s;
  CHECK(f.ttft_s == near(first_s + 0.75 * step_s));
}

TEST_CASE("closed loop: one client never waits, whatever its lengths") {
  const Configuration c = a100_configuration("llama-3.1-8b", "plain");
  const roofline::Estimator estimator(c);
  const auto f = closed_loop_forecast(c, {.shortest = 0.5, .rounds = 50})({1, 3000, 9});
  CHECK(f.ttft_s > estimator.at({1, 1500, 9}).ttft_s);
  CHECK(f.ttft_s < estimator.at({1, 3000, 9}).ttft_s);
  CHECK(f.ttft_s == near(estimator.at({1, 2250, 9}).ttft_s + 2250 * tokeniser_s).epsilon(0.1));
  CHECK(f.tpot_s < estimator.at({1, 3000, 9}).tpot_s);
}

TEST_CASE("closed loop: clients of unequal lengths join steps of others") {
  const Configuration c = a100_configuration("llama-3.1-8b", "plain");
  const DesignPoint size{16, 4000, 200};
  const auto at_once = closed_loop_forecast(c, {.shortest = 1, .rounds = 1})(size);
  const auto drawn = closed_loop_forecast(c, {.shortest = 0.8})(size);
  const roofline::Estimate alone = roofline::Estimator(c).at({1, 4000, 200});
  CHECK(drawn.ttft_s < at_once.ttft_s);  // who comes alone waits for no other prompt
  CHECK(drawn.ttft_s > alone.ttft_s * 0.9);
  CHECK(drawn.tpot_s > alone.tpot_s);
  // The same requests each time.
  CHECK(closed_loop_forecast(c, {.shortest = 0.8})(size) == drawn);
}

TEST_CASE("closed loop: a next prompt misses the step behind the last token") {
  // Of one token, it takes a step, and the rest of the other client's that runs.
  const Configuration c = a100_configuration("llama-3.1-8b", "plain");
  const auto f = closed_loop_forecast(c, {.shortest = 0.5, .rounds = 30})({2, 1, 80});
  CHECK(f.ttft_s > 1.7 * f.tpot_s);
  CHECK(f.ttft_s < 2 * f.tpot_s);
}

TEST_CASE("closed loop: the server's scheduler and kernels are as the loop says") {
  Configuration c = a100_configuration("gpt-oss-120b", "plain");
  c.hardware = roofline::load_hardware(catalog(), "h100-sxm");
  c.engine = roofline::load_engine(catalog(), "vllm:0.13");
  c.lowering.weights = DType::MXFP4;
  const DesignPoint size{8, 900, 60};
  const auto at = [&](LoopRequests loop) {
    loop.shortest = 0.5;
    return closed_loop_forecast(c, loop)(size);
  };
  const auto plain = at({});
  const auto ahead = at({.scheduler = {{"schedules_ahead", "true"}}});
  CHECK(ahead.ttft_s > plain.ttft_s + 0.5 * plain.tpot_s);  // a step more of others
  CHECK(ahead.tpot_s == near(plain.tpot_s).epsilon(0.05));
  // Marlin's kernels multiply many rows at half the rate of Triton's.
  CHECK(closed_loop_forecast(c, {.marlin_mxfp4 = true})({4, 8000, 60}).ttft_s >
        1.2 * closed_loop_forecast(c, {})({4, 8000, 60}).ttft_s);
}

TEST_CASE("closed loop: a scheduler that cuts no prompt has room for the longest") {
  Configuration c = a100_configuration("llama-3.1-8b", "plain");
  c.engine = roofline::load_engine(catalog(), "tensorrt-llm:1.0");
  roofline::apply(c.engine, true, true, c.lowering);
  // Else a prompt would wait for all others' outputs, and then join none of them.
  const auto f = closed_loop_forecast(c, {.shortest = 0.999})({8, 8192, 400});
  CHECK(f.tpot_s > 1.2 * roofline::Estimator(c).at({8, 8192, 400}).tpot_s);
}

TEST_CASE("closed loop: a cache of an unknown dtype holds all clients, or there is no forecast") {
  const Configuration c = a100_configuration("llama-3.1-8b", "plain");
  const DesignPoint many{256, 8000, 100};  // 1 GB each
  CHECK(closed_loop_forecast(c, {.shortest = 1, .rounds = 1})(many).ttft_s > 0);
  const LoopRequests unknown{.shortest = 1, .rounds = 1, .says_cache = false};
  const std::string message = message_of([&] { closed_loop_forecast(c, unknown)(many); });
  CHECK(message.find("of 256 clients, expected cache_dtype") != std::string::npos);
  CHECK(closed_loop_forecast(c, unknown)({4, 400, 10}).ttft_s > 0);
  CHECK(closed_loop_forecast(c, unknown)({16, 8000, 4}).ttft_s >
        0);  // fits, though few run at once
}

TEST_CASE("closed loop: rows of a loop are forecast as one, and those of a batch as a batch") {
  std::string text =
      "id,model,hardware,num_gpus,engine,weight_dtype,cache_dtype,arrival,batch,prompt_len,"
      "output_len,metric,value,unit,source,note\n";
  for (const std::string arrival : {"static", "closed-loop"}) {
    for (const std::string metric : {"ttft", "tpot", "e2e"}) {
      text += arrival + ",llama-3.1-8b,h100-sxm,1,vllm,bf16,bf16," + arrival + ",16,4000,200," +
              metric + ",1,s,x,lengths drawn up to 20 % below\n";
    }
  }
  const Validation v = validate(parse_measurements(text, "m"), catalog(), {});
  REQUIRE(v.cases.size() == 6);
  const auto at = [&](std::size_t i) { return v.cases[i].predicted; };
  CHECK(at(2) == near(at(0) + 199 * at(1)));
  CHECK(at(3) < 0.5 * at(0));                             // most prompts come alone
  CHECK(at(4) > at(1));                                   // and join the steps of others
  CHECK(at(5) == near(at(3) + (0.9 * 200 - 1) * at(4)));  // the mean output
}

TEST_CASE("closed loop: rows of one device whose servers have other settings are told apart") {
  // InferenceX's TensorRT-LLM waits for more prompts with 1024 tokens alone.
  const std::string head =
      "model,hardware,num_gpus,tp,engine,engine_version,weight_dtype,cache_dtype,arrival,batch,"
      "prompt_len,output_len,metric,value,unit,source\n";
  const auto row = [](const char* prompt) {
    return fmt::format(
        "llama-3.3-70b,h200,4,4,tensorrt-llm,1.0,fp8,fp8,closed-loop,4,{},1024,ttft,"
        "1,s,silicon_sample\n",
        prompt);
  };
  const auto forecasts = [&](const std::string& rows) {
    std::vector<double> seconds;
    for (const auto& c : validate(parse_measurements(head + rows, "m"), catalog(), {}).cases) {
      seconds.push_back(c.predicted);
    }
    return seconds;
  };
  const double long_alone = forecasts(row("2048")).at(0);
  CHECK(forecasts(row("1024") + row("2048")).at(1) == near(long_alone).epsilon(1e-12));
}

TEST_CASE("closed loop: what would take hours to simulate is refused") {
  const auto at = closed_loop_forecast(a100_configuration("llama-3.1-8b", "plain"), {});
  for (const DesignPoint& size : {DesignPoint{1000000000, 1, 1}, {2, 1, 1000000000}}) {
    CHECK(message_of([&] { at(size); }).find("at most 1e+05 requests") != std::string::npos);
  }
}

}  // namespace
}  // namespace kvcast::measure
