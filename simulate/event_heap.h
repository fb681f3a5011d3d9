/// The pending events of a simulation, at most one for each id, soonest first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvcast::simulate {

/// A heap with four children a node: half the levels of a binary heap, in the same cache lines. It
/// knows where each id stands and moves an event without a search. Events of one time come by id.
class EventHeap {
 public:
  bool empty() const { return heap_.empty(); }
  /// The soonest event's time.
  double time() const { return heap_.front().time; }

  /// Adds the event, or moves it.
  void set(std::uint32_t id, double time) {
    if (id >= place_.size()) place_.resize(id + 1, nowhere);
    const Event event{time, id};
    if (place_[id] == nowhere) {
      heap_.push_back(event);
      rise(heap_.size() - 1, event);
    } else if (event < heap_[place_[id]]) {
      rise(place_[id], event);
    } else {
      sink(place_[id], event);
    }
  }

  /// Takes the soonest event and returns its id.
  std::uint32_t pop() {
    const std::uint32_t id = heap_.front().id;
    place_[id] = nowhere;
    const Event last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(0, last);
    return id;
  }

 private:
  static constexpr std::uint32_t nowhere = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::size_t children = 4;

  struct Event {
    double time = 0;
    std::uint32_t id = 0;
    bool operator<(const Event& o) const { return time < o.time || (time == o.time && id < o.id); }
  };

  void put(std::size_t at, const Event& event) {
    heap_[at] = event;
    place_[event.id] = static_cast<std::uint32_t>(at);
  }
  void rise(std::size_t at, const Event& event) {
    while (at > 0) {
      const std::size_t parent = (at - 1) / children;
      if (!(event < heap_[parent])) break;
      put(at, heap_[parent]);
      at = parent;
    }
    put(at, event);
  }
  void sink(std::size_t at, const Event& event) {
    while (true) {
      const std::size_t first = children * at + 1;
      if (first >= heap_.size()) break;
      const std::size_t end = first + children < heap_.size() ? first + children : heap_.size();
      std::size_t soonest = first;
      for (std::size_t i = first + 1; i < end; ++i) {
        if (heap_[i] < heap_[soonest]) soonest = i;
      }
      if (!(heap_[soonest] < event)) break;
      put(at, heap_[soonest]);
      at = soonest;
    }
    put(at, event);
  }

  std::vector<Event> heap_;
  std::vector<std::uint32_t> place_;  ///< where each id stands in the heap
};

}  // namespace kvcast::simulate
