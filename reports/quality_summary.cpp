#include "reports/quality_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "model/error.h"
#include "model/order_statistics.h"
#include "reports/csv_table.h"

namespace kvcast::reports {
namespace {

constexpr double normal_975 = 1.959963984540054;  ///< quantile of the normal distribution

/// The 97.5 % quantile of Student's distribution: Cornish and Fisher's expansion (Abramowitz and
/// Stegun 1964, 26.7.5), within 0.2 % from 3 degrees of freedom on; closed forms below.
double student_975(std::size_t degrees) {
  if (degrees == 1) return 12.706204736;
  if (degrees == 2) return 4.30265273;
  const double z = normal_975;
  const auto n = static_cast<double>(degrees);
  const double z2 = z * z;
  return z + z * (z2 + 1) / (4 * n) + z * ((5 * z2 + 16) * z2 + 3) / (96 * n * n) +
         z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / (384 * n * n * n) +
         z * ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / (92160 * n * n * n * n);
}

Interval exponential(const Interval& i) {
  return {std::exp(i.mean), std::exp(i.low), std::exp(i.high)};
}

/// The part of it that the quantity can have.
Interval within(Interval i, double lowest, double highest) {
  i.low = std::max(i.low, lowest);
  i.high = std::min(i.high, highest);
  return i;
}

struct Samples {
  std::vector<double> agreement, kl, loss, excess_loss;
  double answered = 0;
};

std::map<std::string, double> median_ttft(const CsvTable& table) {
  std::map<std::string, std::vector<double>> times;
  for (const CsvRow& row : table.rows()) {
    times[row.text("method")].push_back(row.number("ttft_s"));
  }
  std::map<std::string, double> medians;
  for (auto& [method, values] : times) medians[method] = median(std::move(values));
  return medians;
}

/// Smaller is better.
double badness(const QualityRow& r) {
  return r.task == "needle" ? -r.answered.mean : r.kl_nats.mean;
}

void find_front(std::vector<QualityRow>& rows) {
  for (QualityRow& r : rows) {
    r.on_front = std::none_of(rows.begin(), rows.end(), [&](const QualityRow& other) {
      if (other.task != r.task || other.ttft_s > r.ttft_s || badness(other) > badness(r)) {
        return false;
      }
      return other.ttft_s < r.ttft_s || badness(other) < badness(r);
    });
  }
}

using Value = double (*)(const QualityRow&);

/// Marks of each family over TTFT, and the methods on the front joined by a line.
Plot plot_over_ttft(std::span<const QualityRow> rows, const std::string& task, std::string title,
                    const Axis& y, Value value, bool with_front) {
  Plot plot;
  plot.title = std::move(title);
  plot.x = {"TTFT, measured (s)", "ttft_s"};
  plot.x.from = 0;
  plot.y = y;
  Series front{"Pareto front", {}, Style::Dashed, 7};
  std::vector<Series> families;
  for (const QualityRow& r : rows) {
    if (r.task != task) continue;
    if (y.scale == Scale::Log10 && value(r) <= 0) continue;  // the base's distance from itself
    auto known = std::find_if(families.begin(), families.end(),
                              [&](const Series& s) { return s.label == r.family; });
    if (known == families.end()) {
      known = families.insert(known, Series{r.family, {}, Style::Marks});
    }
    known->points.push_back({r.ttft_s, value(r), r.method});
    if (r.on_front) front.points.push_back({r.ttft_s, value(r), r.method});
  }
  std::sort(front.points.begin(), front.points.end(),
            [](const Point& a, const Point& b) { return a.x < b.x; });
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
    const auto known = std::find_if(plot.series.begin(), plot.series.end(),
                                    [&](const Series& s) { return s.label == r.family; });
    const Point point{r.keep, r.kl_nats.mean, r.method};
    if (known == plot.series.end()) {
      plot.series.push_back({r.family, {point}, Style::Line});
    } else {
      known->points.push_back(point);
    }
  }
  for (Series& s : plot.series) {
    std::sort(s.points.begin(), s.points.end(),
              [](const Point& a, const Point& b) { return a.x < b.x; });
  }
  return plot;
}

constexpr const char* agreement_suffix = "-agreement";
constexpr const char* needle_suffix = "-needle";
constexpr const char* keep_suffix = "-keep";

std::filesystem::path beside(std::filesystem::path picture, const char* suffix) {
  return picture.replace_filename(picture.stem().string() + suffix + picture.extension().string());
}

}  // namespace

Interval mean_interval(std::span<const double> samples) {
  KVCAST_ASSERT(!samples.empty());
  const auto n = static_cast<double>(samples.size());
  Interval i;
  i.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  if (samples.size() < 2) return i;
  double squares = 0;
  for (const double x : samples) squares += (x - i.mean) * (x - i.mean);
  const double half = student_975(samples.size() - 1) * std::sqrt(squares / (n - 1) / n);
  i.low = i.mean - half;
  i.high = i.mean + half;
  return i;
}

Interval share_interval(double hits, double samples) {
  const double z2 = normal_975 * normal_975;
  const double share = hits / samples;
  const double middle = (share + z2 / (2 * samples)) / (1 + z2 / samples);
  const double half = normal_975 / (1 + z2 / samples) *
                      std::sqrt(share * (1 - share) / samples + z2 / (4 * samples * samples));
  return {share, middle - half, middle + half};
}

std::vector<QualityRow> summarize_quality(const std::filesystem::path& csv,
                                          const std::filesystem::path& times) {
  const CsvTable table = CsvTable::read(csv);
  const auto ttft = median_ttft(times.empty() ? table : CsvTable::read(times));
  std::vector<QualityRow> rows;
  std::vector<Samples> samples;
  for (const CsvRow& row : table.rows()) {
    const std::string& task = row.text("task");
    const std::string& method = row.text("method");
    const auto known = std::find_if(rows.begin(), rows.end(), [&](const QualityRow& r) {
      return r.task == task && r.method == method;
    });
    const auto at = static_cast<std::size_t>(known - rows.begin());
    if (known == rows.end()) {
      rows.push_back({.task = task, .method = method, .family = row.text("family")});
      if (!row.text("keep").empty()) rows.back().keep = row.number("keep");
      samples.emplace_back();
    }
    Samples& s = samples[at];
    const double loss = row.number("cross_entropy_nats");
    s.agreement.push_back(row.number("agreement"));
    s.kl.push_back(row.number("kl_nats"));
    s.loss.push_back(loss);
    s.excess_loss.push_back(loss - row.number("base_cross_entropy_nats"));
    s.answered += row.number("answered");
    rows[at].positions += row.whole("positions");
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    QualityRow& r = rows[i];
    const Samples& s = samples[i];
    r.samples = s.loss.size();
    r.agreement = within(mean_interval(s.agreement), 0, 1);
    r.kl_nats = within(mean_interval(s.kl), 0, std::numeric_limits<double>::infinity());
    r.perplexity = exponential(mean_interval(s.loss));
    r.perplexity_ratio = exponential(mean_interval(s.excess_loss));
    r.answered = share_interval(s.answered, static_cast<double>(r.samples));
    const auto time = ttft.find(r.method);
    const auto plain = ttft.find("plain");
    if (time == ttft.end() || plain == ttft.end()) {
      throw Error((times.empty() ? csv : times).string(), "no row of a method",
                  "times of plain and of " + r.method);
    }
    r.ttft_s = time->second;
    r.ttft_speedup = plain->second / time->second;
  }
  find_front(rows);
  return rows;
}

std::vector<std::filesystem::path> quality_pictures(const std::filesystem::path& picture) {
  return {picture, beside(picture, agreement_suffix), beside(picture, needle_suffix),
          beside(picture, keep_suffix)};
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
    plots.push_back(
        {picture, plot_over_ttft(rows, "text", "Texts: distance from the base model",
                                 {"KL(base || method) per token (nats)", "kl_nats", Scale::Log10},
                                 kl, true)});
    plots.push_back({beside(picture, agreement_suffix),
                     plot_over_ttft(rows, "text", "Texts: same next token as the base model",
                                    {"share of positions", "agreement"}, agreement, false)});
  }
  if (has("needle")) {
    plots.push_back({text ? beside(picture, needle_suffix) : picture,
                     plot_over_ttft(rows, "needle", "Needles found in the haystack",
                                    {"share answered", "answered"}, answered, true)});
  }
  const bool rates = std::any_of(rows.begin(), rows.end(), [](const QualityRow& r) {
    return r.task == "text" && !std::isnan(r.keep);
  });
  if (rates) plots.push_back({beside(picture, keep_suffix), plot_over_keep(rows)});
  return plots;
}

}  // namespace kvcast::reports
