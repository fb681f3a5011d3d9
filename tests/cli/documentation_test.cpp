// Every ```console block of the documentation is run: "$ kvcast ..." lines are commands, what
// follows them is what they print. With KVCAST_REGENERATE set the blocks are rewritten instead
// (`./run docs`).
#include <cstdlib>
#include <fstream>
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

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path);
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

void check_document(const std::string& name) {
  const std::string path = std::string(KVCAST_SOURCE_DIR "/") + name;
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
