#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/frame/command.h"
#include "measure/measurements.h"
#include "roofline/engine.h"

namespace kvcast::cli {
namespace {

using nlohmann::ordered_json;
using roofline::Engine;
using roofline::EngineValue;

struct EngineOptions {
  std::string engine;
  bool json = false;
};

/// Values under their keys, and their sources under the same keys in "sources".
ordered_json engine_json(const Engine& engine) {
  ordered_json j{
      {"name", engine.name}, {"version", engine.version}, {"description", engine.description}};
  ordered_json sources = ordered_json::object();
  for (const EngineValue& v : engine.values) {
    j[v.key] = ordered_json::parse(v.value);
    sources[v.key] = {{"source", v.source}, {"reference", v.reference}};
    if (!v.note.empty()) sources[v.key]["note"] = v.note;
  }
  j["sources"] = sources;
  return j;
}

/// Lists of labels as "query+key+value", one text each; other values as in the file.
std::vector<std::string> value_texts(const ordered_json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) return {value.dump()};
  std::vector<std::string> texts;
  for (const ordered_json& part : value) {
    const bool is_launch =
        part.is_array() &&
        std::all_of(part.begin(), part.end(), [](const auto& l) { return l.is_string(); });
    texts.push_back(is_launch
                        ? fmt::format("{}", fmt::join(part.get<std::vector<std::string>>(), "+"))
                        : part.dump());
  }
  return texts;
}

void list_engines(const Globals& globals, bool json) {
  const Catalog catalog = globals.catalog();
  Table table({"name", "versions from", "attention", "description"});
  ordered_json rows = ordered_json::array();
  for (const std::string& name : catalog.names("engines")) {
    const Engine engine = roofline::read_engine(catalog.find("engines", "engine", name));
    const std::string attention =
        engine.attention ? std::string(measure::attention_name(*engine.attention)) : "";
    rows.push_back({{"name", name},
                    {"description", engine.description},
                    {"versions", engine.versions},
                    {"attention", attention}});
    table.add(
        {name, fmt::format("{}", fmt::join(engine.versions, ", ")), attention, engine.description});
  }
  print_result(json, rows, table.text());
}

void show(const EngineOptions& o, const Globals& globals) {
  const Catalog catalog = globals.catalog();
  const bool ideal = o.engine == Engine{}.name;  // load_engine does without its file
  const Engine engine = ideal ? roofline::read_engine(catalog.find("engines", "engine", o.engine))
                              : roofline::load_engine(catalog, o.engine);
  const ordered_json j = engine_json(engine);
  if (o.json) {
    print_json(j);
    return;
  }
  const std::string version = engine.version.empty() ? "" : " " + engine.version;
  std::string text = fmt::format("{}{}: {}\n", engine.name, version, engine.description);
  Table table({"key", "value", "source", "reference"}, Table::Long::Wrap);
  for (const EngineValue& v : engine.values) {
    for (const std::string& value : value_texts(j[v.key])) {
      table.add({v.key, value, v.source, v.reference});
    }
  }
  if (!engine.values.empty()) text += table.text();
  print_text(text);
}

}  // namespace

void add_engine(Command app, const Globals& globals) {
  Command command = app.add_subcommand(
      "engine",
      "List and show engines, the software that runs a model: its kernels, launches and host "
      "times.\n\nExamples:\n"
      "  kvcast engine show vllm:0.6.3\n"
      "  kvcast engine list --json");
  command.require_subcommand(1);
  const auto options = std::make_shared<EngineOptions>();
  Command list_command = command.add_subcommand("list", "List every engine of the catalog.");
  list_command.add("--json", options->json);
  list_command.callback([options, &globals] { list_engines(globals, options->json); });

  Command c = command.add_subcommand("show", "Show one engine: every value with its source.");
  c.add("ENGINE", options->engine,
        "catalog name or a JSON file; a version follows a colon (default: the newest)")
      .required();
  c.add("--json", options->json);
  c.callback([options, &globals] { show(*options, globals); });
}

}  // namespace kvcast::cli
