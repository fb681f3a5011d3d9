/// The processes of one `mpirun`: rank 0 asks for blocks and writes them, the others answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvcast::reports {

class MpiRanks {
 public:
  /// False in a build without MPI.
  static bool is_built_in();
  /// Starts MPI. Throws Error (Fault::Run) when this kvcast was built without it.
  MpiRanks();
  /// Ends MPI; waits for the other ranks to do so too.
  ~MpiRanks();
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Every rank passes its error, or "" with what all must have in common. Returns, on all ranks
  /// alike, the first rank's error, else a sentence when `common` differs, else "".
  std::string first_error(const std::string& error, const std::string& common) const;

  /// Rank 0: sends a number to a rank.
  void ask(int rank, std::int64_t number) const;
  /// Rank 0: the answer of a rank, if it is there.
  std::optional<std::string> poll_answer(int rank) const;
  /// The others: the next number from rank 0. Sleeps while it waits, where MPI_Recv would spin and
  /// take a core from the threads that evaluate.
  std::int64_t wait_for_question() const;
  /// The others: returns when rank 0 has taken the text or MPI holds a copy of it.
  void answer(const std::string& text) const;

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace kvcast::reports
