#include "cli/objective_command.h"

#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/shell_command.h"
#include "model/error.h"

namespace kvcast::cli {
namespace {

constexpr std::string_view place_holder = "{partition}";

/// Seconds, when the text is one number above zero and blanks.
std::optional<double> seconds_of(const std::string& text) {
  std::size_t used = 0;
  double seconds = 0;
  try {
    seconds = std::stod(text, &used);
  } catch (const std::exception&) {
    return {};
  }
  if (text.find_first_not_of(" \t\r\n", used) != std::string::npos) return {};
  if (!std::isfinite(seconds) || seconds <= 0) return {};
  return seconds;
}

}  // namespace

search::Objective command_objective(const std::string& command, double limit_s) {
  const std::size_t at = command.find(place_holder);
  if (at == std::string::npos) {
    throw Error("--objective-command", "'" + command + "'",
                "a command with {partition} where the tokens go");
  }
  return [=](std::span<const std::uint64_t> partition) {
    std::string line = command;
    for (std::size_t i = at; i != std::string::npos; i = line.find(place_holder, i)) {
      line.replace(i, place_holder.size(), fmt::format("{}", fmt::join(partition, ",")));
    }
    const ShellRun outcome = run_shell(line, "--objective-command", {.limit_s = limit_s});
    const auto fail = [&](const std::string& found) {
      throw Error(fmt::format("--objective-command '{}': {}", line, found), Fault::Run);
    };
    if (outcome.late) fail(fmt::format("no answer within {:g} s", limit_s));
    if (const std::string failure = outcome.failure(); !failure.empty()) fail(failure);
    const std::optional<double> seconds = seconds_of(outcome.output);
    if (!seconds) {
      fail("got '" + outcome.output.substr(0, 60) + "', expected seconds above 0, nothing else");
    }
    return *seconds;
  };
}

}  // namespace kvcast::cli
