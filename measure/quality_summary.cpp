#include "measure/quality_summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>

#include "model/base/error.h"
#include "model/base/order_statistics.h"
#include "model/base/pareto_front.h"
#include "model/io/files/csv_table.h"

namespace kvcast::measure {
namespace {

/// The quantile at the upper end of a two-sided 95 % interval.
constexpr double upper_end = 0.975;

Interval exponential(const Interval& i) {
  return {std::exp(i.mean), std::exp(i.low), std::exp(i.high)};
}

/// The interval, cut to the values that the quantity can have.
Interval within(Interval i, double lowest, double highest) {
  i.low = std::max(i.low, lowest);
  i.high = std::min(i.high, highest);
  return i;
}

struct SamplesOfMethod {
  std::vector<double> agreement, kl, loss, excess_loss;
  double answered = 0;
};

/// Of each method that has the number; files of earlier versions lack some columns.
std::map<std::string, double> medians_of(const CsvTable& table, std::string_view column) {
  std::map<std::string, std::vector<double>> times;
  if (column != "ttft_s" && !table.has_column(column)) return {};
  for (const CsvRow& row : table.rows()) {
    if (!row.text(column).empty()) times[row.text("method")].push_back(row.number(column));
  }
  std::map<std::string, double> medians;
  for (auto& [method, values] : times) medians[method] = median(std::move(values));
  return medians;
}

/// Smaller is better.
double badness(const QualityRow& r) {
  return r.task == "needle" ? -r.answered.mean : r.kl_nats.mean;
}

}  // namespace

bool is_on_front(const QualityRow& row, std::span<const QualityRow> rows,
                 double QualityRow::*cost) {
  return std::none_of(rows.begin(), rows.end(), [&](const QualityRow& other) {
    return other.task == row.task &&
           beats(std::array{other.*cost, badness(other)}, std::array{row.*cost, badness(row)});
  });
}

Interval mean_interval(std::span<const double> samples) {
  KVCAST_ASSERT(!samples.empty());
  const auto n = static_cast<double>(samples.size());
  Interval i;
  i.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  if (samples.size() < 2) return i;
  double squares = 0;
  for (const double x : samples) squares += (x - i.mean) * (x - i.mean);
  const double half =
      quantile(boost::math::students_t(n - 1), upper_end) * std::sqrt(squares / (n - 1) / n);
  i.low = i.mean - half;
  i.high = i.mean + half;
  return i;
}

Interval share_interval(double hits, double samples) {
  const double z = quantile(boost::math::normal(), upper_end);
  const double z2 = z * z;
  const double share = hits / samples;
  const double middle = (share + z2 / (2 * samples)) / (1 + z2 / samples);
  const double half = z / (1 + z2 / samples) *
                      std::sqrt(share * (1 - share) / samples + z2 / (4 * samples * samples));
  return {share, middle - half, middle + half};
}

std::vector<QualityRow> summarize_quality(const std::filesystem::path& csv,
                                          const std::filesystem::path& times) {
  const CsvTable table = CsvTable::read(csv);
  const CsvTable timed = times.empty() ? table : CsvTable::read(times);
  const auto ttft = medians_of(timed, "ttft_s");
  const auto tpot = medians_of(timed, "tpot_s");
  const auto memory = medians_of(table, "memory_bytes");
  const auto found = [](const std::map<std::string, double>& medians, const std::string& method) {
    const auto at = medians.find(method);
    return at == medians.end() ? no_value : at->second;
  };
  std::vector<QualityRow> rows;
  std::vector<SamplesOfMethod> samples;
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
    SamplesOfMethod& s = samples[at];
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
    const SamplesOfMethod& s = samples[i];
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
    r.tpot_s = found(tpot, r.method);
    r.memory_bytes = found(memory, r.method);
  }
  for (QualityRow& r : rows) r.on_front = is_on_front(r, rows, &QualityRow::ttft_s);
  return rows;
}

}  // namespace kvcast::measure
