#include "reports/prediction_errors.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "reports/csv_writer.h"

namespace kvcast::reports {
namespace {

using Errors = std::vector<PredictionError>;

Series series(std::string label, const Errors& errors, Style style) {
  Series s{std::move(label), {}, style};
  for (std::size_t i = 0; i < errors.size(); ++i) {
    s.points.push_back({static_cast<double>(i), errors[i].l1});
  }
  return s;
}

Plot error_plot(const KvpFitReport& report, std::string title, Axis x, const Errors& keys,
                const Errors& values, Style style) {
  Plot plot;
  plot.title = std::move(title);
  plot.x = std::move(x);
  plot.y = {"mean absolute error", "l1"};
  plot.series = {series("keys", keys, style), series("values", values, style)};
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

Plot prediction_layer_plot(const KvpFitReport& report) {
  return error_plot(report, "Error of predicted keys and values over layers",
                    {"layer of the base model", "layer"}, report.key_layers, report.value_layers,
                    Style::Bars);
}

Plot prediction_position_plot(const KvpFitReport& report) {
  return error_plot(report, "Error of predicted keys and values over positions",
                    {"position in the prompt (tokens)", "position"}, report.key_positions,
                    report.value_positions, Style::Line);
}

}  // namespace kvcast::reports
