#include "cli/simulate/objective_command.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/shell_command.h"

namespace kvcast::cli {
namespace {

/// Placeholders for the tokens of the ranks, each with its separator.
constexpr std::array place_holders{std::pair{std::string_view("{partition}"), ","},
                                   std::pair{std::string_view("{parts}"), "/"}};

std::optional<double> above_zero(double seconds) {
  if (!std::isfinite(seconds) || seconds <= 0) return {};
  return seconds;
}

/// Seconds, if the text is one number above zero, or a JSON object with `ttft_s`.
std::optional<double> seconds_of(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_object()) {
    const auto ttft = json.find("ttft_s");
    if (ttft == json.end() || !ttft->is_number()) return {};
    return above_zero(ttft->get<double>());
  }
  std::size_t used = 0;
  double seconds = 0;
  try {
    seconds = std::stod(text, &used);
  } catch (const std::exception&) {
    return {};
  }
  if (text.find_first_not_of(" \t\r\n", used) != std::string::npos) return {};
  return above_zero(seconds);
}

}  // namespace

search::Objective command_objective(const std::string& command, double limit_s) {
  const bool has_place =
      std::any_of(place_holders.begin(), place_holders.end(),
                  [&](const auto& p) { return command.find(p.first) != std::string::npos; });
  if (!has_place) {
    throw Error("--objective-command", "'" + command + "'",
                "a command with {partition} or {parts} in the place of the tokens");
  }
  return [=](std::span<const std::uint64_t> partition) {
    std::string line = command;
    for (const auto& [place, between] : place_holders) {
      const std::string tokens = fmt::format("{}", fmt::join(partition, between));
      for (std::size_t i = line.find(place); i != std::string::npos; i = line.find(place, i)) {
        line.replace(i, place.size(), tokens);
      }
    }
    const ShellRun outcome = run_shell(line, "--objective-command", {.limit_s = limit_s});
    const auto fail = [&](const std::string& found) {
      throw Error(fmt::format("--objective-command '{}': {}", line, found), Fault::Run);
    };
    if (outcome.late) fail(fmt::format("no answer within {:g} s", limit_s));
    if (const std::string failure = outcome.failure(); !failure.empty()) fail(failure);
    const std::optional<double> seconds = seconds_of(outcome.output);
    if (!seconds) {
      fail("got '" + outcome.output.substr(0, 60) +
           "', expected seconds above 0 or JSON with ttft_s, nothing else");
    }
    return *seconds;
  };
}

}  // namespace kvcast::cli
