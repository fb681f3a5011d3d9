/// A progress line on stderr, for people at a terminal.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvcast::cli {

class ProgressBar {
 public:
  /// Draws nothing when `quiet`, when stderr is no terminal, or when it is a dumb one.
  explicit ProgressBar(bool quiet);
  /// Clears the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `done_before` of the `done` are from an earlier run and do not count for the rate, in whose
  /// place `facts` are shown if there are any.
  void draw(std::uint64_t done, std::uint64_t done_before, std::uint64_t total, double elapsed_s,
            std::string_view facts = "");

 private:
  bool active_ = false;
  bool drawn_ = false;
};

}  // namespace kvcast::cli
