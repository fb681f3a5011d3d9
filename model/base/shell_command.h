/// Commands that this program starts and waits for.
#pragma once

#include <atomic>
#include <cstddef>
#include <limits>
#include <string>

namespace kvcast {

/// How long GNU OpenMP's threads wait in a loop, and what says that the limit is ours: commands get
/// the user's environment.
inline constexpr const char* spin_limit = "GOMP_SPINCOUNT";
inline constexpr const char* own_spin_limit = "KVCAST_LIMITED_SPINNING";

struct ShellOptions {
  double limit_s = std::numeric_limits<double>::infinity();
  std::size_t most_output = 1u << 20;  ///< bytes kept of either, more than any answer needs
  bool keep_errors = false;            ///< else they go where this program's go
  /// Set by Ctrl-C or SIGTERM, which then end only the command.
  const std::atomic<bool>* stop = nullptr;
};

struct ShellRun {
  int status = 0;  ///< as waitpid has it
  bool late = false;
  bool stopped = false;
  std::string output;
  std::string errors;

  /// "exit status 3", "ended by signal 9"; empty when it did its work.
  std::string failure() const;
};

/// Runs a line by sh, in a process group of its own. When it takes longer than the limit, on `stop`
/// and when a signal ends this program, all of the group end. Throws Error (Fault::Run), beginning
/// with `name`, when no process can be made.
ShellRun run_shell(const std::string& line, const std::string& name, const ShellOptions& options);

/// A word that sh takes as it is.
std::string shell_quoted(const std::string& word);

}  // namespace kvcast
