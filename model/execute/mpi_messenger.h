/// The ranks of one mpirun.
#pragma once

#include <memory>

#include "model/execute/messenger.h"

namespace kvcast::execute {

/// Sends and receives without waiting: progress() between operators and a thread of its own keep
/// messages moving while the rank computes, and a rank that waits sleeps, so that others on the
/// machine have its processor. When it goes MPI ends, unless an exception is on its way: the other
/// ranks would not come.
class MpiMessenger : public Messenger {
 public:
  /// False in a build without MPI.
  static bool is_built_in();
  /// Starts MPI, or ends the process with status 1 when that takes `limit_s`; a rank waits
  /// `limit_s` seconds for a message at most, and half a second more for each rank below it, so
  /// that of a chain of waiting ranks the first one tells. Throws Error (Fault::Run) when this
  /// kvcast was built without MPI.
  static std::unique_ptr<MpiMessenger> start(double limit_s);

  /// Ends MPI now, when all ranks do.
  virtual void end() = 0;
  /// Ends all ranks with this exit status.
  [[noreturn]] void abort(int status);

 private:
  virtual void end_all(int status) = 0;
};

}  // namespace kvcast::execute
