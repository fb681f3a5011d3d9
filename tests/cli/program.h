/// Runs the program under test.
#pragma once

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvcast::cli {

struct ProgramResult {
  int status = -1;
  std::string output;  ///< stdout
  std::string errors;  ///< stderr
};

/// `arguments` go through the shell.
inline ProgramResult run_program(const std::string& arguments) {
  const std::string errors_file = "/tmp/kvcast_cli_test_" + std::to_string(::getpid());
  const std::string line = std::string("'" KVCAST_PROGRAM "' ") + arguments + " 2>" + errors_file;
  FILE* pipe = ::popen(line.c_str(), "r");
  REQUIRE(pipe != nullptr);
  ProgramResult result;
  std::array<char, 4096> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    result.output.append(buffer.data(), n);
  }
  const int status = ::pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::ostringstream errors;
  errors << std::ifstream(errors_file).rdbuf();
  result.errors = errors.str();
  ::unlink(errors_file.c_str());
  return result;
}

}  // namespace kvcast::cli
