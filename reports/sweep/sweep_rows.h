/// Rows of a sweep: configurations evaluated at many sizes, written as CSV or into columns.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/sweep/sweep_columns.h"
#include "reports/sweep/sweep_grid.h"
#include "search/placed_estimator.h"

namespace kvcast::reports {

/// What a row says about a point. All result cells are empty where `error` is not; the parts of
/// TTFT are where it has one alone, the base's prefill, and each that the row's methods lack; what
/// is of one of several devices, where there is one.
inline constexpr std::string_view sweep_result_columns =
    "ttft_s,tpot_s,prefill_flops,prefill_bytes,decode_flops_per_token,decode_bytes_per_token,"
    "kv_cache_bytes,weight_bytes,peak_memory_bytes,fits,bound,ttft_bound,tpot_bound,"
    "ttft_error_bound,tpot_error_bound,ttft_speedup,tpot_speedup,kv_cache_ratio,"
    "ttft_speculator_s,ttft_look_ahead_s,ttft_score_s,ttft_probe_s,ttft_auxiliary_s,"
    "ttft_predictor_s,ttft_base_s,devices,weight_bytes_per_device,kv_cache_bytes_per_device,"
    "communication_s,tpot_communication_s,error";

/// The first line of every sweep's CSV, with its line end.
std::string sweep_header();

/// Buffers for one thread, kept between calls.
struct RowScratch {
  std::vector<roofline::DesignPoint> points;
  std::vector<roofline::Estimate> estimates;
};

/// One configuration of the grid. It is recorded when its first row is wanted; several threads may
/// append rows at once, each with its own scratch.
class ConfigurationRows {
 public:
  ConfigurationRows(const SweepGrid& grid, std::uint64_t index) : grid_(grid), index_(index) {}

  std::uint64_t index() const { return index_; }
  /// Whether any size can be; once one was asked for.
  bool is_possible() const { return estimator_.has_value(); }
  /// Appends the rows of sizes `first` to `last` (excluded). Returns how many of them are errors.
  std::uint64_t append(std::uint64_t first, std::uint64_t last, RowScratch& scratch,
                       std::string& text);
  /// The same rows into columns that are long enough, from `row` on.
  std::uint64_t fill(std::uint64_t first, std::uint64_t last, RowScratch& scratch,
                     SweepColumns& columns, std::size_t row);
  /// Estimates at sizes `first` to `last`, into scratch, without text. Throws Error when
  /// impossible.
  void evaluate(std::uint64_t first, std::uint64_t last, RowScratch& scratch);
  /// The reason that the row of this size has in place of results, if it has one.
  std::optional<std::string> problem(std::uint64_t size);

 private:
  void record();
  /// Hands each row to `rows`, as an estimate or as a reason. Returns how many have a reason.
  template <typename Rows>
  std::uint64_t visit(std::uint64_t first, std::uint64_t last, RowScratch& scratch, Rows& rows);
  /// Hands the results of a row to `cells` in the order of sweep_result_columns, but the error.
  template <typename Cells>
  static void write_results(const roofline::DesignPoint& p, const roofline::Estimate& e,
                            Cells& cells);
  void append_row(const roofline::DesignPoint& p, const roofline::Estimate& e,
                  std::string& text) const;
  void append_inputs(const roofline::DesignPoint& p, std::string& text) const;
  void append_error(const roofline::DesignPoint& p, std::string_view reason,
                    std::string& text) const;

  class TextCells;
  class ColumnCells;

  const SweepGrid& grid_;
  std::uint64_t index_;
  std::once_flag recorded_;
  std::optional<search::PlacedEstimator> estimator_;
  std::string impossible_;  ///< why there is no estimator
  std::uint64_t own_prompt_len_ = 1024;
  std::string cells_;  ///< the configuration's part of each row
  /// ",0.1" by regime, or "," where there is none: likewise.
  std::array<std::string, measure::all_regimes.size()> error_bounds_;
};

}  // namespace kvcast::reports
