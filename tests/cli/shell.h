/// Runs other commands than the program under test.
#pragma once

#include <array>
#include <cstdio>
#include <string>

#include <doctest/doctest.h>

namespace kvcast::cli {

/// What a shell prints to stdout; the command must succeed.
inline std::string shell_output(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  std::array<char, 4096> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), n);
  }
  CHECK_MESSAGE(::pclose(pipe) == 0, command);
  return output;
}

}  // namespace kvcast::cli
