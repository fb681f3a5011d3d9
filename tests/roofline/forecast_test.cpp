#include "roofline/forecast.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "roofline/hardware.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

using namespace kvcast;
using namespace kvcast::roofline;
using nlohmann::json;

namespace {

using U = std::uint64_t;

Architecture tiny_t5() {
  return read_config(json::parse(R"({"model_type": "t5", "d_model": 42, "vocab_size": 51,
    "num_layers": 2, "num_decoder_layers": 3, "num_heads": 6, "d_kv": 5, "d_ff": 20})"),
                     "tiny-t5", "t5.json");
}

Rates rates(double flops, double bytes, double latency = 0, double host_latency = 0) {
  Rates r = flat_rates(flops, bytes, latency);
  r.host_operator_latency = {host_latency};
  return r;
}

/// A forecast the slow way: every decode step of the output by itself, from time_of and Count::at.
struct BruteForce {
  double ttft_s = 0;
  double tpot_s = 0;
  double flops_per_token = 0;
  double bytes_per_token = 0;
  bool bound_changes = false;  ///< some operator's bound differs between the first and last step
};

double pass_seconds(const std::vector<OpGroup>& groups, const Rates& r,
                    const SymbolValues& values) {
  double device = 0;
  double operators = 0;
  for (const OpGroup& g : groups) {
    device += static_cast<double>(g.count) * time_of(g, r, values).total.value;
    operators += static_cast<double>(g.count);
  }
  return std::max(device, operators * r.host_operator_latency.value);
}

BruteForce brute_force(const Recording& recording, const Lowering& lowering, const Rates& r,
                       const DesignPoint& p) {
  const auto at = [&](U kv) { return recording.symbols.resolve({p.batch, p.prompt_len, kv}); };
  const std::vector<OpGroup> prefill = fold(recording.prefill(), lowering);
  const std::vector<OpGroup> decode = fold(recording.decode(), lowering);
  const Work step = kvcast::total_work(recording.decode());
  const U slots = recording.prompt_slots.at(at(1));
  const U steps = std::max<U>(p.output_len, 2) - 1;
  BruteForce b;
  b.ttft_s = pass_seconds(prefill, r, at(1));
  for (U kv = slots + 1; kv <= slots + steps; ++kv) {
    const double n = static_cast<double>(steps);
    b.tpot_s += pass_seconds(decode, r, at(kv)) / n;
    b.flops_per_token +=
        static_cast<double>(step.flops.at(at(kv))) / n / static_cast<double>(p.batch);
    b.bytes_per_token +=
        static_cast<double>(step.bytes().at(at(kv))) / n / static_cast<double>(p.batch);
  }
  for (const OpGroup& g : decode) {
    b.bound_changes |= time_of(g, r, at(slots + 1)).bound != time_of(g, r, at(slots + steps)).bound;
  }
  return b;
}

void check_against_brute_force(const Architecture& a, const std::string& methods,
                               const Lowering& lowering, const Rates& r, const DesignPoint& p) {
  const Recording recording = record(a, parse_methods(methods), lowering);
  const BruteForce b = brute_force(recording, lowering, r, p);
  const Forecast f = Forecaster(recording, lowering, r).at(p);
  CAPTURE(a.name);
  CAPTURE(p.prompt_len);
  CAPTURE(p.output_len);
  CHECK(f.ttft_s == near(b.ttft_s).epsilon(1e-12));
  CHECK(f.tpot_s == near(b.tpot_s).epsilon(1e-12));
  CHECK(f.decode_flops_per_token == near(b.flops_per_token).epsilon(1e-12));
  CHECK(f.decode_bytes_per_token == near(b.bytes_per_token).epsilon(1e-12));
}

}  // namespace

TEST_CASE("forecast: TPOT is the mean over every step of the output") {
  for (const U output : {1u, 2u, 3u, 40u}) {
    check_against_brute_force(tiny(), "plain", fused, rates(50, 20, 0.5), {3, 17, output});
    check_against_brute_force(tiny(), "plain", eager, rates(50, 20, 0.5, 7), {3, 17, output});
  }
}

TEST_CASE("forecast: TPOT is exact where attention turns from memory- to compute-bound") {
  // A step of one layer: 222 kv + 48 FLOPs, 96 kv + 192 bytes a sequence. At 2.2 FLOP/s and 1
  // byte/s the roofs cross at kv = 34.7, inside 11..130.
  const Recording r = record(tiny(), {}, fused);
  const DesignPoint p{3, 10, 121};
  CHECK(brute_force(r, fused, rates(2.2, 1), p).bound_changes);
  check_against_brute_force(tiny(), "plain", fused, rates(2.2, 1), p);
  for (const double flops : {2.0, 2.1, 2.25, 2.3}) {
    check_against_brute_force(tiny(), "plain", fused, rates(flops, 1), p);
  }
}

TEST_CASE("forecast: TPOT is exact where a sliding window ends inside the output") {
  const Architecture gemma = tiny(R"({"model_type": "gemma2", "sliding_window": 30,
                                      "attn_logit_softcapping": 50.0})");
  const Architecture mistral = tiny(R"({"model_type": "mistral", "sliding_window": 30})");
  // windows that end within, before, after, and exactly at either end of 18..57
  for (const U prompt : {17u, 40u, 3u, 29u, 28u, 30u}) {
    for (const Lowering& lowering : {fused, eager}) {
      check_against_brute_force(gemma, "plain", lowering, rates(50, 20, 0.5), {3, prompt, 41});
      check_against_brute_force(mistral, "plain", lowering, rates(2.2, 1), {3, prompt, 41});
    }
  }
}

TEST_CASE("forecast: an encoder-decoder's first token waits for its encoder") {
  for (const Lowering& lowering : {fused, eager}) {
    check_against_brute_force(tiny_t5(), "plain", lowering, rates(50, 20, 0.5), {3, 17, 9});
  }
  const Recording r = record(tiny_t5(), {}, fused);
  const Forecaster f(r, fused, rates(50, 20, 0.5));
  // cache: 3 layers, K and V, 30 features, 2 bytes; 9 decoder slots and 17 encoder rows, batch 3
  const Forecast x = f.at({3, 17, 8});
  CHECK(x.kv_cache_bytes == 3 * (1 + 8 + 17) * 3 * 2 * 30 * 2);
  // a longer encoder slows both; a longer output leaves the first token alone
  CHECK(f.at({3, 34, 8}).ttft_s > x.ttft_s);
  CHECK(f.at({3, 34, 8}).tpot_s > x.tpot_s);
  CHECK(f.at({3, 17, 80}).ttft_s == x.ttft_s);
}

TEST_CASE("forecast: pruned prompts decode over the slots that were kept") {
  check_against_brute_force(tiny(), "random-prune:keep=0.3", fused, rates(50, 20, 0.5), {3, 33, 9});
  check_against_brute_force(tiny(), "random-prune:keep=0.3", eager, rates(50, 20, 0.5), {3, 33, 9});
}

TEST_CASE("forecast: a cache of limited length is averaged over its filling and its steady state") {
  for (const Lowering& lowering : {fused, eager}) {
    // 3 tokens of prompt: the cache of 2 + 5 fills up during the output; 33: it is full at once
    check_against_brute_force(tiny(), "streaming:sinks=2,window=5", lowering, rates(50, 20, 0.5),
                              {3, 3, 19});
    check_against_brute_force(tiny(), "streaming:sinks=2,window=5", lowering, rates(50, 20, 0.5),
                              {2, 33, 9});
  }
}

TEST_CASE("forecast: keeping every token is plain, to the last bit") {
  const Recording plain = record(tiny(), {}, fused);
  const Recording all = record(tiny(), parse_methods("random-prune:keep=1"), fused);
  const Forecaster f(plain, fused, rates(50, 20, 0.5));
  const Forecaster g(all, fused, rates(50, 20, 0.5));
  for (const DesignPoint& p :
       {DesignPoint{1, 1, 1}, DesignPoint{3, 17, 9}, DesignPoint{2, 4096, 128}}) {
    CHECK((f.at(p) == g.at(p)));
  }
}

// The first step does 20 times the work of a later one. Shares of the cache are rounded to whole
// tokens, so a mean over a range of steps is close but not exact.
TEST_CASE("forecast: a first step that differs counts as one step") {
  const Recording r = record(
      tiny(), parse_methods("lazyllm:begin=0.5,end=0.5,revive_first=0.4,revive=0.02"), fused);
  const DesignPoint p{1, 100, 9};
  const BruteForce b = brute_force(r, fused, rates(50, 20, 0.5), p);
  CHECK(Forecaster(r, fused, rates(50, 20, 0.5)).at(p).tpot_s == near(b.tpot_s).epsilon(0.002));
}

TEST_CASE("forecast: a sweep gives each point what it gets alone, to the last bit") {
  // Of the last, ranges of steps differ between prompts.
  const std::pair<Architecture, std::string> cases[] = {
      {tiny(), "plain"},
      {tiny(R"({"model_type": "gemma2", "sliding_window": 30})"), "plain"},
      {tiny_t5(), "plain"},
      {tiny(), "lazyllm:begin=0.5,end=0.5,revive_first=0.4,revive=0.05"}};
  for (const auto& [a, methods] : cases) {
    for (const Lowering& lowering : {fused, eager}) {
      // 2.2 FLOP/s to 1 byte/s: some points of a block cross a roof and others do not
      const Forecaster f(record(a, parse_methods(methods), lowering), lowering, rates(2.2, 1, 0.5));
      std::vector<DesignPoint> points;
      for (U i = 0; i < 3 * lanes + 7; ++i) points.push_back({1 + i % 3, 1 + i % 50, 1 + i % 90});
      std::vector<Forecast> rows(points.size());
      f.sweep(points, rows);
      std::size_t equal = 0;
      for (std::size_t i = 0; i < points.size(); ++i) equal += rows[i] == f.at(points[i]);
      CAPTURE(a.name);
      CHECK(equal == points.size());
    }
  }
  const Forecaster f(record(tiny(), {}, fused), fused, rates(2, 1));
  f.sweep({}, {});
}

TEST_CASE("forecast: peak memory is weights, cache and the largest moment of activations") {
  // 10007 logits of 2 sequences and the 48 numbers that they come from, in halves, outweigh every
  // layer of 5 tokens: 2·2·(10007 + 48) = 40220.
  const Recording r = record(tiny(R"({"vocab_size": 10007})"), {}, fused);
  // parameters: embedding and head 2·10007·48, final norm 48, 3 layers of q 2304, k and v 1152
  // each, o 2304, MLP 3·960, norms 96: 9888
  const double weights = 2.0 * (2 * 10007 * 48 + 48 + 3 * 9888);
  const double cache = 2.0 * (5 + 8) * 3 * 2 * 24 * 2;  // batch, slots, layers, K and V, features
  const DesignPoint p{2, 5, 8};
  Rates rate = rates(50, 20);
  const Forecast f = Forecaster(r, fused, rate).at(p);
  CHECK(f.weight_bytes == weights);
  CHECK(f.kv_cache_bytes == cache);
  CHECK(f.peak_memory_bytes == weights + cache + 40220);
  rate.memory_capacity_bytes = f.peak_memory_bytes;
  CHECK(Forecaster(r, fused, rate).at(p).fits);
  rate.memory_capacity_bytes = f.peak_memory_bytes - 1;
  CHECK_FALSE(Forecaster(r, fused, rate).at(p).fits);
}

TEST_CASE("forecast: prefill counts are the recording's, exactly") {
  for (const std::string name : {"llama-7b", "gemma2-2b", "openelm-270m"}) {
    const Recording r = record(load_model(catalog(), name), {}, fused);
    const Forecaster f(r, fused, rates(1e14, 1e12));
    const DesignPoint p{3, 8191, 129};
    const SymbolValues values = r.symbols.resolve({3, 8191, 1});
    const Work w = kvcast::total_work(r.prefill());
    const Forecast x = f.at(p);
    CHECK(x.prefill_flops == static_cast<double>(w.flops.at(values)));
    CHECK(x.prefill_bytes == static_cast<double>(w.bytes().at(values)));
    Seconds prefill;
    for (const BreakdownRow& row : f.breakdown(p)) {
      if (row.pass == "prefill") prefill += row.total;
    }
    CHECK(prefill.value == near(x.ttft_s).epsilon(1e-12));
  }
}

TEST_CASE("forecast: a host that issues operators too slowly sets the pace") {
  const Recording r = record(tiny(), {}, eager);
  const double operators = static_cast<double>(r.prefill().nodes().size());
  const Forecast f = Forecaster(r, eager, rates(1e12, 1e12, 1e-9, 2)).at({3, 17, 9});
  CHECK(f.ttft_s == 2 * operators);
  CHECK(f.tpot_s == 2 * static_cast<double>(r.decode().nodes().size()));
  CHECK(f.ttft_bound == Bound::Latency);
  CHECK(f.tpot_bound == Bound::Latency);
}

TEST_CASE("forecast: bounds name the roof that most of the time comes from") {
  const Recording r = record(tiny(), {}, fused);
  const DesignPoint p{3, 17, 9};
  CHECK(Forecaster(r, fused, rates(1e-3, 1e12)).at(p).bound == Bound::Compute);
  CHECK(Forecaster(r, fused, rates(1e12, 1e-3)).at(p).bound == Bound::Memory);
  CHECK(Forecaster(r, fused, rates(1e12, 1e12, 1)).at(p).bound == Bound::Latency);
  // 60 FLOP/byte: the prompt computes, a decode step waits for memory
  const Forecast f =
      Forecaster(record(load_model(catalog(), "llama-7b"), {}, fused), fused, rates(60e12, 1e12))
          .at({1, 2048, 64});
  CHECK(f.ttft_bound == Bound::Compute);
  CHECK(f.tpot_bound == Bound::Memory);
}

TEST_CASE("forecast: the breakdown adds up to TTFT, and to the middle decode step") {
  const Recording r = record(tiny(), {}, fused);
  // The host is no limit, then one of decode steps, then of the prefill too.
  const auto per_operator = [&](const Graph& graph, const SymbolValues& values) {
    const std::vector<OpGroup> groups = fold(graph, fused);
    double operators = 0;
    for (const OpGroup& g : groups) operators += static_cast<double>(g.count);
    return pass_seconds(groups, rates(50, 20, 0.5), values) / operators;
  };
  const double decode_s = per_operator(r.decode(), r.symbols.resolve({3, 17, 21}));
  const double prefill_s = per_operator(r.prefill(), r.symbols.resolve({3, 17, 17}));
  REQUIRE(2 * decode_s < prefill_s);
  std::size_t host_rows = 0;
  for (const auto& [host_s, expected] :
       {std::pair{0.0, 0u}, {1.5 * decode_s, 1u}, {1.5 * prefill_s, 2u}}) {
    CAPTURE(host_s);
    const Rates rate = rates(50, 20, 0.5, host_s);
    const Forecaster f(r, fused, rate);
    const DesignPoint p{3, 17, 8};  // decode steps at kv 18..24, the middle one 21
    double prefill = 0;
    double decode = 0;
    host_rows = 0;
    for (const BreakdownRow& row : f.breakdown(p)) {
      (row.pass == "prefill" ? prefill : decode) += row.total.value;
      if (row.group.phase == "host") {
        ++host_rows;
        CHECK(row.time.bound == Bound::Latency);
      } else {
        CHECK(row.total.value == static_cast<double>(row.count) * row.time.total.value);
      }
    }
    CHECK(host_rows == expected);
    CHECK(prefill == near(f.at(p).ttft_s).epsilon(1e-12));
    const SymbolValues middle = r.symbols.resolve({3, 17, 21});
    CHECK(decode == near(pass_seconds(fold(r.decode(), fused), rate, middle)));
  }
}

TEST_CASE("forecast: the speed of light is never slower than what was calibrated") {
  for (const std::string device : {"a100-80gb", "h100-sxm", "m2-pro-cpu", "rtx-3060-12gb"}) {
    for (const std::string model : {"llama-7b", "gemma2-2b", "t5-small", "whisper-tiny"}) {
      const Hardware hw = load_hardware(catalog(), device);
      const Architecture a = load_model(catalog(), model);
      for (const Lowering& lowering : {fused, eager}) {
        const Recording r = record(a, {}, lowering);
        const Forecaster light(r, lowering, make_rates(hw, lowering, Mode::SpeedOfLight));
        const Forecaster real(r, lowering, make_rates(hw, lowering, Mode::Calibrated));
        for (const DesignPoint& p : {DesignPoint{1, 10, 10}, DesignPoint{8, 1400, 128}}) {
          CAPTURE(device);
          CAPTURE(model);
          CHECK(light.at(p).ttft_s <= real.at(p).ttft_s);
          CHECK(light.at(p).tpot_s <= real.at(p).tpot_s);
          CHECK(light.at(p).ttft_s > 0);
          CHECK(light.at(p).prefill_flops == real.at(p).prefill_flops);
        }
      }
    }
  }
}

TEST_CASE("forecast: every model of the catalog gets finite answers on a well-known device") {
  const Hardware hw = load_hardware(catalog(), "h100-sxm");
  Lowering eager = fused;
  eager.attention = Kernels::Eager;
  for (const Lowering& lowering : {fused, eager}) {
    const Rates rate = make_rates(hw, lowering, Mode::Calibrated);
    for (const std::string& name : catalog().names("models")) {
      const Recording recording = record(load_model(catalog(), name), {}, lowering);
      const Forecast f = Forecaster(recording, lowering, rate).at({4, 400, 40});
      CAPTURE(name);
      CHECK(f.ttft_s > 0);
      CHECK(f.ttft_s < 1e3);
      CHECK(f.tpot_s > 0);
      CHECK(f.tpot_s < 1e3);
      CHECK(f.peak_memory_bytes > f.weight_bytes + f.kv_cache_bytes);
    }
  }
}

TEST_CASE("forecast: sizes whose counts do not fit 64 bits throw instead of rounding") {
  const Forecaster f(record(load_model(catalog(), "llama-7b"), {}, fused), fused, rates(1, 1));
  const U huge = U{1} << 40;
  for (const DesignPoint& p :
       {DesignPoint{huge, huge, 128}, DesignPoint{1, huge, 128}, DesignPoint{huge, 4096, 128},
        DesignPoint{1, 128, std::numeric_limits<U>::max()}, DesignPoint{1, 128, U{1} << 50}}) {
    CAPTURE(p.batch);
    CAPTURE(p.prompt_len);
    CHECK_THROWS_AS(f.at(p), Error);
  }
  // A million prompt tokens of the largest model in the catalog still fit: its layers' 4.016e11
  // weights for each token are 8.03e17, attention 126 · 128 · (4 · 128 + 5) · 5e11 = 4.17e18.
  const Forecaster g(record(load_model(catalog(), "llama-3.1-405b"), {}, fused), fused,
                     rates(1, 1));
  CHECK(g.at({1, 1'000'000, 128}).prefill_flops == near(4.97e18).epsilon(0.002));
}

namespace {

/// Operators that take no time, so that what an engine adds stands alone.
Rates engine_rates() { return flat_rates(1e30, 1e30); }

double num_launches(const Graph& graph) {
  double sum = 0;
  for (const OpGroup& g : fold(graph, fused)) sum += static_cast<double>(g.count);
  return sum;
}

struct Chunked {
  Recording whole;
  Recording chunk;
  explicit Chunked(const Architecture& a)
      : whole(record(a, {}, fused)), chunk(record(a, {}, fused, {.chunked = true})) {}
  Forecast at(const Rates& r, const DesignPoint& p) const {
    return Forecaster(whole, fused, r, &chunk).at(p);
  }
};

}  // namespace

TEST_CASE("forecast: the host's times of a request, its tokens, steps and sequences are added") {
  Rates r = engine_rates();
  r.host = {.request = {1000}, .token = {0.5}, .step = {7}, .sequence = {2}};
  const Recording recording = record(tiny(), {}, fused);
  const Forecast f = Forecaster(recording, fused, r).at({3, 10, 5});
  // 1000 s, 3 x 10 tokens, one step of three sequences.
  CHECK(f.ttft_s == near(1000 + 15 + 7 + 6));
  CHECK(f.tpot_s == near(7 + 6));
  CHECK(f.ttft_bound == Bound::Latency);
  CHECK(f.tpot_bound == Bound::Latency);
  CHECK(f.ttft_parts_s[static_cast<std::size_t>(TtftPart::Base)] == near(f.ttft_s));
}

TEST_CASE("forecast: passes outside graphs have gaps between launches, or wait for the host") {
  const Recording recording = record(tiny(), {}, fused);
  const double prompt = num_launches(recording.prefill());
  const double step = num_launches(recording.decode());
  struct Case {
    Graphs graphs;
    double host_launch;
    double of_prompt;  ///< seconds of a launch
    double of_step;
  };
  // A launch takes the device 1 s, and 0.5 s more outside a graph.
  for (const Case& c : {Case{Graphs::None, 0.25, 1.5, 1.5}, Case{Graphs::Decode, 0.25, 1.5, 1},
                        Case{Graphs::All, 0.25, 1, 1}, Case{Graphs::None, 4, 4, 4},
                        Case{Graphs::Decode, 4, 4, 1}, Case{Graphs::All, 4, 1, 1}}) {
    Rates r = flat_rates(1e30, 1e30, 1);
    r.launch_gap = {0.5};
    r.graphs = c.graphs;
    r.host_operator_latency = {c.host_launch};
    const Forecast f = Forecaster(recording, fused, r).at({2, 10, 5});
    CHECK(f.ttft_s == near(c.of_prompt * prompt));
    CHECK(f.tpot_s == near(c.of_step * step));
  }
}

TEST_CASE("forecast: a batch of prompts runs in steps of as many tokens as the engine takes") {
  const Chunked model(tiny());
  Rates r = engine_rates();
  r.host = {.request = {}, .token = {}, .step = {100}, .sequence = {1}};
  r.prefill_tokens = 32;
  struct Case {
    bool cuts;
    DesignPoint point;
    double steps;
    double sequences;  ///< summed over the steps
  };
  for (const Case& c :
       {Case{false, {8, 10, 2}, 3, 8},                               // 3, 3 and 2 prompts
        Case{false, {6, 10, 2}, 2, 6},                               // 3 and 3
        Case{false, {2, 70, 2}, 2, 2},                               // longer than a step: one each
        Case{true, {8, 10, 2}, 3, 8}, Case{true, {2, 70, 2}, 6, 6},  // 32, 32 and 6 tokens of each
        Case{true, {2, 64, 2}, 4, 4}, Case{true, {3, 32, 2}, 3, 3}}) {
    CAPTURE(c.point.prompt_len);
    CAPTURE(c.cuts);
    r.cuts_prompts = c.cuts;
    CHECK(model.at(r, c.point).ttft_s == near(100 * c.steps + c.sequences));
  }
}

TEST_CASE(
    "forecast: chunks of a prompt have the attention of the whole, and read the cache again") {
  const Chunked model(tiny());
  const auto attention = [](const Recording& r, U batch, U tokens, U keys) {
    U flops = 0;
    for (const Node& node : r.prefill().nodes()) {
      if (!std::holds_alternative<TiledAttention>(node.op)) continue;
      flops += work(r.prefill(), node).flops.at(r.symbols.resolve({batch, tokens, keys}));
    }
    return flops;
  };
  CHECK(attention(model.chunk, 2, 32, 32) + attention(model.chunk, 2, 32, 64) +
            attention(model.chunk, 2, 6, 70) ==
        attention(model.whole, 2, 70, 1));

  Rates r = engine_rates();
  r.prefill_tokens = 32;
  r.cuts_prompts = true;
  const Forecast f = model.at(r, {2, 70, 2});
  double flops = 0;
  double bytes = 0;
  for (const auto& [tokens, keys] : {std::pair<U, U>{32, 32}, {32, 64}, {6, 70}}) {
    const Work of_chunk = total_work(fold(model.chunk.prefill(), fused));
    const SymbolValues values = model.chunk.symbols.resolve({1, tokens, keys});
    flops += 2 * static_cast<double>(of_chunk.flops.at(values));
    bytes += 2 * static_cast<double>(of_chunk.bytes().at(values));
  }
  CHECK(f.prefill_flops == near(flops));
  CHECK(f.prefill_bytes == near(bytes));
  r.prefill_tokens = 0;
  CHECK(f.prefill_bytes > Forecaster(model.whole, fused, r).at({2, 70, 2}).prefill_bytes);
}
