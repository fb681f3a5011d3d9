#include "search/partition_table.h"

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "tests/search/parallel_models.h"

using namespace kvcast;
using namespace kvcast::search;

namespace {

namespace fs = std::filesystem;

TableEntry entry(std::uint64_t prompt_len, Partition tokens) {
  return {prompt_len, {std::move(tokens), 1.5, 2.0, 7, 1.25}};
}

const PartitionTable small{{{"model", "toy"}},
                           {entry(100, {60, 40}), entry(200, {140, 60}), entry(100, {50, 30, 20})}};

/// Writes a table's text and reads it back.
PartitionTable read(const std::string& text) {
  const fs::path path = fs::temp_directory_path() / "kvcast-partition-table-test.json";
  std::ofstream(path) << text;
  return read_table(path);
}

}  // namespace

TEST_CASE("partition table: shares between two prompt_lens are interpolated") {
  CHECK(look_up(small, 100, 2, false) == Partition{60, 40});
  // 0.6 of the way: 0.66 of 160 tokens is 105.6, whose remainder is the larger one.
  CHECK(look_up(small, 160, 2, false) == Partition{106, 54});
  CHECK(look_up(small, 175, 2, false) == Partition{118, 57});  // 0.675 of 175 = 118.1
  CHECK(look_up(small, 100, 3, false) == Partition{50, 30, 20});
}

TEST_CASE("partition table: outside of the table only when asked") {
  CHECK_THROWS_WITH_AS(
      look_up(small, 99, 2, false),
      "partition table: got a request for 99 tokens, expected 100 to 200 tokens, or --extrapolate",
      Error);
  CHECK_THROWS_AS(look_up(small, 201, 2, false), Error);
  CHECK_THROWS_AS(look_up(small, 100, 4, false), Error);
  CHECK(look_up(small, 1000, 2, true) == Partition{700, 300});
  CHECK(look_up(small, 10, 2, true) == Partition{6, 4});
}

TEST_CASE("partition table: shares are rounded to tokens that sum to the context") {
  const std::vector<double> tiny{0.98, 0.01, 0.01};
  CHECK(round_to_tokens(tiny, 5) == Partition{3, 1, 1});
  CHECK(round_to_tokens(tiny, 3) == Partition{1, 1, 1});
  const std::vector<double> thirds{1.0 / 3, 1.0 / 3, 1.0 / 3};
  CHECK(round_to_tokens(thirds, 11) == Partition{4, 4, 3});
  CHECK_THROWS_AS(round_to_tokens(thirds, 2), Error);
  for (std::uint64_t prompt_len = 3; prompt_len < 400; ++prompt_len) {
    const Partition parts = round_to_tokens(std::vector<double>{0.355, 0.255, 0.39}, prompt_len);
    check_partition(parts, prompt_len, "rounded");
  }
}

TEST_CASE("partition table: a file holds what was written, and does not depend on threads") {
  const Runahead r(layer_times("llama-7b", fused), {50e9, 1e-5, SendOrder::Fifo});
  const std::vector<std::uint64_t> prompt_lens{4096, 2048};
  const std::vector<std::size_t> ranks{4, 2};
  std::size_t last = 0;
  const auto one = search_table(r, prompt_lens, ranks, PartitionAlgorithm::Balance, 1,
                                [&](std::size_t done) { last = done; });
  CHECK(last == 4);
  const auto three = search_table(r, prompt_lens, ranks, PartitionAlgorithm::Balance, 3, {});
  REQUIRE(one.size() == 4);
  CHECK(one[0].prompt_len == 2048);
  CHECK(one[0].found.tokens.size() == 2);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(one[i].found.tokens == three[i].found.tokens);

  const PartitionTable table{{{"link", "50"}, {"model", "llama-7b"}}, one};
  const PartitionTable again = read(to_json(table));
  CHECK(again.settings == table.settings);
  REQUIRE(again.entries.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(again.entries[i].prompt_len == one[i].prompt_len);
    CHECK(again.entries[i].found.tokens == one[i].found.tokens);
    CHECK(again.entries[i].found.ttft_s == one[i].found.ttft_s);
    CHECK(*again.entries[i].found.lower_bound_s == *one[i].found.lower_bound_s);
  }
}

TEST_CASE("partition table: a corrupt file is refused with the place") {
  using nlohmann::json;
  const json good = json::parse(to_json(small));
  CHECK_NOTHROW(read(good.dump()));
  const auto refused = [&](const char* pointer, const json& value) {
    json bad = good;
    bad[json::json_pointer(pointer)] = value;
    CAPTURE(pointer);
    CHECK_THROWS_AS(read(bad.dump()), Error);
  };
  refused("/entries/0/partition_tokens", {60, 41});
  refused("/entries/0/partition_tokens", {100, 0});
  refused("/entries/0/partition_tokens", json::array());
  refused("/entries/0/context", 300);  // neither its sum nor its place
  refused("/entries/1/context", 100);
  refused("/entries/0/ttft_s", -1);
  refused("/entries/0/ttft", 1);
  refused("/entries", json::array());
  refused("/entries", 3);
  refused("/settings/model", 3);
  refused("/file", "something");
  CHECK_THROWS_AS(read(good.dump().substr(0, 100)), Error);
  CHECK_THROWS_AS(read("[]"), Error);
  CHECK_THROWS_AS(read_table("/nonexistent/table.json"), Error);
}
