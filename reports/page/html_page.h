/// One self-contained HTML page: style and script inside, nothing loaded from anywhere.
#pragma once

#include <string>
#include <vector>

namespace kvcast::reports {

struct HtmlSection {
  std::string id;     ///< unique on the page
  std::string title;  ///< text
  std::string body;   ///< HTML
};

/// Title, a table of contents and the sections. `title` and `lead` are text.
std::string html_page(const std::string& title, const std::string& lead,
                      const std::vector<HtmlSection>& sections);

}  // namespace kvcast::reports
