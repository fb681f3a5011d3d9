// Every ```console block of the documentation is run: "$ kvcast ..." lines are commands, what
// follows them is what they print. With KVCAST_REGENERATE set the blocks are rewritten instead
// (`./run docs`).
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "tests/cli/shell.h"

namespace kvcast::cli {
namespace {

constexpr const char* fence = "```";
constexpr const char* console_fence = "```console";

namespace fs = std::filesystem;
const fs::path source_folder = KVCAST_SOURCE_DIR;

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// What a command line prints to stdout, with `kvcast` standing for the program under test.
std::string output_of(const std::string& command) {
  const std::string program_folder =
      std::string(KVCAST_PROGRAM).substr(0, std::string(KVCAST_PROGRAM).rfind('/'));
  return shell_output("cd '" KVCAST_SOURCE_DIR "' && PATH='" + program_folder + "':$PATH " +
                      "LC_ALL=C sh -c '" + command + "' 2>/dev/null");
}

struct Regenerated {
  std::string text;
  std::size_t commands = 0;
};

/// The document with every console block's output replaced by what its commands print now.
Regenerated regenerate(const std::string& document) {
  Regenerated result;
  std::istringstream lines(document);
  std::string line;
  bool in_console = false;
  while (std::getline(lines, line)) {
    const bool is_command = in_console && line.rfind("$ ", 0) == 0;
    if (in_console && line == fence) in_console = false;
    if (!in_console || is_command) result.text += line + "\n";
    if (line == console_fence) in_console = true;
    if (is_command) {
      ++result.commands;
      result.text += output_of(line.substr(2));
    }
  }
  return result;
}

/// The README, the guide, and the README of every folder.
std::vector<fs::path> pages() {
  std::vector<fs::path> found;
  std::istringstream names(
      shell_output("cd '" KVCAST_SOURCE_DIR "' && git ls-files -c -o --exclude-standard '*.md'"));
  for (std::string name; std::getline(names, name);) found.push_back(source_folder / name);
  return found;
}

/// What links to its headings say: in small letters, a dash for a space, letters and digits alone.
std::set<std::string> anchors_of(const std::string& page) {
  std::set<std::string> anchors;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind('#', 0) != 0) continue;
    std::string anchor;
    for (const char c : line.substr(line.find_first_not_of("# "))) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_') {
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      } else if (c == ' ') {
        anchor += '-';
      }
    }
    anchors.insert(anchor);
  }
  return anchors;
}

void check_document(const std::string& name) {
  const fs::path path = source_folder / name;
  const std::string document = read_text(path);
  const Regenerated now = regenerate(document);
  CHECK_MESSAGE(now.commands > 0, name);
  if (std::getenv("KVCAST_REGENERATE") != nullptr) {
    std::ofstream(path) << now.text;
    return;
  }
  INFO(name << " is stale; ./run docs rewrites its blocks");
  CHECK(now.text == document);
}

}  // namespace

TEST_CASE("documentation: the README shows what the program prints") {
  check_document("README.md");
}

TEST_CASE("documentation: each page of the guide shows what the program prints") {
  for (const auto& entry : fs::directory_iterator(source_folder / "docs")) {
    const std::string name = "docs/" + entry.path().filename().string();
    if (read_text(source_folder / name).find(console_fence) != std::string::npos)
      check_document(name);
  }
}

TEST_CASE("documentation: every link to a file and a heading leads there") {
  const std::regex link(R"(\]\(([^)#\s]*)(#[^)\s]*)?\))");
  std::size_t links = 0;
  for (const fs::path& page : pages()) {
    const std::string text = read_text(page);
    for (std::sregex_iterator at(text.begin(), text.end(), link), end; at != end; ++at) {
      const std::string target = (*at)[1];
      const std::string heading = (*at)[2];
      if (target.find("://") != std::string::npos) continue;
      const fs::path file = target.empty() ? page : page.parent_path() / target;
      INFO(page.string() << ": " << at->str());
      REQUIRE(fs::exists(file));
      if (!heading.empty()) CHECK(anchors_of(read_text(file)).count(heading.substr(1)) == 1);
      ++links;
    }
  }
  CHECK(links > 50);
}

TEST_CASE("documentation: the guide to forward passes shows what the program prints") {
  check_document("model/README.md");
}

TEST_CASE("documentation: each study shows what the program prints") {
  for (const char* name : {"kv-prediction", "slim-attention", "speculative-prefill", "mlkv",
                           "kv-runahead", "llama-7b-a100", "public-measurements"}) {
    check_document("reports/studies/" + std::string(name) + "/README.md");
  }
}

TEST_CASE("documentation: a stale block is noticed") {
  const std::string stale = "text\n```console\n$ kvcast --version\nsomething old\n```\nmore\n";
  const Regenerated now = regenerate(stale);
  CHECK(now.commands == 1);
  CHECK(now.text != stale);
  CHECK(now.text.find("something old") == std::string::npos);
  CHECK(now.text.find("```\nmore\n") != std::string::npos);
}

}  // namespace kvcast::cli
