/// How the ranks of a run reach each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "model/base/error.h"

namespace kvcast::execute {

/// The same run of bytes in each of several sequences: rows of a cache, or any block (one
/// sequence).
struct Rows {
  std::byte* data = nullptr;
  std::size_t sequences = 1;
  std::size_t stride = 0;  ///< bytes from one sequence to the next
  std::size_t bytes = 0;   ///< of one sequence

  std::size_t all_bytes() const { return sequences * bytes; }
};

/// One rank's end. From one rank to another, what is sent first arrives first; nothing is limited
/// but the time that a rank waits.
class Messenger {
 public:
  virtual ~Messenger() = default;
  virtual std::size_t rank() const = 0;
  virtual std::size_t ranks() const = 0;

  /// Starts to send; the bytes must stay as they are until finish().
  virtual void send(std::size_t to, const Rows& rows) = 0;
  /// Says where the next message from a rank is to lie; calls for one rank are in the order of its
  /// messages, and may come long before them.
  virtual void expect(std::size_t from, const Rows& rows) = 0;
  /// Waits for the oldest expected message of a rank that nobody has waited for. Throws Error
  /// (Fault::Run) when it is of another length, or not there within the time limit.
  virtual void receive(std::size_t from) = 0;
  /// Whether a message that nobody expects yet has come from a rank.
  virtual bool has_message(std::size_t from) = 0;
  /// Waits until the bytes of all sent messages may change. Throws as receive().
  virtual void finish() = 0;
  /// Moves messages that are on their way; costs little, to be called often.
  virtual void progress() {}
};

/// Ends of several ranks in one process, each for a thread of its own. When `fail` is called, all
/// that wait throw.
class Mailboxes {
 public:
  /// A rank waits `limit_s` seconds for a message at most.
  Mailboxes(std::size_t ranks, double limit_s);
  ~Mailboxes();
  std::unique_ptr<Messenger> messenger(std::size_t rank);
  void fail();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// What messengers throw (Fault::Run).
Error late(std::size_t rank, std::size_t from, double limit_s);
Error wrong_length(std::size_t rank, std::size_t from, std::size_t found, std::size_t expected);

/// A message of known length, sent and awaited at once.
void send_bytes(Messenger& m, std::size_t to, const void* bytes, std::size_t count);
void receive_bytes(Messenger& m, std::size_t from, void* bytes, std::size_t count);

/// A text of any length.
void send_text(Messenger& m, std::size_t to, const std::string& text);
std::string receive_text(Messenger& m, std::size_t from);

/// Returns when all ranks have called it.
void meet(Messenger& m);
/// The sums over all ranks, in the ranks' order, on every rank alike.
void add_over_ranks(Messenger& m, std::span<double> numbers);
/// Whether it is true of any rank.
bool any_of_ranks(Messenger& m, bool own);

/// Every rank passes its error, or "" with what all ranks must have in common. Returns, on all
/// ranks alike, the error of the lowest rank that has one, else a sentence that names the first
/// rank whose `common` is not rank 0's, else "".
std::string first_error(Messenger& m, const std::string& error, const std::string& common);

}  // namespace kvcast::execute
