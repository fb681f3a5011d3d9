#include <algorithm>
#include <fstream>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/validate/measured_ranks.h"
#include "cli/validate/validate_parts.h"
#include "measure/measure_matrix.h"
#include "measure/training_matrix.h"
#include "measure/validation_store.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/execute/cache_rows.h"
#include "model/execute/machine_probe.h"
#include "model/io/files/atomic_file.h"
#include "reports/plot/validation_plots.h"
#include "reports/sweep/sweep_spec.h"

namespace kvcast::cli {
namespace {

using measure::MeasureAxes;

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
  if (!o.arithmetic.empty()) {
    for (const std::string& word : reports::parse_words(o.arithmetic, "--arithmetic")) {
      axes.arithmetic.push_back(execute::parse_arithmetic(word, "--arithmetic"));
    }
  }
  if (!o.cache_dtype.empty()) {
    for (const std::string& word : reports::parse_words(o.cache_dtype, "--cache-dtype")) {
      axes.caches.push_back(execute::parse_cache_dtype(word, "--cache-dtype"));
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
        "--measure: needs --hardware HW.json of this machine, written by kvcast calibrate, and "
        "--csv FILE for the rows");
  }
  if (o.csv == "-") throw Error("--csv", "-", "a file, which an interrupted run goes on with");
  for (const auto& [value, flag] :
       {std::pair{&o.rows, "--rows"}, std::pair{&o.fit, "--fit"},
        std::pair{&o.fit_rows, "--fit-rows"}, std::pair{&o.output, "--output"},
        std::pair{&o.dtype, "--dtype"}, std::pair{&o.engine, "--engine"},
        std::pair{&o.traces, "--traces"}}) {
    if (value->empty()) continue;
    throw Error(std::string(flag) +
                ": not with --measure; expected --measurements of the CSV that it writes");
  }
}

measure::TrainingAxes parse_training_axes(const ValidateOptions& o) {
  measure::TrainingAxes axes;
  axes.quick = o.quick;
  if (!o.model.empty()) axes.models = reports::parse_words(o.model, "--model");
  if (!o.method.empty()) axes.methods = reports::parse_method_words(o.method, "--method");
  if (o.batch) axes.batch = reports::parse_numbers(*o.batch, "--batch");
  if (!o.seq_len.empty()) axes.seq_len = reports::parse_numbers(o.seq_len, "--seq-len");
  if (!o.recompute.empty()) {
    for (const std::string& word : reports::parse_words(o.recompute, "--recompute")) {
      axes.recompute.push_back(parse_recompute(word));
    }
  }
  return axes;
}

/// Flags of the other matrix.
void check_matrix_flags(const ValidateOptions& o) {
  const auto refuse = [&o](const char* flag, bool given, const char* expected) {
    const char* const without = o.train ? "not with --train" : "not without --train";
    if (given) throw Error(fmt::format("{}: {}; expected {}", flag, without, expected));
  };
  if (o.train) {
    for (const auto& [flag, given] : {std::pair{"--prompt-len", o.prompt_len.has_value()},
                                      {"--output-len", o.output_len.has_value()},
                                      {"--attention", !o.attention.empty()},
                                      {"--arithmetic", !o.arithmetic.empty()},
                                      {"--cache-dtype", !o.cache_dtype.empty()},
                                      {"--rank-hardware", !o.rank_hardware.empty()}}) {
      refuse(flag, given, "--batch, --seq-len and --recompute");
    }
  } else {
    for (const auto& [flag, given] :
         {std::pair{"--seq-len", !o.seq_len.empty()}, {"--recompute", !o.recompute.empty()}}) {
      refuse(flag, given, "--train");
    }
  }
}

/// Forecasts hold for the number of threads of the calibration.
void warn_of_threads(int threads, const std::string& hardware, const Globals& globals) {
  const auto calibrated = calibrated_with(globals.catalog(), hardware).threads;
  if (!calibrated || *calibrated == static_cast<std::uint64_t>(threads)) return;
  globals.warn(fmt::format("{}: calibrated with {} threads; the runs have {}", hardware,
                           *calibrated, threads));
}

/// The file of a hardware file's error bounds; none for a device of the catalog.
std::filesystem::path store_beside(const std::string& hardware, const Catalog& catalog) {
  const std::vector<std::string> names = catalog.names("hardware");
  const bool in_catalog = std::find(names.begin(), names.end(), hardware) != names.end();
  return in_catalog ? std::filesystem::path() : measure::validation_beside(hardware);
}

/// What a file of error bounds had before this run.
struct StoredBefore {
  std::vector<nlohmann::ordered_json> kept;  ///< rows of the other matrix on the same device
  std::string lost;                          ///< ", replacing 268 rows of all.csv", or nothing
};
StoredBefore stored_before(const std::filesystem::path& file, const std::string& source, bool train,
                           const measure::Validation& v) {
  StoredBefore before;
  std::ifstream in(file);
  const auto old = nlohmann::ordered_json::parse(in, nullptr, false);
  if (!old.is_object() || !old.contains("rows") || !old["rows"].is_array()) return before;
  nlohmann::ordered_json devices;
  for (const auto& [name, hardware] : v.devices) devices[name] = measure::fingerprint(hardware);
  const bool same_device = old.contains("devices") && old["devices"] == devices;
  std::size_t lost = 0;
  for (const auto& row : old["rows"]) {
    if (same_device && row.is_object() && row.contains("training") != train) {
      before.kept.push_back(row);
    } else {
      ++lost;
    }
  }
  const auto from = old.find("measurements");
  const bool is_named = from != old.end() && from->is_string();
  if (lost == 0 || (is_named && from->get<std::string>() == source)) return before;
  before.lost = fmt::format(", replacing {} rows of {}", lost,
                            is_named ? from->get<std::string>() : "another run");
  return before;
}

/// Writes the rows of the device, or all rows when none is named. Without rows: no file.
void write_store(const std::filesystem::path& file, measure::Validation v,
                 const std::string& device, const ValidateOptions& o, const Globals& globals) {
  if (!device.empty()) {
    std::erase_if(v.cases, [&](const auto& c) { return c.row.hardware != device; });
    std::erase_if(v.devices, [&](const auto& d) { return d.first != device; });
  }
  if (file.empty() || v.cases.empty()) return;
  const std::string source = std::filesystem::path(o.csv).filename().string();
  const StoredBefore before = stored_before(file, source, o.train, v);
  write_file(file, measure::validation_document(v, source, before.kept));
  globals.say(file.string() + ": for the error bounds of estimate and sweep" + before.lost);
}

}  // namespace

void validate_measure(const ValidateOptions& o, const Globals& globals) {
  check_flags(o);
  check_matrix_flags(o);
  const Catalog catalog = globals.catalog();
  measure::MeasureOptions options;
  options.csv = o.csv;
  options.hardware = roofline::load_hardware(catalog, o.hardware);
  options.restart = o.restart;
  MeasureAxes axes = parse_axes(o);
  const measure::TrainingAxes training_axes = parse_training_axes(o);
  std::optional<RankHardware> rank_hardware;
  if (!o.rank_hardware.empty()) {
    rank_hardware = read_rank_hardware(catalog, o.rank_hardware);
    axes.ranks = rank_hardware->ranks;
    options.rank_hardware = rank_hardware->hardware;
    options.run_ranks = rank_runner(*rank_hardware, options, globals);
  }
  std::vector<std::string> unsettled;
  if (o.force) options.on_unsettled = [&](const std::string& row) { unsettled.push_back(row); };
  if (o.rounds > 0) options.rounds = o.rounds;
  const bool one_store = !o.store.empty();
  std::filesystem::path store = o.store;
  if (!one_store) store = store_beside(o.hardware, catalog);
  std::filesystem::path rank_store;
  if (!one_store && rank_hardware) rank_store = store_beside(o.rank_hardware, catalog);
  for (const std::filesystem::path& file : {store, rank_store}) {
    if (!file.empty()) check_writable(file);
  }
  const measure::DeviceChoice devices{"", o.hardware, o.rank_hardware};
  measure::validate({}, catalog, devices);  // refuses two devices of one name
  std::function<measure::MeasuredRows()> measure_all;
  if (o.train) {
    measure_all = [&, steps = measure::training_matrix(training_axes, catalog)] {
      return measure::measure_training(steps, catalog, options);
    };
  } else {
    const auto points = measure::measure_matrix(axes, catalog);
    check_rank_points(points, rank_hardware ? &*rank_hardware : nullptr);
    measure_all = [&, points] { return measure::measure(points, catalog, options); };
  }
  options.threads = execute::use_threads(o.threads);
  warn_of_threads(options.threads, o.hardware, globals);
  const measure::MeasuredRows result = run_measured_rows(globals, options, measure_all);
  for (const std::string& row : unsettled) globals.warn(row);

  const auto measurements = measure::read_measurements(o.csv);
  const measure::Validation v = measure::validate(measurements, catalog, devices);
  write_validation_files(v, "", o.plot);
  write_store(store, v, one_store ? "" : options.hardware.name, o, globals);
  if (rank_hardware) write_store(rank_store, v, rank_hardware->hardware.name, o, globals);
  measure::ErrorSummary memory;
  if (o.train) memory = measure::summarize(measure::peak_memory_errors(o.csv));
  if (o.json) {
    nlohmann::ordered_json j{
        {"csv", o.csv}, {"store", store.string()}, {"rows_resumed", result.rows_resumed}};
    if (!rank_store.empty()) j["rank_store"] = rank_store.string();
    if (o.train)
      j["peak_memory"] = {{"rows", memory.rows}, {"mape", memory.mape}, {"worst", memory.worst}};
    j.update(validation_json(v));
    print_json(j);
    return;
  }
  print_text(validation_text(v));
  if (memory.rows > 0) {
    print_text(fmt::format("\npeak memory of {} rows: {:.1f} % off, at worst {:.1f} %\n",
                           memory.rows, 100 * memory.mape, 100 * memory.worst));
  }
}

}  // namespace kvcast::cli
