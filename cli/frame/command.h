/// What every subcommand shares: the data folder, and how results and messages are printed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/frame/arguments.h"
#include "model/io/weights/catalog.h"

namespace kvcast::cli {

/// Options that stand before or after any subcommand.
struct Globals {
  std::string data;  ///< --data; empty: KVCAST_DATA, or beside the program
  bool quiet = false;
  bool files_stay = false;  ///< no file changes while the program runs: it keeps what it has read

  Catalog catalog() const;
  /// A message for a person, to stderr.
  void say(const std::string& line) const;
  // The same, said with the next message or answer: a refusal of the request is then one line.
  void note(const std::string& line) const;
  void warn(const std::string& line) const;
};

/// Says the notes and warnings that wait.
void say_held();
/// The same, where work begins: later ones are said at once.
void hold_no_more();

/// Registers one subcommand; its callback does the work and throws kvcast::Error.
void add_model(Command app, const Globals& globals);
void add_hardware(Command app, const Globals& globals);
void add_engine(Command app, const Globals& globals);
void add_platform(Command app, const Globals& globals);
void add_calibrate(Command app, const Globals& globals);
void add_estimate(Command app, const Globals& globals);
void add_explore(Command app, const Globals& globals);
void add_run(Command app, const Globals& globals);
void add_sweep(Command app, const Globals& globals);
void add_train(Command app, const Globals& globals);
void add_choose(Command app, const Globals& globals);
void add_convert(Command app, const Globals& globals);
void add_partition(Command app, const Globals& globals);
/// `kvcast man` and `kvcast completion`.
void add_documents(Command app);
void add_report(Command app, const Globals& globals);
void add_reproduce(Command app, const Globals& globals);
void add_simulate(Command app, const Globals& globals);
void add_validate(Command app, const Globals& globals);

/// Prints one JSON document to stdout. Throws Error (Fault::Run) when stdout cannot take it.
void print_json(const nlohmann::ordered_json& document);
/// Prints text to stdout, likewise.
void print_text(const std::string& text);

/// JSON or text.
void print_result(bool as_json, const nlohmann::ordered_json& document, const std::string& text);

/// Text aligned in columns: numbers to the right, words to the left. A table wider than 100 columns
/// breaks its headings over lines, then cuts the longest words, which then end in "...", and at
/// last leaves out columns at the right, for which "..." stands. Numbers are never cut.
class Table {
 public:
  enum class Long { Cut, Wrap };  ///< words that have no room

  explicit Table(std::vector<std::string> header, Long words = Long::Cut) : long_words_(words) {
    rows_.push_back(std::move(header));
  }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  Long long_words_;
};

/// The shortest decimal form that reads back as the same number.
std::string shortest(double value);

}  // namespace kvcast::cli
