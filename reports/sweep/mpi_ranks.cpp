#include "reports/sweep/mpi_ranks.h"

#include "model/base/error.h"

#if defined(KVCAST_HAS_MPI)

#include <chrono>
#include <thread>
#include <vector>

#include <mpi.h>

namespace kvcast::reports {
namespace {

constexpr int question_tag = 1;
constexpr int answer_tag = 2;
constexpr std::chrono::microseconds nap{200};

/// The texts of all ranks, on all ranks.
std::vector<std::string> gather(const std::string& text, int size) {
  const int length = static_cast<int>(text.size());
  std::vector<int> lengths(static_cast<std::size_t>(size));
  MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
  std::vector<int> offsets;
  int total = 0;
  for (const int n : lengths) {
    offsets.push_back(total);
    total += n;
  }
  std::string all(static_cast<std::size_t>(total), ' ');
  MPI_Allgatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(),
                 MPI_CHAR, MPI_COMM_WORLD);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    texts.push_back(
        all.substr(static_cast<std::size_t>(offsets[i]), static_cast<std::size_t>(lengths[i])));
  }
  return texts;
}

}  // namespace

bool MpiRanks::is_built_in() { return true; }

MpiRanks::MpiRanks() {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

MpiRanks::~MpiRanks() { MPI_Finalize(); }

std::string MpiRanks::first_error(const std::string& error, const std::string& common) const {
  for (const std::string& text : gather(error, size_)) {
    if (!text.empty()) return text;
  }
  const std::vector<std::string> commons = gather(common, size_);
  for (std::size_t i = 1; i < commons.size(); ++i) {
    if (commons[i] != commons[0]) {
      return "rank " + std::to_string(i) +
             " sees other model or hardware files than rank 0; "
             "expected the same on every machine";
    }
  }
  return "";
}

void MpiRanks::ask(int rank, std::int64_t number) const {
  MPI_Send(&number, 1, MPI_INT64_T, rank, question_tag, MPI_COMM_WORLD);
}

std::optional<std::string> MpiRanks::poll_answer(int rank) const {
  int there = 0;
  MPI_Status status;
  MPI_Iprobe(rank, answer_tag, MPI_COMM_WORLD, &there, &status);
  if (there == 0) return std::nullopt;
  int length = 0;
  MPI_Get_count(&status, MPI_CHAR, &length);
  std::string text(static_cast<std::size_t>(length), ' ');
  MPI_Recv(text.data(), length, MPI_CHAR, rank, answer_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return text;
}

std::int64_t MpiRanks::wait_for_question() const {
  for (int there = 0;;) {
    MPI_Iprobe(0, question_tag, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    if (there != 0) break;
    std::this_thread::sleep_for(nap);
  }
  std::int64_t number = 0;
  MPI_Recv(&number, 1, MPI_INT64_T, 0, question_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return number;
}

void MpiRanks::answer(const std::string& text) const {
  MPI_Send(text.data(), static_cast<int>(text.size()), MPI_CHAR, 0, answer_tag, MPI_COMM_WORLD);
}

}  // namespace kvcast::reports

#else

namespace kvcast::reports {

bool MpiRanks::is_built_in() { return false; }

MpiRanks::MpiRanks() {
  throw Error(
      "this kvcast was built without MPI; expected a build that finds Open MPI, or --shard "
      "I/N in place of mpirun",
      Fault::Run);
}
MpiRanks::~MpiRanks() = default;
// No object exists, so nobody calls these.
std::string MpiRanks::first_error(const std::string&, const std::string&) const { return ""; }
void MpiRanks::ask(int, std::int64_t) const {}
std::optional<std::string> MpiRanks::poll_answer(int) const { return std::nullopt; }
std::int64_t MpiRanks::wait_for_question() const { return 0; }
void MpiRanks::answer(const std::string&) const {}

}  // namespace kvcast::reports

#endif
