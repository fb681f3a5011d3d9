/// Commands and their flags. CLI11 parses them; few files see its header, since compiling it
/// again in each command would cost half of the program's build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/frame/file_rules.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvcast::cli {

/// A flag with a value, a flag without one, or a positional argument.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  Flag& required(bool is_required = true);
  Flag& range(int least, int most);
  Flag& positive();
  Flag& between(double least, double most);
  /// The heading in --help; empty: it is hidden.
  Flag& group(const std::string& heading);
  /// How many values; `most` below 0: any number.
  Flag& expected(int least, int most);
  /// Whether a list takes several words: --flag a b.
  Flag& allow_extra_args(bool allowed);

  /// It names a file that the command writes (file_rules.h).
  Flag& writes();
  /// It names a picture; `all` gives every picture that is drawn, also those beside it.
  Flag& draws(FilesOf all = [](const std::filesystem::path& picture) {
    return std::vector{picture};
  });
  /// A list whose keys or words may not repeat.
  Flag& has_keys();
  /// Text for a model: it may be empty and never names a file.
  Flag& is_free_text();

  bool is_given() const;
  std::string name() const;
  std::string type_name() const;
  /// As it was given.
  std::string text() const;

 private:
  CLI::Option* option_;
};

/// The program or one of its subcommands; a handle, cheap to copy.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_subcommand(const std::string& name, const std::string& description);
  /// `flag`: its names and how --help shows its value, "--output,-o FILE.json", "--quiet,-q", or
  /// "OUT" for a positional argument. What is missing, and an empty `help`, come from the table of
  /// flags (flags.h). A value that is already set is shown as the default. `Value`: text, a number,
  /// a list of text, or bool for a flag without a value.
  template <typename Value>
  Flag add(const std::string& flag, Value& value, const std::string& help = {});
  Flag flag(const std::string& name) const;
  /// Each of the flags is refused without one of the others.
  void need(const std::vector<std::string>& flags, const std::vector<std::string>& one_of);
  /// `flag` is refused beside any of the others, for this reason.
  void exclude(const std::string& flag, const std::vector<std::string>& others,
               const std::string& why);

  void footer(const std::string& text);
  /// A text that is made when help is asked for.
  void footer(std::function<std::string()> text);
  /// Runs when the command was given, parsed and its files checked (file_rules.h).
  void callback(std::function<void()> work);
  void require_subcommand(std::size_t least = 1);
  bool has_subcommand() const;  ///< was one given?

  CLI::App& app() const { return *app_; }

 private:
  CLI::App* app_;
};

}  // namespace kvcast::cli
