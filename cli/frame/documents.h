/// What the program says of its own commands: the manual page and shell completion.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/io/weights/catalog.h"

namespace CLI {
class App;
}

namespace kvcast::cli {

/// The page kvcast(1) in roff.
std::string man_page(const CLI::App& program, const std::string& version);

/// The command that the scripts of completion call.
inline constexpr const char* complete_command = "__complete";

/// A completion script. `shell` is bash, zsh or fish; throws Error otherwise.
std::string completion_script(const std::string& shell);

/// What may stand for the last of the words after `kvcast`: lines of a word, a tab and what it
/// means. "@files" stands for names of files, which the shell knows.
std::string completions(const CLI::App& program, const std::function<Catalog()>& catalog,
                        const std::vector<std::string>& words);

}  // namespace kvcast::cli
