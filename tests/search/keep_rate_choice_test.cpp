#include "search/keep_rate_choice.h"

#include <doctest/doctest.h>

#include "tests/roofline/test_models.h"

namespace kvcast::search {
namespace {

KeepRateRequest request_for(const std::string& base, const std::string& speculator) {
  KeepRateRequest r;
  r.configuration.architecture = load_model(catalog(), base);
  r.configuration.hardware = roofline::load_hardware(catalog(), "h200");
  r.configuration.find_model = [](const std::string& name) { return load_model(catalog(), name); };
  r.method = {"specprefill", {{"speculator", speculator}, {"lookahead", "1"}}};
  r.point = {.batch = 1, .prompt_len = 16384, .output_len = 1};
  return r;
}

TEST_CASE("keep rate: the largest one that reaches the target, and no larger one does") {
  const KeepRateRequest r = request_for("llama-3.1-70b", "llama-3.1-8b");
  for (const double target : {1.1, 1.5, 2.0, 3.0}) {
    CAPTURE(target);
    const auto best = largest_keep_rate(r, target);
    REQUIRE(best);
    CHECK(best->ttft_speedup >= target);
    CHECK(keep_rate(r, best->keep).ttft_speedup == best->ttft_speedup);
    CHECK(keep_rate(r, best->keep + 0.001).ttft_speedup < target);
  }
}

TEST_CASE("keep rate: a target beyond what the speculator itself takes is out of reach") {
  const KeepRateRequest r = request_for("llama-3.1-70b", "llama-3.1-8b");
  const KeepRate one = keep_rate(r, 0.001);
  const double plain_s = one.ttft_s * one.ttft_speedup;
  CHECK_FALSE(largest_keep_rate(r, plain_s / one.overhead_s));
  CHECK_FALSE(largest_keep_rate(request_for("llama-3.1-8b", "llama-3.1-8b"), 1.0));
}

TEST_CASE("keep rate: more kept tokens take longer, after the same overhead") {
  const KeepRateRequest r = request_for("llama-3.1-70b", "llama-3.1-8b");
  KeepRate before = keep_rate(r, 0.05);
  for (const double keep : {0.1, 0.3, 0.7, 1.0}) {
    const KeepRate now = keep_rate(r, keep);
    CHECK(now.ttft_s > before.ttft_s);
    CHECK(now.overhead_s == before.overhead_s);
    CHECK(now.kept_tokens > before.kept_tokens);
    before = now;
  }
  CHECK(before.kept_tokens == 16384);
  CHECK(before.ttft_speedup < 1);
}

}  // namespace
}  // namespace kvcast::search
