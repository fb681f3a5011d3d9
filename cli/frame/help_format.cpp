#include "cli/frame/help_format.h"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "cli/frame/flags.h"
#include "cli/frame/text_width.h"

namespace kvcast::cli {
namespace {

const CLI::App& program_of(const CLI::App& command) {
  return command.get_parent() == nullptr ? command : program_of(*command.get_parent());
}

/// Lines that begin with a blank keep their form: examples, lists.
std::string in_width(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool fits = text_width(line) <= table_width || line.front() == ' ';
    for (const std::string& part : fits ? std::vector{line} : wrapped(line, table_width)) {
      out += part + "\n";
    }
  }
  if (!text.ends_with('\n') && !out.empty()) out.pop_back();
  return out;
}

}  // namespace

std::string help_line(const std::string& name, const std::string& text, std::size_t column) {
  std::string line = "  " + name;
  if (line.size() + 2 > column) {
    line += "\n" + std::string(column, ' ');
  } else {
    line.resize(column, ' ');
  }
  bool first = true;
  for (const std::string& part : wrapped(text, table_width - column, LongWords::Broken)) {
    if (!first) line += "\n" + std::string(column, ' ');
    line += part;
    first = false;
  }
  return line + "\n";
}

std::string HelpFormat::make_help(const CLI::App* app, std::string name,
                                  CLI::AppFormatMode mode) const {
  if (mode == CLI::AppFormatMode::Sub) return Formatter::make_help(app, std::move(name), mode);
  std::string text = make_description(app) + make_usage(app, std::move(name)) +
                     make_positionals(app) + make_ordered_groups(app) +
                     make_subcommands(app, mode) + "\n" + make_footer(app);
  text = CLI::detail::find_and_replace(std::move(text), "\n\n\n", "\n\n");
  return text.substr(0, text.find_last_not_of('\n') + 1) + "\n";
}

std::string HelpFormat::make_description(const CLI::App* app) const {
  return in_width(Formatter::make_description(app)) + "\n";
}

std::string HelpFormat::make_ordered_groups(const CLI::App* app) const {
  const auto group_of = [](const CLI::Option* o) {
    return o->get_required() ? request_heading : o->get_group();
  };
  std::vector<std::string> groups = app->get_groups();
  if (std::find(groups.begin(), groups.end(), request_heading) == groups.end()) {
    groups.emplace_back(request_heading);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return heading_rank(a) < heading_rank(b); });
  std::string text;
  for (const std::string& group : groups) {
    std::vector<const CLI::Option*> options = app->get_options([&](const CLI::Option* o) {
      return !group.empty() && group_of(o) == group && o->nonpositional();
    });
    if (options.empty()) continue;
    const auto rank = [app](const CLI::Option* o) {
      return o == app->get_help_ptr()  ? last_rank
             : o->get_lnames().empty() ? unlisted_rank
                                       : flag_rank("--" + o->get_lnames().front());
    };
    std::stable_sort(options.begin(), options.end(), [&](const auto* a, const auto* b) {
      return std::pair(!a->get_required(), rank(a)) < std::pair(!b->get_required(), rank(b));
    });
    text += make_group(group, false, options) + "\n";
  }
  return text;
}

std::string HelpFormat::make_footer(const CLI::App* app) const {
  std::string footer = in_width(Formatter::make_footer(app));
  if (app->get_parent() == nullptr || app->get_option_no_throw("--method") == nullptr) {
    return footer;
  }
  if (!footer.empty()) footer += "\n";
  return footer + Formatter::make_footer(&program_of(*app));
}

std::string HelpFormat::make_subcommand(const CLI::App* sub) const {
  const std::string text = sub->get_description();
  return help_line(sub->get_name(), text.substr(0, text.find('\n')), get_column_width());
}

std::string HelpFormat::make_option(const CLI::Option* option, bool is_positional) const {
  return help_line(make_option_name(option, is_positional) + make_option_opts(option),
                   make_option_desc(option), get_column_width());
}

}  // namespace kvcast::cli
