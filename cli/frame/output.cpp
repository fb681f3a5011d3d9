#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/frame/capture.h"
#include "cli/frame/command.h"
#include "cli/frame/data_folder.h"
#include "model/base/error.h"
#include "model/base/json_file.h"

namespace kvcast::cli {
namespace {

/// Notes and warnings, which wait until the request is known not to be refused.
struct Held {
  bool waits = true;
  std::vector<std::string> lines;
};
Held& held() {
  static Held held;
  return held;
}

}  // namespace

void say_held() {
  for (const std::string& line : held().lines) std::fprintf(stderr, "%s\n", line.c_str());
  held().lines.clear();
}

void hold_no_more() {
  held().waits = false;
  say_held();
}

void print_text(const std::string& text) {
  say_held();
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
  note(line);
  say_held();
}

void Globals::note(const std::string& line) const {
  if (quiet) return;
  if (Capture* capture = Capture::current()) {
    capture->messages.push_back({printable_line(line), false});
  } else {
    held().lines.push_back(printable_line(line));
    if (!held().waits) say_held();
  }
}

void Globals::warn(const std::string& line) const {
  Capture* capture = Capture::current();
  if (capture == nullptr) return note("warning: " + line);
  if (!quiet) capture->messages.push_back({printable_line(line), true});
}

std::string shortest(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end};
}

}  // namespace kvcast::cli
