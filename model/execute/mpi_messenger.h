/// The ranks of one mpirun.
#pragma once

#include <memory>

#include "model/execute/messenger.h"

namespace kvcast::execute {

/// Sends and receives without waiting: progress() between operators and a thread of its own keep
/// messages moving while the rank computes, and a rank that waits sleeps, so that others on the
/// machine have its processor.
class MpiMessenger : public Messenger {
 public:
  /// False in a build without MPI.
  static bool is_built_in();
  /// Starts MPI, or ends the process with status 1 when that takes `limit_s`; a rank waits
  /// `limit_s` seconds for a message at most, and half a second more for each rank below it, so
  /// that of a chain of waiting ranks the first one tells. Throws Error (Fault::Run) when this
  /// kvcast was built without MPI.
  explicit MpiMessenger(double limit_s);
  /// Ends MPI, unless an exception is on its way: the other ranks would not come.
  ~MpiMessenger() override;

  std::size_t rank() const override;
  std::size_t ranks() const override;
  void send(std::size_t to, const Rows& rows) override;
  void expect(std::size_t from, const Rows& rows) override;
  void receive(std::size_t from) override;
  void finish() override;
  void progress() override;

  /// Ends MPI now, when all ranks do.
  void end();
  /// Ends all ranks with this exit status.
  [[noreturn]] void abort(int status);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvcast::execute
