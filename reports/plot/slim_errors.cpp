#include "reports/plot/slim_errors.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/io/files/csv_writer.h"

namespace kvcast::reports {
namespace {

/// The type that the errors are shown for: fp64 weights are computed with in fp32.
DType storage_of(DType dtype) { return dtype == DType::FP64 ? DType::FP32 : dtype; }

}  // namespace

const char* site_name(SlimSite site) { return site == SlimSite::Self ? "self" : "cross"; }

void write_slim_csv(const SlimReport& report, DType dtype, double logit_error,
                    const std::filesystem::path& path) {
  CsvWriter csv(path, {"layer", "attention", "form", "storage", "condition", "relative_error",
                       "chosen", "reason", "dtype", "logit_error"});
  for (const SlimLayerReport& l : report.layers) {
    for (const auto& [kind, by_storage] : l.errors) {
      std::optional<double> condition;
      if (kind == CacheForm::Keys) condition = l.key_condition;
      if (kind == CacheForm::Values) condition = l.value_condition;
      for (const auto& [storage, error] : by_storage) {
        csv.cell(l.layer).cell(site_name(l.site)).cell(name(kind)).cell(name(storage));
        if (condition) {
          csv.cell(*condition);
        } else {
          csv.missing_cell();
        }
        csv.cell(error).cell(kind == l.chosen ? "true" : "false").cell(l.reason);
        csv.cell(name(dtype)).cell(logit_error);
        csv.end_row();
      }
    }
  }
  csv.commit();
}

Plot slim_error_plot(const SlimReport& report, DType dtype, double max_error) {
  Plot plot;
  plot.title = fmt::format("{}: error of computed keys and values, stored in {}",
                           report.before.name, name(storage_of(dtype)));
  plot.x = {.label = "Layer", .column = "attention"};
  plot.y = {.label = "Relative error", .column = "relative_error", .scale = Scale::Log10};
  for (const SlimLayerReport& l : report.layers) {
    plot.x.names.push_back(report.before.encoder_decoder
                               ? fmt::format("{} {}", l.layer, site_name(l.site))
                               : std::to_string(l.layer));
  }
  for (const CacheForm kind : {CacheForm::Keys, CacheForm::Values, CacheForm::Inputs}) {
    Series series{.label = std::string(name(kind)), .style = Style::Marks};
    for (std::size_t i = 0; i < report.layers.size(); ++i) {
      const auto found = report.layers[i].errors.find(kind);
      if (found == report.layers[i].errors.end()) continue;
      const double error = found->second.at(storage_of(dtype));
      series.points.push_back({.x = static_cast<double>(i),
                               .y = std::isfinite(error) ? error : no_value,
                               .name = report.layers[i].chosen == kind ? "chosen" : ""});
    }
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  plot.levels.push_back({"--max-error", max_error});
  return plot;
}

}  // namespace kvcast::reports
