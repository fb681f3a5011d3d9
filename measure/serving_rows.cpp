#include "measure/serving_rows.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <regex>
#include <utility>

#include <fmt/format.h>

#include "measure/benchmark_servers.h"
#include "model/base/error.h"
#include "model/io/files/number_text.h"

namespace kvcast::measure {
namespace {

// What rows leave open. Each is listed with the runs that it is used for.

constexpr std::uint64_t requests_a_client = 10;
constexpr const char* waves_assumed =
    "10 requests a client (InferenceMAX: benchmark scripts; NVIDIA's genai-perf scripts)";
constexpr const char* steady_assumed =
    "a window of a loop that goes on, without its beginning and end (NIM's benchmarking guide: "
    "genai-perf with --measurement-interval)";
/// InferenceMAX's --random-range-ratio.
constexpr double least_share = 0.8;
constexpr const char* draws_assumed =
    "lengths from 80 to 100 % of the nominal ones (InferenceMAX: --random-range-ratio 0.8)";
constexpr const char* ending_assumed =
    "only the mean of lengths is known: each token is the last one with the same chance, up to {}";
/// bench_serving of vLLM and SGLang: prompts up to 1024 tokens, prompt and output up to 2048.
constexpr std::uint64_t sharegpt_most = 1024;
constexpr double sharegpt_prompt_mean = 200;
constexpr double sharegpt_output_mean = 194;
constexpr const char* sharegpt_assumed =
    "ShareGPT's mean prompt of 200 tokens and output of 194 (sgl-project/sglang: "
    "benchmark/benchmark_vllm_060/README.md, the same sampling)";
/// AccelMark: mean output of the offline runs of the same prompts.
constexpr double accelmark_output_mean = 345;
constexpr const char* accelmark_assumed = "the mean output of 345 tokens of AccelMark's suite A";
constexpr const char* quartiles_assumed =
    "prompts between the 25th and the 99th percentile, each length as likely";
constexpr const char* pooled_assumed = "the prompts are those of all pooled runs together";
/// Where engine and clients share a process, and so the host's time.
constexpr const char* in_process_version = "0.5";
constexpr const char* in_process_assumed =
    "host time of vLLM before 0.6, when clients had no process of their own: AccelMark's have none "
    "(runners/nvidia_vllm_47f5d58e/runner.py)";
constexpr const char* nim_assumed =
    "TensorRT-LLM 0.17, of the time of NIM 1.8.0 (all versions from 0.13 to 0.21 are the same "
    "here)";
constexpr const char* nim_version = "0.17";
constexpr const char* cache_assumed =
    "a cache in fp8, as NVIDIA's fp8 checkpoints say (hf_quant_config.json: kv_cache_quant_algo)";
constexpr const char* listed_cache_assumed =
    "a cache in fp8, as aiconfigurator has it with weights in fp8 (kvcache_quant_mode)";
constexpr const char* script_assumed =
    "a cache in fp8, as InferenceMAX's script of October 2025 has it (kv-cache-dtype: fp8)";
constexpr const char* inference_x_assumed =
    "the scheduler's settings of InferenceMAX's scripts of October 2025";
constexpr const char* aiconfigurator_assumed =
    "the scheduler's settings that aiconfigurator writes (max_num_tokens; SGLang's mixed chunks)";
constexpr const char* tool_assumed =
    "the engine's own limits, and steps with room for the longest prompt beside a token of each "
    "sequence, in place of those that trtllm-bench chooses; its prompts are token ids";
constexpr const char* longbench_assumed =
    "each prompt as long as LongBench's average of its subtask (arXiv:2308.14508, table 1), at 1.4 "
    "tokens a word and 0.67 a Chinese character";
constexpr const char* longbench_chat_assumed =
    "outputs of any length up to the subtask's limit, each as likely";
constexpr const char* longbench_raw_assumed =
    "outputs up to the subtask's limit: raw completions go on with further examples";

/// A subtask of LongBench: its average length (arXiv:2308.14508, table 1), and the most tokens of
/// an answer (Jingyu6/speculative_prefill c1d6bd3: eval/qps_client.py).
struct Subtask {
  double words;
  bool is_chinese;
  std::uint64_t most;
};
struct Category {
  const char* name;
  std::array<Subtask, 4> subtasks;
  bool raw;  ///< sent without a chat template
  double limit_s;
  double last_rate;  ///< of the client's grid
};
constexpr std::array<Category, 3> categories{{
    {"multi-doc-qa",
     {{{15768, true, 128}, {4887, false, 32}, {11214, false, 32}, {9151, false, 32}}},
     false,
     10,
     5.0},
    {"few-shot-learning",
     {{{8209, false, 32}, {22337, true, 64}, {5177, false, 64}, {6258, false, 128}}},
     true,
     20,
     3.2},
    {"summarization",
     {{{8734, false, 512}, {10614, false, 512}, {2113, false, 512}, {15380, true, 512}}},
     false,
     40,
     2.2},
}};
constexpr double tokens_a_word = 1.4;
constexpr double tokens_a_character = 0.67;
constexpr std::uint64_t samples_a_subtask = 32;
constexpr double first_rate = 0.2;

/// The groups of the pattern's first match.
std::vector<std::string> found(const std::string& text, const char* pattern) {
  const std::regex expression(pattern);
  std::smatch match;
  std::vector<std::string> groups;
  if (!std::regex_search(text, match, expression)) return groups;
  for (std::size_t i = 1; i < match.size(); ++i) groups.push_back(match[i].str());
  return groups;
}

bool says(const std::string& text, const char* pattern) {
  return std::regex_search(text, std::regex(pattern));
}

double number(const std::string& text) {
  double value = 0;
  KVCAST_ASSERT(parse_number(text, value));
  return value;
}

std::uint64_t whole(const std::string& text) {
  std::uint64_t value = 0;
  KVCAST_ASSERT(parse_number(text, value));
  return value;
}

std::optional<double> first_number(const std::string& text, const char* pattern) {
  const std::vector<std::string> groups = found(text, pattern);
  if (groups.empty()) return {};
  return number(groups[0]);
}

std::optional<std::uint64_t> first_whole(const std::string& text, const char* pattern) {
  const std::vector<std::string> groups = found(text, pattern);
  if (groups.empty()) return {};
  return whole(groups[0]);
}

ServedLengths ending(double mean, std::uint64_t most) {
  return {ServedLengths::Kind::Ending, 1, most, mean};
}

void assume(ServedRun& run, std::string what) {
  if (std::find(run.assumed.begin(), run.assumed.end(), what) == run.assumed.end()) {
    run.assumed.push_back(std::move(what));
  }
}

void assume_ending(ServedRun& run, std::uint64_t most) {
  assume(run, fmt::format(fmt::runtime(ending_assumed), most));
}

void read_engine(const std::string& engine, const std::string& version, ServedRun& run) {
  run.engine = engine;
  // "nim (tensorrt-llm)": the version is that of the product.
  if (const auto inside = found(engine, "\\(([^)]*)\\)"); !inside.empty()) {
    run.engine = inside[0];
    run.engine_version = nim_version;
    assume(run, nim_assumed);
    return;
  }
  if (const auto dotted = found(version, "(\\d+(\\.\\d+)+(\\.?(post|rc)\\d+)?)"); !dotted.empty()) {
    run.engine_version = dotted[0];
  } else if (const auto month = found(version, "(\\d{4}-\\d{2})"); !month.empty()) {
    run.engine_version = month[0];
  }
  run.eager = says(version, "eager mode");
}

void read_scheduler(const std::string& text, ServedRun& run) {
  const auto set = [&](const char* key, const std::optional<std::uint64_t>& value) {
    if (value) run.scheduler[key] = std::to_string(*value);
  };
  set("max_num_batched_tokens", first_whole(text, "max_num_batched_tokens (\\d+)"));
  set("max_num_seqs", first_whole(text, "max_num_seqs (\\d+)"));
  set("max_model_len", first_whole(text, "max_model_len (\\d+)"));
  set("num_scheduler_steps", first_whole(text, "--num-scheduler-steps (\\d+)"));
  set("block_size", first_whole(text, "\\bblock (\\d+)"));
  if (const auto blocks = found(text, "(\\d+) KV blocks of (\\d+)"); !blocks.empty()) {
    run.num_blocks = whole(blocks[0]);
    run.scheduler["block_size"] = blocks[1];
  }
  run.memory_share = first_number(text, "gpu_memory_utilization (\\d*\\.?\\d+)");
  if (const auto share = first_number(text, "KV fraction (\\d*\\.?\\d+) of free memory")) {
    run.memory_share = share;
  }
  if (says(text, "no prefix caching|radix cache off")) run.scheduler["prefix_caching"] = "false";
  if (says(text, "prefix caching on")) run.scheduler["prefix_caching"] = "true";
  if (const auto tokens = first_whole(text, "chunked prefill with (\\d+) tokens is on")) {
    run.chunked_v0 = true;
    set("max_num_batched_tokens", tokens);
  }
  if (const auto sparse = found(text, "specprefill keep (\\d*\\.?\\d+), speculator ([^ ,;]+)");
      !sparse.empty()) {
    run.method = fmt::format("specprefill:keep={},speculator={}", sparse[0], sparse[1]);
  }
  if (says(text, "chosen by the tool")) {
    run.fits_longest_prompt = true;
    run.sends_text = false;
    assume(run, tool_assumed);
  }
}

void read_dtypes(const CsvRow& row, ServedRun& run) {
  const std::string& weights = row.text("weight_dtype");
  run.weight_dtype = weights.substr(0, weights.find(' '));
  run.fp8_cache = says(row.text("scheduler"), "fp8 KV");
  if (run.fp8_cache || run.weight_dtype != "fp8") return;
  const char* assumed = nullptr;
  if (is_in_aiconfigurators_list(run.source)) assumed = listed_cache_assumed;
  if (says(row.text("workload"), "InferenceMAX")) assumed = script_assumed;
  if (run.engine == "tensorrt-llm") assumed = cache_assumed;
  if (assumed == nullptr) return;
  run.fp8_cache = true;
  assume(run, assumed);
}

/// Subtasks of LongBench.
void read_longbench(const Category& category, ServedRun& run) {
  for (const Subtask& s : category.subtasks) {
    const double tokens = s.words * (s.is_chinese ? tokens_a_character : tokens_a_word);
    run.workload.groups.push_back(
        {samples_a_subtask, exactly(static_cast<std::uint64_t>(tokens)),
         category.raw ? exactly(s.most)
                      : ServedLengths{ServedLengths::Kind::Uniform, 1, s.most, 0}});
  }
  assume(run, longbench_assumed);
  assume(run, category.raw ? longbench_raw_assumed : longbench_chat_assumed);
}

/// Of generated requests; empty: the words do not tell.
std::optional<ServedGroup> read_lengths(const std::string& text, ServedRun& run) {
  ServedGroup g;
  if (const auto sizes = found(text, "input (\\d+), output (\\d+)"); !sizes.empty()) {
    g.prompt = exactly(whole(sizes[0]));
    g.output = exactly(whole(sizes[1]));
    if (says(text, "draws a little less")) {
      for (ServedLengths* l : {&g.prompt, &g.output}) {
        l->least = static_cast<std::uint64_t>(least_share * static_cast<double>(l->most));
      }
      assume(run, draws_assumed);
    }
    return g;
  }
  if (const auto share =
          found(text, "of (\\d*\\.?\\d+)k/[^ ]*/(\\d*\\.?\\d+)k tokens.*output (\\d+)");
      !share.empty()) {
    g.prompt.least = static_cast<std::uint64_t>(number(share[0]) * 1000);
    g.prompt.most = static_cast<std::uint64_t>(number(share[1]) * 1000);
    g.output = exactly(whole(share[2]));
    assume(run, quartiles_assumed);
    return g;
  }
  if (!says(text, "ShareGPT")) return {};
  const auto means = found(text, "mean about (\\d+) in, (\\d+) out");
  const auto output = first_number(text, "mean output (\\d+)");
  if (means.empty()) assume(run, sharegpt_assumed);
  g.prompt = ending(means.empty() ? sharegpt_prompt_mean : number(means[0]), sharegpt_most);
  g.output = ending(means.empty() ? output.value_or(sharegpt_output_mean) : number(means[1]),
                    sharegpt_most);
  assume_ending(run, sharegpt_most);
  return g;
}

void read_workload(const std::string& text, const std::string& trace, ServedRun& run) {
  ServedWorkload& w = run.workload;
  w.trace = trace;
  if (!trace.empty()) {
    const auto most = first_whole(text, "output until EOS, at most (\\d+)");
    if (!most) return;
    const auto mean = first_number(text, "at most \\d+ \\(mean (\\d+)");
    if (!mean) assume(run, accelmark_assumed);
    w.output = ending(mean.value_or(accelmark_output_mean), *most);
    assume_ending(run, *most);
    return;
  }
  for (const Category& category : categories) {
    if (text.starts_with(fmt::format("LongBench {}:", category.name))) {
      return read_longbench(category, run);
    }
  }
  std::optional<ServedGroup> group = read_lengths(text, run);
  if (!group) {
    run.unusable = fmt::format("the lengths of its requests are not known: '{}'", text);
    return;
  }
  group->count = first_whole(text, "(\\d+) (requests|prompts)").value_or(0);
  w.groups = {*group};
}

void read_arrivals(const std::string& text, ServedRun& run) {
  using simulate::ArrivalKind;
  ServedWorkload& w = run.workload;
  double rate = 0;
  const bool has_rate = parse_number(run.load, rate) && rate > 0;
  const auto runs = first_whole(text, "(\\d+) runs pooled");
  w.pooled_runs = runs.value_or(1);
  if (text.starts_with("trace") && !w.trace.empty()) return;
  if (text == "all at once") {
    w.arrivals = simulate::Arrivals{.kind = ArrivalKind::Burst};
  } else if (text == "closed loop" && has_rate) {
    w.arrivals =
        simulate::Arrivals{.kind = ArrivalKind::Closed, .users = static_cast<std::uint64_t>(rate)};
  } else if (text.starts_with("Poisson") && has_rate && !w.trace.empty()) {
    for (std::uint64_t i = 1; i <= w.pooled_runs; ++i) {
      w.arrival_columns.push_back(fmt::format("arrival_s_qps{}_run{}", run.load, i));
    }
  } else if (text.starts_with("Poisson") && has_rate) {
    w.arrivals = simulate::Arrivals{.kind = ArrivalKind::Poisson, .rate = rate};
  } else if (text.starts_with("one request every 1/qps s")) {
    w.arrivals = simulate::Arrivals{.kind = ArrivalKind::Uniform, .rate = rate};
  } else {
    run.unusable = fmt::format("how its requests arrive is not known: '{}' with a load of '{}'",
                               text, run.load);
  }
}

/// Numbers of requests that the words left open.
void count_requests(const std::string& engine, ServedRun& run) {
  ServedWorkload& w = run.workload;
  if (w.pooled_runs > 1) {
    for (ServedGroup& g : w.groups) {
      g.count /= w.pooled_runs;
      assume(run, pooled_assumed);
    }
  }
  const bool open = std::any_of(w.groups.begin(), w.groups.end(),
                                [](const ServedGroup& g) { return g.count == 0; });
  if (!open || !run.unusable.empty()) return;
  if (!w.arrivals || w.arrivals->kind != simulate::ArrivalKind::Closed) {
    run.unusable = "how many requests there were is not known";
    return;
  }
  w.steady = engine.starts_with("nim");
  assume(run, w.steady ? steady_assumed : waves_assumed);
  for (ServedGroup& g : w.groups) g.count = requests_a_client * w.arrivals->users;
}

struct KnownMetric {
  const char* name;
  ServedQuantity quantity;
  const char* unit;
};
constexpr KnownMetric known_times[] = {{"ttft", ServedQuantity::Ttft, "s"},
                                       {"tpot", ServedQuantity::Tpot, "s"},
                                       {"itl", ServedQuantity::Itl, "s"},
                                       {"e2el", ServedQuantity::E2e, "s"},
                                       {"e2e", ServedQuantity::E2e, "s"}};
constexpr KnownMetric values[] = {
    {"makespan", ServedQuantity::Makespan, "s"},
    {"request_throughput", ServedQuantity::RequestRate, "requests/s"},
    {"output_throughput", ServedQuantity::OutputTokenRate, "tokens/s"},
    {"total_token_throughput", ServedQuantity::TokenRate, "tokens/s"},
    {"max_qps", ServedQuantity::MaxRate, "requests/s"}};

ServedFigure read_figure(const CsvRow& row) {
  ServedFigure f;
  f.place = row.place("");
  f.place.erase(f.place.rfind(": column"));
  f.id = row.text("id");
  f.metric = row.text("metric");
  f.measured = row.number("value");
  if (!(f.measured > 0)) throw Error(row.place("value"), row.text("value"), "a number above zero");
  const KnownMetric* known = nullptr;
  if (const auto parts = found(f.metric, "^(mean|median|p\\d+)_(.*)$"); !parts.empty()) {
    for (const KnownMetric& m : known_times) {
      if (parts[1] == m.name) known = &m;
    }
    if (parts[0] == "median") f.percentile = 50;
    if (parts[0][0] == 'p') f.percentile = number(parts[0].substr(1));
  }
  for (const KnownMetric& m : values) {
    if (f.metric == m.name) known = &m;
  }
  if (known == nullptr || f.percentile.value_or(0) > 100) {
    f.unusable = fmt::format("its metric is '{}'", f.metric);
    return f;
  }
  f.quantity = known->quantity;
  const std::string& unit = row.text("unit");
  const std::string expected = known->unit;
  if (expected == "s" && unit == "ms") {
    f.measured /= 1e3;
  } else if (unit != expected) {
    throw Error(row.place("unit"), "'" + unit + "'", expected == "s" ? "s or ms" : expected);
  }
  // genai-perf's "inter-token latency" is a request's mean.
  if (f.quantity == ServedQuantity::Itl && says(row.text("note"), "\\(latency - TTFT\\)")) {
    f.quantity = ServedQuantity::Tpot;
  }
  return f;
}

/// "... at most 4 of 128 requests missed 10 s (+5 s slack in the client); grid step 0.4"
void read_grid(const CsvRow& row, ServedRun& run) {
  const std::string& note = row.text("note");
  const auto numbers =
      found(note,
            "at most (\\d+) of \\d+ requests missed (\\d+) s \\(\\+(\\d+) s slack.*grid step "
            "(\\d*\\.?\\d+)");
  const auto category = std::find_if(categories.begin(), categories.end(), [&](const Category& c) {
    return says(row.text("workload"), c.name);
  });
  if (numbers.empty() || category == categories.end()) {
    run.unusable = "what its highest rate had to keep is not known";
    return;
  }
  run.grid = RateGrid{first_rate, number(numbers[3]), category->last_rate,
                      number(numbers[1]) + number(numbers[2]), whole(numbers[0])};
}

/// What a benchmark's scripts set beyond the engine's defaults.
void ask_of_server(const std::string& workload, ServedRun& run) {
  const ServedWorkload& w = run.workload;
  if (w.groups.size() != 1) return;
  const std::uint64_t prompt = w.groups[0].prompt.most;
  const auto take = [&run](const std::map<std::string, std::string>& asked, const char* assumed) {
    if (!asked.empty()) assume(run, assumed);
    run.scheduler.insert(asked.begin(), asked.end());
  };
  if (says(workload, "InferenceMAX")) {
    const std::uint64_t output = w.groups[0].output.most;
    take(inference_x_scheduler(run.engine, run.model, prompt, output, run.tp), inference_x_assumed);
  } else if (is_in_aiconfigurators_list(run.source) && w.arrivals && w.arrivals->users > 0) {
    take(aiconfigurator_scheduler(run.engine, w.arrivals->users, prompt), aiconfigurator_assumed);
  }
}

ServedRun read_run(const CsvRow& row) {
  ServedRun run;
  run.run = row.text("run");
  run.load = row.text("load");
  run.source = row.text("source");
  run.model = row.text("model");
  run.hardware = row.text("hardware");
  run.tp = row.whole("tp");
  if (run.tp == 0) throw Error(row.place("tp"), "0", "at least 1");
  read_engine(row.text("engine"), row.text("engine_version"), run);
  read_scheduler(row.text("scheduler"), run);
  read_dtypes(row, run);
  if (run.engine == "vllm" && says(run.source, "AccelMark") &&
      says(run.engine_version, "^0\\.[67]\\b")) {
    run.host_version = in_process_version;
    assume(run, in_process_assumed);
  }
  read_workload(row.text("workload"), row.text("trace"), run);
  if (run.unusable.empty()) read_arrivals(row.text("arrival"), run);
  ask_of_server(row.text("workload"), run);
  count_requests(row.text("engine"), run);
  return run;
}

}  // namespace

std::string_view kind(const ServedFigure& f) {
  if (f.percentile.value_or(0) >= 90) return "tail";
  switch (f.quantity) {
    case ServedQuantity::Ttft: return "ttft";
    case ServedQuantity::Tpot: return "tpot";
    case ServedQuantity::Itl: return "itl";
    case ServedQuantity::E2e: return "e2e";
    case ServedQuantity::Makespan: return "makespan";
    case ServedQuantity::RequestRate:
    case ServedQuantity::OutputTokenRate:
    case ServedQuantity::TokenRate: return "throughput";
    case ServedQuantity::MaxRate: return "max rate";
  }
  KVCAST_ASSERT(false);
  return {};
}

ServedLengths exactly(std::uint64_t tokens) {
  return {ServedLengths::Kind::Uniform, tokens, tokens, static_cast<double>(tokens)};
}

bool is_serving_table(const std::filesystem::path& path) {
  // What is no file, or has no end of its first line, is for the other readers to refuse.
  if (!std::filesystem::is_regular_file(path)) return false;
  constexpr std::size_t most = 4096;
  std::string header(most, '\0');
  std::ifstream in(path);
  in.read(header.data(), most);
  header.resize(static_cast<std::size_t>(in.gcount()));
  header.resize(std::min(header.size(), header.find('\n')));
  return says(header, "\\brun\\b") && says(header, "\\bscheduler\\b") &&
         says(header, "\\bworkload\\b");
}

std::vector<ServedRun> read_served_runs(const CsvTable& table) {
  std::vector<ServedRun> runs;
  std::map<std::pair<std::string, std::string>, std::size_t> index;
  for (const CsvRow& row : table.rows()) {
    const auto [entry, is_new] =
        index.emplace(std::pair(row.text("run"), row.text("load")), runs.size());
    if (is_new) runs.push_back(read_run(row));
    ServedRun& run = runs[entry->second];
    run.figures.push_back(read_figure(row));
    if (run.figures.back().quantity == ServedQuantity::MaxRate && !run.grid) read_grid(row, run);
  }
  return runs;
}

}  // namespace kvcast::measure
