#include "reports/page/html_table.h"

#include <fmt/format.h>

#include "reports/page/html_text.h"

namespace kvcast::reports {
namespace {

/// A column of numbers, empty cells apart, stands to the right.
std::vector<bool> numeric_columns(const HtmlTable& table) {
  std::vector<bool> numeric(table.columns.size(), false);
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    bool any = false;
    bool all = true;
    for (const auto& row : table.rows) {
      if (c >= row.size() || row[c].empty()) continue;
      any = true;
      all = all && is_number(row[c]);
    }
    numeric[c] = any && all;
  }
  return numeric;
}

/// A long name may be broken after its underscores, where print has no room for it.
std::string breakable(const std::string& name) {
  std::string out;
  for (const char c : html_escape(name)) {
    out += c;
    if (c == '_') out += "<wbr>";
  }
  return out;
}

std::string cell(const HtmlTable& table, std::size_t column, const std::string& text,
                 bool numeric) {
  std::string shown = text;
  if (numeric && table.quantities) shown = shown_quantity(table.columns[column], text);
  if (numeric && !table.quantities) shown = shown_number(text);
  std::string attributes;
  constexpr std::size_t longest_unbroken = 24;
  if (numeric) {
    attributes += " class=\"n\"";
  } else if (shown.size() <= longest_unbroken) {
    attributes += " class=\"k\"";
  }
  if (shown != text) {
    attributes += fmt::format(" data-v=\"{0}\" title=\"{0}\"", html_escape(text));
  }
  const bool wrong = text == "DIFFERS";
  const std::string content =
      wrong ? "<strong class=\"bad\">" + html_escape(shown) + "</strong>" : html_escape(shown);
  if (column == 0 && !numeric) return "<th scope=\"row\"" + attributes + ">" + content + "</th>";
  return "<td" + attributes + ">" + content + "</td>";
}

}  // namespace

std::string html_table(const HtmlTable& table) {
  const std::vector<bool> numeric = numeric_columns(table);
  std::string out = fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"{0}-c\">\n"
      "<table class=\"sortable\" id=\"{0}\">\n<caption id=\"{0}-c\">{1}</caption>\n<thead><tr>",
      table.id, html_escape(table.caption));
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    out += fmt::format("<th scope=\"col\"{}>{}</th>", numeric[c] ? " class=\"n\"" : "",
                       breakable(table.columns[c]));
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      out += cell(table, c, c < row.size() ? row[c] : "", numeric[c]);
    }
    out += "</tr>\n";
  }
  out += "</tbody>\n</table>\n</div>\n";
  if (table.left_out > 0) {
    out += fmt::format("<p class=\"note\">The first {} of {} rows are shown; ", table.rows.size(),
                       table.rows.size() + table.left_out);
    out += table.file.empty()
               ? std::string("the file has the others.</p>\n")
               : fmt::format("<a href=\"{}\">the file has them all</a>.</p>\n", table.file);
  }
  return out;
}

std::string html_values(const std::vector<std::vector<std::string>>& names_and_values) {
  std::string out = "<dl class=\"values\">\n";
  for (const auto& pair : names_and_values) {
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", html_escape(pair[0]),
                       html_escape(pair[1]));
  }
  return out + "</dl>\n";
}

}  // namespace kvcast::reports
