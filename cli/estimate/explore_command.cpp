#include <filesystem>
#include <memory>

#include "cli/frame/command.h"
#include "cli/frame/data_folder.h"
#include "model/base/error.h"
#include "model/base/read_file.h"
#include "model/io/files/atomic_file.h"

namespace kvcast::cli {
namespace {

constexpr std::size_t most_page_bytes = 5'000'000;

void run(const std::string& output) {
  const std::filesystem::path page = explorer_page();
  if (page.empty()) {
    throw Error(
        "the explorer's page was not built; ./run explorer builds it, with em++ of the package "
        "emscripten",
        Fault::Run);
  }
  write_file(output, read_file(page, "the explorer's page", most_page_bytes));
  print_text(output + "\n");
}

}  // namespace

void add_explore(Command app, const Globals&) {
  Command command = app.add_subcommand(
      "explore",
      "Write a page to explore forecasts in a browser, without a network.\n\nExamples:\n"
      "  kvcast explore\n"
      "  kvcast explore --output /tmp/kvcast.html");
  const auto output = std::make_shared<std::string>("explorer.html");
  command.add("--output FILE.html", *output, "the page").writes();
  command.callback([output] { run(*output); });
}

}  // namespace kvcast::cli
