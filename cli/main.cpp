#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>

#include <unistd.h>

#include "cli/frame/command.h"
#include "cli/frame/command_line.h"
#include "cli/frame/exit_status.h"
#include "cli/frame/interrupt_guard.h"
#include "cli/frame/mpirun_environment.h"
#include "model/base/error.h"
#include "model/base/shell_command.h"

namespace kvcast::cli {
namespace {

/// One line on stderr; under mpirun only the first rank speaks, for all say the same.
void say(const std::string& line) {
  if (rank_of_mpirun() > 0) return;
  std::fprintf(stderr, "kvcast: %s\n", printable_line(line).c_str());
}

/// Refuses an OMP_NUM_THREADS that is not a number of threads, or a list of numbers. OpenMP crashes
/// on more threads than the system can start. About other text it prints its own words when it is
/// loaded, before main, so the dynamic loader calls this function first.
void check_openmp_threads(int, char**, char** environment) {
  environ = environment;  // the C library sets it later
  const char* value = std::getenv("OMP_NUM_THREADS");
  if (value == nullptr) return;
  constexpr long most = 1024;
  const char* digits = value;
  char* end = nullptr;
  for (;; digits = end + 1) {
    const long threads = std::strtol(digits, &end, 10);
    while (*end == ' ') ++end;
    if (threads < 1 || threads > most || (*end != ',' && *end != '\0')) break;
    if (*end == '\0') return;
  }
  const Error error("OMP_NUM_THREADS", std::string("'") + value + "'",
                    "a number of threads, 1 to " + std::to_string(most));
  say(error.what());
  _exit(exit_wrong_request);
}

__attribute__((section(".preinit_array"),
               used)) void (*const before_libraries)(int, char**, char**) = check_openmp_threads;

/// GNU OpenMP's threads wait for work in a loop that burns milliseconds, which slows a run tenfold
/// when another program wants the processor. It reads how long from the environment before main, so
/// the program starts itself anew with a shorter wait, unless the user has said.
void limit_spinning(char** argv) {
  if (std::getenv(spin_limit) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (setenv(spin_limit, "1000", 1) == 0 && setenv(own_spin_limit, "1", 1) == 0) {
    execv("/proc/self/exe", argv);
  }
}

}  // namespace
}  // namespace kvcast::cli

int main(int argc, char** argv) {
  kvcast::cli::limit_spinning(argv);
  // Beyond `ulimit -f` a write fails, as on a full disk, and says so; by default it ends the
  // program.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    kvcast::cli::run_program({argv + 1, argv + argc});
    kvcast::cli::say_held();
    return 0;
  } catch (const kvcast::Interrupted& e) {
    kvcast::cli::say_held();
    if (!e.line.empty()) kvcast::cli::say(e.line);
    return kvcast::cli::exit_interrupted;
  } catch (const kvcast::Error& e) {
    if (e.fault() == kvcast::Fault::Run) kvcast::cli::say_held();
    kvcast::cli::say(e.what());
    return e.fault() == kvcast::Fault::Request ? kvcast::cli::exit_wrong_request
                                               : kvcast::cli::exit_failed;
  } catch (const std::bad_alloc&) {
    kvcast::cli::say_held();
    kvcast::cli::say("out of memory");
  } catch (const std::exception& e) {
    kvcast::cli::say_held();
    kvcast::cli::say(e.what());
  }
  return kvcast::cli::exit_failed;
}
