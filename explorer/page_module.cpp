/// The page's half of the program: the commands that forecast, as one function for JavaScript.
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/estimate/sweep_axes.h"
#include "cli/frame/capture.h"
#include "cli/frame/command.h"
#include "cli/frame/file_rules.h"
#include "model/base/dtype.h"
#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/config/weight_types.h"
#include "model/methods/method.h"
#include "reports/sweep/sweep_grid.h"
#include "reports/sweep/sweep_rows.h"

namespace kvcast::cli {
namespace {

/// The rows that `kvcast sweep` prints.
void add_rows(Command app, const Globals& globals) {
  Command command = app.add_subcommand("sweep", "Forecast a grid of requests, as CSV.");
  const auto axes = std::make_shared<SweepAxes>();
  axes->add_to(command);
  command.callback([axes, &globals] {
    const reports::SweepGrid grid(axes->parse(globals), globals.catalog());
    std::string text = reports::sweep_header();
    reports::RowScratch scratch;
    for (std::uint64_t c = 0; c < grid.num_configurations(); ++c) {
      reports::ConfigurationRows rows(grid, c);
      rows.append(0, grid.num_sizes(), scratch, text);
    }
    print_text(text);
  });
}

const char* name(MethodKind kind) {
  switch (kind) {
    case MethodKind::Cache: return "cache";
    case MethodKind::Prompt: return "prompt";
    case MethodKind::Source: return "source";
    case MethodKind::Placement: return "placement";
  }
  KVCAST_ASSERT(false);
  return "";
}

/// What the page's controls offer.
nlohmann::ordered_json choices() {
  nlohmann::ordered_json all;
  for (const Method& m : methods()) {
    all["methods"].push_back({{"name", m.name},
                              {"kind", name(m.kind)},
                              {"summary", m.summary},
                              {"options", m.options},
                              {"example", m.example}});
  }
  all["dtypes"] = dtype_names();
  for (const WeightPreset& preset : weight_presets()) all["presets"].push_back(preset.name);
  return all;
}

void add_choices(Command app) {
  Command command = app.add_subcommand("choices", "What the page's controls offer.");
  command.callback([] { print_json(choices()); });
}

void run(const std::vector<std::string>& words) {
  CLI::App app("", "kvcast");
  Globals globals{.data = "/data", .files_stay = true};
  app.add_option("--data", globals.data);
  app.require_subcommand(1);
  add_estimate(Command(&app), globals);
  add_rows(Command(&app), globals);
  add_choices(Command(&app));
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // the last word first
  } catch (const CLI::ParseError& e) {
    throw Error(e.what());
  }
}

}  // namespace
}  // namespace kvcast::cli

/// `words`: the command line after the program's name, a JSON list. Returns a JSON object with the
/// document, the text and the messages that the command prints, or the line of its error; valid
/// until the next call.
extern "C" const char* kvcast_run(const char* words) {
  using namespace kvcast;
  static std::string text;
  nlohmann::ordered_json result;
  try {
    cli::Capture capture;
    cli::run(nlohmann::json::parse(words).get<std::vector<std::string>>());
    result["document"] = capture.document;
    result["text"] = capture.text;
    result["messages"] = nlohmann::ordered_json::array();
    for (const auto& message : capture.messages) result["messages"].push_back(message.line);
  } catch (const std::exception& e) {
    result["error"] = printable_line(e.what());
  }
  cli::forget_rules();
  text = json_text(result);
  return text.c_str();
}
