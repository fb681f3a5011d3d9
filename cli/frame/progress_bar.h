/// A progress line on stderr, for people at a terminal.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvcast::cli {

class ProgressBar {
 public:
  /// Not when `quiet`; nor where stderr is no terminal or a dumb one, unless the environment has
  /// KVCAST_PROGRESS, as in a notebook.
  static bool is_shown(bool quiet);
  /// Draws nothing unless it is shown.
  explicit ProgressBar(bool quiet);
  /// Clears the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `done_before` of the `done` are from an earlier run and do not count for the rate, in whose
  /// place `facts` are shown if there are any. A total of 0: not known. Draws ten times a second.
  void draw(std::uint64_t done, std::uint64_t done_before, std::uint64_t total, double elapsed_s,
            std::string_view facts = "");

 private:
  bool active_ = false;
  bool drawn_ = false;
  double drawn_at_s_ = 0;
};

}  // namespace kvcast::cli
