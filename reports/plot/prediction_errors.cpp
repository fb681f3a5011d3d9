#include "reports/plot/prediction_errors.h"

#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/io/files/csv_writer.h"

namespace kvcast::reports {
namespace {

using Errors = std::vector<PredictionError>;

Series series(std::string label, const Errors& errors, ErrorMeasure measure, Style style) {
  Series s{std::move(label), {}, style};
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const double y = measure == ErrorMeasure::L1 ? errors[i].l1 : errors[i].r2;
    s.points.push_back({static_cast<double>(i), std::isfinite(y) ? y : no_value});
  }
  return s;
}

Plot error_plot(const KvpFitReport& report, ErrorMeasure measure, const std::string& over, Axis x,
                const Errors& keys, const Errors& values, Style style) {
  const bool l1 = measure == ErrorMeasure::L1;
  Plot plot;
  plot.title = (l1 ? "Error" : "R2") + std::string(" of predicted keys and values over ") + over;
  plot.x = std::move(x);
  plot.y = l1 ? Axis{"mean absolute error", "l1"} : Axis{"share of the variance, R2", "r2"};
  plot.series = {series("keys", keys, measure, style), series("values", values, measure, style)};
  plot.note =
      fmt::format("{} from {}: fitted on {} tokens, measured on {} others", report.config.base.name,
                  report.config.auxiliary.name, report.fitted_tokens, report.held_out_tokens);
  return plot;
}

}  // namespace

void write_prediction_csv(const KvpFitReport& report, const std::filesystem::path& path) {
  CsvWriter csv(path, {"axis", "index", "part", "l1", "r2"});
  const auto add = [&](const char* axis, const char* part, const Errors& errors) {
    for (std::size_t i = 0; i < errors.size(); ++i) {
      csv.cell(axis).cell(i).cell(part).cell(errors[i].l1).cell(errors[i].r2);
      csv.end_row();
    }
  };
  add("layer", "key", report.key_layers);
  add("layer", "value", report.value_layers);
  add("position", "key", report.key_positions);
  add("position", "value", report.value_positions);
  csv.commit();
}

Plot prediction_layer_plot(const KvpFitReport& report, ErrorMeasure measure) {
  return error_plot(report, measure, "layers", {"layer of the base model", "layer"},
                    report.key_layers, report.value_layers, Style::Bars);
}

Plot prediction_position_plot(const KvpFitReport& report, ErrorMeasure measure) {
  return error_plot(report, measure, "positions", {"position in the prompt (tokens)", "position"},
                    report.key_positions, report.value_positions, Style::Line);
}

}  // namespace kvcast::reports
