#include "model/execute/mpi_messenger.h"

#include <cstdio>
#include <cstdlib>

#include "model/base/error.h"

#if defined(KVCAST_HAS_MPI)

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include <mpi.h>

namespace kvcast::execute {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int tag = 1;  // messages of two ranks stay in order
/// Of the thread that moves messages during a long operator. Each time that it wakes costs the rank
/// what a timer and two task switches cost, on a virtual machine up to 50 us: at a nap of 100 us
/// ranks computed 28 % slower.
constexpr std::chrono::microseconds progress_nap{5000};
/// After so many naps without a message it sleeps until the next one. To wake it for each message
/// would cost the rank two task switches at every exchange.
constexpr int most_quiet_naps = 40;
constexpr std::chrono::microseconds longest_nap{1000};  ///< of a rank that waits
constexpr std::chrono::microseconds awake{2000};        // a rank that waits starts to nap after it
constexpr double stagger_s = 0.5;

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(std::string(call) + ": " + text, Fault::Run);
}

/// A block of bytes as elements of an MPI type, whose counts are ints.
class BlockType {
 public:
  explicit BlockType(std::size_t bytes) {
    constexpr std::size_t largest_unit = std::size_t{1} << 20;
    const std::size_t unit = bytes > 0 ? std::gcd(bytes, largest_unit) : 1;
    count_ = static_cast<int>(bytes / unit);
    check(MPI_Type_contiguous(static_cast<int>(unit), MPI_BYTE, &type_), "MPI_Type_contiguous");
    check(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  /// Messages on their way keep it alive.
  ~BlockType() { MPI_Type_free(&type_); }
  BlockType(const BlockType&) = delete;
  BlockType& operator=(const BlockType&) = delete;
  MPI_Datatype get() const { return type_; }
  int count() const { return count_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  int count_ = 0;
};

/// Ends the process when MPI has not started in time: a rank that never comes would keep the others
/// in MPI_Init, which nothing can interrupt.
std::jthread start_watchdog(double limit_s) {
  return std::jthread([limit_s](const std::stop_token& started) {
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    changed.wait_for(lock, started, std::chrono::duration<double>(limit_s), [] { return false; });
    if (started.stop_requested()) return;
    std::fprintf(stderr, "kvcast: MPI did not start within %g s: not all ranks came\n", limit_s);
    std::_Exit(1);
  });
}

struct Expected {
  std::vector<MPI_Request> requests;  ///< one for each sequence
  std::size_t bytes;                  ///< of all
};

class Ranks final : public MpiMessenger {
 public:
  explicit Ranks(double limit_s) : limit_s_(limit_s) {
    int provided = MPI_THREAD_SINGLE;
    {
      const std::jthread watchdog = start_watchdog(limit_s);
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    expected_.resize(ranks());
    if (provided >= MPI_THREAD_SERIALIZED) {
      mover_ = std::jthread([this](const std::stop_token& stop) { keep_moving(stop); });
    }
  }

  ~Ranks() override {
    mover_ = std::jthread();  // stops it
    if (!ended_ && std::uncaught_exceptions() == exceptions_) MPI_Finalize();
  }

  std::size_t rank() const override { return static_cast<std::size_t>(rank_); }
  std::size_t ranks() const override { return static_cast<std::size_t>(ranks_); }

  // Sequences go one by one: MPI copies a block from one rank's memory into the other's, but sends
  // what lies apart in small fragments, each of which both ranks have to look at.
  void send(std::size_t to, const Rows& rows) override {
    const std::lock_guard lock(mutex_);
    const BlockType type(rows.bytes);
    for (std::size_t s = 0; s < rows.sequences; ++s) {
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Isend(rows.data + s * rows.stride, type.count(), type.get(), static_cast<int>(to),
                      tag, MPI_COMM_WORLD, &request),
            "MPI_Isend");
      sent_.push_back({request, to});
      note_pending();
    }
  }

  void expect(std::size_t from, const Rows& rows) override {
    const std::lock_guard lock(mutex_);
    const BlockType type(rows.bytes);
    Expected& expected = expected_[from].emplace_back();
    expected.bytes = rows.all_bytes();
    for (std::size_t s = 0; s < rows.sequences; ++s) {
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Irecv(rows.data + s * rows.stride, type.count(), type.get(), static_cast<int>(from),
                      tag, MPI_COMM_WORLD, &request),
            "MPI_Irecv");
      expected.requests.push_back(request);
      note_pending();
    }
  }

  void receive(std::size_t from) override {
    KVCAST_ASSERT(!expected_[from].empty());
    Expected expected = std::move(expected_[from].front());
    expected_[from].pop_front();
    MPI_Count bytes = 0;
    for (MPI_Request& request : expected.requests) {
      const MPI_Status status = wait(request, from);
      MPI_Count of_sequence = 0;
      MPI_Get_elements_x(&status, MPI_BYTE, &of_sequence);
      bytes += of_sequence;
    }
    if (static_cast<std::size_t>(bytes) != expected.bytes) {
      throw wrong_length(rank(), from, static_cast<std::size_t>(bytes), expected.bytes);
    }
  }

  bool has_message(std::size_t from) override {
    const std::lock_guard lock(mutex_);
    int there = 0;
    check(MPI_Iprobe(static_cast<int>(from), tag, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE),
          "MPI_Iprobe");
    return there != 0;
  }

  void finish() override {
    for (Sent& sent : sent_) wait(sent.request, sent.to);
    sent_.clear();
  }

  void progress() override {
    const std::lock_guard lock(mutex_);
    move_messages();
  }

  void end() override {
    if (std::exchange(ended_, true)) return;
    mover_ = std::jthread();  // stops it
    MPI_Finalize();
  }

 private:
  void end_all(int status) override {
    const std::lock_guard lock(mutex_);
    MPI_Abort(MPI_COMM_WORLD, status);
  }

  struct Sent {
    MPI_Request request;
    std::size_t to;
  };

  /// Any call lets MPI move the messages that are on their way. Within the lock.
  void move_messages() {
    int there = 0;
    if (pending_ > 0) {
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    }
  }

  /// Wakes the thread that moves messages, unless it looks by itself.
  void note_pending() {
    if (++pending_ == 1 && asleep_) changed_.notify_all();
    quiet_naps_ = 0;
  }

  void keep_moving(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (quiet_naps_ > most_quiet_naps) {
        asleep_ = true;
        changed_.wait(lock, stop, [&] { return pending_ > 0; });
        asleep_ = false;
      }
      move_messages();
      changed_.wait_for(lock, stop, progress_nap, [] { return false; });
      if (pending_ == 0) ++quiet_naps_;
    }
  }

  /// Waits for a request to or from a rank.
  MPI_Status wait(MPI_Request& request, std::size_t peer) {
    const Clock::time_point start = Clock::now();
    const std::chrono::duration<double> limit(limit_s_ + stagger_s * rank_);
    MPI_Status status;
    for (;;) {
      int done = 0;
      {
        const std::lock_guard lock(mutex_);
        check(MPI_Test(&request, &done, &status), "MPI_Test");
        if (done != 0) --pending_;
      }
      if (done != 0) return status;
      const auto waited = Clock::now() - start;
      if (waited > limit) throw late(static_cast<std::size_t>(rank_), peer, limit_s_);
      if (waited < awake) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::min<Clock::duration>(waited / 16, longest_nap));
      }
    }
  }

  int rank_ = 0;
  int ranks_ = 1;
  double limit_s_;
  int exceptions_ = std::uncaught_exceptions();
  bool ended_ = false;

  std::mutex mutex_;  ///< for every call of MPI and what follows
  std::condition_variable_any changed_;
  std::size_t pending_ = 0;                     ///< messages on their way
  bool asleep_ = false;                         ///< the thread that moves them
  int quiet_naps_ = 0;                          ///< of it, since the last message
  std::vector<std::deque<Expected>> expected_;  ///< by sender
  std::vector<Sent> sent_;
  std::jthread mover_;
};

}  // namespace

bool MpiMessenger::is_built_in() { return true; }

std::unique_ptr<MpiMessenger> MpiMessenger::start(double limit_s) {
  return std::make_unique<Ranks>(limit_s);
}

}  // namespace kvcast::execute

#else

namespace kvcast::execute {

bool MpiMessenger::is_built_in() { return false; }

std::unique_ptr<MpiMessenger> MpiMessenger::start(double) {
  throw Error("this kvcast was built without MPI; expected a build that finds Open MPI",
              Fault::Run);
}

}  // namespace kvcast::execute

#endif

namespace kvcast::execute {

void MpiMessenger::abort(int status) {
  end_all(status);
  std::_Exit(status);
}

}  // namespace kvcast::execute
