#include "cli/objective_command.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/error.h"

namespace kvcast::cli {
namespace {

constexpr std::string_view place_holder = "{partition}";
/// More output than a number needs.
constexpr std::size_t most_output = 4096;

struct Outcome {
  int status = 0;
  bool late = false;
  std::string output;
};

volatile std::sig_atomic_t running_group = 0;

extern "C" void end_group_and_self(int signal) {
  if (running_group > 0) ::kill(-running_group, SIGKILL);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

/// While it lives, a signal that ends this process ends the group too, which a terminal's Ctrl-C
/// does not reach.
class GroupGuard {
 public:
  explicit GroupGuard(pid_t group) {
    running_group = group;
    struct sigaction action {};
    action.sa_handler = end_group_and_self;
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &action, &before_[i]);
  }
  ~GroupGuard() {
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &before_[i], nullptr);
    running_group = 0;
  }
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

 private:
  static constexpr std::array signals{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, 3> before_{};
};

/// A child in a process group of its own, so that all it started can be ended with it.
Outcome run_shell(const std::string& line, double limit_s) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(fmt::format("--objective-command: {}", std::strerror(errno)), Fault::Run);
  }
  const pid_t child = ::fork();
  if (child < 0) {
    throw Error(fmt::format("--objective-command: {}", std::strerror(errno)), Fault::Run);
  }
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(ends[1], STDOUT_FILENO);
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  const GroupGuard guard(child);
  Outcome outcome;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  for (bool open = true; open && !outcome.late;) {
    const std::chrono::duration<double> left = end - std::chrono::steady_clock::now();
    const double wait_ms = std::min(std::max(left.count(), 0.0) * 1e3, 1e6);
    pollfd waiting{ends[0], POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::ceil(wait_ms)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      outcome.late = std::chrono::steady_clock::now() >= end;
      continue;
    }
    std::array<char, most_output> buffer{};
    const ssize_t n = ::read(ends[0], buffer.data(), buffer.size());
    open = n > 0;
    if (n > 0 && outcome.output.size() < most_output) {
      outcome.output.append(buffer.data(), static_cast<std::size_t>(n));
    }
  }
  ::close(ends[0]);
  // It may have closed its output and run on.
  while (!outcome.late) {
    if (::waitpid(child, &outcome.status, WNOHANG) == child) break;
    outcome.late = std::chrono::steady_clock::now() >= end;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (outcome.late) {
    ::kill(-child, SIGKILL);
    ::kill(child, SIGKILL);  // it may not have its group yet
    while (::waitpid(child, &outcome.status, 0) < 0 && errno == EINTR) {
    }
  }
  return outcome;
}

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
    const Outcome outcome = run_shell(line, limit_s);
    const auto fail = [&](const std::string& found) {
      throw Error(fmt::format("--objective-command '{}': {}", line, found), Fault::Run);
    };
    if (outcome.late) fail(fmt::format("no answer within {:g} s", limit_s));
    if (!WIFEXITED(outcome.status) || WEXITSTATUS(outcome.status) != 0) {
      fail(WIFEXITED(outcome.status) ? fmt::format("exit status {}", WEXITSTATUS(outcome.status))
                                     : fmt::format("ended by signal {}", WTERMSIG(outcome.status)));
    }
    const std::optional<double> seconds = seconds_of(outcome.output);
    if (!seconds) {
      fail("got '" + outcome.output.substr(0, 60) + "', expected seconds above 0, nothing else");
    }
    return *seconds;
  };
}

}  // namespace kvcast::cli
