#include "search/mlkv_choice.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

namespace kvcast::search {
namespace {

MlkvRequest request(const std::string& model) {
  MlkvRequest r;
  r.configuration.architecture = load_model(catalog(), model);
  r.configuration.hardware = roofline::load_hardware(catalog(), "rtx-3060-12gb");
  r.batch = 100;
  r.kv_len = 2048;
  return r;
}

using Shape = std::pair<std::uint64_t, std::uint64_t>;

std::vector<Shape> accepted(const std::vector<MlkvCandidate>& candidates) {
  std::vector<Shape> shapes;
  for (const MlkvCandidate& c : candidates) {
    if (c.rejected.empty()) shapes.emplace_back(c.layers, c.heads);
  }
  return shapes;
}

const MlkvCandidate& find(const std::vector<MlkvCandidate>& candidates, Shape shape) {
  const auto found = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const auto& c) { return Shape(c.layers, c.heads) == shape; });
  REQUIRE(found != candidates.end());
  return *found;
}

TEST_CASE("mlkv choice: every pair that divides is there once, with its exact cache") {
  const auto all = choose_mlkv(request("pythia-160m"));
  CHECK(all.size() == 6 * 6);  // 1, 2, 3, 4, 6 and 12 divide both
  for (const MlkvCandidate& c : all) {
    // 2·b·s·m·g·hd elements of 2 bytes.
    CHECK(c.kv_cache_bytes == 2.0 * 100 * 2048 * static_cast<double>(c.layers * c.heads) * 64 * 2);
    CHECK(c.kv_cache_ratio == near(static_cast<double>(c.layers * c.heads) / 144));
  }
  CHECK(find(all, {4, 3}).parameters == 162332940);  // Table 2
  CHECK(find(all, {4, 3}).intermediate_size == 3777);
}

TEST_CASE("mlkv choice: with room for all the model stays, then heads go within the layers first") {
  MlkvRequest r = request("pythia-160m");
  r.batch = 1;
  const auto shapes = accepted(choose_mlkv(r));
  REQUIRE(shapes.size() == 36);
  CHECK(shapes[0] == Shape{12, 12});
  CHECK(shapes[1] == Shape{12, 6});
  CHECK(shapes[5] == Shape{12, 1});
  CHECK(shapes[6] == Shape{6, 1});  // one head a layer is left: now across layers
  CHECK(shapes[10] == Shape{1, 1});
  CHECK(shapes[11] == Shape{6, 12});  // 72 heads, but shared across layers that have 12
  CHECK(shapes.back() == Shape{1, 2});
}

TEST_CASE("mlkv choice: a budget rejects what does not fit, and says what it would need") {
  MlkvRequest r = request("pythia-160m");
  const auto free = choose_mlkv(r);
  r.memory_budget = find(free, {12, 1}).peak_memory_bytes;
  const auto all = choose_mlkv(r);
  const auto shapes = accepted(all);
  REQUIRE_FALSE(shapes.empty());
  CHECK(shapes[0] == Shape{12, 1});
  CHECK(all.size() == 36);
  CHECK(all.back().rejected.find("batch 100 needs") == 0);
  for (const MlkvCandidate& c : all) CHECK(c.rejected.empty() == (c.largest_batch >= 100));
}

TEST_CASE("mlkv choice: the largest batch fits and one more does not") {
  MlkvRequest r = request("pythia-160m");
  r.batch = 1;
  const auto all = choose_mlkv(r);
  for (const Shape& shape : {Shape{12, 12}, Shape{4, 3}, Shape{1, 1}}) {
    const std::uint64_t batch = find(all, shape).largest_batch;
    r.batch = batch;
    CHECK(find(choose_mlkv(r), shape).rejected.empty());
    r.batch = batch + 1;
    CHECK_FALSE(find(choose_mlkv(r), shape).rejected.empty());
  }
}

TEST_CASE("mlkv choice: for the largest batch the smallest cache comes first") {
  MlkvRequest r = request("pythia-160m");
  r.goal = MlkvGoal::MaxBatch;
  const auto all = choose_mlkv(r);
  CHECK(accepted(all).size() == 36);
  CHECK(Shape(all[0].layers, all[0].heads) == Shape{1, 1});
  CHECK(std::is_sorted(all.begin(), all.end(), [](const auto& x, const auto& y) {
    return x.largest_batch > y.largest_batch;
  }));
  r.memory_budget = 1e6;  // not even the weights
  for (const MlkvCandidate& c : choose_mlkv(r)) {
    CHECK(c.largest_batch == 0);
    CHECK_FALSE(c.rejected.empty());
  }
}

TEST_CASE("mlkv choice: grouped heads are divided, not the queries' heads") {
  MlkvRequest r = request("llama-3.1-8b");  // 32 layers, 8 key-value heads
  r.batch = 1;
  r.configuration.hardware = roofline::load_hardware(catalog(), "a100-80gb");
  const auto all = choose_mlkv(r);
  CHECK(all.size() == 6 * 4);
  // A decode step reads less with a smaller cache.
  CHECK(find(all, {16, 1}).tpot_s.value() < find(all, {32, 8}).tpot_s.value() * 1.2);
}

TEST_CASE("mlkv choice: without a device a budget says all but the time") {
  MlkvRequest r = request("pythia-160m");
  r.memory_budget = 6e9;
  const auto device = choose_mlkv(r);
  r.has_hardware = false;
  r.configuration.hardware = {};
  const auto none = choose_mlkv(r);
  REQUIRE(none.size() == device.size());
  for (std::size_t i = 0; i < none.size(); ++i) {
    CHECK(Shape(none[i].layers, none[i].heads) == Shape(device[i].layers, device[i].heads));
    CHECK(none[i].peak_memory_bytes == device[i].peak_memory_bytes);
    CHECK(none[i].largest_batch == device[i].largest_batch);
    CHECK(none[i].rejected == device[i].rejected);
    CHECK(device[i].tpot_s.has_value());
    CHECK_FALSE(none[i].tpot_s.has_value());
  }
  r.memory_budget.reset();
  CHECK_THROWS_AS(choose_mlkv(r), Error);
}

TEST_CASE("mlkv choice: models without an MLKV form, and no kv_len, are refused") {
  CHECK_THROWS_AS(choose_mlkv(request("openelm-3b")), Error);
  CHECK_THROWS_AS(choose_mlkv(request("t5-small")), Error);
  MlkvRequest r = request("pythia-160m");
  r.kv_len = 1;
  CHECK_THROWS_AS(choose_mlkv(r), Error);
  r.kv_len = 2;
  r.batch = 0;
  CHECK_THROWS_AS(choose_mlkv(r), Error);
}

}  // namespace
}  // namespace kvcast::search
