/// What the ranks of a simulation do: one list of instructions for each device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace kvcast::simulate {

/// The most for all ranks together. Our choice: a simulation of so many takes 3 GB.
inline constexpr std::size_t max_instructions = 70'000'000;

/// Keeps the device's compute stream busy; communication goes on meanwhile.
struct Compute {
  double seconds = 0;
  std::uint32_t label = 0;  ///< index into Programs::labels
};

/// Starts a message; the rank does not wait for it.
struct Send {
  Send(std::uint32_t receiver, std::uint64_t size, bool has_turn = true)
      : to(receiver), queues(has_turn), bytes(size) {}

  std::uint32_t to;
  /// Whether it waits in its rank's fifo queue. Messages of a collective do not: that is another
  /// stream.
  bool queues;
  std::uint64_t bytes;
};

/// Waits until a message has arrived: the n-th receive from a rank takes the n-th message that this
/// rank sends here.
struct Receive {
  std::uint32_t from = 0;
};

using Instruction = std::variant<Compute, Send, Receive>;
using Program = std::vector<Instruction>;

/// Rank i runs on device i.
struct Programs {
  std::vector<Program> ranks;
  std::vector<std::string> labels;  ///< of Compute instructions
  /// The ranks from this one on make the first token; the last one alone if it is not set.
  std::optional<std::size_t> answers_from = {};

  std::size_t num_instructions() const;
};

/// Throws Error when there are more than max_instructions.
void check_instructions(std::size_t instructions);

}  // namespace kvcast::simulate
