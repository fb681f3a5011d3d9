#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include <nlohmann/json.hpp>

#include "cli/frame/capture.h"
#include "cli/frame/command.h"
#include "cli/frame/data_folder.h"
#include "model/base/error.h"
#include "model/base/json_file.h"

namespace kvcast::cli {
namespace {

bool is_numeric(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 ||
                           ((cell[0] == '-' || cell[0] == '+') && cell.size() > 1));
}

}  // namespace

void print_text(const std::string& text) {
  if (Capture* capture = Capture::current()) {
    capture->text += text;
    return;
  }
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) {
    throw Error(std::string("standard output: ") + std::strerror(errno), Fault::Run);
  }
}

void print_json(const nlohmann::ordered_json& document) {
  if (Capture* capture = Capture::current()) {
    capture->document = document;
    return;
  }
  print_text(json_text(document, 2) + "\n");
}

void print_result(bool as_json, const nlohmann::ordered_json& document, const std::string& text) {
  if (as_json) {
    print_json(document);
  } else {
    print_text(text);
  }
}

Catalog Globals::catalog() const { return Catalog(data_folder(data)); }

void Globals::say(const std::string& line) const {
  if (quiet) return;
  if (Capture* capture = Capture::current()) {
    capture->messages.push_back({printable_line(line), false});
  } else {
    std::fprintf(stderr, "%s\n", printable_line(line).c_str());
  }
}

void Globals::warn(const std::string& line) const {
  Capture* capture = Capture::current();
  if (capture == nullptr) return say("warning: " + line);
  if (!quiet) capture->messages.push_back({printable_line(line), true});
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows_[r].size(); ++i) {
      const std::string& cell = rows_[r][i];
      const std::string padding(widths[i] - cell.size(), ' ');
      // A header stands over its column the way the column's first cell does.
      const std::string& model =
          r == 0 && rows_.size() > 1 && i < rows_[1].size() ? rows_[1][i] : cell;
      line += i == 0 ? "" : "  ";
      line += is_numeric(model) ? padding + cell : cell + padding;
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

std::string shortest(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end};
}

}  // namespace kvcast::cli
