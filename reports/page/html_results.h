/// The parts of a report: one result each.
#pragma once

#include <string>

#include "reports/page/result_files.h"

namespace kvcast::reports {

/// Where a result stands on the page.
struct HtmlPlace {
  std::string id;    ///< unique on the page
  std::string href;  ///< the address of its file
};

/// What was asked, the answer with each number's key, and its lists as tables.
std::string html_json_result(const ResultFile& file, const HtmlPlace& place);

/// The columns that are the same in every row, then the others as a table of at most 200 rows.
/// Rows of `reproduce` begin with a summary and the errata.
std::string html_csv_result(const ResultFile& file, const ResultRows& all, const HtmlPlace& place);

/// The picture with its title, and its points as a table to unfold. `csv`: null without points.
std::string html_picture(const std::filesystem::path& picture, const std::string& title,
                         const CsvTable* csv, const HtmlPlace& place);

/// Whether a JSON key or a CSV column is part of the request, not of the answer.
bool is_asked(const std::string& name);

/// A scalar as text, a list of scalars joined; other values as "".
std::string value_text(const nlohmann::ordered_json& value);

}  // namespace kvcast::reports
