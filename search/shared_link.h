/// Messages that share one link equally (SendOrder::Async): when they end, and when at the earliest
/// and at the latest if each starts within a window.
#pragma once

#include <span>
#include <vector>

namespace kvcast::search {

/// When each message ends. One ends when the link has moved as many bytes for each message as it
/// had when this one joined, and this one's own. `starts` ascend.
void share_link(std::span<const double> starts, std::span<const double> bytes, double bytes_per_s,
                std::span<double> ends);

/// Bounds of the ends that share_link finds if message l starts between earliest[l] and
/// latest[l], whatever the others do; all ascend. Exact where the windows are points.
///
/// An end does not simply grow with all starts: a message that starts later leaves the link to
/// those before it for longer. Let x be the sizes, m the largest of them, r the link's rate, s the
/// start of message l and A the bytes it has moved by s + t. Until its end the link is never idle,
/// and every other message on it moves as fast, so
///   A + sum_{i<l} min(left_i, A) + sum_{k>l, s_k <= s + t} min(x_k, A - A(s_k)) = r t,
/// left_i being what i has left at s. Hence A at a given moment grows with s_k and with A(s_k), and
/// by induction over k it is largest with every s_k at its latest. It falls with s, however the
/// link divides its rate before, as the left bytes fall by no more than r per second. Each left_i
/// is at least x_i less the most that i can have moved; their sum W is that of any order that keeps
/// the link busy, which grows with the starts; none is above m. Of such vectors the one whose
/// largest are raised first majorises all others, so that it makes the first sum, which is Schur
/// concave, the least for every A. For the latest end each bound is turned round, and W not used.
///
/// Keeps its memory from one call to the next; one for each thread.
class SharedLinkBounds {
 public:
  void earliest_ends(std::span<const double> earliest, std::span<const double> latest,
                     std::span<const double> bytes, double bytes_per_s, std::span<double> ends);
  void latest_ends(std::span<const double> earliest, std::span<const double> latest,
                   std::span<const double> bytes, double bytes_per_s, std::span<double> ends);

 private:
  struct Windows;

  void bound(const Windows& windows, double bytes_per_s, std::span<double> ends);
  double end_of(std::size_t message, const Windows& windows, double bytes_per_s);

  std::vector<std::vector<double>> left_;  ///< of messages before, at the start of each
  std::vector<double> levels_;             ///< bytes of interest at which others leave, descending
};

}  // namespace kvcast::search
