/// The devices of a spread model as threads of this process, where no mpirun has started ranks.
#pragma once

#include <memory>
#include <vector>

#include "model/execute/messenger.h"
#include "model/execute/rank_run.h"

namespace kvcast::cli {

class DeviceThreads {
 public:
  /// The sessions of all devices but the first, whose options are given. Each computes on so many
  /// threads of its own.
  DeviceThreads(const Checkpoint& checkpoint, const execute::SessionOptions& of_first, int threads);

  /// All devices' parts of a request; what the first one has. Throws the first error of any.
  execute::RankRun run(const execute::Session& first, const execute::Request& request,
                       execute::Mailboxes& mailboxes) const;

 private:
  std::vector<std::unique_ptr<execute::Session>> others_;
  int threads_;
};

}  // namespace kvcast::cli
