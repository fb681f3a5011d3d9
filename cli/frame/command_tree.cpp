#include "cli/frame/command_tree.h"

#include <CLI/CLI.hpp>

namespace kvcast::cli {
namespace {

OptionInfo option_info(const CLI::Option& option) {
  OptionInfo info;
  for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  if (info.names.empty()) info.positional = option.get_name(true);
  if (option.get_items_expected_max() > 0) info.value = option.get_type_name();
  info.description = option.get_description();
  info.required = option.get_required();
  return info;
}

/// `of_parent`: its footer, which a command without one of its own inherits.
CommandInfo command_info(const CLI::App& app, const std::string& path,
                         const std::string& of_parent) {
  CommandInfo info;
  info.path = path;
  info.description = app.get_description();
  info.summary = info.description.substr(0, info.description.find('\n'));
  const std::string footer = app.get_footer();
  if (footer != of_parent) info.footer = footer;
  for (const CLI::Option* option : app.get_options()) info.options.push_back(option_info(*option));
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    info.commands.push_back(command_info(*command, path + " " + command->get_name(), footer));
  }
  return info;
}

}  // namespace

CommandInfo command_tree(const CLI::App& app) { return command_info(app, app.get_name(), ""); }

}  // namespace kvcast::cli
