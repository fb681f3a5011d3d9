#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "cli/frame/command_tree.h"
#include "model/base/error.h"

namespace kvcast::cli {
namespace {

/// What may stand for an option's value.
enum class Values { None, Files, Models, Hardware };

Values values_of(const OptionInfo& option) {
  const std::string& value = option.names.empty() ? option.positional : option.value;
  if (value == "MODEL") return Values::Models;
  if (value == "HW") return Values::Hardware;
  for (const std::string_view prefix : {"FILE", "DIR", "FOLDER", "PATH", "IN", "OUT"}) {
    if (value.starts_with(prefix)) return Values::Files;
  }
  return Values::None;
}

void flatten(const CommandInfo& command, std::vector<const CommandInfo*>& all) {
  all.push_back(&command);
  for (const CommandInfo& sub : command.commands) flatten(sub, all);
}

std::string last_word(const std::string& path) { return path.substr(path.rfind(' ') + 1); }

/// Subcommands, and the flags of the command and of the program, which stand anywhere.
std::string words_of(const CommandInfo& command, const CommandInfo& program) {
  std::set<std::string> words;
  for (const CommandInfo* c : {&command, &program}) {
    for (const OptionInfo& option : c->options) {
      for (const std::string& name : option.names) {
        if (name.starts_with("--")) words.insert(name);
      }
    }
  }
  std::string out;
  for (const CommandInfo& sub : command.commands) out += last_word(sub.path) + " ";
  for (const std::string& word : words) out += word + " ";
  if (!out.empty()) out.pop_back();
  return out;
}

std::string joined(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : "|") + name;
  return out;
}

constexpr const char* list_models = "kvcast model list --quiet 2>/dev/null | cut -d' ' -f1";
constexpr const char* list_hardware = "kvcast hardware list --quiet 2>/dev/null | cut -d' ' -f1";

/// For zsh too, through bashcompinit: there `path` and `words` are parameters of the shell's own,
/// and a local `path` leaves a function without its PATH.
std::string bash_script(const CommandInfo& program) {
  std::vector<const CommandInfo*> all;
  flatten(program, all);
  std::string paths;
  std::string words;
  std::map<std::string, Values> values_of_names;  // where commands differ, the most that any offers
  std::map<Values, std::set<std::string>> arguments;
  for (const CommandInfo* command : all) {
    if (command != &program) {
      const std::size_t cut = command->path.rfind(' ');
      paths += (paths.empty() ? "" : "|") +
               ("\"" + command->path.substr(0, cut) + " " + last_word(command->path) + "\"");
    }
    words += "    \"" + command->path + "\") choices=\"" + words_of(*command, program) + "\" ;;\n";
    for (const OptionInfo& option : command->options) {
      if (option.names.empty()) {
        arguments[values_of(option)].insert("\"" + command->path + "\"");
      } else if (!option.value.empty()) {
        for (const std::string& name : option.names) {
          Values& values = values_of_names.try_emplace(name, Values::None).first->second;
          values = std::max(values, values_of(option));
        }
      }
    }
  }
  std::map<Values, std::set<std::string>> options;
  for (const auto& [name, values] : values_of_names) options[values].insert(name);
  const std::string models = std::string("$(") + list_models + ")";
  const std::string hardware = std::string("$(") + list_hardware + ")";
  std::string out =
      "# bash completion for kvcast; made by `kvcast completion bash`\n"
      "_kvcast() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local chain=kvcast choices= i\n"
      "  [[ $prev == = ]] && prev=${COMP_WORDS[COMP_CWORD-2]}\n"  // --model=NAME is three words
      "  [[ $cur == = ]] && cur=\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$chain ${COMP_WORDS[i]}\" in\n      " +
      paths +
      ")\n        chain+=\" ${COMP_WORDS[i]}\" ;;\n    esac\n  done\n"
      "  COMPREPLY=()\n"
      "  case \"$prev\" in\n";
  for (const auto& [values, names] : options) {
    out += "    " + joined(names) + ")\n      ";
    if (values == Values::Models)
      out += "COMPREPLY=($(compgen -f -W \"" + models + "\" -- \"$cur\"))";
    if (values == Values::Hardware) {
      out += "COMPREPLY=($(compgen -f -W \"" + hardware + "\" -- \"$cur\"))";
    }
    if (values == Values::Files) out += "COMPREPLY=($(compgen -f -- \"$cur\"))";
    out += std::string(values == Values::None ? "" : "\n      ") + "return ;;\n";
  }
  out += "  esac\n  case \"$chain\" in\n" + words + "  esac\n";
  out += "  COMPREPLY=($(compgen -W \"$choices\" -- \"$cur\"))\n";
  out += "  [[ $cur == -* ]] && return\n  case \"$chain\" in\n";
  for (const auto& [values, commands] : arguments) {
    if (values == Values::None) continue;
    out += "    " + joined(commands) + ") ";
    if (values == Values::Models)
      out += "COMPREPLY+=($(compgen -W \"" + models + "\" -- \"$cur\"))";
    if (values == Values::Hardware) {
      out += "COMPREPLY+=($(compgen -W \"" + hardware + "\" -- \"$cur\"))";
    }
    if (values == Values::Files) out += "COMPREPLY+=($(compgen -f -- \"$cur\"))";
    out += " ;;\n";
  }
  return out + "  esac\n}\ncomplete -o filenames -F _kvcast kvcast\n";
}

std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "'";
}

std::string fish_script(const CommandInfo& program) {
  std::vector<const CommandInfo*> all;
  flatten(program, all);
  std::string out = "# fish completion for kvcast; made by `kvcast completion fish`\n";
  for (const CommandInfo* command : all) {
    std::string condition;
    for (std::size_t at = command->path.find(' '); at != std::string::npos;) {
      const std::size_t next = command->path.find(' ', at + 1);
      condition += (condition.empty() ? "" : "; and ") +
                   ("__fish_seen_subcommand_from " +
                    command->path.substr(at + 1, next == std::string::npos ? next : next - at - 1));
      at = next;
    }
    std::string names;
    for (const CommandInfo& sub : command->commands) names += " " + last_word(sub.path);
    for (const CommandInfo& sub : command->commands) {
      out += "complete -c kvcast -f -n '" + condition + (condition.empty() ? "" : "; and ") +
             "not __fish_seen_subcommand_from" + names + "' -a " + last_word(sub.path) + " -d " +
             fish_quoted(sub.summary) + "\n";
    }
    for (const OptionInfo& option : command->options) {
      if (option.names.empty()) continue;
      out += "complete -c kvcast";
      if (!condition.empty()) out += " -n '" + condition + "'";
      for (const std::string& name : option.names) {
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      const Values values = values_of(option);
      if (!option.value.empty()) out += values == Values::Files ? " -r" : " -x";
      if (values == Values::Models) out += std::string(" -a \"(") + list_models + ")\"";
      if (values == Values::Hardware) out += std::string(" -a \"(") + list_hardware + ")\"";
      out += " -d " + fish_quoted(option.description) + "\n";
    }
  }
  return out;
}

}  // namespace

std::string completion_script(const CommandInfo& program, const std::string& shell) {
  if (shell == "bash") return bash_script(program);
  if (shell == "fish") return fish_script(program);
  if (shell == "zsh") {
    // Found in fpath, the file is the body of the function _kvcast until it has run once.
    return "#compdef kvcast\nautoload -U +X bashcompinit && bashcompinit\n" + bash_script(program) +
           "if [[ ${funcstack[1]} == _kvcast ]]; then\n"
           "  _bash_complete -o filenames -F _kvcast\nfi\n";
  }
  throw unknown_name("shell", shell, {"bash", "zsh", "fish"});
}

}  // namespace kvcast::cli
