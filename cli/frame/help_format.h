/// How --help is laid out: the most used options first, lines of 100 columns.
#pragma once

#include <cstddef>
#include <string>

#include <CLI/CLI.hpp>

namespace kvcast::cli {

/// "  NAME      what it is", with the text from `column` on and wrapped there.
std::string help_line(const std::string& name, const std::string& text, std::size_t column);

class HelpFormat : public CLI::Formatter {
 public:
  /// One blank line between parts, none at the end.
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_description(const CLI::App* app) const override;
  /// The program's footer, which lists the methods, is also that of commands with --method.
  std::string make_footer(const CLI::App* app) const override;
  /// A command's description without its examples, which its own --help shows.
  std::string make_subcommand(const CLI::App* sub) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;

 private:
  /// Groups and the options of each in the order of flags.h.
  std::string make_ordered_groups(const CLI::App* app) const;
};

}  // namespace kvcast::cli
