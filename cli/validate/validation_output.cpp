#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/validate/validate_measurements.h"
#include "measure/method_speedups.h"
#include "model/base/quantity.h"
#include "reports/plot/plot.h"
#include "reports/plot/validation_plots.h"

namespace kvcast::cli {
namespace {

using measure::ErrorSummary;
using measure::Validation;
using measure::ValidationCase;
using nlohmann::ordered_json;

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
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\t', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string signed_percent(double share) { return fmt::format("{:+.1f} %", 100 * share); }

/// Empty where no method has a plain row beside it.
std::string speedups_text(const Validation& v) {
  const std::vector<measure::MethodSpeedup> speedups = measure::speedups_over_plain(v.cases);
  if (speedups.empty()) return "";
  Table table({"speed-up over plain", "metric", "rows", "predicted", "measured", "MAPE", "worst"});
  for (const measure::MethodSpeedup& s : speedups) {
    table.add({s.method, std::string(name(s.metric)), std::to_string(s.errors.rows),
               fmt::format("{:.2f}", s.predicted), fmt::format("{:.2f}", s.measured),
               percent(s.errors.mape), percent(s.errors.worst)});
  }
  return "\n" + table.text();
}

}  // namespace

ordered_json validation_json(const Validation& v) {
  ordered_json j;
  j["rows"] = ordered_json::array();
  for (const ValidationCase& c : v.cases) j["rows"].push_back(case_json(c));
  j["unmatched"] = ordered_json::array();
  for (const measure::UnmatchedRow& u : v.unmatched) {
    j["unmatched"].push_back({{"place", u.place}, {"id", u.id}, {"reason", u.reason}});
  }
  ordered_json& summary = j["summary"];
  add_summary(summary, overall(v));
  summary["unmatched"] = v.unmatched.size();
  summary["methods"] = ordered_json::array();
  for (const auto& [method, s] : measure::summarize_by(v.cases, method_of)) {
    ordered_json entry{{"method", method}};
    add_summary(entry, s);
    summary["methods"].push_back(std::move(entry));
  }
  summary["groups"] = ordered_json::array();
  for (const auto& [group, s] : measure::summarize_by(v.cases, group_of)) {
    const std::vector<std::string> parts = split(group);
    ordered_json entry{{"hardware", parts[0]},
                       {"method", parts[1]},
                       {"attention", parts[2]},
                       {"metric", parts[3]}};
    add_summary(entry, s);
    summary["groups"].push_back(std::move(entry));
  }
  summary["speedups"] = ordered_json::array();
  for (const measure::MethodSpeedup& s : measure::speedups_over_plain(v.cases)) {
    ordered_json entry{{"method", s.method},
                       {"metric", name(s.metric)},
                       {"predicted", s.predicted},
                       {"measured", s.measured}};
    add_summary(entry, s.errors);
    summary["speedups"].push_back(std::move(entry));
  }
  return j;
}

std::string validation_text(const Validation& v) {
  std::string text;
  if (!v.cases.empty()) {
    Table rows({"run", "metric", "predicted", "measured", "error"});
    for (const ValidationCase& c : v.cases) {
      rows.add(
          {c.row.id, std::string(name(c.metric)), format_quantity(c.predicted, Dimension::Seconds),
           format_quantity(c.measured, Dimension::Seconds), signed_percent(c.relative_error())});
    }
    text += rows.text() + "\n";
    Table groups({"hardware", "method", "attention", "metric", "rows", "MAPE", "worst", "bias",
                  "nine in ten within"});
    const auto add = [&](std::vector<std::string> cells, const ErrorSummary& s) {
      cells.insert(cells.end(), {std::to_string(s.rows), percent(s.mape), percent(s.worst),
                                 signed_percent(s.bias), percent(s.bound)});
      groups.add(std::move(cells));
    };
    for (const auto& [group, s] : measure::summarize_by(v.cases, group_of)) add(split(group), s);
    for (const auto& [method, s] : measure::summarize_by(v.cases, method_of)) {
      add({"all", method, "", ""}, s);
    }
    add({"all", "all", "", ""}, overall(v));
    text += groups.text() + speedups_text(v);
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
  j["factors"] = ordered_json::array();
  for (const measure::FittedFactor& factor : f.fit.factors) {
    j["factors"].push_back({{"name", factor.name},
                            {"before", factor.before},
                            {"after", factor.after},
                            {"at_limit", factor.at_limit}});
  }
  const auto add = [&](const char* key, const ErrorSummary& before, const ErrorSummary& after) {
    add_summary(j[key]["before"], before);
    add_summary(j[key]["after"], after);
  };
  add("fitted_rows", f.fit.before, f.fit.after);
  add("other_rows", f.others_before, f.others_after);
  return j;
}

std::string fit_text(const CheckedFit& f) {
  Table factors({"factor", "before", "fitted", ""});
  for (const measure::FittedFactor& factor : f.fit.factors) {
    factors.add({factor.name, fmt::format("{:.4g}", factor.before),
                 fmt::format("{:.4g}", factor.after),
                 factor.at_limit ? "the rows want more than the peak" : ""});
  }
  Table errors({"rows", "count", "MAPE before", "after", "worst before", "after"});
  const auto add = [&](const char* label, const ErrorSummary& before, const ErrorSummary& after) {
    if (before.rows == 0) return;
    errors.add({label, std::to_string(before.rows), percent(before.mape), percent(after.mape),
                percent(before.worst), percent(after.worst)});
  };
  add("fitted to", f.fit.before, f.fit.after);
  add("others", f.others_before, f.others_after);
  return factors.text() + "\n" + errors.text() + "\n";
}

void write_validation_files(const Validation& v, const std::string& csv, const std::string& plot) {
  if (!csv.empty()) measure::write_validation_csv(v.cases, csv);
  if (plot.empty()) return;
  reports::write_plot(reports::scatter_plot(v.cases), plot);
  reports::write_plot(reports::error_plot(v.cases), reports::error_plot_file(plot));
}

}  // namespace kvcast::cli
