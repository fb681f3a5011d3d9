#include "reports/plot/quality_plots.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace kvcast::reports {
namespace {

using measure::QualityRow;

using Value = double (*)(const QualityRow&);

/// What a method costs.
struct Cost {
  Axis axis;
  double QualityRow::*of;
  double unit = 1;  ///< of the axis
};
const Cost ttft{{"TTFT, measured (s)", "ttft_s"}, &QualityRow::ttft_s};
const Cost tpot{{"TPOT, measured (s)", "tpot_s"}, &QualityRow::tpot_s};
const Cost memory{{"weights and cache (MB)", "memory_mb"}, &QualityRow::memory_bytes, 1e6};

/// Marks of each family over a cost, and the methods on the front joined by a line.
Plot plot_over(const Cost& cost, std::span<const QualityRow> rows, const std::string& task,
               std::string title, const Axis& y, Value value, bool with_front) {
  Plot plot;
  plot.title = std::move(title);
  plot.x = cost.axis;
  plot.x.from = 0;
  plot.y = y;
  Series front{"Pareto front", {}, Style::Dashed, 7};
  std::vector<Series> families;
  for (const QualityRow& r : rows) {
    if (r.task != task) continue;
    if (y.scale == Scale::Log10 && value(r) <= 0) continue;  // the base's distance from itself
    const Point point{r.*cost.of / cost.unit, value(r), r.method};
    series_of(families, r.family, Style::Marks).points.push_back(point);
    if (measure::is_on_front(r, rows, cost.of)) front.points.push_back(point);
  }
  sort_by_x(front);
  if (with_front) plot.series.push_back(std::move(front));
  for (Series& s : families) plot.series.push_back(std::move(s));
  return plot;
}

Plot plot_over_keep(std::span<const QualityRow> rows) {
  Plot plot;
  plot.title = "KL divergence over the share kept";
  plot.x = {"keep rate (kvp: share of layers)", "keep"};
  plot.y = {"KL(base || method) per token (nats)", "kl_nats", Scale::Log10};
  for (const QualityRow& r : rows) {
    if (r.task != "text" || std::isnan(r.keep)) continue;
    series_of(plot.series, r.family, Style::Line)
        .points.push_back({r.keep, r.kl_nats.mean, r.method});
  }
  for (Series& s : plot.series) sort_by_x(s);
  return plot;
}

constexpr const char* agreement_suffix = "-agreement";
constexpr const char* needle_suffix = "-needle";
constexpr const char* tpot_suffix = "-tpot";
constexpr const char* memory_suffix = "-memory";
constexpr const char* keep_suffix = "-keep";

}  // namespace

std::vector<std::filesystem::path> quality_pictures(const std::filesystem::path& picture) {
  return {picture,
          picture_beside(picture, agreement_suffix),
          picture_beside(picture, needle_suffix),
          picture_beside(picture, keep_suffix),
          picture_beside(picture, tpot_suffix),
          picture_beside(picture, memory_suffix)};
}

std::vector<QualityPlot> quality_plots(std::span<const QualityRow> rows,
                                       const std::filesystem::path& picture) {
  const auto has = [&](std::string_view task) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const QualityRow& r) { return r.task == task; });
  };
  const Value kl = [](const QualityRow& r) { return r.kl_nats.mean; };
  const Value agreement = [](const QualityRow& r) { return r.agreement.mean; };
  const Value answered = [](const QualityRow& r) { return r.answered.mean; };
  const bool text = has("text");
  std::vector<QualityPlot> plots;
  if (text) {
    const auto distance_over = [&](const Cost& cost) {
      return plot_over(cost, rows, "text", "Texts: distance from the base model",
                       {"KL(base || method) per token (nats)", "kl_nats", Scale::Log10}, kl, true);
    };
    plots.push_back({picture, distance_over(ttft)});
    plots.push_back({picture_beside(picture, agreement_suffix),
                     plot_over(ttft, rows, "text", "Texts: same next token as the base model",
                               {"share of positions", "agreement"}, agreement, false)});
    const bool costed = std::none_of(rows.begin(), rows.end(), [](const QualityRow& r) {
      return std::isnan(r.tpot_s) || std::isnan(r.memory_bytes);
    });
    if (costed) {
      plots.push_back({picture_beside(picture, tpot_suffix), distance_over(tpot)});
      plots.push_back({picture_beside(picture, memory_suffix), distance_over(memory)});
    }
  }
  if (has("needle")) {
    plots.push_back({text ? picture_beside(picture, needle_suffix) : picture,
                     plot_over(ttft, rows, "needle", "Needles found in the haystack",
                               {"share answered", "answered"}, answered, true)});
  }
  const bool rates = std::any_of(rows.begin(), rows.end(), [](const QualityRow& r) {
    return r.task == "text" && !std::isnan(r.keep);
  });
  if (rates) plots.push_back({picture_beside(picture, keep_suffix), plot_over_keep(rows)});
  return plots;
}

}  // namespace kvcast::reports
