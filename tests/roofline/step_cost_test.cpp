#include "roofline/step_cost.h"

#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "model/record/recording.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

using namespace kvcast;
using namespace kvcast::roofline;

namespace {

/// Point i of a block: batch 1 + i mod 5, prompt 3 + 7 i, kv_len 2 + 11 i.
std::array<std::uint64_t, symbol::num_free> point(std::uint64_t i) {
  return {1 + i % 5, 3 + 7 * i, 2 + 11 * i};
}

StepPoint block(const Symbols& symbols) {
  StepPoint p;
  p.symbols.resize(symbols.size());
  for (std::uint64_t i = 0; i < lanes; ++i) {
    const SymbolValues values = symbols.resolve(point(i));
    for (std::size_t s = 0; s < values.size(); ++s) {
      p.symbols[s].v[i] = static_cast<double>(values[s]);
    }
  }
  return p;
}

Rates rates(double on_chip) {
  Rates r;
  r.flops_per_second = {FlopsPerSecond{700}, FlopsPerSecond{110}, FlopsPerSecond{130},
                        FlopsPerSecond{97},  FlopsPerSecond{53},  FlopsPerSecond{17}};
  r.bytes_per_second = {BytesPerSecond{90}, BytesPerSecond{80}, BytesPerSecond{70},
                        BytesPerSecond{50}, BytesPerSecond{40}, BytesPerSecond{30}};
  r.exposed.fill(0.25);
  r.latency.fill({3});
  r.latency[static_cast<std::size_t>(BandwidthClass::Elementwise)] = {2};
  r.latency[static_cast<std::size_t>(BandwidthClass::Product)] = {5};
  r.on_chip_bytes = on_chip;
  return r;
}

}  // namespace

TEST_CASE("step_cost: a polynomial's lanes are the count's values at each point") {
  const Count batch = symbol::batch;
  const Count prompt = symbol::prompt_len;
  const Count kv = symbol::kv_len;
  const Symbols symbols;
  const std::vector<Count> counts{0,
                                  7,
                                  batch,
                                  3 * batch * prompt + 5,
                                  prompt * prompt - prompt,
                                  (prompt * prompt + prompt).scaled(1, 2) * batch,
                                  batch * prompt * kv + kv * kv * 2 + 1};
  Polynomials polynomials;
  std::vector<Polynomial> compiled;
  for (const Count& c : counts) compiled.push_back(polynomials.add(c));
  const Polynomial quarter = polynomials.add(3 * batch * prompt + 5, 0.25);
  const StepPoint p = block(symbols);
  std::vector<Lanes> monomials;
  polynomials.evaluate_monomials(p.symbols, monomials);
  for (std::size_t c = 0; c < counts.size(); ++c) {
    const Lanes out = polynomials.evaluate(compiled[c], monomials);
    for (std::uint64_t i = 0; i < lanes; ++i) {
      CHECK(out.v[i] == static_cast<double>(counts[c].at(symbols.resolve(point(i)))));
    }
  }
  const Lanes scaled = polynomials.evaluate(quarter, monomials);
  const Lanes whole = polynomials.evaluate(compiled[3], monomials);
  for (std::size_t i = 0; i < lanes; ++i) CHECK(scaled.v[i] == whole.v[i] / 4);
}

TEST_CASE("step_cost: a product's weights are read at their type's rate, the rest at all others'") {
  const Lowering lowering{.weights = DType::Q8_0, .activations = DType::FP32, .cache = DType::FP32};
  const Recording recording =
      record(tiny(R"({"model_type": "gemma2", "sliding_window": 100})"), {}, lowering);
  Rates rate = rates(1e9);
  rate.bytes_per_second.fill({80});
  rate.weight_bandwidth[DType::Q8_0] = {{10}, RateCurve({{1, 0.5}, {4, 0.25}}, 0.5)};
  rate.weight_bandwidth[DType::Q4_0] = {{1}, {}};
  // Four rows, whose bytes move at half the rate of one row's.
  const SymbolValues values = recording.symbols.resolve(point(3));
  int products = 0;
  for (const OpGroup& g : fold(recording.decode(), lowering)) {
    const double weights =
        static_cast<double>(g.work.read[static_cast<std::size_t>(Storage::Weights)].at(values));
    const double all = static_cast<double>(g.work.bytes().at(values));
    const double memory = time_of(g, rate, values).memory.value;
    CAPTURE(g.label);
    if (g.op == "linear") {
      ++products;
      CHECK(memory == near(2 * ((all - weights) / 80 + weights / 10)));
    } else {
      CHECK(memory == near(all / 80));
    }
  }
  CHECK(products >= 7);  // q, k, v, output, gate, up, down and the head
}

TEST_CASE("step_cost: the time of a pass is the sum of its operators' times") {
  // A chip of 1 GB keeps every repeated operand and intermediate, one of 500 bytes loses some.
  for (const Lowering& lowering : {eager, Lowering{}}) {
    for (const double on_chip : {1e9, 500.0}) {
      const Recording r =
          record(tiny(R"({"model_type": "gemma2", "sliding_window": 100})"), {}, lowering);
      Rates rate = rates(on_chip);
      rate.on_chip_bytes_per_second = {BytesPerSecond{1000}};
      const RateCurve curve({{3, 0.3}, {40, 0.9}, {90, 0.7}}, 0.5);
      rate.flops_by_length[static_cast<std::size_t>(RateClass::TiledAttention)] = curve;
      rate.bytes_by_length[static_cast<std::size_t>(BandwidthClass::Softmax)] = curve;
      rate.bytes_by_length[static_cast<std::size_t>(BandwidthClass::Product)] = curve;
      for (const Graph* graph : {&r.prefill(), &r.decode()}) {
        const std::vector<OpGroup> groups = fold(*graph, lowering);
        const StepCost step(*graph, lowering, rate);
        CHECK(step.num_operators() == static_cast<double>(graph->nodes().size()));
        StepPoint p = block(r.symbols);
        const StepTotals at = step.at(p);
        const Work work = kvcast::total_work(*graph);
        for (std::uint64_t i = 0; i < lanes; ++i) {
          const SymbolValues values = r.symbols.resolve(point(i));
          std::array<double, num_bounds> by_bound{};
          double total = 0;
          for (const OpGroup& g : groups) {
            const OpTime t = time_of(g, rate, values);
            total += static_cast<double>(g.count) * t.total.value;
            by_bound[static_cast<std::size_t>(t.bound)] +=
                static_cast<double>(g.count) * t.total.value;
          }
          CAPTURE(i);
          double alone = 0;  // as one point
          step.part_seconds(values, {&alone, 1});
          CHECK(alone == at.seconds.v[i]);
          CHECK(at.seconds.v[i] == near(total).epsilon(1e-12));
          for (std::size_t b = 0; b < num_bounds; ++b) {
            CHECK(at.by_bound[b].v[i] == near(by_bound[b]).epsilon(1e-12));
          }
          CHECK(at.flops.v[i] == static_cast<double>(work.flops.at(values)));
          CHECK(at.bytes.v[i] == static_cast<double>(work.bytes().at(values)));
        }
      }
    }
  }
}

TEST_CASE("step_cost: the mean over a range is the mean of its steps, when a roof crosses too") {
  // One operator of 3·kv FLOPs and kv + 100 bytes at 1 FLOP/s and 1 byte/s: memory-bound below
  // kv = 50, compute-bound above. Steps kv = 1, 2, ..., n for lane n - 1.
  const Count kv = symbol::kv_len;
  OpGroup g;
  g.work.flops = 3 * kv;
  g.work.read[0] = kv + 100;
  g.count = 2;
  Rates rate = flat_rates(1, 1, 0.25);
  rate.exposed.fill(0.125);
  const StepCost step({g}, rate);
  const std::uint64_t stretch = 3;  // up to 3 · 64 = 192 steps
  StepPoint first;
  StepPoint last;
  first.symbols.resize(symbol::num_free);
  last.symbols.resize(symbol::num_free);
  Lanes steps;
  for (std::uint64_t i = 0; i < lanes; ++i) {
    steps.v[i] = static_cast<double>(stretch * (i + 1));
    first.symbols[symbol::kv_len.id].v[i] = 1;
    last.symbols[symbol::kv_len.id].v[i] = steps.v[i];
  }
  const StepTotals mean = step.mean(first, last, steps);
  for (std::uint64_t i = 0; i < lanes; ++i) {
    double sum = 0;
    for (std::uint64_t k = 1; k <= stretch * (i + 1); ++k) {
      sum += 2 * time_of(g, rate, std::vector<std::uint64_t>{1, 1, k}).total.value;
    }
    CAPTURE(i);
    CHECK(mean.seconds.v[i] == near(sum / steps.v[i]).epsilon(1e-13));
  }
}
