#include <CLI/CLI.hpp>

#include "cli/frame/documents.h"
#include "model/base/error.h"

namespace kvcast::cli {
namespace {

constexpr const char* any_file = "@files";

std::vector<const CLI::App*> subcommands(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

/// The flag whose value the next word is; null where `word` is no such flag.
const CLI::Option* flag_with_value(const std::string& word, const CLI::App& command,
                                   const CLI::App& program) {
  if (!word.starts_with('-')) return nullptr;
  for (const CLI::App* app : {&command, &program}) {  // the program's flags stand anywhere
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_items_expected_max() > 0 && option->check_name(word)) return option;
    }
  }
  return nullptr;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The folder of the catalog whose names may stand for a value; null: no names.
const char* catalog_part(const std::string& kind) {
  if (kind == "MODEL") return "models";
  if (kind == "HW" || kind == "HARDWARE") return "hardware";
  if (kind == "PLATFORM") return "platforms";
  return kind.starts_with("ENGINE") ? "engines" : nullptr;
}

/// What may stand for a value that --help calls MODEL, HW, FILE, ...
std::string values(const std::string& kind, const std::function<Catalog()>& catalog) {
  std::string lines;
  if (const char* part = catalog_part(kind)) {
    for (const std::string& name : catalog().names(part)) lines += name + "\n";
    return lines + any_file + "\n";
  }
  for (const char* prefix : {"FILE", "DIR", "FOLDER", "PATH", "IN", "OUT"}) {
    if (kind.starts_with(prefix)) return std::string(any_file) + "\n";
  }
  return {};
}

/// For zsh too, through bashcompinit: there `path` and `words` are parameters of the shell's own,
/// and a local `path` leaves a function without its PATH.
constexpr const char* bash_function = R"(_kvcast() {
  local cur=${COMP_WORDS[COMP_CWORD]} given=() answer i
  for ((i = 1; i <= COMP_CWORD; i++)); do
    given+=("${COMP_WORDS[i]}")
  done
  [[ $cur == = ]] && cur=
  answer=$(kvcast __complete "${given[@]}" 2>/dev/null | cut -f1)
  COMPREPLY=($(compgen -W "${answer//@files/}" -- "$cur"))
  [[ $answer == *@files* ]] && COMPREPLY+=($(compgen -f -- "$cur"))
}
complete -o filenames -F _kvcast kvcast
)";

/// Found in fpath, the file is the body of the function _kvcast until it has run once.
constexpr const char* zsh_end = R"(if [[ ${funcstack[1]} == _kvcast ]]; then
  _bash_complete -o filenames -F _kvcast
fi
)";

constexpr const char* fish_function = R"(function __kvcast_complete
  set -l given (commandline -opc) (commandline -ct)
  set -e given[1]
  for line in (kvcast __complete $given 2>/dev/null)
    if test "$line" = @files
      __fish_complete_path (commandline -ct)
    else
      echo $line
    end
  end
end
complete -c kvcast -f -a '(__kvcast_complete)'
)";

}  // namespace

std::string completion_script(const std::string& shell) {
  const std::string title =
      "# " + shell + " completion for kvcast; made by `kvcast completion " + shell + "`\n";
  if (shell == "bash") return title + bash_function;
  if (shell == "fish") return title + fish_function;
  if (shell == "zsh") {
    return "#compdef kvcast\n" + title + "autoload -U +X bashcompinit && bashcompinit\n" +
           bash_function + zsh_end;
  }
  throw unknown_name("shell", shell, {"bash", "zsh", "fish"});
}

std::string completions(const CLI::App& program, const std::function<Catalog()>& catalog,
                        const std::vector<std::string>& words) {
  const CLI::App* command = &program;
  std::string before;  // the word before the last one; bash makes three words of --model=NAME
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (flag_with_value(before, *command, program) == nullptr) {
      for (const CLI::App* sub : subcommands(*command)) {
        if (sub->get_name() == words[i]) command = sub;
      }
    }
    if (words[i] != "=") before = words[i];
  }
  if (const CLI::Option* flag = flag_with_value(before, *command, program)) {
    return values(flag->get_type_name(), catalog);
  }
  std::string lines;
  for (const CLI::App* sub : subcommands(*command)) {
    lines += sub->get_name() + "\t" + first_line(sub->get_description()) + "\n";
  }
  for (const CLI::App* app : {command, &program}) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        lines += "--" + name + "\t" + option->get_description() + "\n";
      }
      if (app == command && option->get_positional()) {
        lines += values(option->get_name(true), catalog);
      }
    }
    if (command == &program) break;
  }
  return lines;
}

}  // namespace kvcast::cli
