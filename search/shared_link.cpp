#include "search/shared_link.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace kvcast::search {
namespace {

/// The vector of values up to `highest` that sums to `sum`, is nowhere below `values` (up to their
/// order) and as uneven as can be: the largest are raised first, then new ones added.
void raise_unevenly(std::vector<double>& values, double sum, double highest) {
  std::sort(values.begin(), values.end(), std::greater<>());
  for (const double value : values) sum -= value;
  for (double& value : values) {
    const double more = std::clamp(highest - value, 0.0, std::max(sum, 0.0));
    value += more;
    sum -= more;
  }
  for (; sum > 0; sum -= highest) values.push_back(std::min(sum, highest));
}

}  // namespace

void share_link(std::span<const double> starts, std::span<const double> bytes, double bytes_per_s,
                std::span<double> ends) {
  using Flow = std::pair<double, std::size_t>;  // level of bytes at which it ends, index
  std::priority_queue<Flow, std::vector<Flow>, std::greater<>> flowing;
  double now = 0;
  double level = 0;
  const auto advance = [&](double until) {
    while (!flowing.empty()) {
      const double share = bytes_per_s / static_cast<double>(flowing.size());
      const double end = now + (flowing.top().first - level) / share;
      if (end > until) {
        level += (until - now) * share;
        break;
      }
      now = end;
      level = flowing.top().first;
      ends[flowing.top().second] = end;
      flowing.pop();
    }
    now = until;
  };
  for (std::size_t i = 0; i < starts.size(); ++i) {
    advance(starts[i]);
    flowing.emplace(level + bytes[i], i);
  }
  advance(std::numeric_limits<double>::infinity());
}

struct SharedLinkBounds::Windows {
  bool earliest = false;           ///< which ends are wanted
  std::span<const double> own;     ///< when each message starts for its own sake
  std::span<const double> others;  ///< and when it does for those before it
  std::span<const double> bytes;
};

void SharedLinkBounds::earliest_ends(std::span<const double> earliest,
                                     std::span<const double> latest, std::span<const double> bytes,
                                     double bytes_per_s, std::span<double> ends) {
  bound({true, earliest, latest, bytes}, bytes_per_s, ends);
}

void SharedLinkBounds::latest_ends(std::span<const double> earliest, std::span<const double> latest,
                                   std::span<const double> bytes, double bytes_per_s,
                                   std::span<double> ends) {
  bound({false, latest, earliest, bytes}, bytes_per_s, ends);
}

void SharedLinkBounds::bound(const Windows& w, double bytes_per_s, std::span<double> ends) {
  if (left_.size() < w.bytes.size()) left_.resize(w.bytes.size());
  for (std::vector<double>& left : left_) left.clear();
  double largest = 0;
  double link_free = 0;  // of all messages before, in any order
  for (std::size_t l = 0; l < w.bytes.size(); ++l) {
    if (w.earliest) {
      raise_unevenly(left_[l], std::max(0.0, link_free - w.own[l]) * bytes_per_s, largest);
    }
    ends[l] = end_of(l, w, bytes_per_s);
    link_free = std::max(link_free, w.own[l]) + w.bytes[l] / bytes_per_s;
    largest = std::max(largest, w.bytes[l]);
  }
}

double SharedLinkBounds::end_of(std::size_t message, const Windows& w, double bytes_per_s) {
  const double bytes = w.bytes[message];
  double flowing = 1;
  levels_.clear();
  const auto join = [&](double level) {
    flowing += 1;
    if (level >= bytes) return;  // it stays to the end
    levels_.insert(std::upper_bound(levels_.begin(), levels_.end(), level, std::greater<>()),
                   level);
  };
  for (const double level : left_[message]) {
    if (level > 0) join(level);
  }
  double now = w.own[message];
  double moved = 0;
  std::size_t joining = message + 1;
  std::size_t starting = message + 1;
  while (moved < bytes) {
    const double share = bytes_per_s / flowing;
    const double level = levels_.empty() ? bytes : levels_.back();
    double then = now + (level - moved) / share;
    const bool joins = joining < w.bytes.size() && std::max(now, w.others[joining]) < then;
    if (joins) then = std::max(now, w.others[joining]);
    for (; starting < w.bytes.size() && w.own[starting] < then; ++starting) {
      left_[starting].push_back(bytes - moved - std::max(0.0, w.own[starting] - now) * share);
    }
    moved = joins ? moved + (then - now) * share : level;
    now = then;
    if (joins) {
      join(moved + w.bytes[joining++]);
    } else if (!levels_.empty()) {
      levels_.pop_back();
      flowing -= 1;
    }
  }
  return now;
}

}  // namespace kvcast::search
