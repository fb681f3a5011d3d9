/// What a command prints, for a program that runs commands inside itself.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "reports/sweep/sweep_columns.h"

namespace kvcast::cli {

/// While it lives, what commands on this thread would print is kept here: nothing goes to stdout or
/// stderr but progress, which a terminal sees.
class Capture {
 public:
  struct Message {
    std::string line;
    bool is_warning = false;
  };

  Capture() : outer_(current_) { current_ = this; }
  ~Capture() { current_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  nlohmann::ordered_json document;             ///< null where none was printed
  std::string text;                            ///< what is no JSON
  std::optional<reports::SweepColumns> table;  ///< of a sweep without --csv
  std::vector<Message> messages;

  /// This thread's; null where there is none.
  static Capture* current() { return current_; }

 private:
  Capture* outer_;
  static inline thread_local Capture* current_ = nullptr;
};

}  // namespace kvcast::cli
