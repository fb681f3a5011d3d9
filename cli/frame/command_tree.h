/// The commands and options as the parser knows them, for the man page and shell completion.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvcast::cli {

struct OptionInfo {
  std::vector<std::string> names;  ///< "-q", "--quiet"; empty: a positional argument
  std::string positional;          ///< "MODEL"
  std::string value;               ///< "FILE"; empty: a flag
  std::string description;
  bool required = false;
};

struct CommandInfo {
  std::string path;         ///< "kvcast choose slim"
  std::string summary;      ///< the description's first line
  std::string description;  ///< all of it: paragraphs, and indented examples
  std::string footer;
  std::vector<OptionInfo> options;
  std::vector<CommandInfo> commands;
};

CommandInfo command_tree(const CLI::App& app);

/// The page kvcast(1) in roff.
std::string man_page(const CommandInfo& program, const std::string& version);

/// A completion script. `shell` is bash, zsh or fish; throws Error otherwise.
std::string completion_script(const CommandInfo& program, const std::string& shell);

}  // namespace kvcast::cli
