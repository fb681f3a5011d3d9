#include "cli/validate_measure.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/measured_rows_run.h"
#include "model/error.h"
#include "model/execute/machine_probe.h"
#include "model/quantity.h"
#include "reports/atomic_file.h"
#include "reports/measure_matrix.h"
#include "reports/output_check.h"
#include "reports/sweep_spec.h"
#include "reports/validation_store.h"

namespace kvcast::cli {
namespace {

using reports::MeasureAxes;

MeasureAxes parse_axes(const ValidateOptions& o) {
  MeasureAxes axes;
  axes.quick = o.quick;
  if (!o.model.empty()) axes.models = reports::parse_words(o.model, "--model");
  if (!o.method.empty()) axes.methods = reports::parse_method_words(o.method, "--method");
  if (!o.attention.empty()) {
    for (const std::string& word : reports::parse_words(o.attention, "--attention")) {
      axes.attention.push_back(parse_kernels(word));
    }
  }
  if (o.batch) axes.batch = reports::parse_numbers(*o.batch, "--batch");
  if (o.prompt_len) axes.prompt_len = reports::parse_numbers(*o.prompt_len, "--prompt-len");
  if (o.output_len) axes.output_len = parse_token_count(*o.output_len, "--output-len");
  return axes;
}

void check_flags(const ValidateOptions& o) {
  if (o.hardware.empty() || o.csv.empty()) {
    throw Error(
        "--measure: needs --hardware HW.json, this machine as kvcast calibrate writes it, and "
        "--csv FILE, where its rows are kept");
  }
  for (const auto& [value, flag] :
       {std::pair{&o.rows, "--rows"}, std::pair{&o.fit, "--fit"},
        std::pair{&o.fit_rows, "--fit-rows"}, std::pair{&o.output, "--output"},
        std::pair{&o.dtype, "--dtype"}}) {
    if (value->empty()) continue;
    throw Error(std::string(flag) +
                ": not with --measure; expected --measurements of the CSV that it writes");
  }
}

/// Where error bounds are looked for, if the device is a file; else where the user says.
std::filesystem::path store_file(const ValidateOptions& o, const Catalog& catalog) {
  if (!o.store.empty()) return o.store;
  const std::vector<std::string> names = catalog.names("hardware");
  const bool in_catalog = std::find(names.begin(), names.end(), o.hardware) != names.end();
  return in_catalog ? std::filesystem::path() : reports::validation_beside(o.hardware);
}

}  // namespace

void validate_measure(const ValidateOptions& o, const Globals& globals) {
  check_flags(o);
  const Catalog catalog = globals.catalog();
  reports::MeasureOptions options;
  options.csv = o.csv;
  options.hardware = roofline::load_hardware(catalog, o.hardware);
  options.rounds = o.quick ? 1 : 3;
  options.restart = o.restart;
  check_plot(o);
  // Said before minutes of measuring, not behind them.
  if (!o.plot.empty()) {
    reports::check_plot_writable(o.plot);
    reports::check_plot_writable(reports::error_plot_file(o.plot));
  }
  const std::filesystem::path store = store_file(o, catalog);
  if (!store.empty()) reports::check_writable(store);
  const auto points = reports::measure_matrix(parse_axes(o), catalog);
  execute::use_threads(o.threads);
  const reports::MeasuredRows result = run_measured_rows(
      globals, options, [&] { return reports::measure(points, catalog, options); });

  const auto measurements = reports::read_measurements(o.csv);
  const reports::Validation v = reports::validate(measurements, catalog, {"", o.hardware});
  write_validation_files(v, "", o.plot);
  if (!store.empty() && !v.cases.empty()) {
    reports::write_file(
        store, reports::validation_document(v, std::filesystem::path(o.csv).filename().string()));
    globals.say(store.string() + ": for the error bounds of estimate and sweep");
  }
  if (o.json) {
    nlohmann::ordered_json j{
        {"csv", o.csv}, {"store", store.string()}, {"rows_resumed", result.rows_resumed}};
    j.update(validation_json(v));
    print_json(j);
    return;
  }
  print_text(validation_text(v));
}

}  // namespace kvcast::cli
