/// One HTML page from a folder of results.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvcast::reports {

struct HtmlReport {
  std::string html;
  std::size_t shown = 0;                ///< result files that the page holds or links
  std::vector<std::string> unreadable;  ///< "FILE: why" for files that should have been shown
};

/// Reads the folder and builds the page, which links files relative to `output`. `version` is named
/// in the page. The same folder gives the same page. Throws Error as read_results does, and when
/// there is no result in the folder.
HtmlReport html_report(const std::filesystem::path& folder, const std::filesystem::path& output,
                       const std::string& version);

}  // namespace kvcast::reports
