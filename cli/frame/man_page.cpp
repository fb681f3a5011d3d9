#include <sstream>

#include <CLI/CLI.hpp>

#include "cli/frame/documents.h"

namespace kvcast::cli {
namespace {

/// Text that roff takes literally.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

/// Paragraphs; lines that begin with a blank keep their form.
std::string paragraphs(const std::string& text) {
  std::string out;
  bool literal = false;
  bool gap = true;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      gap = true;
      continue;
    }
    const bool indented = line.front() == ' ';
    if (literal && !indented) out += ".fi\n";
    if (gap || indented != literal) out += ".PP\n";
    if (!literal && indented) out += ".nf\n";
    out += roff(line) + "\n";
    literal = indented;
    gap = false;
  }
  return literal ? out + ".fi\n" : out;
}

std::string options_text(const CLI::App& command) {
  std::string out;
  for (const CLI::Option* option : command.get_options()) {
    const bool is_help = option == command.get_help_ptr();
    if (is_help && command.get_parent() != nullptr) continue;  // stands at the program's
    std::string names;
    const auto add = [&](const std::string& name) {
      names += (names.empty() ? "" : ", ") + roff(name);
    };
    for (const std::string& name : option->get_snames()) add("-" + name);
    for (const std::string& name : option->get_lnames()) add("--" + name);
    const bool has_value = !names.empty() && option->get_items_expected_max() > 0;
    out += ".TP\n\\fB" + (names.empty() ? roff(option->get_name(true)) : names) + "\\fR";
    if (has_value) out += " \\fI" + roff(option->get_type_name()) + "\\fR";
    out += "\n" + roff(option->get_description());
    out += std::string(option->get_required() ? " (required)" : "") + "\n";
  }
  return out;
}

std::string commands_text(const CLI::App& command, const std::string& path) {
  std::string out;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string name = path + " " + sub->get_name();
    out += ".SS " + roff(name) + "\n" + paragraphs(sub->get_description()) + options_text(*sub);
    out += paragraphs(sub->get_footer()) + commands_text(*sub, name);
  }
  return out;
}

constexpr const char* ending =
    ".SH EXIT STATUS\n"
    ".TP\n0\nDone, also when the answer is that something does not fit.\n"
    ".TP\n1\nIt failed while running.\n"
    ".TP\n2\nThe request is wrong; one line says where, what was found and what would be right.\n"
    ".TP\n130\nInterrupted.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n\\fBKVCAST_DATA\\fR\nThe folder with models, hardware and published tables, as "
    "\\fB\\-\\-data\\fR.\n"
    ".TP\n\\fBXDG_CONFIG_HOME\\fR\nThe folder of kvcast/this\\-machine.json, which calibrate "
    "writes "
    "and which is the default of \\fB\\-\\-hardware\\fR; ~/.config if it is not set.\n"
    ".SH SEE ALSO\n"
    ".BR mpirun (1),\n.BR gnuplot (1)\n";

}  // namespace

std::string man_page(const CLI::App& program, const std::string& version) {
  return ".TH KVCAST 1 \"\" \"kvcast " + roff(version) + "\" \"User Commands\"\n" +
         ".SH NAME\nkvcast \\- forecasts what key\\-value\\-cache methods do to a transformer\n" +
         ".SH SYNOPSIS\n\\fBkvcast\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR ...\n" +
         ".SH DESCRIPTION\n" + paragraphs(program.get_description()) +
         paragraphs(program.get_footer()) + ".SH OPTIONS\n" + options_text(program) +
         ".SH COMMANDS\n" + commands_text(program, "kvcast") + ending;
}

}  // namespace kvcast::cli
