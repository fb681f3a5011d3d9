#include "cli/choose/ranking.h"

#include <fmt/format.h>

namespace kvcast::cli {

void print_ranking(const Ranking& ranking, const RowsOutput& output) {
  if (!output.csv.empty()) write_rows_csv(output.csv, ranking.csv, ranking.rows);
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
  const std::string table =
      ranked.empty() ? "no form of the model fits\n" : table_text(ranking.table, ranked);
  print_text(table + reasons + ranking.note);
}

}  // namespace kvcast::cli
