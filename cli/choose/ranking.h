/// What a choose command finds: candidates in their order, and those that are ruled out.
#pragma once

#include <string>
#include <vector>

#include "cli/frame/result.h"

namespace kvcast::cli {

struct Ranking {
  ordered_json head;  ///< of the JSON, before the rows
  /// The best first; then those with a "reason" against them.
  ordered_json rows = ordered_json::array();
  std::vector<Column> table;  ///< after the rank
  std::vector<Column> csv;    ///< between the rank and the reason
  Words rejected;             ///< names a row that is ruled out
  std::string note;           ///< below the table
};

/// Prints as the flags say.
void print_ranking(const Ranking& ranking, const RowsOutput& output);

}  // namespace kvcast::cli
