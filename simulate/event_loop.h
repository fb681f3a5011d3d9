/// One run of a Simulation: ranks step through their programs, messages become flows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "simulate/event_heap.h"
#include "simulate/fair_network.h"
#include "simulate/simulation.h"

namespace kvcast::simulate {

class EventLoop : private FairNetwork::Listener {
 public:
  /// Throws as Simulation::run does.
  EventLoop(const Simulation& simulation, const RunOptions& options,
            std::span<const double> compute_factors);
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  /// Once.
  RunResult run();

 private:
  using Kind = Simulation::Kind;
  using Message = Simulation::Message;
  using Route = Simulation::Route;

  struct Rank {
    std::uint32_t step = 0;
    std::uint32_t end = 0;
    std::uint32_t next = 0;         ///< fifo: the first message that has not left yet
    std::uint32_t outstanding = 0;  ///< messages sent and not delivered
    std::uint32_t awaited = 0;      ///< a message, all_sends or nothing
    bool finished = false;
    double waits_since = 0;
    double sends_since = 0;
    double factor = 1;  ///< of its computations
  };
  /// Of a flow's place in the network.
  struct Transfer {
    std::uint32_t message = 0;
    double begin_s = 0;
  };

  void add_background(const std::vector<BackgroundFlow>& flows);
  void handle(std::uint32_t event);
  void advance(std::uint32_t rank);
  void wait_for(std::uint32_t rank, std::uint32_t awaited);
  void resume(std::uint32_t rank);
  void start(std::uint32_t message);
  void deliver(std::uint32_t flow);
  void start_background();
  [[noreturn]] void fail_deadlock() const;
  void rate_changed(std::uint32_t flow, double now, double bytes_per_s) override;
  bool is_background(std::uint32_t message) const { return message >= num_messages_; }
  const Message& message(std::uint32_t m) const {
    return is_background(m) ? background_[m - num_messages_] : simulation_.messages_[m];
  }
  std::span<const std::uint32_t> hops(const Route& r) const {
    return {hops_.data() + r.first_hop, r.num_hops};
  }

  const Simulation& simulation_;
  bool fifo_;
  bool record_;
  double message_overhead_s_;
  std::uint32_t num_messages_;       ///< of ranks; background flows follow
  std::vector<Message> background_;  ///< by start
  std::vector<double> background_start_s_;
  std::size_t next_background_ = 0;
  std::size_t background_in_flight_ = 0;
  std::vector<Route> routes_;  ///< the simulation's, then those of background flows
  std::vector<std::uint32_t> hops_;
  std::uint32_t background_timer_;
  std::uint32_t first_flow_;  ///< event ids: ranks, background_timer_, flows
  std::optional<FairNetwork> network_;
  EventHeap events_;
  double now_ = 0;
  std::vector<Rank> ranks_;
  std::vector<char> delivered_;
  std::vector<Transfer> transfers_;
  std::uint32_t unfinished_ = 0;
  std::uint64_t in_flight_ = 0;  ///< messages of ranks
  RunResult result_;
};

}  // namespace kvcast::simulate
