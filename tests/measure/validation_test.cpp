#include "measure/validation.h"

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "measure/engine_match.h"
#include "measure/model_match.h"
#include "measure/row_filter.h"
#include "model/base/error.h"
#include "reports/plot/validation_plots.h"
#include "roofline/estimator.h"
#include "search/placed_estimator.h"
#include "tests/near.h"
#include "tests/source_catalog.h"

namespace kvcast::measure {
using namespace reports;
namespace {

Validation validated(const std::string& text, const std::string& device = "",
                     const MeasurementDefaults& defaults = {}) {
  return validate(parse_measurements(text, "m", defaults), catalog(), parse_device_choice(device));
}

/// Of pythia-160m.
roofline::Configuration configuration(const std::string& hardware = "a100-80gb") {
  roofline::Configuration c;
  c.architecture = load_model(catalog(), "pythia-160m");
  c.hardware = roofline::load_hardware(catalog(), hardware);
  return c;
}

/// TTFT on the devices of a placement.
double placed_ttft(roofline::Configuration c, const char* method,
                   const roofline::DesignPoint& size) {
  c.methods = parse_methods(method);
  return search::PlacedEstimator(c).at(size).ttft_s;
}

const std::string header = "model,hardware,batch,prompt_len,output_len,ttft_s,tpot_s,request_s\n";

TEST_CASE("validation: a row's prediction is what estimate says of the same point") {
  const Validation v = validated(header + "pythia-160m,a100-80gb,2,384,9,0.5,0.25,2\n");
  const roofline::Estimate e = roofline::Estimator(configuration()).at({2, 384, 9});
  REQUIRE(v.cases.size() == 3);
  CHECK(v.cases[0].predicted == e.ttft_s);
  CHECK(v.cases[1].predicted == e.tpot_s);
  CHECK(v.cases[2].predicted == near(e.ttft_s + 8 * e.tpot_s));
  CHECK(v.cases[0].relative_error() == near(e.ttft_s / 0.5 - 1));
  CHECK(v.unmatched.empty());
}

TEST_CASE("validation: a row says whether its prefill had logits of all positions") {
  const std::string text =
      "model,hardware,method,logits,batch,prompt_len,output_len,ttft_s\n"
      "pythia-160m,a100-80gb,plain,all,2,384,9,0.5\n"
      "pythia-160m,a100-80gb,plain,last,2,384,9,0.5\n"
      "pythia-160m,a100-80gb,kvr:p=2,all,2,384,9,0.5\n"
      "pythia-160m,a100-80gb,kvr:p=2,,2,384,9,0.5\n";
  const Validation v = validated(text);
  roofline::Configuration c = configuration();
  REQUIRE(v.cases.size() == 4);
  CHECK(v.cases[1].predicted == roofline::Estimator(c).at({2, 384, 9}).ttft_s);
  c.logits = Logits::All;
  CHECK(v.cases[0].predicted == roofline::Estimator(c).at({2, 384, 9}).ttft_s);
  CHECK(v.cases[0].predicted > v.cases[1].predicted);
  CHECK(v.cases[2].predicted == placed_ttft(c, "kvr:p=2", {2, 384, 9}));
  CHECK(v.cases[2].predicted > v.cases[3].predicted);
  CHECK_THROWS_WITH_AS(
      validated("model,hardware,logits,batch,prompt_len,output_len,ttft_s\nm,h,some,1,1,1,1\n"),
      "m:2: 'logits': unknown logits 'some'; expected one of: last, all", Error);
}

TEST_CASE("validation: prompts on several devices are forecast as estimate forecasts them") {
  const std::string placed_header =
      "model,hardware,method,num_devices,batch,prompt_len,output_len,ttft_s,tpot_s\n";
  const Validation v = validated(placed_header +
                                 "pythia-160m,a100-80gb,kvr:p=2,2,1,384,9,0.5,0.25\n"
                                 "pythia-160m,a100-80gb,tsp:p=2,,1,384,9,0.5,0.25\n"
                                 "pythia-160m,a100-80gb,kvr:p=2,3,1,400,9,0.5,0.25\n"
                                 "pythia-160m,a100-80gb,plain,2,1,384,9,0.5,0.25\n");
  roofline::Configuration c = configuration();
  REQUIRE(v.cases.size() == 4);
  CHECK(v.cases[0].predicted == placed_ttft(c, "kvr:p=2", {1, 384, 9}));
  CHECK(v.cases[2].predicted == placed_ttft(c, "tsp:p=2", {1, 384, 9}));
  c.methods = parse_methods("kvr:p=2");
  CHECK(v.cases[1].predicted == search::PlacedEstimator(c).at({1, 384, 9}).tpot_s);
  REQUIRE(v.unmatched.size() == 2);
  CHECK(v.unmatched[0].reason == "it ran on 3 devices, and kvr:p=2 on 2");
  CHECK(v.unmatched[1].reason == "it ran on 2 devices, and plain on one");
}

TEST_CASE("validation: prompts on several devices may have a hardware file of their own") {
  const std::string rows =
      "model,hardware,method,batch,prompt_len,output_len,ttft_s,ttft_spread,rounds\n"
      "pythia-160m,a100-80gb,plain,1,384,1,0.5,0.01,3\n"
      "pythia-160m,h200,kvr:p=2,1,384,1,0.5,0.01,3\n"
      "pythia-160m,a100-80gb,tsp:p=2,1,384,1,0.5,0.01,3\n";
  const Measurements measurements = parse_measurements(rows, "m");
  const Validation v = validate(measurements, catalog(), {"", "a100-80gb", "h200"});
  REQUIRE(v.cases.size() == 2);
  CHECK(v.cases[0].row.hardware == "a100-80gb");
  CHECK(v.cases[1].row.hardware == "h200");
  CHECK(v.cases[1].predicted == placed_ttft(configuration("h200"), "kvr:p=2", {1, 384, 1}));
  CHECK(v.devices.size() == 2);
  REQUIRE(v.unmatched.size() == 1);
  CHECK(v.unmatched[0].reason == "it ran on a100-80gb, not on h200");
  CHECK_THROWS_WITH_AS(validate(measurements, catalog(), {"", "h200", "h200"}),
                       doctest::Contains("expected another"), Error);
}

TEST_CASE("validation: rows that nothing can be said about are listed with the reason") {
  const Validation v = validated(header +
                                 "pythia-160m,a100-80gb,1,8,1,1,,\n"
                                 "no-such-model,a100-80gb,1,8,1,1,,\n"
                                 "pythia-160m,no-such-device,1,8,1,1,,\n"
                                 "pythia-160m,,1,8,1,1,,\n"
                                 ",a100-80gb,1,8,1,1,,\n");
  CHECK(v.cases.size() == 1);
  REQUIRE(v.unmatched.size() == 4);
  CHECK(v.unmatched[0].place == "m:3");
  CHECK(v.unmatched[0].reason.find("no model 'no-such-model'") != std::string::npos);
  CHECK(v.unmatched[1].reason.find("no hardware 'no-such-device'") != std::string::npos);
  CHECK(v.unmatched[2].reason.find("--hardware") != std::string::npos);
  CHECK(v.unmatched[3].reason.find("--model") != std::string::npos);
}

TEST_CASE("validation: a row is forecast as its engine runs it, or as --engine says") {
  const std::string text =
      "model,hardware,engine,engine_version,attention,batch,prompt_len,output_len,ttft_s\n"
      "pythia-160m,a100-80gb,vLLM 0.6.3,,,2,384,9,0.5\n"
      "pythia-160m,a100-80gb,vllm,0.6.3,eager,2,384,9,0.5\n"
      "pythia-160m,a100-80gb,Some engine,,,2,384,9,0.5\n";
  const auto ttft = [](const char* engine, Kernels attention) {
    roofline::Configuration c = configuration();
    c.engine = roofline::load_engine(catalog(), engine);
    c.lowering.attention = c.lowering.elementwise = attention;
    apply(c.engine, false, true, c.lowering);
    return roofline::Estimator(c).at({2, 384, 9}).ttft_s;
  };
  const Validation own = validated(text);
  REQUIRE(own.cases.size() == 3);
  CHECK(own.cases[0].row.engine == "vllm");
  CHECK(own.cases[0].row.engine_version == "0.6.3");
  CHECK(own.cases[0].predicted == ttft("vllm:0.6.3", Kernels::Fused));
  CHECK(own.cases[1].predicted == ttft("vllm:0.6.3", Kernels::Eager));
  CHECK(own.cases[2].row.engine == "ideal");
  CHECK(own.cases[2].predicted == ttft("ideal", Kernels::Fused));
  CHECK(own.cases[0].predicted != own.cases[2].predicted);
  DeviceChoice choice;
  choice.engine = "ideal";
  const Validation ideal = validate(parse_measurements(text, "m"), catalog(), choice);
  CHECK(ideal.cases[0].predicted == own.cases[2].predicted);
}

TEST_CASE("validation: engines are found by the names of public tables") {
  const EngineMatch match(catalog());
  for (const auto& [engine, version, found] :
       {std::tuple("vLLM 0.7.3", "", "vllm:0.7.3"),
        std::tuple("vllm", "v0.6.3.post1", "vllm:v0.6.3.post1"),
        std::tuple("vLLM 0.7.3", "0.8", "vllm:0.8"), std::tuple("TensorRT-LLM", "", "tensorrt-llm"),
        std::tuple("llama.cpp", "4748", "llama.cpp:4748"),
        std::tuple("llama.cpp", "4426e298 (2824)", "llama.cpp:2824"),
        std::tuple("llama.cpp b4748", "", "llama.cpp:b4748"),
        std::tuple("llama.cpp Q8_0", "", "llama.cpp"),
        std::tuple("gpt-fast (torch.compile)", "2024-08", "gpt-fast"),
        std::tuple("vllm", "main of 2023-12", "vllm"), std::tuple("vllm", "4 bit", "vllm"),
        std::tuple("ExLlama 4 bit", "", "exllama"), std::tuple("ExLlamaV2 4 bit", "", "exllama"),
        std::tuple("transformers eager", "", "pytorch"), std::tuple("Some engine", "1.2", "ideal"),
        std::tuple("", "", "ideal")}) {
    CAPTURE(engine);
    CAPTURE(version);
    CHECK(match.find(engine, version) == found);
  }
  CHECK(match.find("vLLM", "", "2024-06") == "vllm:2024-06");
  CHECK(match.find("vLLM 0.7.3", "", "2024-06") == "vllm:0.7.3");
  CHECK(match.find("vLLM", "main", "2024") == "vllm");
  CHECK(match.find("transformers", "4.57", "2024-06") == "pytorch:2024-06");  // not PyTorch's 4.57
}

TEST_CASE("validation: a model's name may say which of its entries differ") {
  const Validation v =
      validated(header +
                "\"pythia-160m{num_hidden_layers=6,vocab_size=512}\",a100-80gb,2,384,9,0.5,,\n"
                "pythia-160m{num_hidden_layers},a100-80gb,2,384,9,0.5,,\n"
                "pythia-160m{no_such=1},a100-80gb,2,384,9,0.5,,\n");
  roofline::Configuration c = configuration();
  c.architecture =
      load_model(catalog(), "pythia-160m", {{"num_hidden_layers", "6"}, {"vocab_size", "512"}});
  REQUIRE(v.cases.size() == 1);
  CHECK(v.cases[0].predicted == roofline::Estimator(c).at({2, 384, 9}).ttft_s);
  CHECK(v.cases[0].row.model == "pythia-160m{num_hidden_layers=6,vocab_size=512}");
  REQUIRE(v.unmatched.size() == 2);
  CHECK(v.unmatched[0].reason.find("KEY=VALUE") != std::string::npos);
  CHECK(v.unmatched[1].reason.find("no_such") != std::string::npos);
}

TEST_CASE("validation: a kernel's time is that of its function") {
  const Validation v = validated(
      "id,hardware,kernel,dtype,m,n,k,batch,heads,kv_heads,head_dim,length,value,unit\n"
      "a,a100-80gb,gemm,fp16,64,4096,4096,,,,,,0.00002,s\n"
      "b,a100-80gb,attention_decode,fp16,,,,8,32,8,128,1024,0.00002,s\n");
  REQUIRE(v.cases.size() == 2);
  const roofline::Hardware hw = roofline::load_hardware(catalog(), "a100-80gb");
  for (const ValidationCase& c : v.cases) {
    CHECK(c.predicted == roofline::seconds_of(*c.row.kernel, hw).value);
  }
}

TEST_CASE("validation: --hardware is for rows without a device and for those that name it") {
  const std::string rows = header +
                           "pythia-160m,,1,8,1,1,,\npythia-160m,h200,1,8,1,1,,\n"
                           "pythia-160m,l4,1,8,1,1,,\n";
  const Validation h200 = validated(rows, "h200");
  CHECK(h200.cases.size() == 2);
  REQUIRE(h200.unmatched.size() == 1);
  CHECK(h200.unmatched[0].reason == "it ran on l4, not on h200");
  const Validation renamed = validated(rows, "l4=h200");
  REQUIRE(renamed.cases.size() == 3);  // those of the device itself too
  CHECK(renamed.cases[2].row.hardware == "h200");
}

TEST_CASE("validation: percentiles, means and signs of errors by hand") {
  std::vector<double> errors;
  for (int i = 1; i <= 20; ++i) errors.push_back((i % 2 == 0 ? 0.01 : -0.01) * i);
  const ErrorSummary s = summarize(errors);
  CHECK(s.rows == 20);
  CHECK(s.mape == near(0.105));  // mean of 0.01 ... 0.20
  CHECK(s.worst == near(0.2));
  CHECK(s.bias == near(0.005));  // ten pairs of +0.01
  CHECK(s.bound == near(0.18));  // the 18th of 20
  CHECK(percentile_90(std::vector<double>{-0.3, 0.1, 0.2}) == near(0.3));
  CHECK(percentile_90(std::vector<double>{0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9}) == near(8));
}

TEST_CASE("models: by name, by Hugging Face's name, by the number of parameters") {
  ModelMatch models(catalog());
  const struct {
    const char* name;
    std::uint64_t parameters;
    const char* model;
  } found[] = {
      {"llama-7b", 0, "llama-7b"},
      {"meta-llama/Llama-3.1-8B-Instruct", 0, "llama-3.1-8b"},
      {"meta-llama/Llama-2-7b-chat-hf", 0, "llama-2-7b"},
      {"TinyLlama/tinyllama-1.1b", 0, "tinyllama-1.1b"},
      // No rule turns these into their catalog names: the catalog lists them.
      {"mistralai/Mistral-7B-v0.1", 0, "mistral-7b"},
      {"google/flan-t5-base", 0, "flan-t5-base"},
      {"google/gemma-2-9b-it", 0, "gemma2-9b"},
      {"", 1100048384, "tinyllama-1.1b"},  // as its model card and llama-bench print
      {"", 8030261312, "llama-3.1-8b"},    // with its 64 rotary frequencies, as llama-bench counts
      // A name is held against the number. 135M: 134,515,008, and its head's table 49152·576 again;
      // both with tables padded by 64 rows.
      {"smollm2-135m", 134515008, "smollm2-135m"},
      {"smollm2-135m", 162826560, "smollm2-135m"},
      {"smollm2-135m", 134515008 + 64 * 576, "smollm2-135m"},
      {"smollm2-135m", 162826560 + 64 * 2 * 576, "smollm2-135m"},
  };
  for (const auto& [name, parameters, model] : found) CHECK(models.find(name, parameters) == model);
  CHECK_THROWS_WITH_AS(models.find("", 123), doctest::Contains("no catalog model"), Error);
  CHECK_THROWS_WITH_AS(models.find("", 0), doctest::Contains("--model"), Error);
  // 162,322,944 is Pythia-160M's; Llama 7B has a head already, and Falcon 7B 0.8 % more.
  CHECK_THROWS_WITH_AS(models.find("smollm2-135m", 162322944), doctest::Contains("134515008"),
                       Error);
  CHECK_THROWS_WITH_AS(models.find("llama-7b", 6738415616 + 32000 * 4096),
                       doctest::Contains("6738415616"), Error);
  CHECK_THROWS_WITH_AS(models.find("smollm2-135m", 1100048384),
                       "its model has 1100048384 parameters, and smollm2-135m has 134515008",
                       Error);
}

TEST_CASE("row filters: conditions join, and wrong ones are named") {
  const Validation v = validated(header +
                                 "pythia-160m,h200,1,512,1,1,,\npythia-160m,h200,1,1024,5,1,1,\n"
                                 "pythia-410m,h200,4,2048,1,1,,\n");
  const auto taken = [&](const std::string& text) {
    const RowFilter takes = parse_row_filter(text, "--rows");
    std::string result;
    for (std::size_t i = 0; i < v.cases.size(); ++i) result += takes(v.cases[i], i) ? "1" : "0";
    return result;
  };
  for (const auto& [filter, rows] :
       {std::pair{"", "1111"}, std::pair{"prompt_len<=1k", "1110"},
        std::pair{"prompt_len<1024", "1000"}, std::pair{"model=pythia-160m,metric=ttft_s", "1100"},
        std::pair{"model!=pythia-160m", "0001"}, std::pair{"every=2", "1010"},
        std::pair{"batch>1", "0001"}}) {
    CAPTURE(filter);
    CHECK(taken(filter) == rows);
  }
  for (const char* wrong : {"prompt_len", "prompt_len<=", "color=red", "model<3", "every=0",
                            "prompt_len=x", "=3", ","}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(parse_row_filter(wrong, "--rows"), doctest::Contains("--rows"), Error);
  }
}

TEST_CASE("validation: the plots have a mark for each case") {
  const Validation v = validated(header +
                                 "pythia-160m,h200,1,512,3,0.01,0.001,\n"
                                 "pythia-160m,h200,2,512,3,0.02,,\n");
  const Plot scatter = scatter_plot(v.cases);
  REQUIRE(scatter.series.size() == 3);  // equal, plain ttft, plain tpot
  CHECK(scatter.series[0].points[0].x == 0.001);
  CHECK(scatter.series[0].points[1].y == 0.02);
  CHECK(scatter.series[1].points.size() + scatter.series[2].points.size() == 3);
  CHECK(error_plot(v.cases).series.size() == 2);
  CHECK(error_plot_file("a/b.svg") == std::filesystem::path("a/b-errors.svg"));
}

}  // namespace
}  // namespace kvcast::measure
