#include "measure/quality_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "model/base/error.h"
#include "model/base/order_statistics.h"
#include "model/io/files/csv_table.h"

namespace kvcast::measure {
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

}  // namespace kvcast::measure
