/// Ctrl-C as a wish to end, for commands whose work is kept.
#pragma once

#include <atomic>

#include <signal.h>

#include "model/base/interrupt.h"

namespace kvcast::cli {

/// The first Ctrl-C sets `interrupted`, a second one ends the program at once. A program that runs
/// commands inside itself and has a handler of its own says so by `is_hosted`, and sets the rest.
class InterruptGuard {
 public:
  InterruptGuard() {
    if (is_hosted) return;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, &before_);
  }
  ~InterruptGuard() {
    if (!is_hosted) ::sigaction(SIGINT, &before_, nullptr);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static inline std::atomic<bool> interrupted{false};
  static inline std::atomic<bool> is_hosted{false};

 private:
  struct sigaction before_ {};
};

}  // namespace kvcast::cli
