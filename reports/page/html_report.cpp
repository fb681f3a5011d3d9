#include "reports/page/html_report.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/quantity.h"
#include "reports/page/html_page.h"
#include "reports/page/html_results.h"
#include "reports/page/html_table.h"
#include "reports/page/html_text.h"
#include "reports/plot/plot.h"

namespace kvcast::reports {
namespace {

namespace fs = std::filesystem;

/// The title in the gnuplot script beside a picture, else the picture's name.
std::string picture_title(fs::path picture) {
  const std::string name = picture.filename().string();
  std::error_code ec;
  if (!fs::is_regular_file(picture.replace_extension(".gp"), ec)) return name;
  const std::string script = read_result_bytes(picture);
  if (!script.starts_with(script_title)) return name;
  const std::size_t begin = std::string_view(script_title).size();
  return script.substr(begin, script.find('\n') - begin);
}

const char* kind_name(const ResultFile& file) {
  switch (file.kind) {
    case ResultKind::Json: return "JSON";
    case ResultKind::Csv: return "CSV";
    case ResultKind::Picture: return "plot";
    case ResultKind::PictureCsv: return "points of a plot";
    case ResultKind::Trace: return "trace";
    case ResultKind::Other: return "other";
    case ResultKind::Unreadable: return "unreadable";
  }
  return "";
}

void remove_empty_columns(HtmlTable& table) {
  for (std::size_t c = table.columns.size(); c-- > 0;) {
    const bool empty = std::all_of(table.rows.begin(), table.rows.end(),
                                   [&](const auto& row) { return row[c].empty(); });
    if (!empty) continue;
    const auto at = static_cast<std::ptrdiff_t>(c);
    table.columns.erase(table.columns.begin() + at);
    for (auto& row : table.rows) row.erase(row.begin() + at);
  }
}

class Builder {
 public:
  Builder(const fs::path& folder, const fs::path& output)
      : folder_(folder), output_folder_(fs::absolute(output).lexically_normal().parent_path()) {}

  void add(const ResultFile& file) {
    const fs::path path = folder_ / file.path;
    const HtmlPlace place{unique_id(file.path), href(path)};
    std::string note;
    try {
      note = body(file, path, place);
    } catch (const Error& e) {
      unreadable_.push_back(e.what());
      note = e.what();
    }
    files_.rows.push_back({file.path.generic_string(), kind_name(file), file.command,
                           std::to_string(file.bytes), note});
  }

  std::vector<HtmlSection> sections() {
    std::vector<HtmlSection> all;
    if (!asked_.rows.empty()) {
      remove_empty_columns(asked_);
      all.push_back({"asked", "What was asked, and the answers", html_table(asked_)});
    }
    for (HtmlSection& s : sections_) all.push_back(std::move(s));
    if (!traces_.empty()) {
      all.push_back({"traces", "Traces",
                     "<p>Timelines of runs; they open in Perfetto (ui.perfetto.dev) or in "
                     "chrome://tracing.</p>\n<ul>\n" +
                         traces_ + "</ul>\n"});
    }
    all.push_back({"provenance", "Where every number comes from", provenance()});
    return all;
  }

  std::size_t shown() const { return shown_; }
  const std::vector<std::string>& unreadable() const { return unreadable_; }

 private:
  std::string unique_id(const fs::path& path) {
    const std::string id = "r-" + html_id(path.generic_string());
    const int earlier = ids_[id]++;
    return earlier == 0 ? id : id + "--" + std::to_string(earlier);
  }

  std::string href(const fs::path& path) const {
    return html_href(fs::absolute(path).lexically_normal().lexically_relative(output_folder_));
  }

  /// Adds the section; returns what the list of files says of it.
  std::string body(const ResultFile& file, const fs::path& path, const HtmlPlace& place) {
    const std::string name = file.path.generic_string();
    const std::string what = file.command.empty() ? "" : ": " + file.command;
    switch (file.kind) {
      case ResultKind::Json:
        sections_.push_back({place.id, name + what, html_json_result(file, place)});
        add_asked(file);
        add_factors(file);
        break;
      case ResultKind::Csv:
        sections_.push_back(
            {place.id, name + what, html_csv_result(file, read_result_rows(path), place)});
        break;
      case ResultKind::Picture: {
        const std::string title = picture_title(path);
        std::optional<CsvTable> points;
        fs::path csv = path;
        csv.replace_extension(".csv");
        std::error_code ec;
        if (fs::is_regular_file(csv, ec)) points = read_result_rows(csv).table;
        sections_.push_back(
            {place.id, title, html_picture(path, title, points ? &*points : nullptr, place)});
        break;
      }
      case ResultKind::Trace:
        traces_ += "<li><a href=\"" + place.href + "\">" + html_escape(name) + "</a>, " +
                   html_escape(file.bytes == 0 ? std::string("0 B")
                                               : format_quantity(static_cast<double>(file.bytes),
                                                                 Dimension::Bytes)) +
                   "</li>\n";
        break;
      case ResultKind::PictureCsv: return "with its picture";
      case ResultKind::Other: return "listed only";
      case ResultKind::Unreadable:
        unreadable_.push_back(name + ": " + file.reason);
        return file.reason;
    }
    ++shown_;
    return "shown";
  }

  void add_asked(const ResultFile& file) {
    if (asked_.columns.empty()) {
      asked_ = {"asked-table",
                "One line for each result",
                {"result", "command", "model", "hardware", "method", "batch", "prompt_len",
                 "ttft_s", "tpot_s", "ttft_speedup", "kv_cache_bytes", "peak_memory_bytes", "fits"},
                {}};
      asked_.quantities = true;
    }
    std::vector<std::string> row{file.path.generic_string(), file.command};
    for (std::size_t c = 2; c < asked_.columns.size(); ++c) {
      const bool there = file.json.contains(asked_.columns[c]);
      row.push_back(there ? value_text(file.json.at(asked_.columns[c])) : std::string());
    }
    asked_.rows.push_back(std::move(row));
  }

  /// Factors that a result names: [{name, peak, factor, source, reference}, ...].
  void add_factors(const ResultFile& file) {
    if (!file.json.contains("factors") || !file.json.at("factors").is_array()) return;
    for (const auto& factor : file.json.at("factors")) {
      if (!factor.is_object()) continue;
      std::vector<std::string> row{file.path.generic_string()};
      for (const char* key : {"name", "peak", "factor", "source", "reference"}) {
        row.push_back(factor.contains(key) ? value_text(factor.at(key)) : std::string());
      }
      factors_.rows.push_back(std::move(row));
    }
  }

  std::string provenance() {
    std::string out =
        "<p>Every table names the file that its numbers stand in, and every answer its key there. "
        "Forecasts rest on the factors below: <em>datasheet</em>, a vendor's figure; "
        "<em>measured</em>, by a benchmark on such a device; <em>fitted</em>, to published "
        "measurements.</p>\n";
    if (!factors_.rows.empty()) out += html_table(factors_);
    return out + html_table(files_);
  }

  fs::path folder_;
  fs::path output_folder_;
  std::map<std::string, int> ids_;
  std::vector<HtmlSection> sections_;
  std::string traces_;
  HtmlTable asked_;
  HtmlTable factors_{"factors",
                     "Factors of the forecasts, with their sources",
                     {"result", "name", "peak", "factor", "source", "reference"},
                     {}};
  HtmlTable files_{"files", "Files", {"file", "kind", "command", "bytes", "in this report"}, {}};
  std::vector<std::string> unreadable_;
  std::size_t shown_ = 0;
};

}  // namespace

HtmlReport html_report(const fs::path& folder, const fs::path& output, const std::string& version) {
  const std::vector<ResultFile> files = read_results(folder, output);
  Builder builder(folder, output);
  // What was asked first: single results, then rows, then pictures.
  for (const ResultKind kind :
       {ResultKind::Json, ResultKind::Csv, ResultKind::Picture, ResultKind::Trace,
        ResultKind::PictureCsv, ResultKind::Other, ResultKind::Unreadable}) {
    for (const ResultFile& file : files) {
      if (file.kind == kind) builder.add(file);
    }
  }
  if (builder.shown() == 0) {
    throw Error(folder.string(), "no result that kvcast printed",
                "JSON, CSV, plots or traces, such as `kvcast estimate --json >DIR/estimate.json`");
  }
  const fs::path absolute = fs::absolute(folder).lexically_normal();
  const fs::path name =
      absolute.has_filename() ? absolute.filename() : absolute.parent_path().filename();
  HtmlReport report;
  report.html = html_page(
      "kvcast report: " + name.string(),
      fmt::format("{} of {} files, read by kvcast {}.", builder.shown(), files.size(), version),
      builder.sections());
  report.shown = builder.shown();
  report.unreadable = builder.unreadable();
  return report;
}

}  // namespace kvcast::reports
