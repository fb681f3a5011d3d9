#include "cli/frame/command_line.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <regex>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include "cli/frame/build_facts.h"
#include "cli/frame/command.h"
#include "cli/frame/documents.h"
#include "cli/frame/help_format.h"
#include "model/base/error.h"
#include "model/methods/method.h"

namespace kvcast::cli {
namespace {

constexpr std::size_t method_column = 16;

std::string method_help() {
  std::string text = "Methods, NAME[:KEY=VALUE,...], joined by +:\n";
  for (const Method& m : methods()) {
    text += help_line(std::string(m.name), std::string(m.summary), method_column);
  }
  return text;
}

constexpr const char* description =
    "Forecasts what key-value-cache methods do to a transformer's time to first token (TTFT), "
    "time\n"
    "per output token (TPOT), cache size and memory.\n"
    "\n"
    "Examples:\n"
    "  kvcast estimate --model llama-7b --hardware a100-80gb --attention eager --prompt-len 4k\n"
    "  kvcast sweep --model llama-3.1-8b,pythia-1.4b --hardware h100-sxm --prompt-len 1k..128k:x2 "
    "--csv sweep.csv\n";

constexpr const char* first_steps =
    "kvcast forecasts time to first token, time per output token, cache and memory of language\n"
    "models, and what key-value-cache methods change.\n"
    "\n"
    "  kvcast estimate -m llama-3.1-8b --hardware h100-sxm -p 8k     one request\n"
    "  kvcast sweep -m llama-7b --hardware a100-80gb -p 1k..64k:x2   a grid, as CSV\n"
    "  kvcast calibrate                                              this machine, as the default\n"
    "  kvcast run --model FOLDER --prompt TEXT                       a checkpoint on this CPU\n"
    "  kvcast model list, kvcast hardware list                       the catalog\n"
    "\n"
    "All commands: kvcast --help. One command: kvcast COMMAND --help. Guide: docs/README.md.\n";

/// "kvcast choose devices"
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

/// The flags and subcommands that a misspelt word may have meant.
std::vector<std::string> known_words(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    words.push_back(sub->get_name());
  }
  return words;
}

/// The innermost subcommand that was given.
const CLI::App& selected(const CLI::App& app) {
  const CLI::App* current = &app;
  while (!current->get_subcommands().empty()) current = current->get_subcommands().front();
  return *current;
}

/// CLI11's complaint in our words.
std::string in_our_words(const std::string& complaint, const CLI::App& command) {
  if (complaint == "A subcommand is required") {
    return "a command is missing; see " + full_name(command) + " --help";
  }
  constexpr std::string_view required = " is required";
  if (complaint.ends_with(required)) {
    const std::string name = complaint.substr(0, complaint.size() - required.size());
    const CLI::Option* option = command.get_option_no_throw(name);
    return option == nullptr ? complaint : complaint + ": " + option->get_description();
  }
  static const std::pair<std::regex, const char*> words[] = {
      {std::regex("(.*): At [Mm]ost 1 required but received (.*)"),
       "$1: given $2 times, expected once"},
      {std::regex("(.*): At [Mm]ost (.*) required but received (.*)"),
       "$1: got $3 values, expected at most $2"},
      {std::regex("(.*): At least (.*) required but received (.*)"),
       "$1: got $3 values, expected at least $2"},
      {std::regex("(.*): 1 required (.*) missing"), "$1: got no value, expected $2"},
      {std::regex("Could not convert: (.*?) = (.*)"), "$1: got '$2', expected no value"},
  };
  for (const auto& [theirs, ours] : words) {
    if (std::regex_match(complaint, theirs)) return std::regex_replace(complaint, theirs, ours);
  }
  return complaint;
}

/// Prints help or the version where these were asked for; else throws Error in our words.
void report_parse_error(const CLI::App& app, const CLI::ParseError& e) {
  const CLI::App& command = selected(app);
  if (e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    print_text(dynamic_cast<const CLI::CallForVersion*>(&e) != nullptr
                   ? std::string(e.what()) + "\n"
                   : app.help());
    return;
  }
  std::string line = in_our_words(printable_line(e.what()), command);
  // CLI11 asks for a missing flag before it complains of a misspelt one.
  const std::vector<std::string> extras = app.remaining(true);
  if (!extras.empty()) {
    const std::string word = extras.front().substr(0, extras.front().find('='));
    const bool subcommand_wanted =
        command.get_subcommands([](const CLI::App*) { return true; }).size() > 0;
    const char* kind =
        word.rfind("-", 0) == 0 ? "flag" : (subcommand_wanted ? "command" : "argument");
    const std::string guess = nearest(word, known_words(command));
    line = "unknown " + std::string(kind) + " '" + word + "'";
    line += guess.empty() ? "; see " + full_name(command) + " --help"
                          : "; did you mean '" + guess + "'?";
  }
  throw Error(line);
}

struct NamedCommand {
  const char* name;
  void (*add)(Command, const Globals&);
};
/// In the order of --help.
constexpr NamedCommand commands[] = {
    {"model", add_model},       {"hardware", add_hardware},   {"engine", add_engine},
    {"platform", add_platform}, {"estimate", add_estimate},   {"calibrate", add_calibrate},
    {"sweep", add_sweep},       {"explore", add_explore},     {"simulate", add_simulate},
    {"run", add_run},           {"train", add_train},         {"choose", add_choose},
    {"convert", add_convert},   {"partition", add_partition}, {"reproduce", add_reproduce},
    {"report", add_report},     {"validate", add_validate},
};

/// The parser, with all commands or with the one that is named.
class Program {
 public:
  explicit Program(const std::string& name = {}) {
    app_.formatter(std::make_shared<HelpFormat>());
    app_.set_help_flag("-h,--help", "show this help");
    app_.set_version_flag("--version", build_facts, "print version and build facts");
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.add_option("--data", globals_.data, "folder with models, hardware and published tables")
        ->type_name("DIR");
    app_.add_flag("--quiet,-q", globals_.quiet, "no messages and no progress on stderr");
    const bool is_command = std::any_of(std::begin(commands), std::end(commands),
                                        [&](const NamedCommand& c) { return name == c.name; });
    for (const NamedCommand& c : commands) {
      if (!is_command || name == c.name) c.add(Command(&app_), globals_);
    }
    if (!is_command) add_documents(Command(&app_));
    app_.footer(method_help());  // at the end: subcommands would inherit it
  }
  ~Program() { forget_rules(); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  CLI::App& app() { return app_; }
  const Globals& globals() const { return globals_; }

 private:
  CLI::App app_{description, "kvcast"};
  Globals globals_;
};

void add_flags_of(const CLI::App& command, const std::string& name,
                  std::map<std::string, std::map<std::string, Takes>>& all) {
  const auto subcommands = command.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : subcommands) {
    add_flags_of(*sub, (name.empty() ? "" : name + " ") + sub->get_name(), all);
  }
  if (name.empty()) return;
  std::map<std::string, Takes>& flags = all[name];
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    // The flags of a parent hold below it, but for those of `validate` (validate_command.cpp).
    if (app != &command && app->get_parent() != nullptr) continue;
    for (const CLI::Option* option : app->get_options()) {
      const Takes takes = option->get_items_expected_max() == 0  ? Takes::Nothing
                          : option->get_items_expected_max() > 1 ? Takes::Values
                                                                 : Takes::Value;
      for (const std::string& long_name : option->get_lnames()) {
        flags.emplace("--" + long_name, takes);
      }
    }
  }
}

}  // namespace

void run_program(const std::vector<std::string>& words) {
  if (words.empty()) return print_text(first_steps);
  // A command line that begins with a command needs no other: this saves most of the start.
  Program program(words.front());
  CLI::App& app = program.app();
  if (words.front() == complete_command) {
    return print_text(completions(app, [&] { return program.globals().catalog(); },
                                  {words.begin() + 1, words.end()}));
  }
  std::vector<std::string> backwards;
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    // CLI11 takes the next word for the value of "--csv=".
    const bool is_empty =
        word->starts_with("--") && word->ends_with('=') && word->find('=') + 1 == word->size();
    if (is_empty) backwards.emplace_back();
    backwards.push_back(is_empty ? word->substr(0, word->size() - 1) : *word);
  }
  try {
    app.parse(std::move(backwards));
  } catch (const CLI::ParseError& e) {
    report_parse_error(app, e);
  }
}

std::map<std::string, std::map<std::string, Takes>> flags_of_commands() {
  std::map<std::string, std::map<std::string, Takes>> all;
  Program program;
  add_flags_of(program.app(), "", all);
  return all;
}

}  // namespace kvcast::cli
