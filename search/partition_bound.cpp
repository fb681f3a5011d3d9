#include "search/partition_bound.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "model/base/error.h"
#include "model/base/last_that.h"

namespace kvcast::search {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// Cuts off what leaves no token for another part.
void leave_room(BoundaryRanges& r) {
  for (std::size_t i = 1; i < r.lowest.size(); ++i) {
    r.lowest[i] = std::max(r.lowest[i], r.lowest[i - 1] + 1);
  }
  for (std::size_t i = r.highest.size() - 1; i > 0; --i) {
    r.highest[i - 1] = std::min(r.highest[i - 1], r.highest[i] - 1);
  }
  for (std::size_t i = 0; i < r.lowest.size(); ++i) r.feasible &= r.lowest[i] <= r.highest[i];
}

std::uint64_t fewest_tokens(const BoundaryRanges& r, std::size_t rank, std::uint64_t end) {
  const std::uint64_t begin = rank == 0 ? 0 : r.highest[rank - 1];
  return end > begin ? end - begin : 1;
}

/// Messages of chunks do not grow with the tokens before them: at a chunk's end nothing is sent.
Chain with_least_messages(Chain chain) {
  for (simulate::SeenTokens& seen : chain.seen) {
    if (seen.chunk == 0) continue;
    seen.most = 0;
    seen.chunk = 0;
  }
  return chain;
}

}  // namespace

PartitionBound::PartitionBound(const Runahead& runahead, std::uint64_t prompt_len,
                               std::size_t ranks)
    : runahead_(runahead),
      prompt_len_(prompt_len),
      ranks_(ranks),
      chain_(with_least_messages(runahead.chain())) {
  even_partition(prompt_len, ranks);  // throws
  arrivals_.resize(ranks * chain_.kinds.size());
  deadlines_.resize(ranks * chain_.kinds.size());
  ready_.resize(chain_.kinds.size());
  sent_.resize(chain_.kinds.size());
}

bool PartitionBound::in_time(std::size_t rank, std::uint64_t tokens, std::uint64_t keys,
                             double ttft_s) {
  const bool last = rank + 1 == ranks_;
  runahead_.evaluate(rank, ranks_, tokens, keys, times_);
  const double end = play_layers(chain_, times_, keys, last, row(arrivals_, rank), ready_, sent_);
  if (last) return end <= ttft_s;
  return std::equal(sent_.begin(), sent_.end(), row(deadlines_, rank + 1).begin(),
                    std::less_equal<>());
}

void PartitionBound::set_deadlines(std::size_t rank, std::uint64_t tokens, std::uint64_t keys,
                                   double ttft_s) {
  runahead_.evaluate(rank, ranks_, tokens, keys, times_);
  const std::span<double> deadlines = row(deadlines_, rank);
  const bool last = rank + 1 == ranks_;
  // Backwards through the layers. Both are the latest moments that still meet T: for the layer's
  // end, and for the link to have moved all messages up to this layer's.
  double layer_end = last ? ttft_s - times_.head_s : never;
  double link_end = never;
  for (std::size_t l = chain_.kinds.size(); l-- > 0;) {
    const simulate::LayerTime& time = times_.kinds[chain_.kinds[l]];
    deadlines[l] = layer_end - time.after_exchange_s;
    if (!last && chain_.exchanges(l)) {
      const double needed = row(deadlines_, rank + 1)[l];
      const double moving_s = chain_.message_bytes(l, keys) / chain_.link.bytes_per_s;
      deadlines[l] = latest_send(deadlines[l], needed, moving_s, link_end);
    }
    layer_end = deadlines[l] - time.before_exchange_s;
    if (chain_.waits_first(l)) deadlines[l] = layer_end;
  }
}

double PartitionBound::latest_send(double compute, double needed, double moving_s,
                                   double& link_end) const {
  const double latency_s = chain_.link.latency_s;
  switch (chain_.link.order) {
    case SendOrder::Block:  // the rank computes when the message has arrived
      return std::min(compute, needed) - latency_s - moving_s;
    case SendOrder::Fifo:  // the link takes one message after another, each with its latency
      link_end = std::min(link_end, needed) - moving_s - latency_s;
      return std::min(compute, link_end);
    case SendOrder::Async:  // the same, but messages wait for their latencies side by side
      link_end = std::min(link_end, needed) - moving_s;
      return std::min(compute, link_end - latency_s);
  }
  KVCAST_ASSERT(false);
  return 0;
}

bool PartitionBound::narrow_forward(double ttft_s, BoundaryRanges& r) {
  bool moved = false;
  for (std::size_t i = 0; i < ranks_; ++i) {
    // Its end is highest when its begin is.
    const std::uint64_t end = last_that(r.lowest[i], r.highest[i], [&](std::uint64_t candidate) {
      return in_time(i, fewest_tokens(r, i, candidate), candidate, ttft_s);
    });
    if (end < r.lowest[i]) return r.feasible = false;
    moved |= end < r.highest[i];
    r.highest[i] = end;
    if (i + 1 == ranks_) break;
    if (!in_time(i, fewest_tokens(r, i, r.lowest[i]), r.lowest[i], ttft_s)) {
      return r.feasible = false;
    }
    std::copy(sent_.begin(), sent_.end(), row(arrivals_, i + 1).begin());
  }
  return moved;
}

bool PartitionBound::narrow_backward(double ttft_s, BoundaryRanges& r) {
  bool moved = false;
  for (std::size_t i = ranks_; i-- > 0;) {
    const std::uint64_t end = r.lowest[i];
    if (i > 0) {
      const std::uint64_t most = end - r.lowest[i - 1];
      const std::uint64_t tokens = last_that(
          1, most, [&](std::uint64_t candidate) { return in_time(i, candidate, end, ttft_s); });
      if (tokens == 0 || end - tokens > r.highest[i - 1]) return r.feasible = false;
      moved |= end - tokens > r.lowest[i - 1];
      r.lowest[i - 1] = end - tokens;
    }
    set_deadlines(i, fewest_tokens(r, i, end), end, ttft_s);
  }
  return moved;
}

void PartitionBound::narrow(double ttft_s, BoundaryRanges& r) {
  leave_room(r);
  std::fill(arrivals_.begin(), arrivals_.end(), 0.0);
  std::fill(deadlines_.begin(), deadlines_.end(), never);
  // Each pass sharpens the next one's windows; the first few do nearly all of it.
  constexpr int most_passes = 12;
  bool moved = true;
  for (int pass = 0; pass < most_passes && moved && r.feasible; ++pass) {
    moved = narrow_backward(ttft_s, r);
    if (r.feasible) moved |= narrow_forward(ttft_s, r);
    moved |= pass == 0;
  }
}

BoundaryRanges PartitionBound::all() const {
  BoundaryRanges r;
  r.feasible = true;
  for (std::size_t i = 0; i < ranks_; ++i) {
    const bool last = i + 1 == ranks_;
    r.lowest.push_back(last ? prompt_len_ : i + 1);
    r.highest.push_back(prompt_len_ - (ranks_ - 1 - i));
  }
  return r;
}

BoundaryRanges PartitionBound::ranges(double ttft_s) {
  BoundaryRanges r = all();
  narrow(ttft_s, r);
  return r;
}

bool PartitionBound::refuted(double ttft_s, BoundaryRanges r, int& halvings) {
  narrow(ttft_s, r);
  if (!r.feasible) return true;
  if (r.lowest == r.highest) {
    Partition parts(ranks_);
    std::adjacent_difference(r.lowest.begin(), r.lowest.end(), parts.begin());
    return runahead_.ttft_s(parts) > ttft_s;
  }
  if (halvings == 0) return false;
  const auto width = [&](std::size_t i) {
    return static_cast<double>(r.highest[i] - r.lowest[i]) / static_cast<double>(r.highest[i]);
  };
  std::size_t widest = 0;
  for (std::size_t i = 1; i < ranks_; ++i) {
    if (width(i) > width(widest)) widest = i;
  }
  --halvings;
  const std::uint64_t middle = r.lowest[widest] + (r.highest[widest] - r.lowest[widest]) / 2;
  BoundaryRanges upper = r;
  upper.lowest[widest] = middle + 1;
  r.highest[widest] = middle;
  return refuted(ttft_s, std::move(r), halvings) && refuted(ttft_s, std::move(upper), halvings);
}

double PartitionBound::lower_bound_s(double reached) {
  constexpr double precision = 1e-6;
  const BoundaryRanges within = ranges(reached);
  if (!within.feasible) {
    KVCAST_ASSERT(ranges(reached * (1 + bound_rounding)).feasible);
    return reached;
  }
  BoundaryRanges left = within;
  double refuted_s = 0;
  double open_s = reached;
  while (open_s - refuted_s > precision * reached) {
    const double middle = (refuted_s + open_s) / 2;
    // Whatever reaches less than `open_s` lies in its ranges.
    BoundaryRanges r = left;
    narrow(middle, r);
    (r.feasible ? open_s : refuted_s) = middle;
    if (r.feasible) left = std::move(r);
  }
  // A gap that is left comes from ranges that stay wide.
  constexpr double small_gap = 1e-3;
  // Half a second of work for 8 ranks, and less for fewer; more of them gain little from it.
  int all_halvings = 2048 / static_cast<int>(ranks_);
  const int most_halvings = all_halvings / 4;
  open_s = reached;
  while (open_s - refuted_s > small_gap * reached && all_halvings > 0) {
    const double middle = (refuted_s + open_s) / 2;
    const int allowed = std::min(most_halvings, all_halvings);
    int halvings = allowed;
    (refuted(middle, within, halvings) ? refuted_s : open_s) = middle;
    all_halvings -= allowed - halvings;
  }
  return refuted_s;
}

}  // namespace kvcast::search
