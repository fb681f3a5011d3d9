#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <span>

#include <fmt/format.h>

#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "cli/run/pair_text.h"
#include "cli/run/run_importance.h"
#include "cli/run/run_inputs.h"
#include "cli/validate/validate_parts.h"
#include "measure/quality_matrix.h"
#include "measure/quality_summary.h"
#include "model/base/quantity.h"
#include "model/execute/cache_rows.h"
#include "model/execute/machine_probe.h"
#include "model/io/files/csv_table.h"
#include "reports/plot/plot.h"
#include "reports/plot/quality_plots.h"
#include "reports/sweep/sweep_spec.h"

namespace kvcast::cli {
namespace {

using measure::Interval;
using measure::QualityRow;
using measure::QualitySample;

/// The keep rates of the released code (Jingyu6/speculative_prefill,
/// configs/config_pX.yaml).
constexpr const char* default_rates = "0.1,0.3,0.5,0.7,0.9";
constexpr const char* default_methods = "specprefill,random-prune,static-prune,lazyllm";

struct ValidateQualityOptions {
  std::string model;
  std::vector<std::string> texts;
  std::string needles = "0";
  std::uint64_t seed = 1;
  std::string methods = default_methods;
  std::string rates = default_rates;
  std::vector<std::string> others;
  std::string arithmetic = "fp32";
  std::string cache_dtypes = "fp32";
  std::string samples = "8";
  std::string prompt_len = "512";
  std::string continuation = "64";
  std::string csv;
  std::string times;
  std::string plot;
  int threads = 0;
  bool restart = false;
  bool json = false;
};

std::uint64_t parse_count(const std::string& text, const char* flag) {
  return text == "0" ? 0 : parse_token_count(text, flag);
}

/// The samples of all texts, then the needles.
std::vector<QualitySample> read_samples(const ValidateQualityOptions& o,
                                        const Checkpoint& checkpoint,
                                        const FoundTokenizer& tokenizer) {
  const measure::QualityLengths lengths{parse_token_count(o.prompt_len, "--prompt-len"),
                                        parse_token_count(o.continuation, "--continuation")};
  const std::uint64_t count = parse_token_count(o.samples, "--samples");
  const auto prefix = tokenizer ? tokenizer->encode("") : std::vector<execute::TokenId>();
  std::vector<QualitySample> samples;
  for (const std::string& file : o.texts) {
    const auto ids = read_pair_text("--text", file, checkpoint, checkpoint);
    for (QualitySample& s : measure::text_samples(
             ids, prefix, std::filesystem::path(file).filename().string(), lengths, count)) {
      samples.push_back(std::move(s));
    }
  }
  const std::uint64_t needles = parse_count(o.needles, "--needles");
  if (needles == 0) return samples;
  if (!tokenizer) throw Error("--needles: " + tokenizer.missing);
  for (QualitySample& s :
       measure::needle_samples(*tokenizer, lengths.prompt_len, needles, o.seed)) {
    samples.push_back(std::move(s));
  }
  return samples;
}

ordered_json number_or_null(double x) { return std::isnan(x) ? ordered_json() : ordered_json(x); }

ordered_json interval_json(const Interval& i) {
  return {{"mean", i.mean}, {"low", number_or_null(i.low)}, {"high", number_or_null(i.high)}};
}

ordered_json quality_json(const QualityRow& r) {
  return {{"task", r.task},
          {"method", r.method},
          {"keep", number_or_null(r.keep)},
          {"samples", r.samples},
          {"positions", r.positions},
          {"agreement", interval_json(r.agreement)},
          {"kl_nats", interval_json(r.kl_nats)},
          {"perplexity", interval_json(r.perplexity)},
          {"perplexity_ratio", interval_json(r.perplexity_ratio)},
          {"answered", interval_json(r.answered)},
          {"ttft_s", r.ttft_s},
          {"ttft_speedup", r.ttft_speedup},
          {"tpot_s", number_or_null(r.tpot_s)},
          {"memory_bytes", number_or_null(r.memory_bytes)},
          {"on_front", r.on_front}};
}

std::string summary_text(const ordered_json& rows) {
  const bool needles = std::any_of(rows.begin(), rows.end(),
                                   [](const ordered_json& r) { return r["task"] == "needle"; });
  return table_text({{"task", "task"},
                     {"method", "method"},
                     {"agreement", "/agreement/mean", in("{:.3g}")},
                     {"KL (nats)", "/kl_nats/mean", in("{:.3g}")},
                     {"perplexity", "/perplexity/mean", in("{:.4g}")},
                     {"over base", "/perplexity_ratio/mean", in("{:.3g}")},
                     {"answered", "/answered/mean", in("{:.3g}")},
                     {"TTFT (s)", "ttft_s", in("{:.3g}")},
                     {"speed-up", "ttft_speedup", in("{:.2f}")},
                     {"TPOT (s)", "tpot_s", in("{:.3g}")},
                     {"memory (MB)", "memory_bytes", in("{:.4g}", 1e-6)},
                     {"front", "on_front", if_true("*")}},
                    rows) +
         "Means over samples (--json has 95 % intervals); * no method on the task is as fast and "
         "as near "
         "to the base model" +
         (needles ? ", or answers as many needles" : "") + "\n";
}

/// Throws Error unless the methods' models read the samples as the base model does.
void check_helpers(const Checkpoint& base, std::span<const Checkpoint> others,
                   std::span<const measure::QualityMethod> methods,
                   std::span<const QualitySample> samples, const text::Tokenizer& tokenizer) {
  std::vector<std::vector<execute::TokenId>> prompts;
  for (const QualitySample& s : samples) prompts.push_back(s.prompt);
  execute::OpenedModels models;
  for (const Checkpoint& c : others) models.emplace(c.path().string(), c);
  for (const measure::QualityMethod& m : methods) {
    models.merge(execute::check_checkpoint(base, {.methods = parse_methods(m.method)}));
  }
  check_tokenizers(models, prompts, tokenizer);
}

/// The base's checkpoint and the others, in every arithmetic, with every cache.
std::vector<measure::NumberTypes> number_types(const ValidateQualityOptions& o,
                                               std::span<const Checkpoint> others) {
  std::vector<const Checkpoint*> checkpoints{nullptr};
  for (const Checkpoint& c : others) checkpoints.push_back(&c);
  std::vector<measure::NumberTypes> types;
  for (const Checkpoint* c : checkpoints) {
    for (const std::string& arithmetic : reports::parse_words(o.arithmetic, "--arithmetic")) {
      for (const std::string& cache : reports::parse_words(o.cache_dtypes, "--cache-dtype")) {
        types.push_back({c, execute::parse_arithmetic(arithmetic, "--arithmetic"),
                         execute::parse_cache_dtype(cache, "--cache-dtype")});
      }
    }
  }
  return types;
}

void validate_quality(const ValidateQualityOptions& o, const Globals& globals) {
  if (o.texts.empty() && parse_count(o.needles, "--needles") == 0) {
    throw Error("validate quality", "nothing to measure on", "--text FILE, --needles N, or both");
  }
  const auto of_base = measure::quality_methods(reports::parse_method_words(o.methods, "--method"),
                                                reports::parse_words(o.rates, "--keep"));
  if (!o.times.empty()) CsvTable::read(o.times);
  const Checkpoint checkpoint(o.model);
  std::vector<Checkpoint> others;
  for (const std::string& file : o.others) others.emplace_back(file);
  const auto methods = measure::with_types(of_base, number_types(o, others));
  const FoundTokenizer tokenizer = find_tokenizer(checkpoint);
  const auto samples = read_samples(o, checkpoint, tokenizer);
  if (tokenizer) check_helpers(checkpoint, others, methods, samples, *tokenizer);
  execute::use_threads(o.threads);
  measure::QualityOptions options;
  options.csv = o.csv;
  if (tokenizer) options.stop_tokens = tokenizer->end_of_text();
  options.restart = o.restart;
  const measure::MeasuredRows result = run_measured_rows(globals, options, [&] {
    return measure::measure_quality(checkpoint, methods, samples, options);
  });
  const auto rows = measure::summarize_quality(o.csv, o.times);
  if (!o.plot.empty()) {
    for (const reports::QualityPlot& p : reports::quality_plots(rows, o.plot)) {
      reports::write_plot(p.plot, p.picture);
    }
  }
  const ordered_json table = rows_of(rows, quality_json);
  if (!o.json) return print_text(summary_text(table));
  print_json({{"model", checkpoint.architecture().name},
              {"csv", o.csv},
              {"rows_resumed", result.rows_resumed},
              {"rows", table}});
}

}  // namespace

void add_validate_quality(Command validate, const Globals& globals) {
  Command c = validate.add_subcommand(
      "quality",
      "Measure what methods do to the tokens after a prompt, together with TTFT.\n\n"
      "Examples:\n"
      "  kvcast validate quality --model weights/smollm2-135m-instruct.gguf --text "
      "tests/oracle/smollm2/alice.txt --samples 1 --prompt-len 256 --csv quality.csv\n"
      "  kvcast validate quality --model weights/smollm2-135m-instruct.gguf --needles 10 --method "
      "\"specprefill;kvp:auxiliary=lp-{keep},predictor=maps-{keep}\" --keep 0.25,0.50 --csv q.csv\n"
      "  kvcast validate quality --model bf16.gguf --weights-of q8_0.gguf q4_0.gguf --arithmetic "
      "fp32,int8 --cache-dtype fp32,fp8 --method plain --text book.txt --csv types.csv --plot "
      "types.svg");
  c.footer(
      "The model reads a prompt with each method, then the continuation token by token. At every\n"
      "position kvcast compares the most likely token, KL divergence and perplexity with those of "
      "the\n"
      "plain model. --csv has one row per sample and method; an interrupted run resumes from it.");
  const auto o = std::make_shared<ValidateQualityOptions>();
  c.add("--model", o->model, "a folder with config.json and safetensors, or a GGUF file")
      .required();
  c.add("--text", o->texts, "texts, or token ids in a .json; windows are spread over each text")
      .expected(1, -1);
  c.add("--needles N", o->needles,
        "number of needle-in-a-haystack prompts, each with a number to find");
  c.add("--seed", o->seed, "seed of the haystacks");
  c.add("--method METHODS", o->methods,
        "methods; {keep}, or a missing keep option, takes each value of --keep");
  c.add("--keep F,...", o->rates, "keep rates");
  c.add("--weights-of", o->others,
        "the same model with weights of other types, such as what convert quantize writes")
      .expected(1, -1);
  c.add("--arithmetic LIST", o->arithmetic, "run all methods in each: fp32, bf16, int8");
  c.add("--cache-dtype LIST", o->cache_dtypes,
        "run all methods with each cache: fp32, fp16, bf16, fp8, int8");
  c.add("--samples N", o->samples, "windows per text");
  c.add("--prompt-len", o->prompt_len, "prompt tokens per sample");
  c.add("--continuation TOKENS", o->continuation, "tokens of a text compared after each prompt");
  c.add("--csv", o->csv, "write the rows; an interrupted run resumes from them").required();
  c.add("--times FILE", o->times,
        "take the TTFTs from this CSV of another run, made while the machine was idle");
  c.add("--plot", o->plot,
        "draw quality over TTFT, .svg or .png; also writes FILE-agreement, FILE-needle, FILE-keep, "
        "FILE-tpot, FILE-memory")
      .draws(reports::quality_pictures);
  c.add("--threads", o->threads);
  c.add("--restart", o->restart);
  c.add("--json", o->json);
  c.callback([o, &globals] { validate_quality(*o, globals); });
}

}  // namespace kvcast::cli
