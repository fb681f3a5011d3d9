#include "model/execute/link_probe.h"

#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace kvcast::execute {

TEST_CASE("link: all ranks get what rank 0 measured, a round each") {
  constexpr std::size_t ranks = 3;
  Mailboxes mailboxes(ranks, 60);
  std::vector<std::vector<LinkSample>> samples(ranks);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] { samples[r] = measure_link(*mailboxes.messenger(r), 4); });
  }
  for (std::thread& t : threads) t.join();
  for (const auto& of_rank : samples) {
    REQUIRE(of_rank.size() == 4);
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      CHECK(of_rank[i].latency_s == samples[0][i].latency_s);
      CHECK(of_rank[i].bytes_per_s == samples[0][i].bytes_per_s);
      CHECK(of_rank[i].latency_s > 0);
      CHECK(of_rank[i].bytes_per_s > 0);
    }
  }
}

TEST_CASE("link: one rank has none") {
  Mailboxes mailboxes(1, 1);
  CHECK_THROWS_AS(measure_link(*mailboxes.messenger(0), 4), Error);
}

}  // namespace kvcast::execute
