/// The result of a choose command: ranked candidates, then rejected ones.
#pragma once

#include <string>
#include <vector>

#include "cli/frame/result.h"
#include "reports/plot/plot.h"

namespace kvcast::cli {

struct Ranking {
  ordered_json head;  ///< JSON keys before the rows
  /// The best first, then the rejected ones, which have a "reason".
  ordered_json rows = ordered_json::array();
  std::vector<Column> table;                       ///< columns after the rank
  std::vector<Column> csv;                         ///< columns between the rank and the reason
  Words rejected;                                  ///< the name of a rejected row
  std::string none = "no form of the model fits";  ///< said where all are rejected
  std::string note;                                ///< a line below the table
};

/// Rows with "on_front", `x.column` and `y.column`; those on the front have their name,
/// row[`name`], beside them.
reports::Plot front_plot(const ordered_json& rows, const std::string& title, const reports::Axis& x,
                         const reports::Axis& y, const char* name);

/// Prints a table, or JSON, and writes the CSV file, as `output` asks.
void print_ranking(const Ranking& ranking, const RowsOutput& output);

}  // namespace kvcast::cli
