#include <algorithm>
#include <sstream>

#include "cli/frame/command_tree.h"

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

std::string options_text(const CommandInfo& command) {
  std::string out;
  const bool is_program = command.path.find(' ') == std::string::npos;
  for (const OptionInfo& option : command.options) {
    if (!is_program && option.names == std::vector<std::string>{"-h", "--help"}) continue;
    std::string names;
    for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + roff(name);
    out += ".TP\n\\fB" + (names.empty() ? roff(option.positional) : names) + "\\fR";
    if (!option.names.empty() && !option.value.empty())
      out += " \\fI" + roff(option.value) + "\\fR";
    out += "\n" + roff(option.description) + (option.required ? " (required)" : "") + "\n";
  }
  return out;
}

void add_commands(const CommandInfo& command, std::string& out) {
  for (const CommandInfo& sub : command.commands) {
    out += ".SS " + roff(sub.path) + "\n" + paragraphs(sub.description);
    out += options_text(sub) + paragraphs(sub.footer);
    add_commands(sub, out);
  }
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
    ".SH SEE ALSO\n"
    ".BR mpirun (1),\n.BR gnuplot (1)\n";

}  // namespace

std::string man_page(const CommandInfo& program, const std::string& version) {
  std::string upper = program.path;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  std::string out =
      ".TH " + upper + " 1 \"\" \"" + program.path + " " + roff(version) + "\" \"User Commands\"\n";
  out += ".SH NAME\n" + program.path +
         " \\- forecasts what key\\-value\\-cache methods do to a transformer\n";
  out += ".SH SYNOPSIS\n\\fB" + program.path + "\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR ...\n";
  out += ".SH DESCRIPTION\n" + paragraphs(program.description) + paragraphs(program.footer);
  out += ".SH OPTIONS\n" + options_text(program);
  out += ".SH COMMANDS\n";
  add_commands(program, out);
  return out + ending;
}

}  // namespace kvcast::cli
