#include "cli/choose/ranking.h"

#include <fmt/format.h>

namespace kvcast::cli {

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
    if (!is_rejected) continue;
    reasons +=
        fmt::format("rejected: {}: {}\n", ranking.rejected(row), row["reason"].get<std::string>());
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
  const std::string table =
      ranked.empty() ? "no form of the model fits\n" : table_text(columns, ranked);
  print_text(table + reasons + ranking.note);
}

}  // namespace kvcast::cli
