/// Commands and their flags. CLI11 parses them, but only arguments.cpp, command_tree.cpp and
/// main.cpp see its header: compiled anew in each command it would cost half of the program's
/// build.
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
  Flag& range(double least, double most);
  Flag& range(std::uint64_t least, std::uint64_t most);
  Flag& positive();
  /// The heading that --help puts it under; empty: it is not shown.
  Flag& group(const std::string& heading);
  /// So many values; `most` below 0: any number.
  Flag& expected(int least, int most);
  /// Whether a list goes on with the next word: --flag a b.
  Flag& allow_extra_args(bool allowed);

  /// It names a file that the command writes (file_rules.h).
  Flag& writes();
  /// It names a picture: `all` are those that are drawn, it and others beside it.
  Flag& draws(FilesOf all = [](const std::filesystem::path& picture) {
    return std::vector{picture};
  });
  /// A list whose keys, or words, are said once.
  Flag& has_keys();
  /// Words for a model, which may be empty and name no file.
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
  /// "--output,-o FILE.json", "--quiet,-q" or, of a positional argument, "OUT": its names and what
  /// stands for the value in --help. Where that, other names or `help` are not said, they are those
  /// of the table of flags (flags.h). A value that is set now is shown as the default. `Value`:
  /// text, a number, a list of text, or bool for a flag without a value.
  template <typename Value>
  Flag add(const std::string& flag, Value& value, const std::string& help = {});
  Flag flag(const std::string& name) const;

  void footer(const std::string& text);
  /// Of a text that is made when help is asked for.
  void footer(std::function<std::string()> text);
  /// What to do when the command was given and parsed, and its files keep the rules (file_rules.h).
  void callback(std::function<void()> work);
  void require_subcommand(std::size_t least = 1);
  bool has_subcommand() const;  ///< was one given?

  CLI::App& app() const { return *app_; }

 private:
  CLI::App* app_;
};

}  // namespace kvcast::cli
