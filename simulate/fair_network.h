/// Flows over shared links, at max-min fair rates that are recomputed where something changed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "simulate/event_heap.h"

namespace kvcast::simulate {

/// Between two events every flow has a constant rate. After all changes of one instant the caller
/// calls `settle`: it finds the rates of the flows that share links with what changed, directly or
/// through others, by progressive filling, and puts each flow's end into the heap of events.
class FairNetwork {
 public:
  using OnRate = std::function<void(std::uint32_t flow, double now, double bytes_per_s)>;

  /// The event of flow f's end gets the id first_event + f. `on_rate`, if given, is told every
  /// change of rate; a flow's last change is to 0.
  FairNetwork(std::vector<double> link_bytes_per_s, std::size_t max_hops, std::uint32_t first_event,
              OnRate on_rate);

  /// A place for a flow that has not begun; places are used again after `end`.
  std::uint32_t reserve();
  /// From now on it flows over these links, which outlive it.
  void begin(std::uint32_t flow, std::span<const std::uint32_t> hops, double bytes, double now);
  void end(std::uint32_t flow, double now);
  void settle(double now, EventHeap& events);

  bool flows(std::uint32_t flow) const { return !flows_[flow].hops.empty(); }
  double bytes_per_s(std::size_t link) const { return links_[link].bytes_per_s; }
  /// Bytes that each link has carried until now.
  std::vector<double> link_bytes(double now) const;

 private:
  struct Flow {
    std::span<const std::uint32_t> hops;  ///< empty: does not flow
    double bytes = 0;
    double remaining = 0;  ///< at the time `since`
    double since = 0;
    double rate = 0;
    double next_rate = 0;       ///< while `fill` runs; negative until it is fixed
    std::uint64_t visited = 0;  ///< the settlement that saw it last
  };
  /// One flow on one link.
  struct Passage {
    std::uint32_t flow = 0;
    std::uint32_t hop = 0;
  };
  struct Link {
    double bytes_per_s = 0;
    double left = 0;  ///< while `fill` runs: what no flow has yet
    std::uint32_t unfixed = 0;
    bool changed = false;
    std::uint64_t visited = 0;
    double carried = 0;  ///< bytes of flows that ended
    std::vector<Passage> passages;
  };

  std::uint32_t& place(std::uint32_t flow, std::size_t hop) {
    return places_[flow * max_hops_ + hop];
  }
  void mark(std::uint32_t link);
  bool is_alone(const Flow& flow) const;
  void collect(std::uint32_t link);
  void fill();
  void set_rate(std::uint32_t flow, double rate, double now, EventHeap& events);

  std::size_t max_hops_;
  std::uint32_t first_event_;
  OnRate on_rate_;
  std::uint64_t settlement_ = 0;
  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<std::uint32_t> places_;  ///< where each flow's hops stand in their links' passages
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> changed_;  ///< links
  // The links and flows that `collect` found, kept to reuse their memory.
  std::vector<std::uint32_t> component_links_;
  std::vector<std::uint32_t> component_flows_;
};

}  // namespace kvcast::simulate
