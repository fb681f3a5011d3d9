/// Ctrl-C for work that a program runs inside itself, as the Python module does. kvcast's own
/// program does not need it: there Ctrl-C ends the process, or a command looks out for it
/// (cli/frame/interrupt_guard.h).
#pragma once

#include <atomic>
#include <string>

namespace kvcast {

/// No Error: nothing went wrong, and handlers of errors must not take it for one.
struct Interrupted {
  std::string line;  ///< what became of the work, for a person; may be empty
};

/// Set it to end what runs, and clear it before the next work.
inline std::atomic<bool> interrupt_wanted{false};

/// In the outer loops of long work. Throws Interrupted.
inline void stop_if_interrupted() {
  if (interrupt_wanted.load(std::memory_order_relaxed)) throw Interrupted{};
}

}  // namespace kvcast
