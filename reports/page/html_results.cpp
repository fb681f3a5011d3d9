#include "reports/page/html_results.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "reports/page/html_table.h"
#include "reports/page/html_text.h"
#include "reports/reproduce/reproduce.h"

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
    return is_scalar(value) ? shown_quantity(key, value_text(value)) : value_text(value);
  }
  std::string out;
  for (const ordered_json& item : value) {
    const std::string text = value_text(item);
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
      row.push_back(there ? value_text(list[i].at(column)) : std::string());
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
    const std::string text = value_text(value);
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

/// A summary of the rows that `reproduce` wrote: a line for each table, then the errata.
std::string reproduced_summary(const CsvTable& csv, const HtmlPlace& place) {
  HtmlTable errata{place.id + "-errata",
                   "Errata: printed numbers known to be wrong, and why",
                   {"table", "cell", "published", "ours", "verdict", "erratum"},
                   {}};
  HtmlTable wrong{place.id + "-differs",
                  "Cells that differ from the print",
                  {"table", "cell", "published", "ours"},
                  {}};
  std::vector<PublishedTable> tables;
  std::map<std::string, std::vector<ReproducedRow>> rows;
  for (const CsvRow& row : csv.rows()) {
    const auto cells = [&](const HtmlTable& table) {
      std::vector<std::string> texts;
      for (const std::string& column : table.columns) texts.push_back(row.text(column));
      return texts;
    };
    ReproducedRow r;
    const std::string& verdict = row.text("verdict");
    r.fitted = verdict == "fitted";
    r.exact = !r.fitted && verdict != "measured";
    r.corrected = verdict == "erratum";
    r.agrees = r.corrected || verdict == "exact";
    r.relative_error = number_of(row.text("relative_error")).value_or(0);
    r.erratum = row.text("erratum");
    if (r.exact && !r.agrees) wrong.rows.push_back(cells(wrong));
    if (!r.erratum.empty()) errata.rows.push_back(cells(errata));
    std::vector<ReproducedRow>& of_table = rows[row.text("table")];
    if (of_table.empty()) tables.emplace_back().name = row.text("table");
    of_table.push_back(std::move(r));
  }
  HtmlTable summary{place.id + "-summary",
                    "Published tables: exact cells and measured ones",
                    {"table", "cells", "exact", "corrected", "differ", "fitted", "measured",
                     "mean error %", "worst error %", "errata"},
                    {}};
  for (const PublishedTable& table : tables) {
    const ReproductionSummary s = summarize(table, rows[table.name]);
    std::vector<std::string> cells{table.name};
    for (const std::size_t count :
         {s.cells, s.exact_agree, s.corrected, s.exact - s.exact_agree, s.fitted, s.measured()}) {
      cells.push_back(std::to_string(count));
    }
    for (const double error : {s.mape, s.worst}) {
      cells.push_back(s.measured() > 0 ? fmt::format("{:.1f}", 100 * error) : "");
    }
    cells.push_back(std::to_string(s.errata));
    summary.rows.push_back(std::move(cells));
  }
  std::string out = html_table(summary);
  if (!wrong.rows.empty()) out += html_table(wrong);
  if (!errata.rows.empty()) out += html_table(errata);
  return out;
}

/// The first rows of a file, of these columns.
HtmlTable csv_table(const CsvTable& csv, std::vector<std::string> columns, std::string id,
                    std::string caption) {
  HtmlTable table{std::move(id), std::move(caption), std::move(columns), {}};
  const std::size_t shown = std::min(csv.size(), most_rows);
  for (std::size_t i = 0; i < shown; ++i) {
    std::vector<std::string> cells;
    for (const std::string& column : table.columns) cells.push_back(csv[i].text(column));
    table.rows.push_back(std::move(cells));
  }
  table.left_out = csv.size() - shown;
  return table;
}

}  // namespace

bool is_asked(const std::string& name) {
  static const std::set<std::string, std::less<>> names{"model",
                                                        "hardware",
                                                        "engine",
                                                        "method",
                                                        "attention",
                                                        "elementwise",
                                                        "dtype",
                                                        "mode",
                                                        "weight_dtype",
                                                        "activation_dtype",
                                                        "cache_dtype",
                                                        "logits",
                                                        "batch",
                                                        "prompt_len",
                                                        "output_len",
                                                        "encoder_tokens",
                                                        "threads",
                                                        "schedule",
                                                        "devices",
                                                        "partition",
                                                        "topology",
                                                        "platform",
                                                        "context",
                                                        "context_tokens",
                                                        "speculator",
                                                        "goal",
                                                        "min_gain",
                                                        "algorithm",
                                                        "link_gb_per_s",
                                                        "link_bytes_per_s",
                                                        "link_latency_s",
                                                        "keep",
                                                        "memory_bytes",
                                                        "tp",
                                                        "pp",
                                                        "ep",
                                                        "dp",
                                                        "objective"};
  return names.contains(name);
}

std::string value_text(const ordered_json& value) {
  if (value.is_null()) return {};
  if (value.is_string()) return value.get<std::string>();
  if (is_scalar(value)) return value.dump();
  if (!value.is_array()) return {};
  std::string out;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (!is_scalar(value[i]) && !(value[i].is_array() && value.size() <= most_items)) return {};
    if (i == most_items) return out + fmt::format(", … ({} in all)", value.size());
    out += (i > 0 ? ", " : "") + value_text(value[i]);
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
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> same;
  for (const std::string& column : table.columns()) {
    bool constant = table.size() > 1;
    for (std::size_t i = 1; constant && i < table.size(); ++i) {
      constant = table[i].text(column) == table[0].text(column);
    }
    if (!constant) {
      columns.push_back(column);
    } else if (const std::string& text = table[0].text(column); !text.empty()) {
      same.push_back({shown_name(column), shown_quantity(column, text)});
    }
  }
  if (!same.empty()) out += "<h3>The same in every row</h3>\n" + html_values(same);
  if (table.size() == 0) return out + "<p class=\"note\">The file has no rows.</p>\n";
  if (columns.empty()) return out;
  HtmlTable shown = csv_table(table, std::move(columns), place.id + "-rows",
                              "Rows of " + file.path.generic_string());
  shown.file = place.href;
  shown.quantities = file.command != "reproduce";
  return out + html_table(shown);
}

std::string html_picture(const std::filesystem::path& picture, const std::string& title,
                         const CsvTable* csv, const HtmlPlace& place) {
  const bool svg = picture.extension() == ".svg";
  std::string out = "<figure>\n<img alt=\"Plot: " + html_escape(title) + "\" src=\"data:image/" +
                    (svg ? "svg+xml" : "png") + ";base64," + base64(read_result_bytes(picture)) +
                    "\">\n<figcaption>" + html_escape(title) + " · <a href=\"" + place.href +
                    "\">picture</a></figcaption>\n</figure>\n";
  if (csv == nullptr || csv->size() == 0) return out;
  HtmlTable points = csv_table(*csv, csv->columns(), place.id + "-points", "Points of the plot");
  points.quantities = true;
  return out + "<details><summary>Points of this plot as a table</summary>\n" + html_table(points) +
         "</details>\n";
}

}  // namespace kvcast::reports
