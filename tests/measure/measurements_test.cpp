// The texts are written by hand from the documented formats, with round numbers.
#include "measure/measurements.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "model/base/error.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::measure {
namespace {

std::string error_of(const std::string& text, const MeasurementDefaults& defaults = {}) {
  try {
    parse_measurements(text, "m", defaults);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

void check_error(const std::string& text, const std::string& part) {
  const std::string message = error_of(text);
  CAPTURE(message);
  CAPTURE(part);
  CHECK(message.find(part) != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
}

/// "plain of llama-7b on a100-80gb b2 p512 n64 ttft_s 0.25": what a row says of the run.
std::string said(const MeasuredRow& r) {
  std::string text = fmt::format("{} of {} on {} b{} p{} n{}", r.method, r.model, r.hardware,
                                 r.size.batch, r.size.prompt_len, r.size.output_len);
  for (const MeasuredTime& t : r.times) text += fmt::format(" {} {:g}", name(t.metric), t.seconds);
  return text;
}

std::vector<std::string> said(const Measurements& m) {
  std::vector<std::string> rows;
  for (const MeasuredRow& r : m.rows) rows.push_back(said(r));
  return rows;
}
using Rows = std::vector<std::string>;

const std::string own_header = "model,hardware,batch,prompt_len,output_len,ttft_s,tpot_s\n";

TEST_CASE("own CSV: a row holds the times of one run, and empty cells are no times") {
  const Measurements m = parse_measurements(
      own_header + "llama-7b,a100-80gb,2,512,64,0.25,0.02\nllama-7b,a100-80gb,4,512,64,,0.03\n",
      "m");
  CHECK(m.format == "kvcast CSV");
  CHECK(m.rows[0].place == "m:2");
  CHECK(said(m) == Rows{"plain of llama-7b on a100-80gb b2 p512 n64 ttft_s 0.25 tpot_s 0.02",
                        "plain of llama-7b on a100-80gb b4 p512 n64 tpot_s 0.03"});
}

TEST_CASE("runs: every time is the median over the files that have its row") {
  const TestFolder folder;
  const auto file = [&](const char* name, const std::string& rows) {
    const std::filesystem::path path = folder / name;
    std::ofstream(path) << own_header << rows;
    return path;
  };
  const auto a = file("a.csv", "llama-7b,x,1,512,64,3,0.2\nllama-7b,x,1,512,32,7,\n");
  const auto b = file("b.csv", "llama-7b,x,1,512,64,1,0.4\nllama-7b,x,2,512,64,5,\n");
  const auto c = file("c.csv", "llama-7b,x,2,512,64,6,\nllama-7b,x,1,512,64,2,0.9\n");
  const Measurements m = read_runs({a, b, c});
  // Of 3, 1, 2 and of 0.2, 0.4, 0.9; of one; between two.
  CHECK(said(m) == Rows{"plain of llama-7b on x b1 p512 n64 ttft_s 2 tpot_s 0.4",
                        "plain of llama-7b on x b1 p512 n32 ttft_s 7",
                        "plain of llama-7b on x b2 p512 n64 ttft_s 5.5"});
  CHECK(m.rows[0].place == a.string() + ":2 and 2 more");
  CHECK(m.rows[1].place == a.string() + ":3");
  CHECK_THROWS_WITH_AS(
      read_runs({a, b, a}),
      (a.string() + ": got a file named twice, expected a file for each run").c_str(), Error);
  // A row without all times, and a path of another spelling.
  const auto d = file("d.csv", "llama-7b,x,1,512,64,9,\n");
  const Measurements two = read_runs({a, d});
  REQUIRE(two.rows.size() == 2);
  CHECK(two.rows[0].times[0].seconds == 6);
  CHECK(two.rows[0].times[1].seconds == 0.2);
  CHECK_THROWS_AS(read_runs({a, folder / "." / "a.csv"}), Error);
  const auto twice = file("e.csv", "llama-7b,x,1,512,64,9,\nllama-7b,x,1,512,64,,1\n");
  CHECK_THROWS_WITH_AS(read_runs({a, twice}),
                       (twice.string() + ":3: got a second row of one run, expected one, where "
                                         "several files are runs")
                           .c_str(),
                       Error);
  const std::filesystem::path other = folder / "d.json";
  std::ofstream(other) << R"({"avg_latency": 2.5})";
  CHECK_THROWS_WITH_AS(
      read_runs({a, other}),
      (other.string() + ": got vLLM latency JSON, expected kvcast CSV as before").c_str(), Error);
}

TEST_CASE("own CSV: turns of one file are runs of the same rows, as several files are") {
  const TestFolder folder;
  const std::filesystem::path csv = folder / "turns.csv";
  const std::string columns = "model,hardware,batch,prompt_len,output_len,ttft_s";
  std::ofstream(csv) << "turn," << columns
                     << "\n1,llama-7b,x,2,512,64,3\n1,llama-7b,x,2,512,32,8\n"
                        "2,llama-7b,x,2,512,64,1\n3,llama-7b,x,2,512,64,2\n";
  const Measurements m = read_runs({csv});
  CHECK(said(m) == Rows{"plain of llama-7b on x b2 p512 n64 ttft_s 2",  // of 3, 1, 2
                        "plain of llama-7b on x b2 p512 n32 ttft_s 8"});
  CHECK(m.rows[0].place == csv.string() + ":2 and 2 more");
  // The same row twice in a turn, or without turns, is refused as before.
  CHECK_THROWS_WITH_AS(
      parse_measurements("turn," + columns + "\n2,llama-7b,x,2,512,64,3\n2,llama-7b,x,2,512,64,4\n",
                         "m"),
      doctest::Contains("m:3: the same run as m:2"), Error);
  CHECK_THROWS_WITH_AS(
      parse_measurements(columns + "\nllama-7b,x,2,512,64,3\nllama-7b,x,2,512,64,4\n", "m"),
      doctest::Contains("m:3: the same run as m:2"), Error);
}

TEST_CASE("own CSV: kernels and dtypes are the row's") {
  const Measurements m = parse_measurements(
      "model,attention,elementwise,dtype,cache_dtype,batch,prompt_len,output_len,ttft_s\n"
      "llama-7b,eager,,bf16,fp8,1,8,1,1\nllama-7b,eager,fused,,,1,8,1,1\n",
      "m");
  const Lowering& l = m.rows[0].lowering;
  CHECK(l.attention == Kernels::Eager);
  CHECK(l.elementwise == Kernels::Eager);
  CHECK(l.weights == DType::BF16);
  CHECK(l.activations == DType::BF16);
  CHECK(l.cache == DType::FP8);
  CHECK(m.rows[1].lowering.elementwise == Kernels::Fused);
  CHECK(m.rows[1].lowering.weights == DType::FP16);
}

TEST_CASE("own CSV: engines, and kernels and dtypes as public tables write them") {
  const Measurements m = parse_measurements(
      "model,engine,engine_version,tp,attention,dtype,batch,prompt_len,output_len,ttft_s\n"
      "llama-7b,vLLM 0.7.3,,1,eager/fused,q4_k/fp16/bf16,1,8,1,1\n"
      "llama-7b,vllm,0.6,2,tiled,bf16,1,8,1,1\n"
      "llama-7b,,,,,,1,8,1,1\n",
      "m");
  const MeasuredRow& public_row = m.rows[0];
  CHECK(public_row.engine == "vLLM 0.7.3");
  CHECK(public_row.num_devices == 1);
  CHECK(public_row.says_attention);
  CHECK(public_row.says_elementwise);
  CHECK(public_row.lowering.attention == Kernels::Eager);
  CHECK(public_row.lowering.elementwise == Kernels::Fused);
  CHECK(public_row.lowering.weights == DType::Q4_K);
  CHECK(public_row.lowering.activations == DType::FP16);
  CHECK(public_row.lowering.cache == DType::BF16);
  CHECK(m.rows[1].engine_version == "0.6");
  CHECK(m.rows[1].num_devices == 2);
  CHECK(m.rows[1].says_attention);
  CHECK_FALSE(m.rows[1].says_elementwise);
  CHECK(m.rows[1].lowering.cache == DType::BF16);
  CHECK(m.rows[2].engine.empty());
  CHECK_FALSE(m.rows[2].says_attention);
  CHECK(m.rows[2].num_devices == 0);
  const std::string start = "model,attention,dtype,batch,prompt_len,output_len,ttft_s\n";
  check_error(start + "m,eager/some,,1,8,1,1\n", "m:2: 'attention': unknown kind 'some'");
  check_error(start + "m,eager/fused/eager,,1,8,1,1\n", "'attention'");
  check_error(start + "m,,fp16/fp8,1,8,1,1\n", "'dtype': unknown dtype 'fp16/fp8'");
  check_error(start + "m,,fp16/fp8/fp17,1,8,1,1\n", "'dtype': unknown dtype 'fp17'");
}

TEST_CASE("own CSV: the user's attention is the row's where it has none") {
  const std::string text = own_header + "llama-7b,x,1,8,1,1,\n";
  const Measurements m = parse_measurements(text, "m", {.attention = "eager"});
  CHECK(m.rows[0].says_attention);
  CHECK(m.rows[0].lowering.attention == Kernels::Eager);
  CHECK_FALSE(parse_measurements(text, "m").rows[0].says_attention);
}

TEST_CASE("own CSV: a row that is not trusted is kept, and says why") {
  const Measurements m = parse_measurements(
      "model,batch,prompt_len,output_len,metric,value,unit,includes,distrusted\n"
      "llama-7b,1,100,1,ttft_s,16,ms,HTTP,the device was shared\n"
      "llama-7b,2,100,1,ttft_s,16,ms,,\n",
      "m");
  CHECK(m.rows[0].unusable == "distrusted: the device was shared");
  CHECK(m.rows[0].times.size() == 1);
  CHECK(m.rows[1].unusable.empty());
}

TEST_CASE("rows without ids are of different runs where an engine or a kernel's size differs") {
  const std::string engines = "model,engine,engine_version,batch,prompt_len,output_len,ttft_s\n";
  const std::string kernels = "hardware,kernel,dtype,m,n,k,value,unit\n";
  CHECK(parse_measurements(engines + "m,vllm,0.6,1,8,1,1\nm,vllm,0.7,1,8,1,1\nm,,,1,8,1,1\n", "m")
            .rows.size() == 3);
  CHECK(parse_measurements(kernels + "h,gemm,fp16,5,7,11,1,s\nh,gemm,fp16,5,8,11,1,s\n", "m")
            .rows.size() == 2);
  check_error(engines + "m,vllm,0.6,1,8,1,1\nm,vllm,0.6,1,8,1,1\n", "m:3: the same run as m:2");
  check_error(kernels + "h,gemm,fp16,5,7,11,1,s\nh,gemm,fp16,5,7,11,1,s\n",
              "m:3: the same run as m:2");
}

TEST_CASE("kernel CSV: products and attention with their sizes") {
  const std::string columns =
      "id,hardware,kernel,dtype,m,n,k,batch,heads,kv_heads,head_dim,length,value,unit\n";
  const Measurements m =
      parse_measurements(columns +
                             "a,a100-80gb,gemm,bf16,5,7,11,,,,,,0.25,s\n"
                             "b,a100-80gb,gemm,fp16,500,700,1100,,,,,,77,TFLOP/s\n"
                             "c,a100-80gb,attention_prefill,fp16,,,,2,6,3,4,5,0.5,s\n"
                             "d,a100-80gb,attention_decode,fp16,,,,2,6,3,4,5,0.75,s\n"
                             "e,a100-80gb,allreduce,fp16,,,,,,,,5,0.75,s\n"
                             "f,a100-80gb,attention_decode,fp16,,,,2,6,3,,5,0.75,s\n",
                         "m");
  CHECK(m.format == "CSV of kernel times");
  using Kind = roofline::Kernel::Kind;
  CHECK(m.rows[0].kernel ==
        roofline::Kernel{
            .kind = Kind::Product, .dtype = DType::BF16, .rows = 5, .outputs = 7, .inner = 11});
  CHECK(m.rows[0].hardware == "a100-80gb");
  CHECK(m.rows[0].lowering.weights == DType::BF16);
  CHECK(m.rows[2].kernel == roofline::Kernel{.kind = Kind::PrefillAttention,
                                             .batch = 2,
                                             .num_attention_heads = 6,
                                             .num_key_value_heads = 3,
                                             .head_dim = 4,
                                             .length = 5});
  CHECK(m.rows[3].kernel->kind == Kind::DecodeAttention);
  // 2 x 500 x 700 x 1100 = 7.7e8 FLOPs at 7.7e13 a second.
  CHECK(said(m) == Rows{"plain of gemm on a100-80gb b1 p5 n1 product_s 0.25",
                        "plain of gemm on a100-80gb b1 p500 n1 product_s 1e-05",
                        "plain of attention_prefill on a100-80gb b2 p5 n1 prefill_attention_s 0.5",
                        "plain of attention_decode on a100-80gb b2 p5 n1 decode_attention_s 0.75",
                        "plain of allreduce on a100-80gb b1 p1 n1",
                        "plain of attention_decode on a100-80gb b1 p1 n1"});
  CHECK(m.rows[4].unusable.find("does not forecast") != std::string::npos);
  CHECK(m.rows[5].unusable == "its file does not say head_dim");
  check_error(columns + "a,h,gemm,fp16,5,7,11,,,,,,3,ms\n", "s or TFLOP/s");
  check_error(columns + "a,h,attention_decode,fp16,,,,2,6,4,4,5,1,s\n", "a divisor");
  check_error(columns + "a,h,gemm,fp17,5,7,11,,,,,,3,s\n", "'dtype': unknown dtype");
}

TEST_CASE("own CSV with a metric column: rates become the times that they stand for") {
  const Measurements m = parse_measurements(
      "id,model,batch,prompt_len,output_len,metric,value,unit\n"
      "a,llama-7b,1,100,1,ttft_s,16,ms\n"
      "b,llama-7b,4,100,0,prefill_tokens_per_s,800,tokens/s\n"
      "c,llama-7b,4,0,16,decode_tokens_per_s,80,tokens/s\n"
      "d,llama-7b,4,100,16,throughput_output_tokens_per_s,32,tokens/s\n",
      "m");
  // 4 x 100 prompt tokens at 800 a second; 4 tokens a step at 80 a second; 4 x 16 at 32.
  CHECK(said(m) == Rows{"plain of llama-7b on  b1 p100 n1 ttft_s 0.016",
                        "plain of llama-7b on  b4 p100 n1 ttft_s 0.5",
                        "plain of llama-7b on  b4 p1 n16 tpot_s 0.05",
                        "plain of llama-7b on  b4 p100 n16 request_s 2"});
}

TEST_CASE("own CSV: what is wrong is said in one line with its place") {
  check_error("", "empty file");
  check_error("model,prompt_len\n", "no column of times");
  check_error("model,batch,prompt_len,output_len,ttft_s,colour\n", "unknown column 'colour'");
  check_error("model,batch,prompt_len,output_len,ttft_ms\nllama-7b,1,1,1,3\n",
              "'ttft_ms', expected ttft_s");
  check_error("model,batch,prompt_len,output_len,ttft_s,tpot_ms\n", "'tpot_ms', expected tpot_s");
  check_error(own_header + "llama-7b,a100-80gb,1,512,64,-1,\n", "m:2: 'ttft_s': got '-1'");
  check_error(own_header + "llama-7b,a100-80gb,1,512,64,0,\n", "above zero");
  check_error(own_header + "llama-7b,a100-80gb,1,512,64,nan,\n", "above zero");
  check_error(own_header + "llama-7b,a100-80gb,1,512,64,,\n", "no time");
  check_error(own_header + "llama-7b,a100-80gb,0,512,64,1,\n", "'batch'");
  check_error(own_header + "llama-7b,a100-80gb,1,99999999999999999999,64,1,\n", "'prompt_len'");
  check_error(own_header + "llama-7b,a100-80gb,1,512,64,1\n", "6 fields");
  check_error(own_header, "no rows");
  check_error(own_header + "llama-7b,a100-80gb,1,512,64,1,\nllama-7b,a100-80gb,1,512,64,2,\n",
              "m:3: the same run as m:2");
  const std::string with_unit = "id,model,batch,prompt_len,output_len,metric,value,unit\n";
  check_error(with_unit + "a,llama-7b,1,8,1,ttft_s,1,us\n", "'unit': got 'us', expected s or ms");
  check_error(with_unit + "a,llama-7b,1,8,1,decode_tokens_per_s,1,ms\n", "expected tokens/s");
  check_error(with_unit + "a,llama-7b,1,8,1,ttft,1,s\n", "did you mean 'ttft_s'?");
  // A quotient with 1e-320 would be no number, in the summary and in a plot's axis.
  check_error(own_header + "llama-7b,a100-80gb,1,512,64,1e-320,\n", "expected a time from 1 ns");
  check_error(own_header + "llama-7b,a100-80gb,1,512,64,1,1e300\n", "m:2: got tpot_s of 1e+300 s");
  check_error(with_unit + "a,llama-7b,1,8,1,decode_tokens_per_s,1e-300,tokens/s\n",
              "expected a time from 1 ns");
  check_error("model,ttft_s,metric,value,unit\n", "one way to write a time");
  check_error("model,attention,batch,prompt_len,output_len,ttft_s\nllama-7b,tilde,1,1,1,1\n",
              "m:2: 'attention'");
}

TEST_CASE("own CSV: an id is one line, whatever it holds") {
  const Measurements m = parse_measurements(
      "id,model,batch,prompt_len,output_len,ttft_s\n\"a\nb\x1B[31m\",llama-7b,1,8,1,1\n", "m");
  CHECK(m.rows.at(0).id == "a b [31m");
}

/// llama-bench with the fields that are read, and one of those that come and go.
std::string bench_json(const std::string& fields) {
  return R"({"build_commit":"abc","model_filename":"/models/some.gguf","model_type":"llama 8B F16",)"
         R"("model_n_params":8030261312,"n_batch":2048,"n_ubatch":512,"n_threads":8,)"
         R"("type_k":"f16","type_v":"f16","samples_ns":[1,2],)" +
         fields + "}";
}

TEST_CASE("CSV of servers: rows of closed loops, and of batches that start together") {
  const std::string columns =
      "id,model,hardware,num_gpus,tp,pp,ep,attention_dp,engine,engine_version,weight_dtype,"
      "cache_dtype,arrival,batch,prompt_len,output_len,metric,value,unit,source,note\n";
  const auto row = [](const std::string& gpus_to_weights, const std::string& rest,
                      const std::string& id = "a", const std::string& source_and_note = "source,") {
    return id + ",mixtral-8x7b,h200," + gpus_to_weights + "," + rest + "," + source_and_note + "\n";
  };
  const Measurements m = parse_measurements(
      columns + row("1,1,1,1,1,vllm,0.18.0,fp8", ",closed-loop,4,512,64,tpot,12,ms") +
          row("1,1,1,1,1,vllm,0.18.0,fp8", ",closed-loop,4,512,64,ttft,80,ms") +
          row("2,2,1,1,1,vllm,,int4", "fp8,static,4,512,64,output_throughput_per_gpu,32,tokens/s") +
          row("1,1,1,1,1,sglang,,bf16", "bf16,saturated,,,,input_throughput_per_gpu,9,tokens/s") +
          row("1,1,1,1,1,sglang,,fp16", ",static,,512,64,e2e,9,s") +
          row("1,1,1,1,1,sglang,,int3", ",static,4,512,64,output_throughput,9,tokens/s") +
          row("1,1,1,1,1,vllm,,fp8", "fp8,closed-loop,4,512,64,ttft,80,ms", "b",
              "x systems/silicon_sample.csv,") +
          row("1,1,1,1,1,vllm,,fp8", ",closed-loop,8,512,64,ttft,80,ms", "c",
              "x systems/silicon_sample.csv,measured by NVIDIA for aiconfigurator") +
          row("1,1,1,1,1,vllm,,fp8", "fp8,closed-loop,16,512,64,ttft,80,ms", "d",
              "y,lengths drawn up to 20 % below the nominal ones"),
      "m");
  CHECK(m.format == "CSV of servers");
  CHECK(said({m.format, {m.rows[0], m.rows[2]}}) ==
        Rows{"plain of mixtral-8x7b on h200 b4 p512 n64 tpot_s 0.012",
             // 4 x 64 tokens at 32 a second on each of two devices
             "plain of mixtral-8x7b on h200 b4 p512 n64 request_s 4"});
  CHECK(m.rows[0].id == "a tpot");
  CHECK(m.rows[0].closed_loop->shortest == 1);
  CHECK(m.rows[0].closed_loop->rounds == 10);
  CHECK_FALSE(m.rows[0].closed_loop->says_cache);
  CHECK(m.rows[0].num_devices == 1);
  CHECK(m.rows[0].engine_version == "0.18.0");
  CHECK(m.rows[0].lowering.activations == DType::FP8);
  CHECK(m.rows[0].lowering.cache == DType::BF16);
  CHECK(m.rows[1].times.at(0).seconds == 0.08);
  CHECK(!m.rows[2].closed_loop);
  CHECK(m.rows[2].num_devices == 2);
  CHECK(m.rows[2].lowering.activations == DType::BF16);  // weights alone have 4 bits
  CHECK(m.rows[2].lowering.cache == DType::FP8);
  CHECK(m.rows[3].unusable.starts_with("its requests arrived 'saturated'"));
  CHECK(m.rows[4].unusable == "its file does not say batch");
  CHECK(m.rows[5].unusable.find("int3") != std::string::npos);
  CHECK(m.rows[6].closed_loop->shortest == 0.8);
  CHECK(m.rows[6].closed_loop->says_cache);
  CHECK(m.rows[7].closed_loop->shortest == 1);
  CHECK(m.rows[7].lowering.cache == DType::FP8);
  CHECK(m.rows[8].closed_loop->shortest == 0.8);
  CHECK(m.rows[8].mean_output() == near(57.6));  // 0.9 x 64
}

TEST_CASE("CSV of servers: what benchmarks' scripts ask of their servers") {
  using Options = std::map<std::string, std::string>;
  const auto loop = [](const std::string& model, const std::string& engine, const char* tp,
                       const char* prompt, const char* source, const char* note = "") {
    const Measurements m = parse_measurements(
        "model,engine,num_gpus,tp,weight_dtype,arrival,batch,prompt_len,output_len,metric,value,"
        "unit,source,note\n" +
            fmt::format("{},{},{},{},fp8,closed-loop,4,{},1024,ttft,1,s,{},{}\n", model, engine, tp,
                        tp, prompt, source, note),
        "m");
    return *m.rows.at(0).closed_loop;
  };
  const char* listed = "systems/silicon_sample.csv";
  CHECK(loop("llama-3.3-70b", "vllm", "2", "1024", listed).scheduler ==
        Options{{"schedules_ahead", "true"}});
  CHECK(loop("gpt-oss-120b", "vllm", "2", "1024", listed).scheduler.empty());
  CHECK(loop("gpt-oss-120b", "vllm", "2", "1024", listed).marlin_mxfp4);
  CHECK_FALSE(loop("minimax-m2.5", "vllm", "2", "1024", listed).marlin_mxfp4);
  CHECK_FALSE(loop("gpt-oss-120b", "tensorrt-llm", "2", "1024", listed).marlin_mxfp4);
  CHECK(loop("gpt-oss-120b", "tensorrt-llm", "2", "1024", listed).scheduler ==
        Options{{"max_num_batched_tokens", "20000"}});
  const auto trt = [&](const char* tp, const char* prompt) {
    return loop("llama-3.3-70b", "tensorrt-llm", tp, prompt, listed).scheduler;
  };
  const Options wide{{"max_num_batched_tokens", "16384"}};
  CHECK(trt("8", "1024") == wide);
  CHECK(trt("4", "8192") == wide);
  CHECK(trt("4", "1024") == Options{{"max_num_batched_tokens", "16384"},
                                    {"batch_wait_max_tokens_ratio", "0.9"},
                                    {"batch_wait_timeout_iters", "20"}});
  CHECK(loop("llama-3.3-70b", "vllm", "2", "1024", "somebody").scheduler.empty());
  // aiconfigurator: max_num_tokens of 4 clients, 1024 tokens and 1500.
  const auto own = [&](const char* engine) {
    return loop("qwen3-32b", engine, "2", "1024", listed, "measured by NVIDIA for aiconfigurator");
  };
  CHECK(own("tensorrt-llm").scheduler == Options{{"max_num_batched_tokens", "2528"}});
  CHECK(own("vllm").scheduler == own("tensorrt-llm").scheduler);
  CHECK(own("lmdeploy").scheduler.empty());
  CHECK(loop("qwen3-32b", "vllm", "2", "1024", "others", "measured by NVIDIA").scheduler.empty());
  CHECK(own("vllm").says_cache);  // fp8, as weights are
}

TEST_CASE("llama-bench JSON: prompts are TTFT, outputs TPOT, both together a request") {
  std::string list;
  for (const char* fields :
       {R"("flash_attn":true,"n_prompt":512,"n_gen":0,"n_depth":0,"avg_ns":500000000)",
        R"("flash_attn":false,"n_prompt":0,"n_gen":128,"n_depth":0,"avg_ns":2560000000)",
        R"("flash_attn":1,"n_prompt":0,"n_gen":32,"n_depth":4096,"avg_ns":640000000)",
        R"("flash_attn":1,"n_prompt":512,"n_gen":32,"n_depth":0,"avg_ns":3000000000)",
        R"("flash_attn":1,"n_prompt":512,"n_gen":0,"n_depth":64,"avg_ns":3000000000)"}) {
    list += (list.empty() ? "[" : ",") + bench_json(fields);
  }
  const Measurements m = parse_measurements(list + "]", "m");
  CHECK(m.format == "llama-bench JSON");
  // 128 steps after an empty cache; 32 after 4096 tokens, where the first output token is the
  // prompt's and 32 more follow it.
  CHECK(said(m) ==
        Rows{"plain of  on  b1 p512 n1 ttft_s 0.5", "plain of  on  b1 p1 n128 tpot_s 0.02",
             "plain of  on  b1 p4096 n33 tpot_s 0.02", "plain of  on  b1 p512 n33 request_s 3",
             "plain of  on  b1 p512 n1 ttft_s 3"});
  CHECK(m.rows[0].place == "m: /0");
  CHECK(m.rows[0].parameters == 8030261312u);
  CHECK(m.rows[0].lowering.attention == Kernels::Fused);
  CHECK(m.rows[0].lowering.weights == DType::FP16);
  CHECK(m.rows[1].lowering.attention == Kernels::Eager);
  CHECK(m.rows[3].unusable.empty());
  CHECK(m.rows[4].unusable.find("n_depth") != std::string::npos);
}

TEST_CASE("llama-bench: rows of a GPU's backend name their engine and its build") {
  const auto row = [](const std::string& fields) {
    return parse_measurements(bench_json(fields + R"("n_prompt":8,"n_gen":0,"avg_ns":5000)"), "m")
        .rows.at(0);
  };
  const MeasuredRow cuda = row(R"("build_number":4748,"backends":"CUDA","flash_attn":false,)");
  CHECK(cuda.engine == "llama.cpp");
  CHECK(cuda.engine_version == "4748");
  CHECK(cuda.says_attention);
  CHECK(cuda.says_elementwise);
  CHECK(row(R"("backends":"ROCm,BLAS",)").engine == "llama.cpp");
  CHECK(row(R"("backends":"CPU",)").engine.empty());
  // What the file leaves open is the engine's.
  CHECK_FALSE(row(R"("backends":"CUDA",)").says_attention);
  CHECK_FALSE(row(R"("backends":"CUDA","flash_attn":-1,)").says_attention);
}

TEST_CASE("llama-bench: CSV with every value quoted and JSONL say the same as JSON") {
  const Measurements csv = parse_measurements(
      "\"model_filename\",\"model_type\",\"model_n_params\",\"type_k\",\"type_v\",\"flash_attn\","
      "\"n_prompt\",\"n_gen\",\"avg_ns\",\"new_column\"\n"
      "\"m.gguf\",\"llama 1B all F32\",\"1100048384\",\"f32\",\"f32\",\"1\",\"256\",\"0\","
      "\"1000000000\",\"\"\n",
      "m");
  CHECK(csv.format == "llama-bench CSV");
  CHECK(said(csv) == Rows{"plain of  on  b1 p256 n1 ttft_s 1"});
  CHECK(csv.rows[0].place == "m:2");
  CHECK(csv.rows[0].lowering.weights == DType::FP32);
  CHECK(csv.rows[0].lowering.cache == DType::FP32);

  const Measurements lines =
      parse_measurements(bench_json(R"("n_prompt":512,"n_gen":0,"avg_ns":500000000)") + "\n\n" +
                             bench_json(R"("n_prompt":1024,"n_gen":0,"avg_ns":900000000)") + "\n",
                         "m");
  REQUIRE(lines.rows.size() == 2);
  CHECK(lines.rows[1].place == "m:3");
  CHECK(lines.rows[1].size.prompt_len == 1024);
}

TEST_CASE("llama-bench: caches of two types are two runs, and a byte-order mark is skipped") {
  // Timed within one second, as tests of a small model are.
  const auto line = [](const std::string& type) {
    return R"({"model_type":"llama 1B all F32","type_k":")" + type + R"(","type_v":")" + type +
           R"(","n_prompt":8,"n_gen":0,"avg_ns":5000,"test_time":"2026-01-01T00:00:00Z"})" + "\n";
  };
  const Measurements m = parse_measurements("\xEF\xBB\xBF" + line("f16") + line("f32"), "m");
  CHECK(m.format == "llama-bench JSON");
  REQUIRE(m.rows.size() == 2);
  CHECK(m.rows[1].lowering.cache == DType::FP32);
}

TEST_CASE("llama-bench: quantised weights are multiplied in 16 bits, unknown ones are asked for") {
  const auto row = [](const std::string& type, const std::string& dtype) {
    MeasurementDefaults defaults;
    defaults.dtype = dtype;
    return parse_measurements(
               R"({"model_type":")" + type + R"(","n_prompt":8,"n_gen":0,"avg_ns":5})", "m",
               defaults)
        .rows[0];
  };
  CHECK(row("llama 7B Q4_0", "").lowering.weights == DType::Q4_0);
  CHECK(row("llama 7B Q4_0", "").lowering.activations == DType::FP16);
  CHECK(row("llama 7B Q4_K - Medium", "").lowering.weights == DType::Q4_K);
  CHECK(row("llama 7B BF16", "").lowering.activations == DType::BF16);
  CHECK(row("llama 7B IQ2_XXS", "").unusable.find("--dtype") != std::string::npos);
  CHECK(row("llama 7B IQ2_XXS", "int4").lowering.weights == DType::INT4);
}

TEST_CASE("batched-bench JSONL: a batch's prefill and its steps") {
  const std::string line =
      R"({"n_kv_max":4096,"flash_attn":1,"is_pp_shared":0,"pp":128,"tg":64,"pl":4,"n_kv":768,)"
      R"("t_pp":0.5,"speed_pp":1024,"t_tg":1.6,"speed_tg":160,"t":2.1,"speed":365})";
  const Measurements m = parse_measurements(line + "\n", "m", {.model = "llama-7b"});
  CHECK(m.format == "batched-bench JSONL");
  // 1.6 s over 64 steps.
  CHECK(said(m) == Rows{"plain of llama-7b on  b4 p128 n65 ttft_s 0.5 tpot_s 0.025"});
}

TEST_CASE("vLLM latency JSON: what it does not say is asked for") {
  const std::string text =
      R"({"avg_latency": 1.5, "latencies": [1.4, 1.6], "percentiles": {"50": 1.5}})";
  const Measurements unknown = parse_measurements(text, "m");
  CHECK(unknown.format == "vLLM latency JSON");
  CHECK(unknown.rows[0].unusable.find("--batch") != std::string::npos);
  const Measurements m =
      parse_measurements(text, "m", {.batch = 8, .prompt_len = 32, .output_len = 128});
  CHECK(m.rows[0].unusable.empty());
  CHECK(m.rows[0].engine == "vllm");
  CHECK_FALSE(m.rows[0].says_attention);
  CHECK(said(m) == Rows{"plain of  on  b8 p32 n128 request_s 1.5"});
}

TEST_CASE("vLLM serve JSON: lengths are means, and queued first tokens are left out") {
  const auto text = [](const char* concurrency) {
    return std::string(R"({"model_id":"meta-llama/Llama-3.1-8B-Instruct","completed":10,)") +
           R"("total_input_tokens":10240,"total_output_tokens":1280,"request_rate":"inf",)" +
           R"("mean_ttft_ms":200.0,"mean_tpot_ms":20.0,"max_concurrency":)" + concurrency + "}";
  };
  const Measurements one = parse_measurements(text("1"), "m");
  CHECK(one.format == "vLLM serve JSON");
  const std::string run = "plain of meta-llama/Llama-3.1-8B-Instruct on  ";
  CHECK(said(one) == Rows{run + "b1 p1024 n128 ttft_s 0.2 tpot_s 0.02"});
  CHECK(said(parse_measurements(text("4"), "m")) == Rows{run + "b4 p1024 n128 tpot_s 0.02"});
  CHECK(parse_measurements(text("null"), "m").rows[0].unusable.find("--batch") !=
        std::string::npos);
  CHECK(one.rows[0].engine == "vllm");
  for (const auto& [backend, engine] : {std::pair("openai-chat", "vllm"), std::pair("vllm", "vllm"),
                                        std::pair("sglang", "sglang")}) {
    const std::string named = text(("1,\"backend\":\"" + std::string(backend) + "\"").c_str());
    CHECK(parse_measurements(named, "m").rows[0].engine == engine);
  }
}

TEST_CASE("JSON that no tool wrote is refused in one line") {
  check_error("{", "m: not valid JSON");
  check_error("[]", "no rows");
  check_error("[1]", "m: /0: got no JSON object");
  check_error(R"({"a":1})", "without avg_ns");
  check_error(R"({"elapsed_time":9.5,"num_requests":8,"requests_per_second":0.8})",
              "vLLM throughput JSON, in which no request has a time");
  check_error(R"({"avg_ns":5,"n_prompt":-8,"n_gen":0})", "'n_prompt': got '-8'");
  check_error(R"({"avg_ns":0,"n_prompt":8,"n_gen":0,"model_type":"x F16"})", "'avg_ns': got '0'");
  check_error(R"({"avg_ns":5,"n_prompt":0,"n_gen":0})", "that was timed");
  check_error(R"({"avg_ns":5,"n_gen":0})", "'n_prompt': missing");
  check_error(R"({"avg_ns":[5],"n_prompt":8})", "without avg_ns");
  check_error(R"({"mean_tpot_ms":5,"mean_ttft_ms":5,"completed":0})", "'completed'");
  check_error("{\"avg_ns\":5,\"n_prompt\":8,\"n_gen\":0}\n{\"avg_latency\":1}\n", "as before");
  check_error("{\"avg_ns\":5,\"n_prompt\":8,\"n_gen\":0}\n{\"avg_ns\":\n", "m:2: not valid JSON");
  const std::string row = R"({"avg_ns":5,"n_prompt":8,"n_gen":0})";
  check_error(row + "\n" + row + "\n", "the same run");
  check_error(std::string(200, '[') + std::string(200, ']'), "deeper");
}

}  // namespace
}  // namespace kvcast::measure
