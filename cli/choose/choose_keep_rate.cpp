#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "cli/choose/choose_parts.h"
#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "search/keep_rate_choice.h"

namespace kvcast::cli {
namespace {

using search::KeepRate;

/// Listed after the answer: the keep rates of the authors' configurations (config_pX.yaml).
constexpr double usual_rates[]{0.1, 0.3, 0.5, 0.7, 0.9};

struct KeepRateOptions {
  RequestOptions request;  ///< the model, device, kernels and batch
  std::string speculator;
  std::string prompt_len = "4k";  // the shortest of the authors' efficiency grid
  std::string lookahead;
  std::string chunk;
  std::string pool;
  std::string reuse;
  std::optional<double> target_speedup;
  std::optional<double> keep;
  RowsOutput output;
};

MethodSpec method_of(const KeepRateOptions& o) {
  MethodSpec spec{"specprefill", {}};
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) spec.options.emplace_back(key, value);
  };
  add("speculator", o.speculator);
  add("lookahead", o.lookahead);
  add("chunk", o.chunk);
  add("pool", o.pool);
  add("reuse", o.reuse);
  return spec;
}

ordered_json rate_json(const KeepRate& r) {
  return {{"keep", r.keep},
          {"kept_tokens", r.kept_tokens},
          {"ttft_s", r.ttft_s},
          {"ttft_speedup", r.ttft_speedup},
          {"overhead_s", r.overhead_s},
          {"kv_cache_bytes", static_cast<std::uint64_t>(r.kv_cache_bytes)},
          {"fits", r.fits}};
}

/// `chosen`: whether the first row is the answer; otherwise there is no answer.
void write_csv(const std::string& path, ordered_json rows, bool chosen) {
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i]["chosen"] = chosen && i == 0;
  write_rows_csv(path,
                 columns_of({"chosen", "keep", "kept_tokens", "ttft_s", "ttft_speedup",
                             "overhead_s", "kv_cache_bytes", "fits"}),
                 rows);
}

std::string rates_text(const ordered_json& rows) {
  return table_text(
      {{"keep", "keep", in("{:.3g}")},
       {"tokens", "kept_tokens"},
       {"TTFT", "ttft_s", in_seconds},
       {"overhead", "overhead_s", in_seconds},
       {"speed-up", "ttft_speedup", in("{:.2f}x")},
       {"KV cache", "kv_cache_bytes", in_bytes},
       {"memory", "fits", [](const ordered_json& fits) { return fits ? "fits" : "too large"; }}},
      rows);
}

void run(const KeepRateOptions& o, const Globals& globals) {
  if (o.target_speedup.has_value() == o.keep.has_value()) {
    throw Error(o.keep
                    ? "choose keep-rate: got both --target-speedup and --keep, expected one of them"
                    : "choose keep-rate: expected --target-speedup X or --keep F");
  }
  o.output.check();
  search::KeepRateRequest request;
  request.configuration = parse_configuration(o.request, globals.catalog());
  request.method = method_of(o);
  request.point = {.batch = parse_token_count(o.request.batch, "--batch"),
                   .prompt_len = parse_token_count(o.prompt_len, "--prompt-len")};
  const std::optional<KeepRate> answer =
      o.keep ? search::keep_rate(request, *o.keep)
             : search::largest_keep_rate(request, *o.target_speedup);
  std::vector<KeepRate> rates;
  for (const double keep : usual_rates) {
    if (!answer || answer->keep != keep) rates.push_back(search::keep_rate(request, keep));
  }
  if (answer) rates.insert(rates.begin(), *answer);

  const std::string reason =
      answer
          ? ""
          : fmt::format(
                "no keep rate reaches a speed-up of {}: at keep 0.1, the overhead before the base "
                "model's prefill takes {} of the TTFT of {}",
                *o.target_speedup, format_quantity(rates[0].overhead_s, Dimension::Seconds),
                format_quantity(rates[0].ttft_s, Dimension::Seconds));
  const ordered_json rows = rows_of(rates, rate_json);
  if (!o.output.csv.empty()) write_csv(o.output.csv, rows, answer.has_value());
  if (o.output.csv_is_stdout()) {
    if (!reason.empty()) globals.say(reason);
    return;
  }
  if (!o.output.json) {
    print_text(rates_text(rows) + (reason.empty() ? "" : reason + "\n"));
    return;
  }
  ordered_json j{
      {"model", request.configuration.architecture.name},
      {"speculator", o.speculator.empty() ? request.configuration.architecture.name : o.speculator},
      {"hardware", request.configuration.hardware.name},
      {"batch", request.point.batch},
      {"prompt_len", request.point.prompt_len}};
  if (o.target_speedup) j["target_speedup"] = *o.target_speedup;
  j["choice"] = answer ? rate_json(*answer) : ordered_json(nullptr);
  if (!answer) j["reason"] = reason;
  j["rows"] = rows;
  print_json(j);
}

}  // namespace

void add_choose_keep_rate(Command choose, const Globals& globals) {
  Command c = choose.add_subcommand(
      "keep-rate",
      "Find the keep rate of Speculative Prefill for a speed-up, or the speed-up of a keep "
      "rate.\n\nExamples:\n"
      "  kvcast choose keep-rate --model llama-3.1-405b --speculator llama-3.1-8b --hardware "
      "h200 --dtype fp8 --prompt-len 32k --target-speedup 4\n"
      "  kvcast choose keep-rate --model llama-3.1-70b --speculator llama-3.1-8b --hardware "
      "h200 --prompt-len 8k --keep 0.3");
  const auto o = std::make_shared<KeepRateOptions>();
  o->request.add_choice_flags_to(c);
  c.add("--speculator MODEL", o->speculator,
        "the model that selects the tokens; default: MODEL itself");
  c.add("--prompt-len", o->prompt_len);
  c.add("--lookahead N", o->lookahead, "number of look-ahead tokens, see specprefill");
  c.add("--chunk TOKENS", o->chunk, "tokens per chunk; a chunk is kept or dropped as a whole");
  c.add("--pool TOKENS", o->pool, "window for averaging importance, an odd number");
  c.add("--reuse none|kept", o->reuse,
        "kept: take the kept tokens' KV cache from the speculator's prefill (only if MODEL is its "
        "own speculator)");
  c.add("--target-speedup X", o->target_speedup, "TTFT speed-up over plain");
  c.add("--keep F", o->keep, "share of the prompt to keep");
  o->output.add_to(c, "write the rows and which one is chosen, as CSV; - is stdout");
  c.callback([o, &globals] {
    o->request.use_this_machine(globals);
    run(*o, globals);
  });
}

}  // namespace kvcast::cli
