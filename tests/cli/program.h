/// Runs the program under test.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "model/base/shell_command.h"

namespace kvcast::cli {

struct ProgramResult {
  int status = -1;
  std::string output;  ///< stdout
  std::string errors;  ///< stderr
};

/// `arguments` go through the shell, which runs `before` first: "ulimit -v 1000000;".
inline ProgramResult run_program(const std::string& arguments, const std::string& before = "") {
  // Threads that spin while they wait slow each other down tenfold on a busy machine.
  const ShellRun run =
      run_shell(before + " OMP_WAIT_POLICY=passive '" KVCAST_PROGRAM "' " + arguments, "kvcast",
                {.most_output = std::numeric_limits<std::size_t>::max(), .keep_errors = true});
  const int status = WIFEXITED(run.status) ? WEXITSTATUS(run.status) : 128 + WTERMSIG(run.status);
  return {status, run.output, run.errors};
}

/// What the program prints with --json.
inline nlohmann::json run_json(const std::string& arguments) {
  const ProgramResult result = run_program(arguments);
  CAPTURE(arguments);
  CAPTURE(result.errors);
  REQUIRE(result.status == 0);
  return nlohmann::json::parse(result.output);
}

inline void check_keys(const nlohmann::json& object, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    CAPTURE(key);
    CHECK(object.contains(key));
  }
}

/// One line on stderr with `part` in it, status 2, nothing on stdout.
inline void check_refused(const std::string& arguments, const std::string& part,
                          const std::string& before = "") {
  const ProgramResult result = run_program(arguments, before);
  CAPTURE(arguments);
  CAPTURE(part);
  CAPTURE(result.errors);
  CHECK(result.status == 2);
  CHECK(result.errors.find(part) != std::string::npos);
  CHECK(std::count(result.errors.begin(), result.errors.end(), '\n') == 1);
  CHECK(result.output.empty());
}

}  // namespace kvcast::cli
