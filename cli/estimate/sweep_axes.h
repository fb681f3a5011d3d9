/// The flags that span the grid of a sweep.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/frame/command.h"
#include "reports/sweep/sweep_spec.h"

namespace kvcast::cli {

/// As the user typed them.
struct SweepAxes {
  std::map<std::string, std::vector<std::string>> axes;  ///< texts of the flags, by JSON key
  std::vector<std::string> set;
  std::string spec;

  /// `trains`: with the axes of training.
  void add_to(Command command, bool trains = false);
  /// Those of the file --spec, each replaced by its flag; without hardware, this machine. Throws
  /// Error naming the flag or the file.
  reports::SweepSpec parse(const Globals& globals) const;
};

}  // namespace kvcast::cli
