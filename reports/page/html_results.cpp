#include "reports/page/html_results.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "reports/page/html_table.h"
#include "reports/page/html_text.h"

namespace kvcast::reports {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t most_rows = 200;
constexpr std::size_t most_items = 32;
constexpr int most_levels = 4;

bool is_scalar(const ordered_json& value) { return !value.is_structured(); }

bool is_rows(const ordered_json& value) {
  return value.is_array() && !value.empty() && value.front().is_object();
}

/// As shown under a key; each item of a list.
std::string shown_value(const std::string& key, const ordered_json& value) {
  if (!value.is_array() || value.size() > most_items) {
    return is_scalar(value) ? shown_quantity(key, json_text(value)) : json_text(value);
  }
  std::string out;
  for (const ordered_json& item : value) {
    const std::string text = json_text(item);
    out += (out.empty() ? "" : ", ") + (is_scalar(item) ? shown_quantity(key, text) : text);
  }
  return out;
}

/// Objects as rows, the union of their keys as columns.
HtmlTable rows_table(const ordered_json& list, std::string id, std::string caption,
                     const std::string& href) {
  HtmlTable table;
  table.id = std::move(id);
  table.caption = std::move(caption);
  table.file = href;
  table.quantities = true;
  const std::size_t shown = std::min(list.size(), most_rows);
  for (std::size_t i = 0; i < shown; ++i) {
    if (!list[i].is_object()) continue;
    for (const auto& item : list[i].items()) {
      auto& columns = table.columns;
      if (std::find(columns.begin(), columns.end(), item.key()) == columns.end()) {
        columns.push_back(item.key());
      }
    }
  }
  for (std::size_t i = 0; i < shown; ++i) {
    std::vector<std::string> row;
    for (const std::string& column : table.columns) {
      const bool there = list[i].is_object() && list[i].contains(column);
      row.push_back(there ? json_text(list[i].at(column)) : std::string());
    }
    table.rows.push_back(std::move(row));
  }
  table.left_out = list.size() - shown;
  return table;
}

/// Scalars of an object and of objects in it: "noise.trials".
void collect(const ordered_json& object, const std::string& prefix, int level,
             std::vector<std::vector<std::string>>& asked,
             std::vector<std::vector<std::string>>& answers) {
  for (const auto& item : object.items()) {
    const std::string name = prefix + item.key();
    const ordered_json& value = item.value();
    if (value.is_object() && level < most_levels) {
      collect(value, name + ".", level + 1, asked, answers);
      continue;
    }
    const std::string text = json_text(value);
    if (text.empty() || is_rows(value)) continue;
    if (is_asked(item.key()) && prefix.empty()) {
      asked.push_back({shown_name(name), shown_value(item.key(), value)});
    } else {
      answers.push_back({shown_name(name), shown_value(item.key(), value), text, name});
    }
  }
}

void collect_lists(const ordered_json& object, const std::string& prefix, int level,
                   const HtmlPlace& place, const std::string& file, std::string& out) {
  for (const auto& item : object.items()) {
    const std::string name = prefix + item.key();
    if (is_rows(item.value())) {
      out += html_table(rows_table(item.value(), place.id + "-" + html_id(name),
                                   shown_name(name) + " of " + file, place.href));
    } else if (item.value().is_object() && level < most_levels) {
      collect_lists(item.value(), name + ".", level + 1, place, file, out);
    }
  }
}

std::string cell_of(const CsvTable& table, std::size_t row, const std::string& column) {
  return table[row].text(column);
}

struct Tally {
  std::size_t cells = 0, exact = 0, corrected = 0, differ = 0, measured = 0, fitted = 0, errata = 0;
  double sum = 0, worst = 0;
};

/// Of rows of `reproduce`: a line for each table, then the errata with their reasons.
std::string reproduced_summary(const CsvTable& table, const HtmlPlace& place) {
  std::vector<std::string> order;
  std::map<std::string, Tally> tallies;
  HtmlTable errata{place.id + "-errata",
                   "Errata: printed numbers known to be wrong, and why",
                   {"table", "cell", "published", "ours", "verdict", "erratum"},
                   {}};
  HtmlTable wrong{place.id + "-differs",
                  "Cells that differ from the print",
                  {"table", "cell", "published", "ours"},
                  {}};
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::string name = cell_of(table, i, "table");
    if (!tallies.contains(name)) order.push_back(name);
    Tally& t = tallies[name];
    ++t.cells;
    const std::string verdict = cell_of(table, i, "verdict");
    if (verdict == "measured") {
      const std::string text = cell_of(table, i, "relative_error");
      const double error = std::abs(number_of(text).value_or(0));
      ++t.measured;
      t.sum += error;
      t.worst = std::max(t.worst, error);
    } else if (verdict == "fitted") {
      ++t.fitted;
    } else if (verdict == "exact") {
      ++t.exact;
    } else if (verdict == "erratum") {
      ++t.corrected;
    } else {
      ++t.differ;
      wrong.rows.push_back({name, cell_of(table, i, "cell"), cell_of(table, i, "published"),
                            cell_of(table, i, "ours")});
    }
    const std::string erratum = cell_of(table, i, "erratum");
    if (erratum.empty()) continue;
    ++t.errata;
    errata.rows.push_back({name, cell_of(table, i, "cell"), cell_of(table, i, "published"),
                           cell_of(table, i, "ours"), verdict, erratum});
  }
  HtmlTable summary{place.id + "-summary",
                    "Published tables: exact cells and measured ones",
                    {"table", "cells", "exact", "corrected", "differ", "fitted", "measured",
                     "mean error %", "worst error %", "errata"},
                    {}};
  for (const std::string& name : order) {
    const Tally& t = tallies[name];
    const bool measured = t.measured > 0;
    summary.rows.push_back(
        {name, std::to_string(t.cells), std::to_string(t.exact), std::to_string(t.corrected),
         std::to_string(t.differ), std::to_string(t.fitted), std::to_string(t.measured),
         measured ? fmt::format("{:.1f}", 100 * t.sum / static_cast<double>(t.measured)) : "",
         measured ? fmt::format("{:.1f}", 100 * t.worst) : "", std::to_string(t.errata)});
  }
  std::string out = html_table(summary);
  if (!wrong.rows.empty()) out += html_table(wrong);
  if (!errata.rows.empty()) out += html_table(errata);
  return out;
}

}  // namespace

bool is_asked(const std::string& name) {
  static const std::set<std::string, std::less<>> names{
      "model",    "hardware",    "method",         "attention",        "elementwise",
      "dtype",    "mode",        "weight_dtype",   "activation_dtype", "cache_dtype",
      "logits",   "batch",       "prompt_len",     "output_len",       "encoder_tokens",
      "threads",  "schedule",    "devices",        "partition",        "topology",
      "platform", "context",     "context_tokens", "speculator",       "goal",
      "min_gain", "algorithm",   "link_gb_per_s",  "link_bytes_per_s", "link_latency_s",
      "keep",     "memory_bytes"};
  return names.contains(name);
}

std::string json_text(const ordered_json& value) {
  if (value.is_null()) return {};
  if (value.is_string()) return value.get<std::string>();
  if (is_scalar(value)) return value.dump();
  if (!value.is_array()) return {};
  std::string out;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (!is_scalar(value[i]) && !(value[i].is_array() && value.size() <= most_items)) return {};
    if (i == most_items) return out + fmt::format(", … ({} in all)", value.size());
    out += (i > 0 ? ", " : "") + json_text(value[i]);
  }
  return out;
}

std::string html_json_result(const ResultFile& file, const HtmlPlace& place) {
  std::vector<std::vector<std::string>> asked;
  std::vector<std::vector<std::string>> answers;
  collect(file.json, "", 1, asked, answers);
  std::string out;
  if (!asked.empty()) out += "<h3>Asked</h3>\n" + html_values(asked);
  if (!answers.empty()) {
    out += html_table({place.id + "-answers",
                       "Answers; each number under its key in " + file.path.generic_string(),
                       {"quantity", "value", "exactly", "key"},
                       answers});
  }
  collect_lists(file.json, "", 1, place, file.path.generic_string(), out);
  return out;
}

std::string html_csv_result(const ResultFile& file, const ResultRows& all, const HtmlPlace& place) {
  const CsvTable& table = all.table;
  std::string out;
  if (!all.complete) {
    out +=
        "<p class=\"note\">The file is larger than 64 MiB; what follows is of its first MiB. <a "
        "href=\"" +
        place.href + "\">The file has it all</a>.</p>\n";
  }
  if (file.command == "reproduce") out += reproduced_summary(table, place);
  HtmlTable shown;
  shown.id = place.id + "-rows";
  shown.caption = "Rows of " + file.path.generic_string();
  shown.file = place.href;
  shown.quantities = file.command != "reproduce";
  std::vector<std::vector<std::string>> same;
  for (const std::string& column : table.columns()) {
    bool constant = table.size() > 1;
    for (std::size_t i = 1; constant && i < table.size(); ++i) {
      constant = cell_of(table, i, column) == cell_of(table, 0, column);
    }
    if (!constant) {
      shown.columns.push_back(column);
    } else if (const std::string text = cell_of(table, 0, column); !text.empty()) {
      same.push_back({shown_name(column), shown_quantity(column, text)});
    }
  }
  if (!same.empty()) out += "<h3>The same in every row</h3>\n" + html_values(same);
  const std::size_t rows = std::min(table.size(), most_rows);
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<std::string> cells;
    for (const std::string& column : shown.columns) cells.push_back(cell_of(table, i, column));
    shown.rows.push_back(std::move(cells));
  }
  shown.left_out = table.size() - rows;
  if (table.size() == 0) return out + "<p class=\"note\">The file has no rows.</p>\n";
  return shown.columns.empty() ? out : out + html_table(shown);
}

std::string html_picture(const std::filesystem::path& picture, const std::string& title,
                         const CsvTable* csv, const HtmlPlace& place) {
  const bool svg = picture.extension() == ".svg";
  std::string out = "<figure>\n<img alt=\"Plot: " + html_escape(title) + "\" src=\"data:image/" +
                    (svg ? "svg+xml" : "png") + ";base64," + base64(read_result_bytes(picture)) +
                    "\">\n<figcaption>" + html_escape(title) + " · <a href=\"" + place.href +
                    "\">picture</a></figcaption>\n</figure>\n";
  if (csv == nullptr || csv->size() == 0) return out;
  HtmlTable points{place.id + "-points", "Points of the plot", csv->columns(), {}};
  points.quantities = true;
  const std::size_t rows = std::min(csv->size(), most_rows);
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<std::string> cells;
    for (const std::string& column : csv->columns()) cells.push_back(cell_of(*csv, i, column));
    points.rows.push_back(std::move(cells));
  }
  points.left_out = csv->size() - rows;
  return out + "<details><summary>Points of this plot as a table</summary>\n" + html_table(points) +
         "</details>\n";
}

}  // namespace kvcast::reports
