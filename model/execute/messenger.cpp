#include "model/execute/messenger.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include <fmt/format.h>

namespace kvcast::execute {

struct Mailboxes::State {
  State(std::size_t number, double limit)
      : ranks(number), limit_s(limit), arrived(number), boxes(number * number) {}

  std::size_t ranks;
  double limit_s;
  bool failed = false;
  std::mutex mutex;
  std::vector<std::condition_variable> arrived;  ///< by receiver: a message wakes no other rank
  /// Messages on their way, by receiver · ranks + sender.
  std::vector<std::deque<std::vector<std::byte>>> boxes;
};

namespace {

template <typename State>
class MailboxMessenger : public Messenger {
 public:
  MailboxMessenger(std::shared_ptr<State> state, std::size_t rank)
      : state_(std::move(state)), rank_(rank), expected_(state_->ranks) {}

  std::size_t rank() const override { return rank_; }
  std::size_t ranks() const override { return state_->ranks; }

  void send(std::size_t to, const Rows& rows) override {
    std::vector<std::byte> message;
    message.reserve(rows.all_bytes());
    for (std::size_t b = 0; b < rows.sequences; ++b) {
      const std::byte* first = rows.data + b * rows.stride;
      message.insert(message.end(), first, first + rows.bytes);
    }
    {
      const std::lock_guard lock(state_->mutex);
      state_->boxes[to * state_->ranks + rank_].push_back(std::move(message));
    }
    state_->arrived[to].notify_one();
  }

  void expect(std::size_t from, const Rows& rows) override { expected_[from].push_back(rows); }

  void receive(std::size_t from) override {
    KVCAST_ASSERT(!expected_[from].empty());
    const Rows rows = expected_[from].front();
    expected_[from].pop_front();
    auto& box = state_->boxes[rank_ * state_->ranks + from];
    std::unique_lock lock(state_->mutex);
    const bool there =
        state_->arrived[rank_].wait_for(lock, std::chrono::duration<double>(state_->limit_s),
                                        [&] { return state_->failed || !box.empty(); });
    if (state_->failed) throw Error("another rank has failed", Fault::Run);
    if (!there) throw late(rank_, from, state_->limit_s);
    const std::vector<std::byte> message = std::move(box.front());
    box.pop_front();
    lock.unlock();
    if (message.size() != rows.all_bytes()) {
      throw wrong_length(rank_, from, message.size(), rows.all_bytes());
    }
    for (std::size_t b = 0; b < rows.sequences; ++b) {
      std::copy_n(message.data() + b * rows.bytes, rows.bytes, rows.data + b * rows.stride);
    }
  }

  bool has_message(std::size_t from) override {
    const std::lock_guard lock(state_->mutex);
    return !state_->boxes[rank_ * state_->ranks + from].empty();
  }

  void finish() override {}  // what was sent was copied

 private:
  std::shared_ptr<State> state_;
  std::size_t rank_;
  std::vector<std::deque<Rows>> expected_;  ///< by sender
};

}  // namespace

Error late(std::size_t rank, std::size_t from, double limit_s) {
  return Error(fmt::format("rank {}: no message from rank {} within {} s", rank, from, limit_s),
               Fault::Run);
}

Error wrong_length(std::size_t rank, std::size_t from, std::size_t found, std::size_t expected) {
  const std::string where = fmt::format("rank {}: message from rank {}", rank, from);
  return Error(Error(where, fmt::format("{} bytes", found), std::to_string(expected)).what(),
               Fault::Run);
}

Mailboxes::Mailboxes(std::size_t ranks, double limit_s)
    : state_(std::make_shared<State>(ranks, limit_s)) {}

Mailboxes::~Mailboxes() = default;

std::unique_ptr<Messenger> Mailboxes::messenger(std::size_t rank) {
  return std::make_unique<MailboxMessenger<State>>(state_, rank);
}

void Mailboxes::fail() {
  const std::lock_guard lock(state_->mutex);
  state_->failed = true;
  for (std::condition_variable& arrived : state_->arrived) arrived.notify_all();
}

void send_bytes(Messenger& m, std::size_t to, const void* bytes, std::size_t count) {
  // Messengers read it only.
  auto* data = const_cast<std::byte*>(static_cast<const std::byte*>(bytes));
  m.send(to, {data, 1, count, count});
  m.finish();
}

void receive_bytes(Messenger& m, std::size_t from, void* bytes, std::size_t count) {
  m.expect(from, {static_cast<std::byte*>(bytes), 1, count, count});
  m.receive(from);
}

void send_text(Messenger& m, std::size_t to, const std::string& text) {
  const std::uint64_t length = text.size();
  send_bytes(m, to, &length, sizeof length);
  send_bytes(m, to, text.data(), length);
}

std::string receive_text(Messenger& m, std::size_t from) {
  std::uint64_t length = 0;
  receive_bytes(m, from, &length, sizeof length);
  std::string text(length, ' ');
  receive_bytes(m, from, text.data(), length);
  return text;
}

namespace {

/// Rank 0: what the texts of all ranks, an error and something common of each, come to.
std::string verdict(Messenger& m, const std::string& error, const std::string& common) {
  std::string first = error;
  std::string differs;
  for (std::size_t r = 1; r < m.ranks(); ++r) {
    const std::string other = receive_text(m, r);
    const bool same = receive_text(m, r) == common;
    if (first.empty()) first = other;
    if (!same && differs.empty()) {
      differs = fmt::format(
          "rank {} has another kvcast, model or request than rank 0; expected the same on every "
          "machine",
          r);
    }
  }
  return first.empty() ? differs : first;
}

}  // namespace

void meet(Messenger& m) { first_error(m, "", ""); }

void add_over_ranks(Messenger& m, std::span<double> numbers) {
  if (m.rank() > 0) {
    send_bytes(m, 0, numbers.data(), numbers.size_bytes());
    return receive_bytes(m, 0, numbers.data(), numbers.size_bytes());
  }
  std::vector<double> others(numbers.size());
  for (std::size_t r = 1; r < m.ranks(); ++r) {
    receive_bytes(m, r, others.data(), numbers.size_bytes());
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] += others[i];
  }
  for (std::size_t r = 1; r < m.ranks(); ++r) {
    send_bytes(m, r, numbers.data(), numbers.size_bytes());
  }
}

bool any_of_ranks(Messenger& m, bool own) { return !first_error(m, own ? "is" : "", "").empty(); }

std::string first_error(Messenger& m, const std::string& error, const std::string& common) {
  if (m.rank() > 0) {
    send_text(m, 0, error);
    send_text(m, 0, common);
    return receive_text(m, 0);
  }
  const std::string text = verdict(m, error, common);
  for (std::size_t r = 1; r < m.ranks(); ++r) send_text(m, r, text);
  return text;
}

}  // namespace kvcast::execute
