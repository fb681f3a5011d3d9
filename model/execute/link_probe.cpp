#include "model/execute/link_probe.h"

#include <algorithm>
#include <array>
#include <string>

#include "model/base/stopwatch.h"

namespace kvcast::execute {
namespace {

/// About the keys of a layer for 512 tokens and 4096 features.
constexpr std::size_t large_bytes = std::size_t{8} << 20;
constexpr int small_messages = 20;

/// There and back again.
void exchange(Messenger& m, std::byte* data, std::size_t bytes, std::byte* answer) {
  if (m.rank() == 0) {
    send_bytes(m, 1, data, bytes);
    receive_bytes(m, 1, answer, 1);
  } else {
    receive_bytes(m, 0, data, bytes);
    send_bytes(m, 0, answer, 1);
  }
}

LinkSample sample(Messenger& m, std::vector<std::byte>& block) {
  std::byte answer{};
  const Stopwatch small;
  for (int i = 0; i < small_messages; ++i) exchange(m, block.data(), 1, &answer);
  const double latency = small.seconds() / (2 * small_messages);
  const Stopwatch large;
  exchange(m, block.data(), block.size(), &answer);
  // The large message's own latency, and the answer's.
  const double moving = std::max(large.seconds() - 2 * latency, 1e-9);
  return {latency, static_cast<double>(block.size()) / moving};
}

}  // namespace

std::vector<LinkSample> measure_link(Messenger& m, int rounds) {
  if (m.ranks() < 2) throw Error("a link", "one rank", "two: mpirun -n 2 kvcast ...");
  std::vector<LinkSample> samples(static_cast<std::size_t>(rounds));
  if (m.rank() < 2) {
    std::vector<std::byte> block(large_bytes, std::byte{1});
    sample(m, block);  // the first one sets up buffers
    for (LinkSample& s : samples) s = sample(m, block);
  }
  const std::size_t bytes = samples.size() * sizeof(LinkSample);
  if (m.rank() == 0) {
    for (std::size_t r = 1; r < m.ranks(); ++r) send_bytes(m, r, samples.data(), bytes);
  } else {
    receive_bytes(m, 0, samples.data(), bytes);
  }
  return samples;
}

}  // namespace kvcast::execute
