#include "reports/reproduce/serving_study.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "model/base/error.h"
#include "model/io/files/csv_table.h"
#include "reports/reproduce/reproduce.h"
#include "simulate/parallel_for.h"

namespace kvcast::reports {
namespace {

/// Of the figure, as the catalog spells them.
const std::array<std::string, 2> base_models = {"llama-3.1-70b", "llama-3.1-405b"};
/// The shares that the paper keeps, and all.
constexpr std::array<double, 4> keeps = {0.1, 0.3, 0.5, 1};

RateRange range_of(const ServedCurve& curve) {
  return {curve.last_good_qps, curve.first_failed_qps};
}

void simulate_row(const ServingExperiment& e, ServingRow& row) {
  ServingCase served{.category = row.category, .base_model = row.base_model, .prunes = row.prunes};
  ServedCase own(e, served);
  row.curve = own.curve();
  row.highest_qps = own.highest_qps(row.curve);
  row.ttft_alone_s = own.ttft_alone_s();
  ServingCase shortest = served;
  shortest.shortest_outputs = true;
  row.shortest_outputs = range_of(ServedCase(e, shortest).curve());
  if (!row.prunes) return;
  served.look_ahead = e.whole("other_look_ahead");
  row.other_look_ahead = range_of(ServedCase(e, served).curve());
}

/// The next rate of the client's; 0 after the last.
double rate_after(const ServingCategory& c, double qps) {
  const auto next =
      std::find_if(c.qps.begin(), c.qps.end(), [&](double q) { return q > 1.001 * qps; });
  return next == c.qps.end() ? 0 : *next;
}

void add_published(const ServingExperiment& e, std::vector<ServingRow>& rows) {
  const Published published(e.catalog);
  const auto find = [&](const std::string& category, const std::string& base, bool prunes) {
    return std::find_if(rows.begin(), rows.end(), [&](const ServingRow& r) {
      return r.category == category && r.base_model == base && r.prunes == prunes;
    });
  };
  const CsvTable figure = published.read("specprefill_fig1_serving.csv");
  for (const CsvRow& csv : figure.rows()) {
    const auto row = find(csv.text("category"), catalog_spelling(csv.text("base_model")),
                          csv.text("method") == "specprefill");
    if (row == rows.end())
      throw Error(csv.place("category"), csv.text("category"), "a curve of ours");
    const double value = csv.number("value");
    if (csv.text("quantity") == "highest_qps") {
      row->published = RateRange{value, rate_after(e.category(row->category), value)};
    } else {
      row->published_points.push_back({csv.number("qps"), value});
    }
  }
  // Plain's rate on the 405B model stands in the text alone, as a ratio.
  const auto best = find("multi-doc QA", base_models[1], true);
  const auto plain = find("multi-doc QA", base_models[1], false);
  if (best == rows.end() || plain == rows.end() || !best->published) return;
  const double holds =
      best->published->holds / published.claim("specprefill_prose.csv", "spec_p03");
  plain->published = RateRange{holds, rate_after(e.category(plain->category), holds)};
}

}  // namespace

std::optional<double> latency_doubles_at(const std::vector<ServedPoint>& points) {
  for (const ServedPoint& p : points) {
    if (p.mean_s > 2 * points.front().mean_s) return p.qps;
  }
  return {};
}

ServingGain gain_of(const RateRange& prunes, const RateRange& plain) {
  const auto over = [](double a, double b) { return b > 0 ? a / b : 0; };
  return {over(prunes.holds, plain.holds), over(prunes.holds, plain.fails),
          over(prunes.fails, plain.holds)};
}

ServingStudy specprefill_serving(const Catalog& catalog) {
  const ServingExperiment e(catalog);
  ServingStudy study;
  for (const ServingCategory& c : e.categories) {
    for (const std::string& base : base_models) {
      for (const bool prunes : {false, true}) {
        ServingRow row;
        row.category = c.name;
        row.base_model = base;
        row.prunes = prunes;
        row.keep = prunes ? c.keep : 1;
        study.rows.push_back(std::move(row));
      }
    }
  }
  for (const std::string& base : base_models) {
    for (const double keep : keeps) study.keeps.push_back({base, keep});
  }
  const std::size_t num_rows = study.rows.size();
  simulate::parallel_for(num_rows + study.keeps.size(), 0, [&](std::size_t i) {
    if (i < num_rows) return simulate_row(e, study.rows[i]);
    ServingKeepRow& row = study.keeps[i - num_rows];
    ServingCase served{.category = e.categories.front().name,
                       .base_model = row.base_model,
                       .prunes = row.keep < 1};
    if (served.prunes) served.keep = row.keep;
    served.shortest_outputs = true;
    ServedCase own(e, served);
    row.highest_qps = own.highest_qps(own.curve()).value();
    row.ttft_alone_s = own.ttft_alone_s();
    served.times = row.times;
    ServedCase long_run(e, served);
    row.long_run_qps = long_run.highest_qps(long_run.curve()).value();
  });
  add_published(e, study.rows);
  for (std::size_t i = 0; i + 1 < num_rows; i += 2) {
    const ServingRow& plain = study.rows[i];
    const ServingRow& prunes = study.rows[i + 1];
    ServingGainRow gain{prunes.category, prunes.base_model, prunes.keep};
    gain.ours = gain_of(prunes.range(), plain.range());
    if (plain.highest_qps.value_or(0) > 0 && prunes.highest_qps) {
      gain.between_grid = *prunes.highest_qps / *plain.highest_qps;
    }
    gain.shortest_outputs = gain_of(prunes.shortest_outputs, plain.shortest_outputs);
    if (plain.published && prunes.published) {
      gain.published = gain_of(*prunes.published, *plain.published);
    }
    study.gains.push_back(std::move(gain));
  }
  return study;
}

std::vector<Plot> serving_plots(const ServingStudy& study) {
  std::vector<Plot> plots;
  for (const ServingRow& row : study.rows) {
    const std::string title = "SpecPrefill, Figure 1: " + row.category + " on 8 H200";
    if (plots.empty() || plots.back().title != title) {
      Plot plot;
      plot.title = title;
      plot.x = {.label = "queries a second", .column = "qps"};
      plot.y = {.label = "mean latency (s)", .column = "mean_latency_s"};
      plot.note =
          "lines: simulated, outputs as long as they may be, up to the first rate that fails; "
          "marks: published";
      plots.push_back(std::move(plot));
    }
    std::vector<Series>& series = plots.back().series;
    const int color = static_cast<int>(std::count_if(
        series.begin(), series.end(), [](const Series& s) { return s.style != Style::Marks; }));
    const std::string name = row.base_model + ", " + row.method();
    Series ours{name, {}, row.prunes ? Style::Line : Style::Dashed, color};
    for (const ServedPoint& p : row.curve.points) {
      if (p.holds) ours.points.push_back({p.qps, p.mean_s});
    }
    Series published{name + ", published", {}, Style::Marks, color};
    for (const ServedPoint& p : row.published_points) published.points.push_back({p.qps, p.mean_s});
    for (Series* s : {&ours, &published}) {
      if (!s->points.empty()) series.push_back(std::move(*s));
    }
  }
  return plots;
}

std::vector<std::filesystem::path> serving_plot_files(const std::filesystem::path& file) {
  return {file, picture_beside(file, "-few-shot"), picture_beside(file, "-summarisation")};
}

}  // namespace kvcast::reports
