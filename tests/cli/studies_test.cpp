// The studies in reports/ hold what the program says now: each manifest's commands are run again
// and their CSVs held against the committed ones. `./run reports` rewrites them all.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/io/files/csv_table.h"
#include "tests/cli/program.h"
#include "tests/cli/shell.h"
#include "tests/test_folder.h"

namespace kvcast::cli {
namespace {

namespace fs = std::filesystem;
using kvcast::CsvTable;

const fs::path source_folder = KVCAST_SOURCE_DIR;

nlohmann::json manifest_of(const fs::path& study) {
  return nlohmann::json::parse(std::ifstream(study / "manifest.json"));
}

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
  const nlohmann::json manifest = manifest_of(study);
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
    const ProgramResult result = run_program(words, "cd '" KVCAST_SOURCE_DIR "';");
    CAPTURE(result.errors);
    REQUIRE(result.status == 0);
  }
  std::size_t pictures = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    const fs::path committed = study / entry.path().filename();
    CHECK_MESSAGE(fs::exists(committed), committed);
    if (entry.path().extension() == ".csv") check_same(entry.path(), committed);
    if (entry.path().extension() == ".svg") ++pictures;
    if (entry.path().extension() == ".json") {
      CHECK(nlohmann::json::parse(std::ifstream(entry.path())) ==
            nlohmann::json::parse(std::ifstream(committed)));
    }
  }
  CHECK(pictures > 0);
}

}  // namespace

TEST_CASE("studies: KV Prediction is what the program says") { check_study("kv-prediction"); }
TEST_CASE("studies: Slim attention is what the program says") { check_study("slim-attention"); }
TEST_CASE("studies: SpecPrefill is what the program says") { check_study("speculative-prefill"); }
TEST_CASE("studies: MLKV is what the program says") { check_study("mlkv"); }
TEST_CASE("studies: KV-Runahead is what the program says") { check_study("kv-runahead"); }
TEST_CASE("studies: Llama 7B on an A100 is what the program says") { check_study("llama-7b-a100"); }
TEST_CASE("studies: public measurements are what the program says") {
  check_study("public-measurements");
}

TEST_CASE("studies: forecasts of measured runs are what the program says") {
  check_study("validation");
  check_study("llama-bench");
}

TEST_CASE("studies: every folder is in the index, and its files are complete") {
  std::ostringstream index;
  index << std::ifstream(source_folder / "reports/studies/README.md").rdbuf();
  std::size_t studies = 0;
  for (const auto& entry : fs::directory_iterator(source_folder / "reports/studies")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    ++studies;
    CHECK(index.str().find("(" + name + "/README.md)") != std::string::npos);
    CHECK(fs::exists(entry.path() / "README.md"));
    CHECK(fs::exists(entry.path() / "manifest.json"));
  }
  CHECK(studies >= 8);
}

}  // namespace kvcast::cli
