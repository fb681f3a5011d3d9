/// Runs other commands than the program under test.
#pragma once

#include <limits>
#include <string>

#include <doctest/doctest.h>

#include "model/base/shell_command.h"

namespace kvcast::cli {

/// What a shell prints to stdout; the command must succeed.
inline std::string shell_output(const std::string& command) {
  const ShellRun run =
      run_shell(command, command, {.most_output = std::numeric_limits<std::size_t>::max()});
  CHECK_MESSAGE(run.failure().empty(), command);
  return run.output;
}

}  // namespace kvcast::cli
