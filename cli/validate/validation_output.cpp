#include <boost/algorithm/string/split.hpp>
#include <fmt/format.h>

#include "cli/frame/result.h"
#include "cli/validate/validate_measurements.h"
#include "measure/method_speedups.h"
#include "reports/plot/plot.h"
#include "reports/plot/validation_plots.h"

namespace kvcast::cli {
namespace {

using measure::ErrorSummary;
using measure::Validation;
using measure::ValidationCase;

std::string method_of(const ValidationCase& c) { return measure::method_names(c.row.method); }

/// What error bars are taken from: device, method, attention and metric.
std::string group_of(const ValidationCase& c) {
  return fmt::format("{}\t{}\t{}\t{}", c.row.hardware, method_of(c),
                     measure::attention_name(c.row.lowering.attention), name(c.metric));
}

ErrorSummary overall(const Validation& v) {
  std::vector<double> errors;
  for (const ValidationCase& c : v.cases) errors.push_back(c.relative_error());
  return measure::summarize(errors);
}

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

ordered_json case_json(const ValidationCase& c) {
  const measure::MeasuredRow& r = c.row;
  const Lowering& l = r.lowering;
  return {{"id", r.id},
          {"model", r.model},
          {"hardware", r.hardware},
          {"method", r.method},
          {"attention", measure::attention_name(l.attention)},
          {"elementwise", measure::elementwise_name(l.elementwise)},
          {"weight_dtype", name(l.weights)},
          {"activation_dtype", name(l.activations)},
          {"cache_dtype", name(l.cache)},
          {"logits", name(r.logits)},
          {"batch", r.size.batch},
          {"prompt_len", r.size.prompt_len},
          {"output_len", r.size.output_len},
          {"metric", name(c.metric)},
          {"predicted", c.predicted},
          {"measured", c.measured},
          {"relative_error", c.relative_error()},
          {"place", r.place}};
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  boost::algorithm::split(parts, text, [](char c) { return c == '\t'; });
  return parts;
}

ordered_json speedup_json(const measure::MethodSpeedup& s) {
  ordered_json j{{"method", s.method},
                 {"metric", name(s.metric)},
                 {"predicted", s.predicted},
                 {"measured", s.measured}};
  add_summary(j, s.errors);
  return j;
}

ordered_json methods_json(const Validation& v) {
  return rows_of(measure::summarize_by(v.cases, method_of), [](const auto& entry) {
    ordered_json j{{"method", entry.first}};
    add_summary(j, entry.second);
    return j;
  });
}

ordered_json groups_json(const Validation& v) {
  return rows_of(measure::summarize_by(v.cases, group_of), [](const auto& entry) {
    const std::vector<std::string> parts = split(entry.first);
    ordered_json j{{"hardware", parts[0]},
                   {"method", parts[1]},
                   {"attention", parts[2]},
                   {"metric", parts[3]}};
    add_summary(j, entry.second);
    return j;
  });
}

}  // namespace

ordered_json validation_json(const Validation& v) {
  ordered_json j;
  j["rows"] = rows_of(v.cases, case_json);
  j["unmatched"] = rows_of(v.unmatched, [](const measure::UnmatchedRow& u) -> ordered_json {
    return {{"place", u.place}, {"id", u.id}, {"reason", u.reason}};
  });
  ordered_json& summary = j["summary"];
  add_summary(summary, overall(v));
  summary["unmatched"] = v.unmatched.size();
  summary["methods"] = methods_json(v);
  summary["groups"] = groups_json(v);
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
                        {"nine in ten within", "bound", in_percent}},
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
  if (!csv.empty()) measure::write_validation_csv(v.cases, csv);
  if (plot.empty()) return;
  reports::write_plot(reports::scatter_plot(v.cases), plot);
  reports::write_plot(reports::error_plot(v.cases), reports::error_plot_file(plot));
}

}  // namespace kvcast::cli
