#include "search/device_choice.h"

#include <doctest/doctest.h>

#include "search/chain_links.h"
#include "tests/search/parallel_models.h"

namespace kvcast::search {
TEST_CASE("choose devices: at the break-even a doubling saves what is asked for, short of it not") {
  const simulate::LayerTimes times = layer_times("openelm-1.1b", fused);
  constexpr double gain = 0.1;
  constexpr std::uint64_t prompt_len = 4096;
  const ChainLink link{.bytes_per_s = 20e9, .latency_s = 1e-5};
  // What doubling to `devices` saves, by the choice itself.
  const auto pays = [&](double bytes_per_s, std::uint64_t tokens, std::size_t devices) {
    ChainLink l = link;
    l.bytes_per_s = bytes_per_s;
    const auto counts = choose_devices(Runahead(times, l), tokens, devices, gain);
    const double before = counts[counts.size() - 2].found.ttft_s;
    return counts.back().found.ttft_s <= before * (1 - gain);
  };
  for (const std::size_t devices : {2u, 8u}) {
    CAPTURE(devices);
    const BreakEven from = break_even(Runahead(times, link), prompt_len, devices, gain);
    REQUIRE(from.link_bytes_per_s);
    CHECK(pays(*from.link_bytes_per_s, prompt_len, devices));
    CHECK_FALSE(pays(*from.link_bytes_per_s / 1.04, prompt_len, devices));
    REQUIRE(from.prompt_len);
    CHECK(pays(link.bytes_per_s, *from.prompt_len, devices));
    CHECK_FALSE(pays(link.bytes_per_s, *from.prompt_len * 100 / 104 - 1, devices));
  }
  // Nothing saves nine tenths by one more device.
  const BreakEven never = break_even(Runahead(times, link), prompt_len, 2, 0.9);
  CHECK_FALSE(never.link_bytes_per_s);
  CHECK_FALSE(never.prompt_len);
}

}  // namespace kvcast::search
