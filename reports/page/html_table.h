/// Tables of a report.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvcast::reports {

/// Cells are text of unknown origin; what is shown of numbers follows their column's unit, and the
/// number itself stays in the cell's title.
struct HtmlTable {
  std::string id;       ///< unique on the page
  std::string caption;  ///< text
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::size_t left_out = 0;  ///< rows that the file has besides
  std::string file = {};     ///< relative address of all rows; empty: none
  bool quantities = false;   ///< show "93.3 ms" and not "0.0933195" under ttft_s
};

/// The element, in a region that scrolls sideways on a narrow screen. A script may make it sortable
/// by its class.
std::string html_table(const HtmlTable& table);

/// Names and values, one to a line: `<dl>`.
std::string html_values(const std::vector<std::vector<std::string>>& names_and_values);

}  // namespace kvcast::reports
