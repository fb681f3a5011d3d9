#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "cli/frame/progress_bar.h"
#include "cli/frame/result.h"
#include "cli/validate/validate_parts.h"
#include "measure/serving_validation.h"
#include "model/base/error.h"
#include "model/base/stopwatch.h"
#include "model/io/files/csv_table.h"

namespace kvcast::cli {
namespace {

using measure::ServedCase;
using measure::ServedQuantity;
using measure::ServingValidation;

const char* unit_of(ServedQuantity quantity) {
  switch (quantity) {
    case ServedQuantity::RequestRate:
    case ServedQuantity::MaxRate: return "requests/s";
    case ServedQuantity::OutputTokenRate:
    case ServedQuantity::TokenRate: return "tokens/s";
    default: return "s";
  }
}

ordered_json case_json(const measure::ServedRun& run, const measure::ServedFacts& facts,
                       const ServedCase& c) {
  return {{"id", c.figure.id},
          {"run", run.run},
          {"load", run.load},
          {"model", facts.model},
          {"hardware", facts.hardware},
          {"tp", run.tp},
          {"engine", facts.engine},
          {"engine_version", facts.engine_version},
          {"method", run.method},
          {"metric", c.figure.metric},
          {"kind", measure::kind(c.figure)},
          {"unit", unit_of(c.figure.quantity)},
          {"predicted", c.predicted},
          {"measured", c.figure.measured},
          {"relative_error", c.relative_error()},
          {"below_saturation", facts.is_below_saturation()},
          {"source", measure::source_key(run.source)},
          {"place", c.figure.place}};
}

ordered_json run_json(const measure::ServedRun& run, const measure::ServedFacts& f) {
  return {{"run", run.run},
          {"load", run.load},
          {"scheduler", f.scheduler},
          {"kv_blocks", f.num_blocks},
          {"max_num_seqs", f.max_num_seqs},
          {"max_num_batched_tokens", f.max_num_batched_tokens},
          {"requests", f.requests},
          {"peak_running", f.peak_running},
          {"preemptions", f.preemptions},
          {"waiting_share", f.waiting_share},
          {"assumed", run.assumed}};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void add_summary(ordered_json& j, const std::vector<double>& errors) {
  const measure::ErrorSummary s = measure::summarize(errors);
  j["rows"] = s.rows;
  if (s.rows == 0) {
    for (const char* key : {"mape", "median", "worst", "bias", "bound"}) j[key] = nullptr;
    return;
  }
  j["mape"] = s.mape;
  j["median"] = median(errors);
  j["worst"] = s.worst;
  j["bias"] = s.bias;
  j["bound"] = s.bound;
}

/// The errors of the rows that agree under these keys.
ordered_json groups_json(const ordered_json& rows, const std::vector<const char*>& keys) {
  std::map<std::vector<ordered_json>, std::vector<double>> groups;
  for (const ordered_json& row : rows) {
    std::vector<ordered_json> group;
    for (const char* key : keys) group.push_back(row[key]);
    groups[group].push_back(row["relative_error"]);
  }
  return rows_of(groups, [&](const auto& group) {
    ordered_json j;
    for (std::size_t i = 0; i < keys.size(); ++i) j[keys[i]] = group.first[i];
    add_summary(j, group.second);
    return j;
  });
}

std::string assumptions_text(const ServingValidation& v) {
  std::map<std::string, std::size_t> runs;
  for (const measure::ServedRun& run : v.runs) {
    for (const std::string& what : run.assumed) ++runs[what];
  }
  if (runs.empty()) return {};
  std::string text = "\nassumed, as the rows do not say:\n";
  for (const auto& [what, count] : runs) {
    text += fmt::format("  {} {}: {}\n", count, count == 1 ? "run" : "runs", what);
  }
  return text;
}

/// Folder of the traces.
std::filesystem::path traces_of(const ValidateOptions& o) {
  if (!o.traces.empty()) return o.traces;
  return std::filesystem::path(o.measurements.front()).parent_path() / ".." / "traces";
}

void refuse_flags(const ValidateOptions& o) {
  const std::pair<const char*, bool> flags[]{{"--hardware", !o.hardware.empty()},
                                             {"--rank-hardware", !o.rank_hardware.empty()},
                                             {"--engine", !o.engine.empty()},
                                             {"--model", !o.model.empty()},
                                             {"--method", !o.method.empty()},
                                             {"--attention", !o.attention.empty()},
                                             {"--dtype", !o.dtype.empty()},
                                             {"--batch", o.batch.has_value()},
                                             {"--prompt-len", o.prompt_len.has_value()},
                                             {"--output-len", o.output_len.has_value()},
                                             {"--rows", !o.rows.empty()},
                                             {"--fit", !o.fit.empty()},
                                             {"--store", !o.store.empty()},
                                             {"--plot", !o.plot.empty()}};
  for (const auto& [flag, given] : flags) {
    if (given) throw Error(std::string(flag) + ": rows of servers under load do not take it");
  }
}

}  // namespace

void validate_servers(const ValidateOptions& o, const Globals& globals) {
  refuse_flags(o);
  std::vector<measure::ServedRun> runs;
  for (const std::string& file : o.measurements) {
    for (measure::ServedRun& run : measure::read_served_runs(CsvTable::read(file))) {
      runs.push_back(std::move(run));
    }
  }
  ServingValidation v;
  {
    const Stopwatch watch;
    ProgressBar bar(globals.quiet);
    const std::size_t all = runs.size();
    v = measure::validate_serving(
        std::move(runs), globals.catalog(), traces_of(o),
        [&](std::size_t done) { bar.draw(done, 0, all, watch.seconds()); });
  }
  const ordered_json rows = rows_of(
      v.cases, [&](const ServedCase& c) { return case_json(v.runs[c.run], v.facts[c.run], c); });
  if (!o.csv.empty()) {
    std::vector<std::string> keys;
    const ordered_json any = case_json({}, {}, {});
    for (const auto& [key, value] : any.items()) keys.push_back(key);
    write_rows_csv(o.csv, columns_of(keys), rows);
  }
  if (o.csv == "-") return;
  ordered_json below = ordered_json::array();
  for (const ordered_json& row : rows) {
    if (row["below_saturation"]) below.push_back(row);
  }
  ordered_json j;
  j["measurements"] = o.measurements.front();
  if (o.measurements.size() > 1) j["measurements"] = o.measurements;
  j["format"] = "CSV of servers under load";
  j["rows"] = rows;
  j["runs"] = ordered_json::array();
  for (std::size_t i = 0; i < v.runs.size(); ++i) {
    j["runs"].push_back(run_json(v.runs[i], v.facts[i]));
  }
  j["unmatched"] = rows_of(v.unmatched, [](const measure::UnmatchedRow& u) -> ordered_json {
    return {{"place", u.place}, {"id", u.id}, {"reason", u.reason}};
  });
  ordered_json& summary = j["summary"];
  std::vector<double> errors;
  for (const ServedCase& c : v.cases) errors.push_back(c.relative_error());
  add_summary(summary, errors);
  summary["unmatched"] = v.unmatched.size();
  summary["kinds"] = groups_json(rows, {"kind"});
  summary["kinds_below_saturation"] = groups_json(below, {"kind"});
  summary["engines"] = groups_json(rows, {"engine", "kind"});
  summary["groups"] = groups_json(rows, {"source", "engine", "kind"});
  if (o.json) return print_json(j);

  std::string text;
  if (!v.cases.empty()) {
    const auto in_unit = [](const char* key) {
      return Column{key, "", [key](const ordered_json& row) {
                      const double value = row[key];
                      return row["unit"] == "s"
                                 ? in_seconds(value)
                                 : fmt::format("{:.4g} {}", value, row["unit"].get<std::string>());
                    }};
    };
    text += table_text({{"run", "run"},
                        {"load", "load"},
                        {"metric", "metric"},
                        in_unit("predicted"),
                        in_unit("measured"),
                        {"error", "relative_error", in_signed_percent}},
                       rows) +
            "\n";
    ordered_json groups = summary["groups"];
    for (ordered_json row : summary["kinds_below_saturation"]) {
      row["source"] = "below saturation";
      groups.push_back(row);
    }
    for (ordered_json row : summary["kinds"]) {
      row["source"] = "all";
      groups.push_back(row);
    }
    groups.push_back(summary);
    groups.back()["source"] = "all";
    text += table_text({{"source", "source"},
                        {"engine", "engine"},
                        {"kind", "kind"},
                        {"rows", "rows"},
                        {"MAPE", "mape", in_percent},
                        {"median", "median", in_signed_percent},
                        {"worst", "worst", in_percent},
                        {"bias", "bias", in_signed_percent}},
                       groups);
  }
  text += assumptions_text(v);
  if (!v.unmatched.empty()) {
    text += fmt::format("\n{} rows without a forecast:\n", v.unmatched.size());
    for (const measure::UnmatchedRow& u : v.unmatched) {
      text += fmt::format("  {}: {}\n", u.id.empty() ? u.place : u.id, u.reason);
    }
  }
  print_text(text);
}

}  // namespace kvcast::cli
