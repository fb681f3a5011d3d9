/// What the rows of SpecPrefill's serving figure cannot say: all curves, those that were not
/// published too, where they end, and what unknown lengths change.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/io/weights/catalog.h"
#include "reports/plot/plot.h"
#include "reports/reproduce/specprefill_server.h"

namespace kvcast::reports {

/// The rates between which a server begins to fail; 0: none fails, or not even the first holds.
struct RateRange {
  double holds = 0;
  double fails = 0;
};

/// One curve of the figure.
struct ServingRow {
  std::string category;
  std::string base_model;
  bool prunes = false;
  double keep = 1;
  ServedCurve curve;
  std::optional<double> highest_qps = {};  ///< ServedCase::highest_qps
  double ttft_alone_s = 0;
  RateRange shortest_outputs;                      ///< with outputs of one token
  std::optional<RateRange> other_look_ahead = {};  ///< of SpecPrefill
  std::optional<RateRange> published = {};
  std::vector<ServedPoint> published_points = {};  ///< rate and mean latency alone

  RateRange range() const { return {curve.last_good_qps, curve.first_failed_qps}; }
  std::string method() const { return prunes ? "specprefill" : "plain"; }
};

/// SpecPrefill's highest rate over plain's, and what the rates of the grid leave possible.
struct ServingGain {
  double of_grid = 0;
  double least = 0;
  double most = 0;  ///< 0: the grid ends before the larger one fails
};

struct ServingGainRow {
  std::string category;
  std::string base_model;
  double keep = 1;
  ServingGain ours = {};
  std::optional<double> between_grid = {};  ///< of ours, from ServingRow::highest_qps
  ServingGain shortest_outputs = {};
  std::optional<ServingGain> published = {};
};

/// How the highest rate follows the time to the first token: one category, outputs of one token.
struct ServingKeepRow {
  std::string base_model;
  double keep = 1;  ///< 1: plain
  double highest_qps = 0;
  static constexpr std::size_t times = 16;
  double long_run_qps = 0;  ///< with the requests so many times over
  double ttft_alone_s = 0;
};

struct ServingStudy {
  std::vector<ServingRow> rows;
  std::vector<ServingGainRow> gains;
  std::vector<ServingKeepRow> keeps;
};

/// Throws Error as ServedCase does.
ServingStudy specprefill_serving(const Catalog& catalog);

/// The first rate at which the mean latency is above twice that at the lowest rate; none: nowhere.
std::optional<double> latency_doubles_at(const std::vector<ServedPoint>& points);
/// What is possible where one rate lies in each range.
ServingGain gain_of(const RateRange& prunes, const RateRange& plain);

/// Mean latency over the rate, a picture for each category: ours as lines, published marks.
std::vector<Plot> serving_plots(const ServingStudy& study);
/// Where they go: FILE, FILE-few-shot and FILE-summarisation.
std::vector<std::filesystem::path> serving_plot_files(const std::filesystem::path& file);

}  // namespace kvcast::reports
