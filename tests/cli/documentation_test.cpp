// Every ```console block of the documentation is run: "$ kvcast ..." lines are commands, what
// follows them is what they print. With KVCAST_REGENERATE set the blocks are rewritten instead
// (`./run docs`). The commands of ```sh blocks are run in a scratch folder or, where they need
// weights, MPI or minutes, parsed by the program.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/cli/program.h"
#include "tests/cli/shell.h"

namespace kvcast::cli {
namespace {

constexpr const char* fence = "```";
constexpr const char* console_fence = "```console";
constexpr const char* sh_fence = "```sh";

/// `kvcast` stands for the program under test.
const std::string finds_program = "PATH='" + fs::path(KVCAST_PROGRAM).parent_path().string() +
                                  "':$PATH LC_ALL=C XDG_CONFIG_HOME=/dev/null ";

/// What a command line prints to stdout. Some pages show the same command; it runs once.
const std::string& output_of(const std::string& command) {
  static std::map<std::string, std::string> outputs;
  const auto [known, is_new] = outputs.try_emplace(command);
  if (is_new) {
    known->second = shell_output("cd '" KVCAST_SOURCE_DIR "' && " + finds_program + "sh -c '" +
                                 command + "' 2>/dev/null");
  }
  return known->second;
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

/// What a command has in it that is not run here, for want of weights, MPI, memory or minutes.
bool is_only_parsed(const std::string& command) {
  for (const char* part :
       {"weights/", "mpirun ", "--random-weights", "kvcast calibrate", "--measure "}) {
    if (contains(command, part)) return true;
  }
  return false;
}

/// The program takes each "kvcast ..." of a line, those in quotes too, up to a flag that it does
/// not know: all flags before are right, and none is missing.
void check_parses(const std::string& line) {
  const std::string name = "kvcast ";
  for (std::size_t at = line.find(name); at != std::string::npos; at = line.find(name, at + 1)) {
    const bool quoted =
        std::count(line.begin(), line.begin() + static_cast<long>(at), '\'') % 2 == 1;
    const std::string rest = line.substr(at + name.size());
    const std::string arguments = quoted ? rest.substr(0, rest.find('\'')) : rest;
    const ProgramResult result = run_program(arguments + " --no-such-flag");
    CHECK_MESSAGE(result.errors.starts_with("kvcast: unknown flag '--no-such-flag'"),
                  line << ": " << result.errors);
  }
}

/// The lines of each ```sh block, long ones joined.
std::vector<std::vector<std::string>> sh_blocks(const std::string& document) {
  std::vector<std::vector<std::string>> blocks;
  std::istringstream lines(document);
  bool in_block = false;
  bool goes_on = false;
  for (std::string line; std::getline(lines, line);) {
    if (in_block && line == fence) in_block = false;
    if (in_block && goes_on) {
      blocks.back().back() += line;
    } else if (in_block) {
      blocks.back().push_back(line);
    }
    goes_on = in_block && line.ends_with('\\');
    if (goes_on) blocks.back().back().pop_back();
    if (line != sh_fence) continue;
    in_block = true;
    blocks.emplace_back();
  }
  return blocks;
}

/// Runs the commands of a page's ```sh blocks in one folder, in their order. After one that is only
/// parsed, so are the others of its block: they may need what it would write.
std::size_t check_sh_blocks(const fs::path& page) {
  CAPTURE(page.string());
  const std::string targets = contents(source_folder / "run");
  const TestFolder folder;
  for (const char* shared : {"data", "tests"}) {
    fs::create_symlink(source_folder / shared, folder / shared);
  }
  std::size_t commands = 0;
  for (const std::vector<std::string>& block : sh_blocks(contents(page))) {
    std::string script;
    bool only_parsed = false;
    for (const std::string& line : block) {
      if (line.starts_with("./run ")) {
        const std::string target = line.substr(6, line.find(' ', 6) - 6);
        CHECK_MESSAGE(contains(targets, "\n  " + target + ")"), line);
        continue;
      }
      const bool is_command = contains(line, "kvcast ");
      commands += is_command;
      only_parsed |= is_only_parsed(line);
      if (is_command && only_parsed) check_parses(line);
      if (!only_parsed) script += line + "\n";
    }
    write(folder / "block.sh", script);
    const ShellRun run = run_shell(
        "cd " + shell_quoted(folder.path().string()) + " && " + finds_program + "bash -e block.sh",
        "a block", {.keep_errors = true});
    CHECK_MESSAGE(run.failure().empty(), script << run.failure() << "\n" << run.errors);
  }
  return commands;
}

void check_document(const std::string& name) {
  const fs::path path = source_folder / name;
  const std::string document = contents(path);
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
    if (contents(source_folder / name).find(console_fence) != std::string::npos)
      check_document(name);
  }
}

TEST_CASE("documentation: every link to a file and a heading leads there") {
  const std::regex link(R"(\]\(([^)#\s]*)(#[^)\s]*)?\))");
  std::size_t links = 0;
  for (const fs::path& page : pages()) {
    const std::string text = contents(page);
    for (std::sregex_iterator at(text.begin(), text.end(), link), end; at != end; ++at) {
      const std::string target = (*at)[1];
      const std::string heading = (*at)[2];
      if (target.find("://") != std::string::npos) continue;
      const fs::path file = target.empty() ? page : page.parent_path() / target;
      INFO(page.string() << ": " << at->str());
      REQUIRE(fs::exists(file));
      if (!heading.empty()) CHECK(anchors_of(contents(file)).count(heading.substr(1)) == 1);
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

TEST_CASE("documentation: the reference has every flag that a page names") {
  const std::set<std::string> of_others{"--gguf",    "--peer",   "--pytorch",  // ./run bench
                                        "--install", "--prefix",               // cmake
                                        "--mca",                               // mpirun
                                        "--compare", "--write"};  // serving_reference.py
  const std::regex flag(R"((^|[^\w-])(--[a-z][a-z-]*))");
  const auto flags_of = [&](const std::string& text) {
    std::set<std::string> flags;
    for (std::sregex_iterator at(text.begin(), text.end(), flag), end; at != end; ++at) {
      flags.insert((*at)[2]);
    }
    return flags;
  };
  const std::set<std::string> known = flags_of(contents(source_folder / "docs/reference.md"));
  CHECK(known.size() > 100);
  for (const fs::path& page : pages()) {
    if (contains(page.string(), "/reports/studies/")) continue;  // some name flags of benchmarks
    for (const std::string& name : flags_of(contents(page))) {
      const bool is_there = known.count(name) == 1 || of_others.count(name) == 1;
      CHECK_MESSAGE(is_there, page.string() << ": " << name);
    }
  }
}

TEST_CASE("documentation: the program takes the commands of every sh block") {
  std::size_t commands = 0;
  for (const fs::path& page : pages()) {
    // Studies tell how their figures were measured, some with sudo.
    if (!contains(page.string(), "/reports/studies/")) commands += check_sh_blocks(page);
  }
  CHECK(commands > 20);
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
