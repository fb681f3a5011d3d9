#include "cli/choose/ranking.h"

#include <fmt/format.h>

namespace kvcast::cli {
namespace {

/// Of the rejected ones that a person reads; all are in the JSON and the CSV. Ours.
constexpr std::size_t most_reasons = 20;

}  // namespace

reports::Plot front_plot(const ordered_json& rows, const std::string& title, const reports::Axis& x,
                         const reports::Axis& y, const char* name) {
  reports::Plot plot{.title = title, .x = x, .y = y};
  for (const ordered_json& row : rows) {
    if (!row.contains("on_front") || !row.contains(x.column) || !row.contains(y.column)) continue;
    const reports::Point point{row[x.column], row[y.column], row[name]};
    const bool is_on_front = row["on_front"];
    series_of(plot.series, is_on_front ? "on the front" : "others", reports::Style::Marks)
        .points.push_back(point);
    if (is_on_front) plot.annotations.push_back({point.x, point.y, point.name});
  }
  return plot;
}

void print_ranking(const Ranking& ranking, const RowsOutput& output) {
  const Column rank{"rank", "#"};
  if (!output.csv.empty()) {
    std::vector<Column> columns = ranking.csv;
    columns.insert(columns.begin(), rank);
    columns.push_back({"rejected", "reason"});
    write_rows_csv(output.csv, columns, ranking.rows);
  }
  if (output.csv_is_stdout()) return;
  ordered_json ranked = ordered_json::array();
  ordered_json rejected = ordered_json::array();
  std::string reasons;
  for (const ordered_json& row : ranking.rows) {
    const bool is_rejected = row.contains("reason");
    (is_rejected ? rejected : ranked).push_back(row);
    if (!is_rejected || rejected.size() > most_reasons) continue;
    reasons +=
        fmt::format("rejected: {}: {}\n", ranking.rejected(row), row["reason"].get<std::string>());
  }
  if (rejected.size() > most_reasons) {
    reasons += fmt::format("and {} more, see --csv or --json\n", rejected.size() - most_reasons);
  }
  if (output.json) {
    ordered_json j = ranking.head;
    j["rows"] = ranked;
    j["rejected"] = rejected;
    print_json(j);
    return;
  }
  std::vector<Column> columns = ranking.table;
  columns.insert(columns.begin(), rank);
  const std::string table = ranked.empty() ? ranking.none + "\n" : table_text(columns, ranked);
  print_text(table + reasons + ranking.note);
}

}  // namespace kvcast::cli
