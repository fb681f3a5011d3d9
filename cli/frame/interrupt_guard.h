/// Ctrl-C, or a job scheduler's SIGTERM, as a wish to end, for commands whose work is kept.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include <signal.h>

#include "model/base/interrupt.h"

namespace kvcast::cli {

/// The first signal sets `interrupted`, a second one of its kind ends the program at once. A
/// program that runs commands inside itself and has a handler of its own says so by `is_hosted`,
/// and sets the rest.
class InterruptGuard {
 public:
  InterruptGuard() {
    if (is_hosted) return;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &action, &before_[i]);
  }
  ~InterruptGuard() {
    if (is_hosted) return;
    for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &before_[i], nullptr);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static inline std::atomic<bool> interrupted{false};
  static inline std::atomic<bool> is_hosted{false};

 private:
  static constexpr std::array signals{SIGINT, SIGTERM};
  std::array<struct sigaction, signals.size()> before_{};
};

}  // namespace kvcast::cli
