#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>

#include "cli/frame/command.h"
#include "model/base/error.h"
#include "model/io/files/atomic_file.h"
#include "reports/page/html_report.h"

namespace kvcast::cli {
namespace {

struct ReportOptions {
  std::string folder;
  std::string output;
};

/// A result that stands where the page is to go would be left out of it and lost. Throws Error.
void check_is_page(const std::filesystem::path& output) {
  std::ifstream in(output, std::ios::binary);
  constexpr std::string_view doctype = "<!DOCTYPE html";
  std::string begin(doctype.size(), '\0');
  const bool has_bytes = std::filesystem::is_regular_file(output) && in.read(begin.data(), 1);
  if (!has_bytes) return;
  in.read(begin.data() + 1, static_cast<std::streamsize>(begin.size() - 1));
  if (begin == doctype) return;
  throw Error("--output", output.string() + ", a file that is no page",
              "a new file, or a page to write anew");
}

void run(const ReportOptions& o, const Globals& globals) {
  const std::filesystem::path output = o.output.empty()
                                           ? std::filesystem::path(o.folder) / "report.html"
                                           : std::filesystem::path(o.output);
  if (!o.output.empty()) check_is_page(output);
  const reports::HtmlReport report = reports::html_report(o.folder, output, KVCAST_VERSION);
  for (const std::string& line : report.unreadable) globals.warn(line);
  write_file(output, report.html);
  print_text(output.string() + "\n");
}

}  // namespace

void add_report(Command app, const Globals& globals) {
  Command command = app.add_subcommand(
      "report",
      "Make one HTML page from a folder of results (JSON, CSV, plots, traces).\n\nExamples:\n"
      "  kvcast report results\n"
      "  kvcast report results --output page.html");
  const auto options = std::make_shared<ReportOptions>();
  command.add("DIR", options->folder, "folder with what kvcast wrote").required();
  command.add("--output FILE.html", options->output, "the page; default DIR/report.html").writes();
  command.callback([options, &globals] { run(*options, globals); });
}

}  // namespace kvcast::cli
