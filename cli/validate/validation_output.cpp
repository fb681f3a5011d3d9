#include <map>

#include <fmt/format.h>

#include "cli/frame/result.h"
#include "cli/validate/validate_parts.h"
#include "measure/method_speedups.h"
#include "reports/plot/plot.h"
#include "reports/plot/validation_plots.h"

namespace kvcast::cli {
namespace {

using measure::ErrorSummary;
using measure::Validation;
using measure::ValidationCase;

void add_summary(ordered_json& j, const ErrorSummary& s) {
  j["rows"] = s.rows;
  if (s.rows == 0) {
    for (const char* key : {"mape", "worst", "bias", "bound"}) j[key] = nullptr;
    return;
  }
  j["mape"] = s.mape;
  j["worst"] = s.worst;
  j["bias"] = s.bias;
  j["bound"] = s.bound;
}

ordered_json speedup_json(const measure::MethodSpeedup& s) {
  ordered_json j{{"method", s.method},
                 {"metric", name(s.metric)},
                 {"predicted", s.predicted},
                 {"measured", s.measured}};
  add_summary(j, s.errors);
  return j;
}

/// The errors of the cases that have the same values under these keys.
ordered_json summaries_json(const Validation& v, const std::vector<std::string>& keys) {
  std::map<std::vector<std::string>, std::vector<ValidationCase>> groups;
  for (const ValidationCase& c : v.cases) {
    ordered_json values = measure::case_json(c);
    values["method"] = measure::method_names(c.row.method);
    std::vector<std::string> group;
    for (const std::string& key : keys) group.push_back(values[key]);
    groups[group].push_back(c);
  }
  return rows_of(groups, [&](const auto& entry) {
    ordered_json j;
    for (std::size_t i = 0; i < keys.size(); ++i) j[keys[i]] = entry.first[i];
    add_summary(j, measure::summarize(entry.second));
    return j;
  });
}

}  // namespace

ordered_json validation_json(const Validation& v) {
  ordered_json j;
  j["rows"] = rows_of(v.cases, measure::case_json);
  j["unmatched"] = rows_of(v.unmatched, [](const measure::UnmatchedRow& u) -> ordered_json {
    return {{"place", u.place}, {"id", u.id}, {"reason", u.reason}};
  });
  ordered_json& summary = j["summary"];
  add_summary(summary, measure::summarize(v.cases));
  summary["unmatched"] = v.unmatched.size();
  summary["methods"] = summaries_json(v, {"method"});
  summary["groups"] = summaries_json(v, {"hardware", "method", "attention", "metric"});
  summary["speedups"] = rows_of(measure::speedups_over_plain(v.cases), speedup_json);
  return j;
}

std::string validation_text(const Validation& v) {
  std::string text;
  if (!v.cases.empty()) {
    const ordered_json j = validation_json(v);
    text += table_text({{"run", "id"},
                        {"metric", "metric"},
                        {"predicted", "predicted", in_seconds},
                        {"measured", "measured", in_seconds},
                        {"error", "relative_error", in_signed_percent}},
                       j["rows"]) +
            "\n";
    ordered_json groups = j["summary"]["groups"];
    for (ordered_json row : j["summary"]["methods"]) {
      row["hardware"] = "all";
      groups.push_back(row);
    }
    groups.push_back(j["summary"]);
    groups.back()["hardware"] = groups.back()["method"] = "all";
    text += table_text({{"hardware", "hardware"},
                        {"method", "method"},
                        {"attention", "attention"},
                        {"metric", "metric"},
                        {"rows", "rows"},
                        {"MAPE", "mape", in_percent},
                        {"worst", "worst", in_percent},
                        {"bias", "bias", in_signed_percent},
                        {"90th percentile", "bound", in_percent}},
                       groups);
    if (const ordered_json& speedups = j["summary"]["speedups"]; !speedups.empty()) {
      text += "\n" + table_text({{"speed-up over plain", "method"},
                                 {"metric", "metric"},
                                 {"rows", "rows"},
                                 {"predicted", "predicted", in("{:.2f}")},
                                 {"measured", "measured", in("{:.2f}")},
                                 {"MAPE", "mape", in_percent},
                                 {"worst", "worst", in_percent}},
                                speedups);
    }
  }
  if (!v.unmatched.empty()) {
    const std::size_t n = v.unmatched.size();
    text += fmt::format("\n{} {} without a forecast:\n", n, n == 1 ? "row" : "rows");
    for (const measure::UnmatchedRow& u : v.unmatched) {
      text += fmt::format("  {}: {}\n", u.id.empty() ? u.place : u.id, u.reason);
    }
  }
  return text;
}

ordered_json fit_json(const CheckedFit& f) {
  ordered_json j;
  j["factors"] = rows_of(f.fit.factors, [](const measure::FittedFactor& factor) -> ordered_json {
    return {{"name", factor.name},
            {"before", factor.before},
            {"after", factor.after},
            {"at_limit", factor.at_limit}};
  });
  const auto add = [&](const char* key, const ErrorSummary& before, const ErrorSummary& after) {
    add_summary(j[key]["before"], before);
    add_summary(j[key]["after"], after);
  };
  add("fitted_rows", f.fit.before, f.fit.after);
  add("other_rows", f.others_before, f.others_after);
  return j;
}

std::string fit_text(const CheckedFit& f) {
  const ordered_json j = fit_json(f);
  ordered_json errors = ordered_json::array();
  for (const auto& [label, key] :
       {std::pair{"fitted to", "fitted_rows"}, std::pair{"others", "other_rows"}}) {
    if (j[key]["before"]["rows"] == 0) continue;
    errors.push_back(j[key]);
    errors.back()["label"] = label;
  }
  return table_text({{"factor", "name"},
                     {"before", "before", in("{:.4g}")},
                     {"fitted", "after", in("{:.4g}")},
                     {"", "at_limit", if_true("the rows want more than the peak")}},
                    j["factors"]) +
         "\n" +
         table_text({{"rows", "label"},
                     {"count", "/before/rows"},
                     {"MAPE before", "/before/mape", in_percent},
                     {"after", "/after/mape", in_percent},
                     {"worst before", "/before/worst", in_percent},
                     {"after", "/after/worst", in_percent}},
                    errors) +
         "\n";
}

void write_validation_files(const Validation& v, const std::string& csv, const std::string& plot) {
  if (!csv.empty()) {
    std::vector<Column> columns;
    const ordered_json keys = measure::case_json({});
    for (const auto& [key, value] : keys.items()) {
      columns.push_back({key == "predicted" || key == "measured" ? key + "_s" : key, key});
    }
    write_rows_csv(csv, columns, rows_of(v.cases, measure::case_json));
  }
  if (plot.empty()) return;
  reports::write_plot(reports::scatter_plot(v.cases), plot);
  reports::write_plot(reports::error_plot(v.cases), reports::error_plot_file(plot));
}

}  // namespace kvcast::cli
