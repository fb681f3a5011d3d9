#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "measure/benchmark_servers.h"
#include "measure/measurement_fields.h"
#include "model/base/error.h"
#include "model/io/files/number_text.h"

namespace kvcast::measure {
namespace {

constexpr Metric all_metrics[] = {Metric::Ttft, Metric::Tpot, Metric::Request};

/// A row with the values that the user gave.
MeasuredRow row_of(const MeasurementFields& fields, const MeasurementDefaults& defaults) {
  MeasuredRow row;
  row.place = fields.place();
  row.model = defaults.model;
  row.method = defaults.method;
  Lowering& l = row.lowering;
  row.says_attention = !defaults.attention.empty();
  if (row.says_attention) l.attention = l.elementwise = parse_kernels(defaults.attention);
  if (!defaults.dtype.empty()) l.weights = l.activations = l.cache = parse_dtype(defaults.dtype);
  return row;
}

// kvcast's own CSV

constexpr const char* own_columns =
    "id model hardware engine engine_version method attention elementwise dtype weight_dtype "
    "activation_dtype arithmetic cache_dtype logits batch prompt_len output_len num_devices tp "
    "ttft_s tpot_s "
    "request_s metric value unit includes distrusted derived source date note error "
    "predicted_ttft_s predicted_tpot_s "
    "ttft_relative_error tpot_relative_error ttft_spread tpot_spread rounds compute_rate "
    "memory_rate rounds_discarded rounds_unsteady turn";

/// A metric that is a rate, and how many tokens pass in the time that it stands for.
struct Rate {
  const char* name;
  Metric metric;
  double (*tokens)(const roofline::DesignPoint&);
};
constexpr Rate rates[] = {
    {"prefill_tokens_per_s", Metric::Ttft,
     [](const auto& p) {
       return static_cast<double>(p.batch) * static_cast<double>(p.prompt_len);
     }},
    {"decode_tokens_per_s", Metric::Tpot,
     [](const auto& p) { return static_cast<double>(p.batch); }},
    {"throughput_output_tokens_per_s", Metric::Request,
     [](const auto& p) {
       return static_cast<double>(p.batch) * static_cast<double>(p.output_len);
     }},
};

/// The time in the columns metric, value and unit.
MeasuredTime long_time(const MeasurementFields& f, const roofline::DesignPoint& size) {
  const std::string& metric = f.text("metric");
  std::vector<std::string> known;
  for (const Metric m : all_metrics) {
    known.emplace_back(name(m));
    if (metric != name(m)) continue;
    const std::string& unit = f.text("unit");
    const double value = f.positive("value");
    if (unit == "s") return {m, value};
    if (unit == "ms") return {m, value / 1e3};
    f.fail("unit", "s or ms, as " + metric + " is a time");
  }
  for (const Rate& rate : rates) {
    known.emplace_back(rate.name);
    if (metric != rate.name) continue;
    const std::string& unit = f.text("unit");
    const double value = f.positive("value");
    if (unit != "tokens/s") f.fail("unit", "tokens/s, as " + metric + " is a rate");
    return {rate.metric, rate.tokens(size) / value};
  }
  throw Error(f.place(), unknown_name("metric", metric, known));
}

/// A length. Files converted from llama-bench have a 0 for the phase that did not run.
std::uint64_t length(const MeasurementFields& f, const char* field,
                     const std::optional<std::uint64_t>& fallback) {
  if (!f.has(field) && fallback) return *fallback;
  return std::max<std::uint64_t>(f.whole(field, 0), 1);
}

/// Sets `values` where the row has the field. Throws Error with its place.
template <typename Parse, typename... Values>
void set(const MeasurementFields& f, const char* field, Parse parse, Values&... values) {
  if (!f.has(field)) return;
  try {
    const auto value = parse(f.text(field));
    ((values = value), ...);
  } catch (const Error& e) {
    throw Error(f.place() + ": '" + field + "'", e);
  }
}

/// "a/b/c" -> a, b, c
std::vector<std::string> parts_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(in, part, '/');) parts.push_back(part);
  return parts;
}

/// One word, or as public tables have it: "eager/fused" of attention and element-wise kernels,
/// "q4_k/fp16/fp16" of weights, activations and cache.
void set_own_lowering(const MeasurementFields& f, MeasuredRow& row) {
  Lowering& l = row.lowering;
  row.says_attention |= f.has("attention");
  row.says_elementwise = f.has("elementwise");
  const auto attention = parts_of(f.text_or("attention", ""));
  if (attention.size() == 2) {
    row.says_elementwise = true;
    set(
        f, "attention", [&](const auto&) { return parse_kernels(attention[0]); }, l.attention);
    set(
        f, "attention", [&](const auto&) { return parse_kernels(attention[1]); }, l.elementwise);
  } else {
    set(f, "attention", parse_kernels, l.attention, l.elementwise);
  }
  set(f, "elementwise", parse_kernels, l.elementwise);
  const auto dtypes = parts_of(f.text_or("dtype", ""));
  if (dtypes.size() == 3) {
    set(
        f, "dtype", [&](const auto&) { return parse_dtype(dtypes[0]); }, l.weights);
    set(
        f, "dtype", [&](const auto&) { return parse_dtype(dtypes[1]); }, l.activations);
    set(
        f, "dtype", [&](const auto&) { return parse_dtype(dtypes[2]); }, l.cache);
  } else {
    set(f, "dtype", parse_dtype, l.weights, l.activations, l.cache);
  }
  set(f, "weight_dtype", parse_dtype, l.weights);
  set(f, "activation_dtype", parse_dtype, l.activations);
  set(f, "cache_dtype", parse_dtype, l.cache);
  if (f.text_or("arithmetic", "fp32") != "fp32") {
    set(
        f, "arithmetic", [](const std::string& word) { return std::optional(parse_dtype(word)); },
        l.products);
  }
}

MeasuredRow own_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  row.id = f.text_or("id", "");
  row.model = f.text_or("model", row.model);
  row.hardware = f.text_or("hardware", row.hardware);
  row.method = f.text_or("method", row.method);
  row.engine = f.text_or("engine", "");
  row.engine_version = f.text_or("engine_version", "");
  row.date = f.text_or("date", "").substr(0, 7);
  set_own_lowering(f, row);
  row.source = f.text_or("source", "");
  set(f, "logits", parse_logits, row.logits);
  row.size.batch = f.has("batch") ? f.whole("batch", 1) : defaults.batch.value_or(1);
  row.size.prompt_len = length(f, "prompt_len", defaults.prompt_len);
  row.size.output_len = length(f, "output_len", defaults.output_len);
  if (f.has("error")) {
    row.unusable = f.text("error");
  } else if (f.has("metric")) {
    row.times.push_back(long_time(f, row.size));
    if (f.has("distrusted")) row.unusable = "distrusted: " + f.text("distrusted");
  } else {
    for (const Metric m : all_metrics) {
      if (f.has(name(m))) row.times.push_back({m, f.positive(name(m))});
    }
    if (row.times.empty()) throw Error(f.place(), "no time", "ttft_s, tpot_s or request_s");
  }
  row.num_devices = f.whole_or(f.has("tp") ? "tp" : "num_devices", 0, 1);
  row.turn = f.whole_or("turn", 0, 1);
  return row;
}

// llama.cpp's llama-bench and batched-bench

/// Norms, rotations and activations are one kernel each, and of the last layer only the rows that
/// give logits are computed after attention (inp_out_ids of llama.cpp's graphs). Attention is
/// flash_attn: "0", "1", "false" or "on"; where it is "-1", "auto" or missing, it is the user's or
/// the engine's.
void set_kernels(const MeasurementFields& f, MeasuredRow& row) {
  row.lowering.elementwise = Kernels::Fused;
  row.lowering.skip_unread_rows = true;
  row.says_elementwise = true;
  const std::string flash = f.text_or("flash_attn", "");
  const bool eager = flash == "0" || flash == "false" || flash == "off";
  const bool tiled = flash == "1" || flash == "true" || flash == "on";
  if (!eager && !tiled) return;
  row.says_attention = true;
  row.lowering.attention = eager ? Kernels::Eager : Kernels::Fused;
}

/// llama.cpp on a GPU; kvcast has no engine for its processor kernels.
void set_engine(const MeasurementFields& f, MeasuredRow& row) {
  const std::string backends = f.text_or("backends", f.text_or("gpu_info", ""));
  if (backends.find("CUDA") == std::string::npos && backends.find("ROCm") == std::string::npos)
    return;
  row.engine = "llama.cpp";
  row.engine_version = f.text_or("build_number", "");
}

/// The dtype of a GGUF name: "F16", "all F32", "Q4_K - Medium".
std::optional<DType> ggml_dtype(const std::string& name) {
  const std::string text = lower_case(name);
  constexpr std::pair<std::string_view, DType> names[] = {
      {"bf16", DType::BF16}, {"f16", DType::FP16},  {"f32", DType::FP32},  {"q8_0", DType::Q8_0},
      {"q4_0", DType::Q4_0}, {"q4_1", DType::Q4_1}, {"q4_k", DType::Q4_K}, {"q5_0", DType::Q5_0},
      {"q5_1", DType::Q5_1}, {"q5_k", DType::Q5_K}, {"q6_k", DType::Q6_K}, {"mxfp4", DType::MXFP4}};
  for (const auto& [word, dtype] : names) {
    const std::size_t at = text.find(word);
    if (at == std::string::npos || (at > 0 && std::isalnum(text[at - 1]) != 0)) continue;
    return dtype;
  }
  return {};
}

/// Weights are named at the end of model_type ("llama 7B Q4_0"), the cache by type_k;
/// block-quantised weights are multiplied in 16 bits.
void set_dtypes(const MeasurementFields& f, const MeasurementDefaults& defaults, MeasuredRow& row) {
  if (!defaults.dtype.empty()) return;
  const std::string type = f.text_or("model_type", "");
  const std::optional<DType> weights = ggml_dtype(type);
  const std::string key_type = f.text_or("type_k", "f16");
  const std::string value_type = f.text_or("type_v", key_type);
  const std::optional<DType> cache = ggml_dtype(key_type);
  if (!weights) {
    row.unusable = fmt::format("the dtype of '{}' is not known; expected --dtype", type);
  } else if (!cache || key_type != value_type) {
    row.unusable =
        fmt::format("kvcast has no dtype for a cache of {} and {}", key_type, value_type);
  } else {
    const bool is_block = width(*weights).block_elements > 1;
    row.lowering.weights = *weights;
    row.lowering.activations = is_block ? DType::FP16 : *weights;
    row.lowering.cache = *cache;
  }
}

struct IdPart {
  const char* word;  ///< that stands before the field's text
  const char* field;
  const char* missing = "?";
};
std::string id_of(const MeasurementFields& f, std::initializer_list<IdPart> parts) {
  std::string id;
  for (const IdPart& part : parts) {
    id += fmt::format("{}{}{}", id.empty() ? "" : " ", part.word,
                      f.text_or(part.field, part.missing));
  }
  return id;
}

/// A prompt (pp), an output (tg) or both (pg).
MeasuredRow llama_bench_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  set_kernels(f, row);
  set_engine(f, row);
  set_dtypes(f, defaults, row);
  if (f.has("model_n_params")) row.parameters = f.whole("model_n_params", 1);
  const std::uint64_t prompt = f.whole("n_prompt", 0);
  const std::uint64_t output = f.whole("n_gen", 0);
  const std::uint64_t depth = f.whole_or("n_depth", 0, 0);
  if (prompt == 0 && output == 0) f.fail("n_gen", "a prompt or an output that was timed");
  const double seconds = f.positive("avg_ns") / 1e9;
  const std::filesystem::path file(f.text_or("model_filename", "model"));
  row.id = file.filename().string() + " " +
           id_of(f, {{"pp", "n_prompt"},
                     {"tg", "n_gen"},
                     {"d", "n_depth", "0"},
                     {"fa", "flash_attn"},
                     {"ctk ", "type_k"},
                     {"ctv ", "type_v"},
                     {"t", "n_threads"},
                     {"b", "n_batch"},
                     {"ub", "n_ubatch"},
                     {"ngl", "n_gpu_layers"},
                     {"", "test_time", ""}});
  if (prompt > 0) {
    row.size = {1, prompt, output + 1};
    row.times.push_back({output == 0 ? Metric::Ttft : Metric::Request, seconds});
    if (depth > 0) row.unusable = "a prompt after cached tokens (n_depth) is not forecast";
  } else {
    // n_gen steps after n_depth tokens. An empty cache is forecast as a prompt of 1 leaves it.
    row.size = {1, std::max<std::uint64_t>(depth, 1), output + (depth > 0 ? 1 : 0)};
    row.times.push_back({Metric::Tpot, seconds / static_cast<double>(output)});
  }
  return row;
}

MeasuredRow batched_bench_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  set_kernels(f, row);
  const std::uint64_t output = f.whole("tg", 0);
  row.size = {f.whole("pl", 1), f.whole("pp", 1), output + 1};
  // A shared prompt is computed once for all sequences.
  const bool shared = f.text_or("is_pp_shared", "0") != "0";
  if (!shared || row.size.batch == 1) row.times.push_back({Metric::Ttft, f.positive("t_pp")});
  if (output > 0) {
    row.times.push_back({Metric::Tpot, f.positive("t_tg") / static_cast<double>(output)});
  }
  row.id = id_of(f, {{"pp", "pp"},
                     {"tg", "tg"},
                     {"pl", "pl"},
                     {"shared", "is_pp_shared", "0"},
                     {"fa", "flash_attn"},
                     {"t", "n_threads"},
                     {"b", "n_batch"},
                     {"ub", "n_ubatch"},
                     {"ngl", "n_gpu_layers"}});
  if (row.times.empty()) row.unusable = "a prompt shared by several sequences is not forecast";
  return row;
}

// vLLM

constexpr const char* vllm = "vllm";

/// The latency benchmark: a whole batch's time from end to end, whose sizes the user says.
MeasuredRow vllm_latency_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  row.engine = vllm;
  const auto asked = [&row](const std::optional<std::uint64_t>& value, const char* flag) {
    if (!value && row.unusable.empty()) {
      row.unusable = fmt::format("a size is not in its file; expected {}", flag);
    }
    return value.value_or(1);
  };
  row.size.batch = asked(defaults.batch, "--batch");
  row.size.prompt_len = asked(defaults.prompt_len, "--prompt-len");
  row.size.output_len = asked(defaults.output_len, "--output-len");
  row.times.push_back({Metric::Request, f.positive("avg_latency")});
  return row;
}

MeasuredRow vllm_serve_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  // The client names what it sent requests to, or the kind of interface ("openai-chat").
  const std::string backend = f.text_or("backend", vllm);
  row.engine = backend.starts_with("openai") ? vllm : backend;
  if (row.model.empty()) row.model = f.text_or("model_id", "");
  const std::uint64_t completed = f.whole("completed", 1);
  // Tokens of one request, where the file has those of all.
  const auto mean_length = [&](const char* total, const std::optional<std::uint64_t>& given) {
    if (given) return *given;
    const auto all = static_cast<double>(f.whole(total, completed));
    return static_cast<std::uint64_t>(std::llround(all / static_cast<double>(completed)));
  };
  row.size.prompt_len = mean_length("total_input_tokens", defaults.prompt_len);
  row.size.output_len = mean_length("total_output_tokens", defaults.output_len);
  row.size.batch = defaults.batch.value_or(f.whole_or("max_concurrency", 0, 1));
  row.id =
      row.model + " " +
      id_of(f, {{"rate ", "request_rate"}, {"concurrency ", "max_concurrency"}, {"", "date", ""}});
  const std::uint64_t sent = f.whole_or("num_prompts", completed, 0);
  const std::uint64_t failed = f.whole_or("failed", sent - std::min(sent, completed), 0);
  if (failed > 0) row.id += fmt::format(" ({} requests failed)", failed);
  if (row.size.batch == 0) {
    row.size.batch = 1;
    row.unusable = "how many requests ran at once is not in its file; expected --batch";
  }
  // With several requests at once, a first token waits for the others. A forecast of one batch has
  // no such wait.
  if (row.size.batch == 1) row.times.push_back({Metric::Ttft, f.positive("mean_ttft_ms") / 1e3});
  if (row.size.output_len > 1) {
    row.times.push_back({Metric::Tpot, f.positive("mean_tpot_ms") / 1e3});
  }
  if (row.times.empty()) row.unusable = "its first token waited for other requests";
  return row;
}

constexpr const char* sizes = "batch prompt-len output-len";

constexpr MeasurementFormat of_json[] = {
    {"avg_ns", "llama-bench JSON", llama_bench_row, sizes},
    {"t_pp", "batched-bench JSONL", batched_bench_row, sizes},
    {"avg_latency", "vLLM latency JSON", vllm_latency_row},
    {"mean_tpot_ms", "vLLM serve JSON", vllm_serve_row},
};

// Tables of servers

/// A metric of these tables and the time that it stands for.
struct ServedMetric {
  const char* name;
  Metric metric;
  bool per_gpu = false;  ///< a rate of output tokens
  bool is_rate = false;
};
constexpr ServedMetric served_metrics[] = {
    {"ttft", Metric::Ttft},
    {"tpot", Metric::Tpot},
    {"e2e", Metric::Request},
    {"output_throughput", Metric::Request, false, true},
    {"output_throughput_per_gpu", Metric::Request, true, true}};

/// Seconds. In a closed loop all clients together make batch x outputs tokens in the time of one
/// request.
MeasuredTime served_time(const MeasurementFields& f, const ServedMetric& metric,
                         const MeasuredRow& row) {
  const double value = f.positive("value");
  const std::string& unit = f.text("unit");
  if (metric.is_rate) {
    if (unit != "tokens/s") f.fail("unit", "tokens/s, as " + f.text("metric") + " is a rate");
    const double tokens = static_cast<double>(row.size.batch) * row.mean_output();
    const double gpus = metric.per_gpu ? static_cast<double>(row.num_devices) : 1;
    return {metric.metric, tokens / value / gpus};
  }
  if (unit != "s" && unit != "ms") f.fail("unit", "s or ms");
  return {metric.metric, unit == "s" ? value : value / 1e3};
}

/// NVIDIA's own runs in aiconfigurator's list.
bool is_of_aiconfigurator(const std::string& source, const std::string& note) {
  return is_in_aiconfigurators_list(source) && note.find("measured by NVIDIA") != std::string::npos;
}

/// Activations are in 16 bits, or in the weights' dtype where it has 8; the cache is in 16, unless
/// the file says otherwise. aiconfigurator has it in fp8 where weights are (kvcache_quant_mode of
/// src/aiconfigurator/cli/templates/trtllm/dense_default.yaml, commit 96102834, and of sdk/task.py,
/// 07a37792).
void set_served_dtypes(const MeasurementFields& f, MeasuredRow& row) {
  Lowering& l = row.lowering;
  l.weights = l.activations = l.cache = DType::BF16;
  try {
    set(f, "weight_dtype", parse_weight_types, l.weights);
    set(f, "cache_dtype", parse_dtype, l.cache);
  } catch (const Error& e) {
    row.unusable = e.what();
  }
  const std::string weights = f.text_or("weight_dtype", "");
  if (weights == "fp8" || weights == "int8" || weights == "fp16") {
    l.activations = parse_dtype(weights);
  }
  if (f.has("cache_dtype")) return;
  if (weights == "fp16") l.cache = DType::FP16;
  if (weights == "fp8" && is_of_aiconfigurator(row.source, f.text_or("note", "")))
    l.cache = DType::FP8;
}

/// InferenceX's lengths are uniform from 80 % of the nominal ones on (its RANDOM_RANGE_RATIO), ten
/// requests a client; aiconfigurator-core lists its runs without saying so, and beside them
/// NVIDIA's own, whose lengths are equal, of servers as aiconfigurator sets them up.
LoopRequests closed_loop_of(const MeasuredRow& row, const std::string& note, bool says_cache) {
  const bool own = is_of_aiconfigurator(row.source, note);
  const bool says = note.find("up to 20 % below") != std::string::npos;
  LoopRequests loop{.says_cache = says_cache};
  if (says || (is_in_aiconfigurators_list(row.source) && !own)) {
    loop.shortest = 0.8;
    loop.scheduler = inference_x_scheduler(row.engine, row.model, row.size.prompt_len,
                                           row.size.output_len, row.parallelism.tp);
    loop.marlin_mxfp4 = inference_x_uses_marlin(row.engine, row.model);
  } else if (own) {
    loop.scheduler = aiconfigurator_scheduler(row.engine, row.size.batch, row.size.prompt_len);
  }
  return loop;
}

MeasuredRow served_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  const std::string& metric = f.text("metric");
  row.id = f.text_or("id", "");
  if (!row.id.empty()) row.id += " " + metric;
  row.model = f.text_or("model", row.model);
  row.hardware = f.text_or("hardware", "");
  row.engine = f.text_or("engine", "");
  row.engine_version = f.text_or("engine_version", "");
  row.source = f.text_or("source", "");
  set_served_dtypes(f, row);
  row.num_devices = f.whole_or("num_gpus", 1, 1);
  if (f.has("tp")) {
    row.parallelism = {f.whole("tp", 1), f.whole_or("pp", 1, 1), f.whole_or("ep", 1, 1),
                       f.whole_or("attention_dp", 1, 1)};
  }
  const std::string& arrival = f.text("arrival");
  const bool is_loop = arrival == "closed-loop";
  if (!is_loop && arrival != "static") {
    row.unusable = fmt::format(
        "its requests arrived '{}'; forecasts are of closed loops and of "
        "batches that start together ('static')",
        arrival);
  }
  for (const char* size : {"batch", "prompt_len", "output_len"}) {
    if (!f.has(size) && row.unusable.empty()) {
      row.unusable = fmt::format("its file does not say {}", size);
    }
  }
  const auto* const known = std::find_if(std::begin(served_metrics), std::end(served_metrics),
                                         [&](const ServedMetric& m) { return metric == m.name; });
  if (known == std::end(served_metrics) && row.unusable.empty()) {
    row.unusable = fmt::format("its metric is '{}'", metric);
  }
  if (!row.unusable.empty()) return row;
  row.size = {f.whole("batch", 1), f.whole("prompt_len", 1), f.whole("output_len", 1)};
  if (is_loop) {
    const bool says_cache = f.has("cache_dtype") || row.lowering.cache == DType::FP8;
    row.closed_loop = closed_loop_of(row, f.text_or("note", ""), says_cache);
  }
  if (known->metric == Metric::Tpot && row.size.output_len < 2) {
    row.unusable = "its outputs have no second token";
    return row;
  }
  row.times.push_back(served_time(f, *known, row));
  return row;
}

// Kernel times

/// A product of m, n and k (rows, outputs, inner), or attention of `length` tokens.
MeasuredRow kernel_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  using Kind = roofline::Kernel::Kind;
  struct Known {
    const char* name;
    Kind kind;
    Metric metric;
  };
  constexpr Known known[] = {
      {"gemm", Kind::Product, Metric::Product},
      {"attention_prefill", Kind::PrefillAttention, Metric::PrefillAttention},
      {"attention_decode", Kind::DecodeAttention, Metric::DecodeAttention}};
  MeasuredRow row = row_of(f, defaults);
  row.id = f.text_or("id", "");
  row.hardware = f.text_or("hardware", "");
  const std::string& name = f.text("kernel");
  const auto* const found = std::find_if(std::begin(known), std::end(known),
                                         [&](const Known& k) { return name == k.name; });
  row.model = name;
  if (found == std::end(known)) {
    row.unusable = "a kernel that kvcast does not forecast";
    return row;
  }
  const bool is_product = found->kind == Kind::Product;
  const std::vector<const char*> sizes =
      is_product ? std::vector<const char*>{"m", "n", "k"}
                 : std::vector<const char*>{"batch", "heads", "kv_heads", "head_dim", "length"};
  for (const char* size : sizes) {
    if (f.has(size)) continue;
    row.unusable = fmt::format("its file does not say {}", size);
    return row;
  }
  roofline::Kernel& k = row.kernel.emplace();
  k.kind = found->kind;
  set(f, "dtype", parse_dtype, k.dtype);
  row.lowering.weights = row.lowering.activations = row.lowering.cache = k.dtype;
  if (is_product) {
    k.rows = f.whole("m", 1);
    k.outputs = f.whole("n", 1);
    k.inner = f.whole("k", 1);
    row.size.prompt_len = k.rows;
  } else {
    k.batch = f.whole("batch", 1);
    k.num_attention_heads = f.whole("heads", 1);
    k.num_key_value_heads = f.whole("kv_heads", 1);
    k.head_dim = f.whole("head_dim", 1);
    k.length = f.whole("length", 1);
    if (k.num_attention_heads % k.num_key_value_heads != 0) {
      f.fail("kv_heads", "a divisor of the attention heads");
    }
    row.size = {k.batch, k.length, 1};
  }
  const double value = f.positive("value");
  const std::string& unit = f.text("unit");
  if (unit != "s" && unit != "TFLOP/s") f.fail("unit", "s or TFLOP/s");
  double flops = 0;
  try {
    const Work work = roofline::work(k);
    work.bytes().constant();
    flops = static_cast<double>(work.flops.constant());
  } catch (const Error&) {
    throw Error(f.place(), "a kernel whose FLOPs or bytes exceed 64 bits", "a smaller one");
  }
  row.times.push_back({found->metric, unit == "s" ? value : flops / value / 1e12});
  return row;
}

// Steps of training

constexpr const char* training_columns =
    "id model hardware platform engine engine_version date method attention elementwise dtype "
    "weight_dtype activation_dtype gradient_dtype state_dtype batch seq_len micro_batches tp pp "
    "virtual_stages dp sequence_parallel zero dropout recompute step_s tokens_per_s_per_device "
    "step_spread "
    "rounds "
    "peak_memory_bytes predicted_step_s predicted_peak_memory_bytes step_relative_error distrusted "
    "source note error";
constexpr std::uint64_t most_devices = std::uint64_t{1} << 20;

MeasuredRow training_row(const MeasurementFields& f, const MeasurementDefaults& defaults) {
  MeasuredRow row = row_of(f, defaults);
  row.id = f.text_or("id", "");
  row.model = f.text_or("model", row.model);
  row.method = f.text_or("method", row.method);
  row.hardware = f.text_or("hardware", "");
  row.platform = f.text_or("platform", "");
  row.engine = f.text_or("engine", "");
  row.engine_version = f.text_or("engine_version", "");
  row.date = f.text_or("date", "").substr(0, 7);
  row.source = f.text_or("source", "");
  set_own_lowering(f, row);
  row.size = {f.whole("batch", 1), f.whole("seq_len", 1), 1};
  row.parallelism.tp = f.whole_or("tp", 1, 1);
  row.parallelism.pp = f.whole_or("pp", 1, 1);
  row.parallelism.dp = f.whole_or("dp", 1, 1);
  if (std::max({row.parallelism.tp, row.parallelism.pp, row.parallelism.dp}) > most_devices) {
    throw Error(f.place(), to_string(row.parallelism), "at most 2^20 devices each way");
  }
  const std::string split_norms = f.text_or("sequence_parallel", "0");
  if (split_norms != "0" && split_norms != "1") f.fail("sequence_parallel", "0 or 1");
  row.parallelism.sequence_parallel = split_norms == "1";
  if (!row.platform.empty() && row.parallelism.is_one()) {
    row.unusable = "it names a platform for one device";
  }
  TrainingRun& run = row.training.emplace();
  run.micro_batches = f.whole_or("micro_batches", 1, 1);
  if (row.parallelism.pp > 1 && !f.has("micro_batches")) {
    row.unusable = "it has stages, and does not say micro_batches";
  }
  run.virtual_stages = f.whole_or("virtual_stages", 1, 1);
  if (f.has("dropout") && !parse_number(f.text("dropout"), run.dropout)) {
    f.fail("dropout", "a number from 0 to below 1");
  }
  check_dropout(run.dropout, f.place() + ": 'dropout'");
  set(f, "recompute", parse_recompute, run.recompute);
  set(f, "zero", roofline::parse_zero, run.sharded);
  set(f, "state_dtype", parse_dtype, run.states);
  const auto some_dtype = [](const std::string& word) { return std::optional(parse_dtype(word)); };
  set(f, "gradient_dtype", some_dtype, run.gradients);
  if (f.has("error")) {
    row.unusable = f.text("error");
    return row;
  }
  const char* const rate = "tokens_per_s_per_device";
  const double tokens = static_cast<double>(row.size.batch) *
                        static_cast<double>(row.size.prompt_len) /
                        static_cast<double>(row.parallelism.devices());
  if (f.has(rate) == f.has("step_s")) {
    throw Error(f.place(), f.has(rate) ? "two figures" : "no figure",
                fmt::format("step_s or {}", rate));
  }
  row.times.push_back(
      {Metric::TrainingStep, f.has(rate) ? tokens / f.positive(rate) : f.positive("step_s")});
  if (f.has("distrusted")) row.unusable = "distrusted: " + f.text("distrusted");
  return row;
}

constexpr MeasurementFormat of_csv[] = {
    {"avg_ns", "llama-bench CSV", llama_bench_row, sizes},
    {"kernel", "CSV of kernel times", kernel_row,
     "model method attention dtype batch prompt-len output-len"},
    {"arrival", "CSV of servers", served_row, "dtype batch prompt-len output-len"},
    {"seq_len", "CSV of training steps", training_row, sizes, training_columns},
    {"", "kvcast CSV", own_row, "", own_columns}};

std::vector<std::string> words_of(const char* text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace

std::span<const MeasurementFormat> json_formats() { return of_json; }
std::span<const MeasurementFormat> csv_formats() { return of_csv; }

void check_columns(const CsvTable& table, const MeasurementFormat& format) {
  if (format.columns == nullptr) return;
  const std::vector<std::string> known = words_of(format.columns);
  const std::string place = table.name() + ":1";
  for (const std::string& column : table.columns()) {
    if (std::find(known.begin(), known.end(), column) != known.end()) continue;
    for (const Metric m : all_metrics) {
      if (!column.starts_with(name(m).substr(0, name(m).size() - 1))) continue;
      throw Error(place, "column '" + column + "'",
                  std::string(name(m)) + ": times are in seconds");
    }
    throw Error(place, unknown_name("column", column, known));
  }
  if (format.read != own_row) return;
  const bool is_long = table.has_column("metric");
  const bool has_times = std::any_of(std::begin(all_metrics), std::end(all_metrics),
                                     [&](Metric m) { return table.has_column(name(m)); });
  if (is_long && has_times) {
    throw Error(place, "a column of times together with the column metric",
                "one way to write a time");
  }
  if (!is_long && !has_times) {
    throw Error(place, "no column of times",
                "ttft_s, tpot_s or request_s, or metric, value and unit");
  }
}

void check_defaults(const MeasurementDefaults& d, const MeasurementFormat& format) {
  const std::map<std::string, bool> given{{"model", !d.model.empty()},
                                          {"method", d.method != MeasurementDefaults{}.method},
                                          {"attention", !d.attention.empty()},
                                          {"dtype", !d.dtype.empty()},
                                          {"batch", d.batch.has_value()},
                                          {"prompt-len", d.prompt_len.has_value()},
                                          {"output-len", d.output_len.has_value()}};
  for (const std::string& flag : words_of(format.unused)) {
    if (given.at(flag)) throw Error("--" + flag, format.name, "none: its rows have their own");
  }
}

}  // namespace kvcast::measure
