#include "measure/error_bounds.h"

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/near.h"

namespace kvcast::measure {
namespace {

Setup setup(const std::string& device, const std::string& engine) {
  return {.device = device,
          .fingerprint = "f",
          .architecture = device.substr(0, device.find('-')),
          .kind = "gpu",
          .engine = engine,
          .method = "plain",
          .attention = "tiled",
          .dtypes = "fp16/bf16",
          .weights = "16-bit weights",
          .placed = false};
}

/// Rows of the errors ln 1.01, ln 1.02, ... ln (1 + rows / 100), whose sources take turns.
std::vector<ErrorRow> rows_of(const Setup& setup, std::size_t rows,
                              const std::vector<std::string>& sources,
                              Regime regime = Regime::DecodeOne) {
  std::vector<ErrorRow> list;
  for (std::size_t i = 1; i <= rows; ++i) {
    // Too fast and too slow by the same factor are one error.
    const double sign = i % 2 == 0 ? 1 : -1;
    list.push_back({.setup = setup,
                    .regime = regime,
                    .source = sources[i % sources.size()],
                    .error = sign * std::log(1 + 0.01 * static_cast<double>(i)),
                    .ideal_error = std::log(2.)});
  }
  return list;
}

std::vector<ErrorRow> operator+(std::vector<ErrorRow> a, const std::vector<ErrorRow>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<std::string> three{"a", "b", "c"};

// ceil(0.9 (n + 1)): 9 of 9, 10 of 10, 18 of 19 and 19 of 20; 9 of 8 rows says that there are too
// few.
TEST_CASE("error bounds: the rank counts the row that is not there yet") {
  CHECK(conformal_rank(8) == 9);
  CHECK(conformal_rank(9) == 9);
  CHECK(conformal_rank(10) == 10);
  CHECK(conformal_rank(19) == 18);
  CHECK(conformal_rank(20) == 19);
  CHECK(conformal_rank(99) == 90);
}

TEST_CASE("error bounds: regimes part at 512 tokens, and at 2 and 16 sequences") {
  CHECK(prefill_regime({1, 511, 1}) == Regime::ShortPrefill);
  CHECK(prefill_regime({3, 170, 1}) == Regime::ShortPrefill);  // 510
  CHECK(prefill_regime({3, 171, 1}) == Regime::Prefill);       // 513
  CHECK(prefill_regime({std::uint64_t{1} << 40, std::uint64_t{1} << 40, 1}) == Regime::Prefill);
  CHECK(decode_regime({1, 7, 1}) == Regime::DecodeOne);
  CHECK(decode_regime({2, 7, 1}) == Regime::DecodeFew);
  CHECK(decode_regime({15, 7, 1}) == Regime::DecodeFew);
  CHECK(decode_regime({16, 7, 1}) == Regime::DecodeMany);
}

TEST_CASE("error bounds: the population is the narrowest of nine rows and three sources") {
  const Setup of = setup("ada-1", "vllm");
  const auto population = [&](const std::vector<ErrorRow>& rows) {
    const BoundOrReason b = error_bound(rows, of, Regime::DecodeOne);
    return b.bound ? b.bound->population : b.reason;
  };
  const std::vector<ErrorRow> here = rows_of(of, 19, three);
  CHECK(
      population(here) ==
      "19 rows of 3 sources: vllm on ada-1, tiled attention, 16-bit weights, decode of 1 sequence");
  // The 18th of 19 errors.
  CHECK(error_bound(here, of, Regime::DecodeOne).bound->error == near(0.18));

  // Each list lacks a row or a source; with the next one they are enough.
  std::vector<ErrorRow> rows = rows_of(of, 8, three);
  rows = rows + rows_of(setup("ada-2", "vllm"), 1, {"a"});
  CHECK(population(rows) ==
        "9 rows of 3 sources: vllm on ada GPUs, tiled attention, 16-bit weights, decode of 1 "
        "sequence");
  rows = rows_of(of, 12, {"a", "b"}) + rows_of(setup("hopper-1", "vllm"), 1, {"c"});
  CHECK(
      population(rows) ==
      "13 rows of 3 sources: vllm on GPUs, tiled attention, 16-bit weights, decode of 1 sequence");
  rows = rows_of(of, 12, {"a", "b"}) + rows_of(setup("ada-2", "sglang"), 1, {"c"});
  CHECK(population(rows) ==
        "13 rows of 3 sources: any engine on ada GPUs, tiled attention, 16-bit weights, decode of "
        "1 sequence");
  rows = rows_of(of, 8, {"a", "b"}) + rows_of(setup("hopper-1", "sglang"), 1, {"c"});
  CHECK(population(rows) ==
        "9 rows of 3 sources: any engine on GPUs, tiled attention, 16-bit weights, decode of 1 "
        "sequence");
}

TEST_CASE("error bounds: where nothing is pooled, the worst of few exactly alike rows, as such") {
  const Setup of = setup("ada-1", "vllm");
  const BoundOrReason b =
      error_bound(rows_of(of, 5, {"a"}), of, Regime::DecodeMany);  // of another batch
  REQUIRE(b.bound);
  CHECK(b.bound->error == near(0.05));
  CHECK(b.bound->rows == 5);
  CHECK(b.bound->sources == 1);
  CHECK(b.bound->population ==
        "5 rows of 1 source: vllm on ada-1, tiled attention, fp16/bf16, any decode; the worst of "
        "them, which holds for 5 in 6");
  Setup eager = of;
  eager.attention = "eager";
  CHECK_FALSE(error_bound(rows_of(of, 5, {"a"}), eager, Regime::DecodeMany).bound);
  CHECK_FALSE(error_bound(rows_of(of, 5, {"a"}), of, Regime::Prefill).bound);
}

TEST_CASE("error bounds: rows of narrower weights count where no others are left") {
  const Setup of = setup("ada-1", "vllm");
  Setup narrow = of;
  narrow.weights = "8-bit weights";
  const std::vector<ErrorRow> others = rows_of(narrow, 9, three);
  const BoundOrReason alone = error_bound(others, of, Regime::DecodeOne);
  REQUIRE(alone.bound);
  CHECK(alone.bound->population ==
        "9 rows of 3 sources: any engine on GPUs, tiled attention, decode of 1 sequence");
  const BoundOrReason both = error_bound(others + rows_of(of, 10, three), of, Regime::DecodeOne);
  REQUIRE(both.bound);
  CHECK(both.bound->rows == 10);
}

TEST_CASE("error bounds: nine rows of the user's own need no other source, and come first") {
  const Setup of = setup("ada-1", "vllm");
  const std::vector<ErrorRow> public_rows = rows_of(setup("ada-2", "vllm"), 30, three);
  const BoundOrReason own = error_bound(rows_of(of, 9, {""}) + public_rows, of, Regime::DecodeOne);
  CHECK(own.bound->population ==
        "9 own rows: vllm on ada-1, tiled attention, fp16/bf16, decode of 1 sequence");
  CHECK(own.bound->error == near(0.09));
  const BoundOrReason few = error_bound(rows_of(of, 8, {""}) + public_rows, of, Regime::DecodeOne);
  CHECK(few.bound->population ==
        "38 rows of 4 sources: vllm on ada GPUs, tiled attention, 16-bit weights, decode of 1 "
        "sequence");
}

TEST_CASE(
    "error bounds: no population mixes methods, phases, processors and GPUs, or old factors") {
  const Setup of = setup("ada-1", "vllm");
  const auto is_alike = [&](const Setup& row, Regime regime = Regime::DecodeOne) {
    return error_bound(rows_of(row, 30, three, regime), of, Regime::DecodeOne).bound.has_value();
  };
  Setup other = setup("hopper-1", "vllm");
  CHECK(is_alike(other));
  CHECK_FALSE(is_alike(other, Regime::DecodeFew));
  Setup changed = other;
  changed.kind = "cpu";
  CHECK_FALSE(is_alike(changed));
  changed = other;
  changed.method = "slim";
  CHECK_FALSE(is_alike(changed));
  changed = other;
  changed.kind = "";  // the catalog's device has other factors now
  CHECK_FALSE(is_alike(changed));
  changed = of;
  changed.kind = "";  // but on the very same device they count
  CHECK(is_alike(changed));
  // Links are no part of an architecture.
  Setup placed = of;
  placed.placed = true;
  CHECK_FALSE(error_bound(rows_of(other, 30, three), placed, Regime::DecodeOne).bound);
}

TEST_CASE("error bounds: an estimate without an engine takes errors of forecasts without one") {
  const BoundOrReason b = error_bound(rows_of(setup("ada-1", "vllm"), 12, three),
                                      setup("ada-1", "ideal"), Regime::DecodeOne);
  REQUIRE(b.bound);
  CHECK(b.bound->error == near(1));  // all are ln 2
  CHECK(b.bound->population ==
        "12 rows of 3 sources: any engine on ada-1, tiled attention, 16-bit weights, decode of 1 "
        "sequence");
}

TEST_CASE("error bounds: steps of training are no decode steps") {
  const Setup s = setup("ampere-a", "e");
  const std::vector<ErrorRow> trained = rows_of(s, 20, three, Regime::Training);
  const BoundOrReason step = error_bound(trained, s, Regime::Training);
  REQUIRE(step.bound);
  CHECK(step.bound->population ==
        "20 rows of 3 sources: e on ampere-a, tiled attention, 16-bit weights, steps of training");
  CHECK_FALSE(error_bound(trained, s, Regime::DecodeOne).bound);
  CHECK_FALSE(error_bound(trained, s, Regime::Prefill).bound);
  CHECK_FALSE(error_bound(rows_of(s, 20, three), s, Regime::Training).bound);
}

TEST_CASE("error bounds: a reason says what is missing") {
  const Setup of = setup("ada-1", "vllm");
  const Setup near_one = setup("ada-2", "vllm");
  CHECK(error_bound({}, of, Regime::Prefill).reason ==
        "no error bound for prefill of 512 and more tokens with plain, tiled attention, on ada-1: "
        "no stored row is alike");
  CHECK(error_bound(rows_of(near_one, 20, {"a", "b"}), of, Regime::DecodeOne).reason ==
        "no error bound for decode of 1 sequence with plain, tiled attention, on ada-1: 20 stored "
        "rows of 2 sources like it, but 9 rows of 3 sources are needed");
  // The rows of a source that is left out do not count, nor does the source.
  const std::vector<ErrorRow> rows = rows_of(near_one, 27, three);
  CHECK(error_bound(rows, of, Regime::DecodeOne).bound->sources == 3);
  CHECK(error_bound(rows, of, Regime::DecodeOne, "b").reason ==
        "no error bound for decode of 1 sequence with plain, tiled attention, on ada-1: 18 stored "
        "rows of 2 sources like it, but 9 rows of 3 sources are needed");
  Setup before = of;
  before.fingerprint = "g";
  before.kind = "";
  CHECK(error_bound(rows_of(before, 20, three), of, Regime::DecodeOne).reason ==
        "no error bound for decode of 1 sequence with plain, tiled attention, on ada-1: no stored "
        "row is alike (20 "
        "rows of other factors)");
}

}  // namespace
}  // namespace kvcast::measure
