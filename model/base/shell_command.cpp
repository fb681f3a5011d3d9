#include "model/base/shell_command.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/base/error.h"

namespace kvcast {
namespace {

using Clock = std::chrono::steady_clock;
using Interval = std::chrono::duration<double>;

/// How soon `stop` is seen when no signal wakes the wait for output.
constexpr double look_s = 0.1;
/// What an mpirun gets to end its ranks, which are in groups of their own.
constexpr Interval grace{2};

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
  /// `outlives`: of Ctrl-C and SIGTERM, which ask this process to end by itself.
  GroupGuard(pid_t group, bool outlives) : first_(outlives ? 2 : 0) {
    running_group = group;
    struct sigaction action {};
    action.sa_handler = end_group_and_self;
    for (std::size_t i = first_; i < signals.size(); ++i) {
      ::sigaction(signals[i], &action, &before_[i]);
    }
  }
  ~GroupGuard() {
    for (std::size_t i = first_; i < signals.size(); ++i) {
      ::sigaction(signals[i], &before_[i], nullptr);
    }
    running_group = 0;
  }
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

 private:
  static constexpr std::array signals{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, 3> before_{};
  std::size_t first_;
};

using Pipe = std::array<int, 2>;

Pipe open_pipe(const std::string& name) {
  Pipe ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(fmt::format("{}: {}", name, std::strerror(errno)), Fault::Run);
  }
  return ends;
}

/// Takes what is there; false when there will be no more.
bool read_some(int descriptor, std::size_t most, std::string& text) {
  std::array<char, 4096> buffer{};
  const ssize_t n = ::read(descriptor, buffer.data(), buffer.size());
  if (n > 0 && text.size() < most) text.append(buffer.data(), static_cast<std::size_t>(n));
  return n > 0;
}

bool has_ended(pid_t child, int& status) { return ::waitpid(child, &status, WNOHANG) == child; }

void end_group(pid_t child, int& status) {
  ::kill(-child, SIGTERM);
  ::kill(child, SIGTERM);  // it may not have its group yet
  bool ended = false;
  for (const auto end = Clock::now() + grace; !ended && Clock::now() < end;) {
    ended = has_ended(child, status);
    if (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(-child, SIGKILL);
  while (!ended && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::string ShellRun::failure() const {
  if (WIFEXITED(status)) {
    return WEXITSTATUS(status) == 0 ? "" : fmt::format("exit status {}", WEXITSTATUS(status));
  }
  return fmt::format("ended by signal {}", WTERMSIG(status));
}

ShellRun run_shell(const std::string& line, const std::string& name, const ShellOptions& options) {
  const Pipe output = open_pipe(name);
  const Pipe errors = options.keep_errors ? open_pipe(name) : Pipe{-1, -1};
  const pid_t child = ::fork();
  if (child < 0) throw Error(fmt::format("{}: {}", name, std::strerror(errno)), Fault::Run);
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(output[1], STDOUT_FILENO);
    if (options.keep_errors) ::dup2(errors[1], STDERR_FILENO);
    if (std::getenv(own_spin_limit) != nullptr) {
      ::unsetenv(spin_limit);
      ::unsetenv(own_spin_limit);
    }
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(output[1]);
  if (options.keep_errors) ::close(errors[1]);
  const GroupGuard guard(child, options.stop != nullptr);
  ShellRun run;
  const auto end = Clock::now() + Interval(options.limit_s);
  const auto is_over = [&] {
    run.stopped = options.stop != nullptr && *options.stop;
    run.late = !run.stopped && Clock::now() >= end;
    return run.stopped || run.late;
  };
  std::array<pollfd, 2> open{{{output[0], POLLIN, 0}, {errors[0], POLLIN, 0}}};
  while ((open[0].fd >= 0 || open[1].fd >= 0) && !is_over()) {
    const double left_s = Interval(end - Clock::now()).count();
    const double wait_s = std::min(std::max(left_s, 0.0), options.stop != nullptr ? look_s : 1e3);
    if (::poll(open.data(), open.size(), static_cast<int>(std::ceil(1e3 * wait_s))) <= 0) continue;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].revents == 0) continue;
      if (!read_some(open[i].fd, options.most_output, i == 0 ? run.output : run.errors)) {
        open[i].fd = -1;
      }
    }
  }
  ::close(output[0]);
  if (options.keep_errors) ::close(errors[0]);
  // It may have closed its output and run on.
  bool ended = false;
  while (!run.late && !run.stopped && !ended) {
    ended = has_ended(child, run.status);
    if (ended || is_over()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!ended) end_group(child, run.status);
  return run;
}

std::string shell_quoted(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace kvcast
