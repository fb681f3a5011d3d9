/// The flags that spread a model over several devices.
#pragma once

#include <string>

#include "cli/frame/arguments.h"
#include "model/config/sharding.h"

namespace kvcast::cli {

struct ParallelismFlags {
  std::string tp = "1";
  std::string pp = "1";
  std::string ep = "1";
  std::string dp;  ///< empty: 1, or with ep as many replicas as make ep devices

  bool operator==(const ParallelismFlags&) const = default;
  void add_to(Command command);
  /// Throws Error naming the flag.
  Parallelism parallelism() const;
};

}  // namespace kvcast::cli
