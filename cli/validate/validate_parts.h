/// The parts of `kvcast validate`: its two forms, its subcommands, and what they share.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "cli/frame/command.h"
#include "measure/factor_fit.h"
#include "measure/measured_rows.h"
#include "measure/validation.h"

namespace kvcast::cli {

/// As the user typed them.
struct ValidateOptions {
  std::vector<std::string> measurements;
  std::string hardware;
  std::string rank_hardware;
  std::string engine;  ///< empty: each row's own
  std::string model;
  std::string method;     ///< empty: plain, or those of the matrix
  std::string attention;  ///< empty: tiled, or both
  std::string dtype;
  std::string arithmetic;   ///< --measure; empty: fp32
  std::string cache_dtype;  ///< --measure; empty: fp32
  std::optional<std::string> batch;
  std::optional<std::string> prompt_len;
  std::optional<std::string> output_len;
  std::string traces;  ///< empty: beside the measurements
  std::string rows;
  std::string fit;
  std::string fit_rows;
  std::string output;
  std::string store;
  std::string csv;
  std::string plot;
  int threads = 0;
  unsigned rounds = 0;    ///< 0: as many as MeasureOptions has
  std::string seq_len;    ///< --measure --train; empty: the matrix's
  std::string recompute;  ///< the same
  bool measure = false;
  bool train = false;
  bool quick = false;
  bool restart = false;
  bool force = false;
  bool json = false;

  void add_to(Command command);
};

/// `validate --measurements FILE` and `validate --measure`.
void validate_measurements(const ValidateOptions& o, const Globals& globals);
void validate_measure(const ValidateOptions& o, const Globals& globals);
/// `validate --measurements FILE` of rows of servers under load (measure/serving_rows.h).
void validate_servers(const ValidateOptions& o, const Globals& globals);

void add_validate_coverage(Command validate, const Globals& globals);
void add_validate_kvp(Command validate, const Globals& globals);
void add_validate_quality(Command validate, const Globals& globals);

/// Calls `measure` with a progress line and a stop on Ctrl-C set in `options`. When interrupted, it
/// says how to go on and ends the program.
measure::MeasuredRows run_measured_rows(const Globals& globals,
                                        measure::MeasuredRowsOptions& options,
                                        const std::function<measure::MeasuredRows()>& measure);

/// Rows, summary, and the summaries of methods and of groups.
nlohmann::ordered_json validation_json(const measure::Validation& v);
std::string validation_text(const measure::Validation& v);
/// A fit, and the errors on the rows that were not fitted to. `chosen`: by case.
struct CheckedFit {
  measure::FactorFit fit;
  std::vector<bool> chosen;
  std::string rows;  ///< "20 of 34 rows of FILE (every=2)"
  measure::ErrorSummary others_before;
  measure::ErrorSummary others_after;
};
nlohmann::ordered_json fit_json(const CheckedFit& fit);
std::string fit_text(const CheckedFit& fit);

/// Writes what `--csv` and `--plot` name.
void write_validation_files(const measure::Validation& v, const std::string& csv,
                            const std::string& plot);

}  // namespace kvcast::cli
