/// Runs the program under test, and looks at what it says and writes.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "model/base/shell_command.h"
#include "model/base/utf8_text.h"
#include "model/io/files/csv_table.h"
#include "tests/near.h"
#include "tests/test_folder.h"

namespace kvcast::cli {

namespace fs = std::filesystem;
using nlohmann::json;

inline const fs::path source_folder = KVCAST_SOURCE_DIR;
/// The folder of tiny checkpoints; their names come after it.
inline const std::string oracle = KVCAST_SOURCE_DIR "/tests/oracle/";

inline const fs::path smollm = source_folder / "weights/smollm2-135m-instruct.gguf";

/// Without it a test ends early, and says so.
inline bool smollm_is_missing() {
  if (fs::exists(smollm)) return false;
  MESSAGE("skipped: no " << smollm << "; `./run weights` fetches it");
  return true;
}

struct ProgramResult {
  int status = -1;
  std::string output;  ///< stdout
  std::string errors;  ///< stderr
};

/// `arguments` go through the shell, which runs `before` first: "ulimit -v 1000000;".
inline ProgramResult run_program(const std::string& arguments, const std::string& before = "") {
  // Threads that spin while they wait slow each other down tenfold on a busy machine. The machine
  // that runs the test may be calibrated; `config=FOLDER;` before names another place.
  const ShellRun run = run_shell(
      before +
          " OMP_WAIT_POLICY=passive XDG_CONFIG_HOME=\"${config:-/dev/null}\" '" KVCAST_PROGRAM
          "' " +
          arguments,
      "kvcast", {.most_output = std::numeric_limits<std::size_t>::max(), .keep_errors = true});
  const int status = WIFEXITED(run.status) ? WEXITSTATUS(run.status) : 128 + WTERMSIG(run.status);
  return {status, run.output, run.errors};
}

/// A request that must be done.
inline ProgramResult run_well(const std::string& arguments, const std::string& before = "") {
  const ProgramResult result = run_program(arguments, before);
  CAPTURE(arguments);
  CAPTURE(result.errors);
  REQUIRE(result.status == 0);
  return result;
}

// The sanitizers reserve terabytes of addresses; they refuse huge allocations themselves.
#ifdef __SANITIZE_ADDRESS__
inline const std::string little_memory;
#else
/// Run before the program: kB; the tiny models need 10 MB of it.
inline const std::string little_memory = "ulimit -v 400000;";
#endif

/// What the program prints with --json.
inline json run_json(const std::string& arguments, const std::string& before = "") {
  return json::parse(run_well(arguments, before).output);
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// All parts are in the text.
inline void check_contains(const std::string& text, std::initializer_list<std::string> parts) {
  CAPTURE(text);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(contains(text, part));
  }
}

inline auto num_lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

inline void check_keys(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    CAPTURE(key);
    CHECK(object.contains(key));
  }
}

/// The same values under these keys.
inline void check_equal(const json& a, const json& b, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    CAPTURE(key);
    CHECK(a.at(key) == b.at(key));
  }
}

/// A row of a CSV has the values of a --json, or nearly: within that share of them.
inline void check_row(const CsvRow& row, const json& values,
                      std::initializer_list<const char*> keys, double epsilon = 0) {
  for (const char* key : keys) {
    CAPTURE(key);
    const double expected = values.at(key).get<double>();
    if (row.number(key) != expected) {
      CHECK(row.number(key) == near(expected).epsilon(epsilon));
    }
  }
}

/// A run with --count did what the formulas say.
inline void check_counted(const json& run) {
  CHECK(run.at("counted_flops") == run.at("analytic_flops"));
  CHECK(run.at("counted_bytes") == run.at("analytic_bytes"));
}

/// One line on stderr with `part` in it ("A ... B": both), that status, nothing on stdout.
inline void check_refused(const std::string& arguments, const std::string& part, int status = 2,
                          const std::string& before = "") {
  const ProgramResult result = run_program(arguments, before);
  CAPTURE(arguments);
  CAPTURE(part);
  CAPTURE(result.errors);
  CHECK(result.status == status);
  const std::size_t gap = part.find(" ... ");
  CHECK(contains(result.errors, part.substr(0, gap)));
  if (gap != std::string::npos) CHECK(contains(result.errors, part.substr(gap + 5)));
  CHECK(num_lines(result.errors) == 1);
  CHECK(text::is_utf8(result.errors));
  CHECK(result.output.empty());
}

inline std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Replaces the file.
inline void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace kvcast::cli
