#include <memory>

#include "cli/command.h"
#include "reports/atomic_file.h"
#include "reports/html_report.h"

namespace kvcast::cli {
namespace {

struct Options {
  std::string folder;
  std::string output;
};

void run(const Options& o, const Globals& globals) {
  const std::filesystem::path output = o.output.empty()
                                           ? std::filesystem::path(o.folder) / "report.html"
                                           : std::filesystem::path(o.output);
  const reports::HtmlReport report = reports::html_report(o.folder, output, KVCAST_VERSION);
  for (const std::string& line : report.unreadable) globals.warn(line);
  reports::write_file(output, report.html);
  print_text(output.string() + "\n");
}

}  // namespace

void add_report(CLI::App& app, const Globals& globals) {
  CLI::App* command = app.add_subcommand(
      "report",
      "One HTML page from a folder of results: JSON, CSV, plots and traces.\n\nExamples:\n"
      "  kvcast report results\n"
      "  kvcast report results --output page.html");
  const auto options = std::make_shared<Options>();
  command->add_option("DIR", options->folder, "folder with what kvcast wrote")->required();
  command->add_option("--output", options->output, "the page; default DIR/report.html")
      ->type_name("FILE.html");
  command->callback([options, &globals] { run(*options, globals); });
}

}  // namespace kvcast::cli
