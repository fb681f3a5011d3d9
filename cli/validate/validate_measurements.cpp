#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "cli/validate/validate_parts.h"
#include "measure/row_filter.h"
#include "measure/serving_rows.h"
#include "measure/validation_store.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/io/files/atomic_file.h"
#include "reports/plot/validation_plots.h"
#include "reports/sweep/sweep_spec.h"

namespace kvcast::cli {
namespace {

using measure::Validation;

std::optional<std::uint64_t> parse_optional(const std::optional<std::string>& text,
                                            const char* flag) {
  if (!text) return {};
  return parse_token_count(*text, flag);
}

measure::MeasurementDefaults parse_defaults(const ValidateOptions& o) {
  measure::MeasurementDefaults d;
  d.model = o.model;
  if (!o.method.empty()) d.method = o.method;
  d.attention = o.attention;
  d.dtype = o.dtype;
  d.batch = parse_optional(o.batch, "--batch");
  d.prompt_len = parse_optional(o.prompt_len, "--prompt-len");
  d.output_len = parse_optional(o.output_len, "--output-len");
  parse_flag("--method", d.method, parse_methods);
  if (!o.attention.empty()) parse_flag("--attention", o.attention, parse_kernels);
  if (!o.dtype.empty()) parse_flag("--dtype", o.dtype, parse_dtype);
  return d;
}

/// The files of --measurements, without their folders.
std::string file_names(const ValidateOptions& o) {
  std::vector<std::string> names;
  for (const std::string& file : o.measurements) {
    names.push_back(std::filesystem::path(file).filename().string());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Keeps the rows that the filter takes. Throws Error when it takes none of them.
void keep(Validation& v, const measure::RowFilter& takes) {
  std::vector<measure::ValidationCase> kept;
  for (std::size_t i = 0; i < v.cases.size(); ++i) {
    if (takes(v.cases[i], i)) kept.push_back(v.cases[i]);
  }
  if (kept.empty() && !v.cases.empty()) {
    throw Error("--rows: no row matches this filter");
  }
  v.cases = std::move(kept);
}

/// The errors on the fitted device's rows that were not fitted to.
measure::ErrorSummary errors_of_others(const Validation& v, const CheckedFit& f) {
  std::vector<measure::ValidationCase> others;
  for (std::size_t i = 0; i < v.cases.size(); ++i) {
    const bool other = !f.chosen[i] && v.cases[i].row.hardware == f.fit.hardware.name;
    if (other) others.push_back(v.cases[i]);
  }
  return measure::summarize(others);
}

/// Fits to the chosen rows, then forecasts all rows with the fitted factors.
CheckedFit fit(Validation& v, const ValidateOptions& o, const measure::RowFilter& takes) {
  CheckedFit f;
  std::vector<measure::ValidationCase> to_fit;
  for (std::size_t i = 0; i < v.cases.size(); ++i) {
    f.chosen.push_back(takes(v.cases[i], i));
    if (f.chosen[i]) to_fit.push_back(v.cases[i]);
  }
  if (to_fit.empty()) {
    throw Error(o.fit_rows.empty() ? "--fit: there is no row to fit to"
                                   : "--fit-rows: no row matches this filter");
  }
  f.rows = fmt::format("{} of {} rows of {}", to_fit.size(), v.cases.size(), file_names(o));
  if (!o.fit_rows.empty()) f.rows += " (" + o.fit_rows + ")";
  f.fit = measure::fit_factors(std::move(to_fit), v.devices, reports::parse_words(o.fit, "--fit"));
  f.others_before = errors_of_others(v, f);
  v.devices.at(f.fit.hardware.name) = f.fit.hardware;
  measure::predict(v.cases, v.devices);
  f.others_after = errors_of_others(v, f);
  return f;
}

void write_hardware(const CheckedFit& f, const ValidateOptions& o, const Catalog& catalog) {
  const std::string device = measure::parse_device_choice(o.hardware).hardware;
  const auto file =
      catalog.find("hardware", "hardware", device.empty() ? f.fit.hardware.name : device);
  const std::string name = std::filesystem::path(o.output).stem().string();
  write_file(o.output, measure::fitted_hardware_json(file, f.fit, name, f.rows));
}

/// The devices of --hardware and --rank-hardware.
measure::DeviceChoice device_choice(const ValidateOptions& o) {
  measure::DeviceChoice choice = measure::parse_device_choice(o.hardware);
  choice.engine = o.engine;
  choice.placed_hardware = o.rank_hardware;
  return choice;
}

}  // namespace

void ValidateOptions::add_to(Command c) {
  c.add("--measurements FILE ...", measurements,
        "measurements: kvcast CSV, llama-bench CSV/JSON/JSONL, batched-bench JSONL or vLLM JSON; "
        "several files are repeated runs, combined by medians");
  c.add("--measure", measure,
        "measure on this machine: a matrix of models (random weights), methods, kernels and "
        "sizes");
  c.add("--train", train, "--measure: steps of training, in fp32, in the place of requests");
  c.add("--seq-len LIST", seq_len, "--train: tokens of a sequence");
  c.add("--recompute LIST", recompute, "--train: none, selective, full");
  c.add("--quick", quick, "--measure: a small matrix");
  c.add("--restart", restart,
        "--measure: discard FILE.partial of an interrupted run and start again");
  c.add("--force", force, "--measure: keep rows whose rounds spread over 20 %");
  c.add("--rounds N", rounds,
        "--measure: timed runs of each row after one warm-up run; reports medians; default: 5")
      .range(1, 1000);
  c.add("--threads", threads, "--measure: 0: all cores").range(0, 1024);
  c.add("--hardware [NAME=]HW", hardware,
        "device to forecast for, for rows that name no device, this one or NAME");
  c.add("--rank-hardware HW", rank_hardware,
        "device for kvr and tsp, written by mpirun -n 2 kvcast calibrate; with --measure, also "
        "runs them");
  c.add("--engine ENGINE[:VERSION]", engine,
        "engine of all rows (kvcast engine list); default: each row's own if it is there, else "
        "ideal");
  c.add("--model", model, "model for rows without one; --measure: a list");
  c.add("--method", method, "method for rows without one [plain]; --measure: a list");
  c.add(
      "--attention", attention,
      "attention for rows without one: eager or tiled; default: the engine's, or tiled; --measure: "
      "a list");
  c.add("--dtype", dtype, "dtype for rows without one (overrides llama-bench's)");
  c.add("--arithmetic LIST", arithmetic, "--measure: fp32, bf16, int8");
  c.add("--cache-dtype LIST", cache_dtype, "--measure: fp32, fp16, bf16, fp8, int8");
  c.add("--batch", batch, "batch for rows without one (overrides vLLM's); --measure: a list");
  c.add("--prompt-len", prompt_len,
        "prompt length for rows without one (overrides vLLM's); --measure: a list");
  c.add("--output-len", output_len,
        "output length for rows without one (overrides vLLM's); --measure: of all rows");
  c.add("--traces DIR", traces,
        "requests that rows of servers name; default: ../traces beside the measurements");
  c.add("--rows FILTER", rows,
        "use only matching rows, e.g. prompt_len<=1024,metric=ttft_s or every=2")
      .has_keys();
  c.add("--fit FACTOR,...", fit,
        "fit these factors of the device by least squares: matrix_rate, memory_bandwidth, "
        "tiled_attention_rate, operator_latency, ...")
      .has_keys();
  c.add("--fit-rows FILTER", fit_rows, "fit to these rows and report the error of the others")
      .has_keys();
  c.add("--output,-o HW.json", output, "write the device with the fitted factors").writes();
  c.add("--store FILE.json", store,
        "store the errors; estimate and sweep make error bounds of them, read from "
        "DATA/validation/*.json, or from HW.validation.json next to HW.json")
      .writes();
  c.add("--csv", csv, "write the rows as CSV; - is stdout; with --measure, row by row");
  c.add("--plot", plot, "draw predicted over measured times; errors go to FILE-errors")
      .draws(reports::with_error_plot);
  c.add("--json", json);
}

void validate_measurements(const ValidateOptions& o, const Globals& globals) {
  check_rows_alone(o.csv, {{"--json", o.json}});
  for (const auto& [value, flag] :
       {std::pair{&o.arithmetic, "--arithmetic"}, std::pair{&o.cache_dtype, "--cache-dtype"}}) {
    if (!value->empty()) throw Error(flag, "--measurements", "--measure, which runs with it");
  }
  if (measure::is_serving_table(o.measurements.front())) return validate_servers(o, globals);
  if (!o.traces.empty()) {
    throw Error(
        "--traces: only rows of servers under load name traces; see "
        "data/measurements/README.md");
  }
  const measure::MeasurementDefaults defaults = parse_defaults(o);
  const auto filter = measure::parse_row_filter(o.rows, "--rows");
  const auto fit_filter = measure::parse_row_filter(o.fit_rows, "--fit-rows");
  if (o.fit.empty() && !(o.fit_rows.empty() && o.output.empty())) {
    throw Error("--fit-rows and --output need --fit FACTOR,...");
  }
  if (!o.fit.empty() && !o.store.empty()) {
    throw Error(
        "--store: cannot be combined with --fit, because errors of fitted rows are too small; "
        "expected --output HW.json and a validation of that device on other rows");
  }
  const measure::Measurements measurements =
      measure::read_runs({o.measurements.begin(), o.measurements.end()}, defaults);
  Validation v = measure::validate(measurements, globals.catalog(), device_choice(o));
  keep(v, filter);
  std::optional<CheckedFit> fitted;
  if (!o.fit.empty()) fitted = fit(v, o, fit_filter);
  if (!o.output.empty()) write_hardware(*fitted, o, globals.catalog());
  // Without rows, an earlier store or picture is not replaced.
  const bool any = !v.cases.empty();
  if (!any && !(o.store.empty() && o.plot.empty())) {
    globals.warn("no row has a forecast: --store and --plot write nothing");
  }
  write_validation_files(v, o.csv, any ? o.plot : "");
  if (any && !o.store.empty()) {
    write_file(o.store, measure::validation_document(v, file_names(o)));
  }
  if (o.csv == "-") return;
  if (o.json) {
    nlohmann::ordered_json j;
    j["measurements"] = o.measurements.front();
    if (o.measurements.size() > 1) j["measurements"] = o.measurements;
    j["format"] = measurements.format;
    j.update(validation_json(v));
    if (fitted) {
      for (std::size_t i = 0; i < v.cases.size(); ++i) {
        j["rows"][i]["fitted_to"] = bool{fitted->chosen[i]};
      }
      j["fit"] = fit_json(*fitted);
    }
    print_json(j);
    return;
  }
  if (fitted) print_text(fit_text(*fitted));
  print_text(validation_text(v));
}

}  // namespace kvcast::cli
