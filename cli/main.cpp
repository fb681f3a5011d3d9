#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "cli/frame/build_facts.h"
#include "cli/frame/command.h"
#include "cli/frame/documents.h"
#include "cli/frame/mpirun_environment.h"
#include "model/base/error.h"
#include "model/base/shell_command.h"
#include "model/methods/method.h"

namespace kvcast::cli {
namespace {

constexpr int exit_failed = 1;
constexpr int exit_wrong_request = 2;

/// One line on stderr; under mpirun only the first rank speaks, for all say the same.
void say(const std::string& line) {
  if (rank_of_mpirun() > 0) return;
  std::fprintf(stderr, "kvcast: %s\n", printable_line(line).c_str());
}

std::string method_help() {
  std::string text = "Methods, NAME[:KEY=VALUE,...], joined by +:\n";
  for (const Method& m : methods()) {
    text += "  " + std::string(m.name) + "  " + std::string(m.summary) + "\n";
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
    "  kvcast estimate --model llama-3.1-8b --hardware h100-sxm --prompt-len 8k   one request\n"
    "  kvcast sweep --model llama-7b --hardware a100-80gb --prompt-len 1k..64k:x2   a grid, as "
    "CSV\n"
    "  kvcast run --model FOLDER --prompt TEXT   a checkpoint on this CPU\n"
    "  kvcast model list, kvcast hardware list   the catalog\n"
    "  kvcast reproduce   the papers' tables and what kvcast computes\n"
    "\n"
    "All commands: kvcast --help. One command: kvcast COMMAND --help. Guide: docs/README.md.\n";

/// "kvcast choose devices"
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

const CLI::App& program_of(const CLI::App& command) {
  return command.get_parent() == nullptr ? command : program_of(*command.get_parent());
}

class HelpFormat : public CLI::Formatter {
 public:
  /// One blank line between parts, none at the end.
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string text = Formatter::make_help(app, std::move(name), mode);
    text = CLI::detail::find_and_replace(std::move(text), "\n\n\n", "\n\n");
    return text.substr(0, text.find_last_not_of('\n') + 1) + "\n";
  }

  std::string make_description(const CLI::App* app) const override {
    return Formatter::make_description(app) + "\n";
  }

  /// The program's footer, which lists the methods, is also that of commands with --method.
  std::string make_footer(const CLI::App* app) const override {
    std::string footer = Formatter::make_footer(app);
    if (app->get_parent() == nullptr || app->get_option_no_throw("--method") == nullptr) {
      return footer;
    }
    if (!footer.empty()) footer += "\n";
    return footer + Formatter::make_footer(&program_of(*app));
  }

  /// A command's description without its examples, which its own --help shows.
  std::string make_subcommand(const CLI::App* sub) const override {
    const std::string text = sub->get_description();
    std::ostringstream line;
    CLI::detail::format_help(line, sub->get_name(), text.substr(0, text.find('\n')),
                             get_column_width());
    return line.str();
  }
};

/// Refuses an OMP_NUM_THREADS that is not a number of threads, or a list of numbers. OpenMP crashes
/// on more threads than the system can start. About other text it prints its own words when it is
/// loaded, before main, so the dynamic loader calls this function first.
void check_openmp_threads(int, char**, char** environment) {
  environ = environment;  // the C library sets it later
  const char* value = std::getenv("OMP_NUM_THREADS");
  if (value == nullptr) return;
  constexpr long most = 1024;
  const char* digits = value;
  char* end = nullptr;
  for (;; digits = end + 1) {
    const long threads = std::strtol(digits, &end, 10);
    while (*end == ' ') ++end;
    if (threads < 1 || threads > most || (*end != ',' && *end != '\0')) break;
    if (*end == '\0') return;
  }
  const Error error("OMP_NUM_THREADS", std::string("'") + value + "'",
                    "a number of threads, 1 to " + std::to_string(most));
  say(error.what());
  _exit(exit_wrong_request);
}

__attribute__((section(".preinit_array"),
               used)) void (*const before_libraries)(int, char**, char**) = check_openmp_threads;

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

int report_parse_error(const CLI::App& app, const CLI::ParseError& e) {
  const CLI::App& command = selected(app);
  if (e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    print_text(dynamic_cast<const CLI::CallForVersion*>(&e) != nullptr
                   ? std::string(e.what()) + "\n"
                   : app.help());
    return 0;
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
  say(line);
  return exit_wrong_request;
}

int run(int argc, char** argv) {
  if (argc == 1) {
    print_text(first_steps);
    return 0;
  }
  CLI::App app{description, "kvcast"};
  app.formatter(std::make_shared<HelpFormat>());
  app.set_help_flag("-h,--help", "show this help");
  app.set_version_flag("--version", build_facts, "print version and build facts");
  app.require_subcommand(1);
  app.fallthrough();
  Globals globals;
  app.add_option("--data", globals.data, "folder with models, hardware and published tables")
      ->type_name("DIR");
  app.add_flag("--quiet,-q", globals.quiet, "no messages and no progress on stderr");
  add_model(Command(&app), globals);
  add_hardware(Command(&app), globals);
  add_engine(Command(&app), globals);
  add_estimate(Command(&app), globals);
  add_calibrate(Command(&app), globals);
  add_sweep(Command(&app), globals);
  add_simulate(Command(&app), globals);
  add_run(Command(&app), globals);
  add_train(Command(&app), globals);
  add_choose(Command(&app), globals);
  add_convert(Command(&app), globals);
  add_partition(Command(&app), globals);
  add_reproduce(Command(&app), globals);
  add_report(Command(&app), globals);
  add_validate(Command(&app), globals);
  add_documents(Command(&app));
  app.footer(method_help());  // at the end: subcommands would inherit it
  if (std::string_view(argv[1]) == complete_command) {
    print_text(completions(app, [&] { return globals.catalog(); }, {argv + 2, argv + argc}));
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return report_parse_error(app, e);
  }
  return 0;
}

/// GNU OpenMP's threads wait for work in a loop that burns milliseconds, which slows a run tenfold
/// when another program wants the processor. It reads how long from the environment before main, so
/// the program starts itself anew with a shorter wait, unless the user has said.
void limit_spinning(char** argv) {
  if (std::getenv(spin_limit) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (setenv(spin_limit, "1000", 1) == 0 && setenv(own_spin_limit, "1", 1) == 0) {
    execv("/proc/self/exe", argv);
  }
}

}  // namespace
}  // namespace kvcast::cli

int main(int argc, char** argv) {
  kvcast::cli::limit_spinning(argv);
  // Beyond `ulimit -f` a write fails, as on a full disk, and says so; by default it ends the
  // program.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return kvcast::cli::run(argc, argv);
  } catch (const kvcast::Error& e) {
    kvcast::cli::say(e.what());
    return e.fault() == kvcast::Fault::Request ? kvcast::cli::exit_wrong_request
                                               : kvcast::cli::exit_failed;
  } catch (const std::bad_alloc&) {
    kvcast::cli::say("out of memory");
  } catch (const std::exception& e) {
    kvcast::cli::say(e.what());
  }
  return kvcast::cli::exit_failed;
}
