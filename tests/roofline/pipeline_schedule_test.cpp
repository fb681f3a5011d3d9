#include "roofline/pipeline_schedule.h"

#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "tests/near.h"

namespace kvcast::roofline {
namespace {

/// "F0 F1 B0": with several chunks "F0.1" is micro-batch 0 through part 1.
std::string order_of(const PipelineShape& shape, std::uint64_t device) {
  std::string text;
  for (const PartPass& p : passes_of(shape, device)) {
    if (!text.empty()) text += ' ';
    text += (p.is_forward ? 'F' : 'B') + std::to_string(p.micro_batch);
    if (shape.chunks > 1) text += '.' + std::to_string(p.part);
  }
  return text;
}

double played(const PipelineShape& shape, double forward_s, double backward_s, double hop_s = 0) {
  const std::vector<double> ends = play(
      shape, [&](const PartPass& p) { return p.is_forward ? forward_s : backward_s; },
      [&](const PartPass& /*p*/) { return hop_s; });
  return *std::max_element(ends.begin(), ends.end());
}

// Narayanan et al. 2021, figure 4, of four devices and eight micro-batches.
TEST_CASE("pipeline schedule: one forward, one backward") {
  CHECK(order_of({4, 1, 8}, 0) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  CHECK(order_of({4, 1, 8}, 3) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
  CHECK(order_of({4, 1, 2}, 0) == "F0 F1 B0 B1");
}

// The figure's lower half has the same devices with two chunks each; here two devices, drawn by
// hand: parts 0 and 2 lie on the first one.
TEST_CASE("pipeline schedule: chunks of a device take micro-batches in turn") {
  CHECK(order_of({2, 2, 4}, 0) ==
        "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0");
  CHECK(order_of({2, 2, 4}, 1) ==
        "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1");
  CHECK_THROWS_AS(passes_of({4, 2, 6}, 0), Error);
}

// The bubble is (p - 1) / m of the work, and with v chunks (p - 1) / (v m): section 2.2.
TEST_CASE("pipeline schedule: equal stages wait for the published share") {
  CHECK(played({1, 1, 5}, 1, 2) == 15);
  CHECK(played({4, 1, 1}, 1, 2) == 12);
  CHECK(played({4, 1, 8}, 1, 2) == (8 + 3) * 3);
  CHECK(played({8, 1, 64}, 1, 2) == (64 + 7) * 3);
  CHECK(played({4, 2, 8}, 0.5, 1) == near(8 * 3 + 3 * 3 / 2.0));
  CHECK(played({4, 3, 16}, 1, 2) == near(16 * 9 + 3 * 3));
}

TEST_CASE("pipeline schedule: the slowest stage sets the pace, and messages add to each round") {
  // Stage 1 takes 2 and 4 s, the others 1 and 2. It begins after 1 s, waits 1 s for the first
  // micro-batch to come back while it has the second, works on, and stage 0 ends 2 s after it.
  const std::vector<double> ends = play(
      {3, 1, 10},
      [](const PartPass& p) { return (p.is_forward ? 1.0 : 2.0) * (p.part == 1 ? 2 : 1); },
      [](const PartPass& /*p*/) { return 0.0; });
  CHECK(*std::max_element(ends.begin(), ends.end()) == 1 + 1 + 10 * 6 + 2);
  // One micro-batch crosses p - 1 links forward and back.
  CHECK(played({4, 1, 1}, 1, 2, 0.5) == 12 + 6 * 0.5);
  // Later, what is far behind waits for messages; a device alone never.
  CHECK(played({1, 1, 5}, 1, 2, 0.5) == 15);
  CHECK(played({2, 1, 20}, 1, 2, 0.25) > played({2, 1, 20}, 1, 2));
  CHECK(played({2, 1, 20}, 1, 2, 0.25) <= 21 * 3 + 20 * 2 * 0.25);
}

}  // namespace
}  // namespace kvcast::roofline
