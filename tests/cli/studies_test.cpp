// The studies in reports/ hold what the program says now: each manifest's commands are run again
// and their CSVs held against the committed ones. `./run reports` rewrites them all.
#include <charconv>
#include <cmath>
#include <string>

#include "tests/cli/program.h"
#include "tests/cli/shell.h"

namespace kvcast::cli {
namespace {

/// What a shell prints in the root of the repository, without its line's end.
std::string shell(const std::string& command) {
  return shell_output("cd '" KVCAST_SOURCE_DIR "' && LC_ALL=C && " + command);
}

/// As tools/reports.sh has it.
std::string hash_of(const std::string& input) {
  const std::size_t slash = input.rfind('/');
  const std::string command = input.find('*') == std::string::npos
                                  ? "sha256sum " + input
                                  : "cd " + input.substr(0, slash) + " && sha256sum " +
                                        input.substr(slash + 1) + " | sha256sum";
  return shell(command).substr(0, 64);
}

bool is_number(const std::string& text, double& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

/// Equal, or numbers that another machine's mathematical library rounds otherwise.
bool same(const std::string& a, const std::string& b) {
  double x = 0;
  double y = 0;
  if (a == b) return true;
  return is_number(a, x) && is_number(b, y) && std::abs(x - y) <= 1e-9 * (1 + std::abs(y));
}

void check_same(const fs::path& now, const fs::path& committed) {
  CAPTURE(committed.string());
  REQUIRE(fs::exists(committed));
  const CsvTable a = CsvTable::read(now);
  const CsvTable b = CsvTable::read(committed);
  REQUIRE(a.columns() == b.columns());
  REQUIRE(a.size() == b.size());
  for (std::size_t row = 0; row < a.size(); ++row) {
    for (const std::string& column : a.columns()) {
      const std::string found = b[row].text(column);
      const std::string expected = a[row].text(column);
      const bool equal = same(expected, found);
      CHECK_MESSAGE(equal, b[row].place(column) << ": '" << found << "', now '" << expected
                                                << "'; ./run reports rewrites it");
      if (!equal) return;
    }
  }
}

const std::string output_flags[] = {"--csv ", "--plot ", "--output "};

/// The command with the files that it writes in another folder than the study's.
std::string redirected(std::string command, const std::string& study, const std::string& folder) {
  for (const std::string& flag : output_flags) {
    const std::string there = flag + "reports/studies/" + study + "/";
    for (std::size_t at = command.find(there); at != std::string::npos; at = command.find(there)) {
      command.replace(at, there.size(), flag + folder + "/");
    }
  }
  return command;
}

void check_study(const std::string& name) {
  CAPTURE(name);
  const fs::path study = source_folder / "reports/studies" / name;
  REQUIRE(fs::exists(study / "README.md"));
  const json manifest = json::parse(contents(study / "manifest.json"));
  for (const auto& [input, hash] : manifest.at("inputs").items()) {
    CHECK_MESSAGE(hash_of(input) == hash.get<std::string>(),
                  input << " has changed; ./run reports");
  }
  const TestFolder folder;
  for (const std::string command : manifest.at("commands")) {
    CAPTURE(command);
    REQUIRE(command.rfind("kvcast ", 0) == 0);
    const std::string words = redirected(command, name, folder.path().string()).substr(7);
    for (const std::string& flag : output_flags) {
      REQUIRE(words.find(flag + "reports/") == std::string::npos);
    }
    run_well(words, "cd '" KVCAST_SOURCE_DIR "';");
  }
  std::size_t pictures = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    const fs::path committed = study / entry.path().filename();
    CHECK_MESSAGE(fs::exists(committed), committed);
    if (entry.path().extension() == ".csv") check_same(entry.path(), committed);
    if (entry.path().extension() == ".svg") ++pictures;
    if (entry.path().extension() == ".json") {
      CHECK(json::parse(contents(entry.path())) == json::parse(contents(committed)));
    }
  }
  CHECK(pictures > 0);
}

}  // namespace

TEST_CASE("studies: papers, public measurements and forecasts are what the program says") {
  for (const char* name :
       {"kv-prediction", "slim-attention", "speculative-prefill", "mlkv", "kv-runahead",
        "llama-7b-a100", "public-measurements", "validation", "llama-bench"}) {
    SUBCASE(name) { check_study(name); }
  }
}

TEST_CASE("studies: every folder is in the index, and its files are complete") {
  const std::string index = contents(source_folder / "reports/studies/README.md");
  std::size_t studies = 0;
  for (const auto& entry : fs::directory_iterator(source_folder / "reports/studies")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    ++studies;
    CHECK(contains(index, "(" + name + "/README.md)"));
    CHECK(fs::exists(entry.path() / "README.md"));
    CHECK(fs::exists(entry.path() / "manifest.json"));
  }
  CHECK(studies >= 8);
}

}  // namespace kvcast::cli
