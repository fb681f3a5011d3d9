#include "roofline/rates.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "tests/model/message_of.h"
#include "tests/near.h"
#include "tests/source_catalog.h"

using namespace kvcast;
using namespace kvcast::roofline;

namespace {

Sourced datasheet(double value) { return {value, Source::Datasheet, "toy.pdf", ""}; }
Sourced measured(double value) { return {value, Source::Measured, "us, today", ""}; }

/// Peaks 1000 (fp16) and 100 (fp32) FLOP/s, vector 10, memory 500 bytes/s; factors are powers of
/// two, so that products are exact.
Hardware toy() {
  Hardware hw;
  hw.name = "toy";
  hw.peak_flops_per_second[DType::FP16] = datasheet(1000);
  hw.peak_flops_per_second[DType::BF16] = datasheet(1000);
  hw.peak_flops_per_second[DType::FP32] = datasheet(100);
  hw.vector_flops_per_second = datasheet(10);
  hw.memory_bandwidth = datasheet(500);
  hw.memory_capacity = datasheet(8000);
  hw.on_chip_memory_capacity = datasheet(40);
  hw.operator_latency = measured(3);
  hw.host_operator_latency = measured(7);
  hw.matrix_rate[DType::FP16] = measured(0.5);
  hw.batched_matrix_rate[DType::FP16] = measured(0.25);
  hw.tiled_attention_rate[DType::FP16] = measured(0.125);
  hw.memory_bandwidth_factor = measured(0.5);
  hw.elementwise_bandwidth = measured(0.25);
  hw.softmax_bandwidth = measured(0.125);
  return hw;
}

Lowering lowering(Kernels kernels, DType dtype = DType::FP16) {
  return {kernels, kernels, dtype, dtype, dtype};
}

Rates calibrated(const Hardware& hw, Kernels kernels, DType dtype = DType::FP16) {
  return make_rates(hw, lowering(kernels, dtype), Mode::Calibrated);
}

double flops(const Rates& r, RateClass e) {
  return r.flops_per_second[static_cast<std::size_t>(e)].value;
}
double bytes(const Rates& r, BandwidthClass s) {
  return r.bytes_per_second[static_cast<std::size_t>(s)].value;
}
/// A sentence of missing_factors that begins with "no measured NAME".
bool misses(const Rates& r, const std::string& name) {
  return std::any_of(r.missing_factors.begin(), r.missing_factors.end(), [&](const std::string& s) {
    return s.starts_with("no measured " + name + " ");
  });
}

}  // namespace

TEST_CASE("rates: fused kernels run at peak times factor, all bytes at the memory's rate") {
  const Rates r = calibrated(toy(), Kernels::Fused);
  CHECK(flops(r, RateClass::Matrix) == 500);
  CHECK(flops(r, RateClass::TiledAttention) == 125);
  CHECK(flops(r, RateClass::Vector) == 10);
  for (const BandwidthClass s :
       {BandwidthClass::Memory, BandwidthClass::Elementwise, BandwidthClass::Softmax}) {
    CHECK(bytes(r, s) == 250);
  }
  CHECK(r.latency[0] == Seconds{3});
  CHECK(r.host_operator_latency == Seconds{0});  // an engine issues whole graphs
  CHECK(r.on_chip_bytes == 40);
  CHECK(r.memory_capacity_bytes == 8000);
  CHECK(r.missing_factors.empty());
}

TEST_CASE("rates: eager kernels have rates of their own, and a host that issues them") {
  const Rates r = calibrated(toy(), Kernels::Eager);
  CHECK(flops(r, RateClass::Matrix) == 500);
  CHECK(flops(r, RateClass::BatchedMatrix) == 250);
  CHECK(bytes(r, BandwidthClass::Memory) == 250);
  CHECK(bytes(r, BandwidthClass::Elementwise) == 125);
  CHECK(bytes(r, BandwidthClass::Softmax) == 62.5);
  CHECK(r.host_operator_latency == Seconds{7});
}

TEST_CASE("rates: products, softmax and attention have rates by length where those were measured") {
  Hardware hw = toy();
  hw.matrix_rate[DType::FP16].by_length = {{1, 0.5}, {8, 0.25}};
  hw.matrix_rate[DType::FP16].value = 0.5;
  const auto matrix = static_cast<std::size_t>(RateClass::Matrix);
  CHECK(calibrated(hw, Kernels::Fused).flops_by_length[matrix].at(8) == 0.5);
  hw.softmax_bandwidth->by_length = {{10, 0.0625}, {20, 0.1}};
  hw.tiled_attention_rate[DType::FP16].by_length = {{10, 0.05}, {20, 0.1}};
  const auto softmax = static_cast<std::size_t>(BandwidthClass::Softmax);
  const auto tiled = static_cast<std::size_t>(RateClass::TiledAttention);
  const Rates e = calibrated(hw, Kernels::Eager);
  CHECK(bytes(e, BandwidthClass::Softmax) == 62.5);  // what it is without a length
  CHECK(e.bytes_by_length[softmax].at(10) == near(0.0625 / 0.125));
  CHECK(e.bytes_by_length[softmax].at(20) == near(0.1 / 0.125));
  CHECK(e.flops_by_length[tiled].is_flat());
  const Rates f = calibrated(hw, Kernels::Fused, DType::BF16);
  CHECK(f.flops_by_length[tiled].at(10) == near(0.05 / 0.125));
  CHECK(f.bytes_by_length[softmax].is_flat());
  for (const auto& [rates, name] :
       {std::pair(&e, "softmax_bandwidth"), std::pair(&f, "tiled_attention_rate bf16")}) {
    const auto used = std::find_if(rates->factors.begin(), rates->factors.end(),
                                   [&](const UsedFactor& u) { return u.name == name; });
    REQUIRE(used != rates->factors.end());
    CHECK(used->by_length.size() == 2);
  }
  for (const Kernels kernels : {Kernels::Eager, Kernels::Fused}) {
    const Rates light = make_rates(hw, lowering(kernels), Mode::SpeedOfLight);
    for (const RateCurve& curve : light.flops_by_length) CHECK(curve.is_flat());
    for (const RateCurve& curve : light.bytes_by_length) CHECK(curve.is_flat());
  }
}

TEST_CASE("rates: kernels have a latency of their own where it was measured") {
  struct Case {
    const char* name;
    std::optional<Sourced> Hardware::*field;
    BandwidthClass own;
    bool eager;
    bool fused;
  };
  for (const Case& c :
       {Case{"elementwise_latency", &Hardware::elementwise_latency, BandwidthClass::Elementwise,
             true, false},
        Case{"product_latency", &Hardware::product_latency, BandwidthClass::Product, true, true},
        Case{"tiled_attention_latency", &Hardware::tiled_attention_latency,
             BandwidthClass::Attention, false, true},
        Case{"decode_attention_latency", &Hardware::decode_attention_latency,
             BandwidthClass::Decode, false, true}}) {
    CAPTURE(c.name);
    Hardware hw = toy();
    hw.*c.field = measured(2);
    for (const Kernels kernels : {Kernels::Eager, Kernels::Fused}) {
      const Rates r = calibrated(hw, kernels);
      const bool has_own = kernels == Kernels::Eager ? c.eager : c.fused;
      for (std::size_t i = 0; i < num_bandwidth_classes; ++i) {
        const auto of = static_cast<BandwidthClass>(i);
        const bool as_product = of == BandwidthClass::QuantizedProduct ||
                                of == BandwidthClass::Experts ||
                                of == BandwidthClass::QuantizedExperts;
        const bool own = has_own && (as_product ? BandwidthClass::Product : of) == c.own;
        CHECK(r.latency[i] == Seconds{own ? 2.0 : 3.0});
      }
      CHECK(std::any_of(r.factors.begin(), r.factors.end(), [&](const UsedFactor& f) {
              return f.name == c.name && f.peak == 2 && f.source == "measured";
            }) == has_own);
      for (const Seconds latency : make_rates(hw, lowering(kernels), Mode::SpeedOfLight).latency) {
        CHECK(latency == Seconds{0});
      }
    }
  }
}

TEST_CASE("rates: products of less than 16 bits have a latency with what quantises their inputs") {
  Hardware hw = toy();
  hw.peak_flops_per_second[DType::FP8] = datasheet(2000);
  hw.product_latency = measured(2);
  hw.quantized_product_latency = measured(5);
  const auto product = [&](const Lowering& l) {
    return make_rates(hw, l, Mode::Calibrated)
        .latency[static_cast<std::size_t>(BandwidthClass::Product)];
  };
  Lowering l = lowering(Kernels::Fused);
  CHECK(product(l) == Seconds{2});
  l.weights = DType::FP8;  // multiplied in 16 bits
  CHECK(product(l) == Seconds{2});
  l.activations = DType::FP8;
  CHECK(product(l) == Seconds{5});
  Engine fuses;
  fuses.fuses_quantization = true;
  CHECK(make_rates(hw, l, Mode::Calibrated, fuses)
            .latency[static_cast<std::size_t>(BandwidthClass::Product)] == Seconds{2});
  hw.peak_flops_per_second.erase(DType::FP8);  // the device converts them
  CHECK(product(l) == Seconds{2});
}

TEST_CASE("rates: kernels wait for a share of their loads, some for their own") {
  Hardware hw = toy();
  const auto exposed = [&](Kernels kernels, Mode mode = Mode::Calibrated) {
    return make_rates(hw, lowering(kernels), mode).exposed;
  };
  using Shares = std::array<double, num_bandwidth_classes>;
  CHECK(exposed(Kernels::Fused) == Shares{});
  hw.overlap = measured(0.5);
  CHECK(exposed(Kernels::Fused) == Shares{0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5});
  hw.product_overlap = measured(0.75);
  hw.tiled_attention_overlap = measured(0);
  CHECK(exposed(Kernels::Fused) == Shares{0.5, 0.25, 0.5, 0.5, 0.5, 1, 0.25, 0.25, 0.25, 0.5});
  CHECK(exposed(Kernels::Eager) == Shares{0.5, 0.25, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.5});
  CHECK(exposed(Kernels::Fused, Mode::SpeedOfLight) == Shares{});
}

TEST_CASE("rates: the on-chip memory's bandwidth serves eager kernels where it was measured") {
  Hardware hw = toy();
  CHECK_FALSE(calibrated(hw, Kernels::Eager).on_chip_bytes_per_second);
  hw.on_chip_memory_bandwidth = measured(900);
  const Rates r = calibrated(hw, Kernels::Eager);
  CHECK(r.on_chip_bytes_per_second == BytesPerSecond{900});
  CHECK(std::any_of(r.factors.begin(), r.factors.end(), [](const UsedFactor& f) {
    return f.name == "on_chip_memory_bandwidth" && f.peak == 900 && f.source == "measured";
  }));
  // Fused kernels were measured with what they find on the chip.
  CHECK_FALSE(calibrated(hw, Kernels::Fused).on_chip_bytes_per_second);
  // Else the speed of light were slower than what was measured.
  CHECK(make_rates(hw, lowering(Kernels::Eager), Mode::SpeedOfLight).on_chip_bytes_per_second ==
        BytesPerSecond{900});
}

TEST_CASE("rates: speed of light is the datasheet without factors and latencies") {
  for (const Kernels kernels : {Kernels::Eager, Kernels::Fused}) {
    const Rates r = make_rates(toy(), lowering(kernels), Mode::SpeedOfLight);
    CHECK(flops(r, RateClass::Matrix) == 1000);
    CHECK(flops(r, kernels == Kernels::Eager ? RateClass::BatchedMatrix
                                             : RateClass::TiledAttention) == 1000);
    for (const BandwidthClass s :
         {BandwidthClass::Memory, BandwidthClass::Elementwise, BandwidthClass::Softmax}) {
      CHECK(bytes(r, s) == 500);
    }
    CHECK(r.latency[0] == Seconds{0});
    CHECK(r.host_operator_latency == Seconds{0});
    CHECK(r.missing_factors.empty());
    for (const UsedFactor& f : r.factors) CHECK(f.factor == 1);
  }
}

TEST_CASE("rates: tiled attention moves at a bandwidth of its own where that was measured") {
  Hardware hw = toy();
  CHECK(bytes(calibrated(hw, Kernels::Fused), BandwidthClass::Attention) == 250);
  hw.tiled_attention_bandwidth = measured(0.125);
  const Rates r = calibrated(hw, Kernels::Fused);
  CHECK(bytes(r, BandwidthClass::Attention) == 62.5);
  CHECK(bytes(r, BandwidthClass::Memory) == 250);
  CHECK(bytes(r, BandwidthClass::Decode) == 250);
  CHECK(bytes(make_rates(hw, lowering(Kernels::Fused), Mode::SpeedOfLight),
              BandwidthClass::Attention) == 500);
}

TEST_CASE(
    "rates: products of several rows move at a bandwidth of their own where it was measured") {
  Hardware hw = toy();
  const Lowering fused = lowering(Kernels::Fused);
  constexpr auto product = static_cast<std::size_t>(BandwidthClass::Product);
  const Rates as_all = calibrated(hw, Kernels::Fused);
  CHECK(bytes(as_all, BandwidthClass::Product) == 250);
  CHECK(as_all.bytes_by_length[product].is_flat());
  hw.product_bandwidth = measured(0.125);
  for (const Kernels kernels : {Kernels::Eager, Kernels::Fused}) {
    const Rates r = calibrated(hw, kernels);
    CHECK(bytes(r, BandwidthClass::Product) == 62.5);
    CHECK(62.5 * r.bytes_by_length[product].at(1) == 250);  // memory_bandwidth
    CHECK(r.bytes_by_length[product].at(2) == 1);
    CHECK(r.bytes_by_length[product].at(512) == 1);
    CHECK(bytes(r, BandwidthClass::Memory) == 250);
    CHECK(std::count_if(r.factors.begin(), r.factors.end(),
                        [](const UsedFactor& f) { return f.name == "product_bandwidth"; }) == 1);
  }
  hw.memory_bandwidth_factor.reset();  // one row streams at the datasheet's bandwidth
  CHECK(62.5 * calibrated(hw, Kernels::Fused).bytes_by_length[product].at(1) == 500);
  const Rates light = make_rates(hw, fused, Mode::SpeedOfLight);
  CHECK(bytes(light, BandwidthClass::Product) == 500);
  CHECK(light.bytes_by_length[product].is_flat());
}

TEST_CASE("rates: a factor of the other 16-bit dtype serves, another width's does not") {
  const Rates bf16 = calibrated(toy(), Kernels::Fused, DType::BF16);
  CHECK(flops(bf16, RateClass::Matrix) == 500);
  CHECK(bf16.missing_factors.empty());
  Hardware other = toy();  // and the other way round: only bf16 was measured
  other.matrix_rate = {{DType::BF16, measured(0.25)}, {DType::FP32, measured(0.75)}};
  const Rates fp16 = calibrated(other, Kernels::Fused);
  CHECK(flops(fp16, RateClass::Matrix) == 250);
  const Rates fp32 = calibrated(toy(), Kernels::Fused, DType::FP32);
  CHECK(flops(fp32, RateClass::Matrix) == 100);
  CHECK(misses(fp32, "matrix_rate fp32"));
  CHECK(misses(fp32, "tiled_attention_rate fp32"));
}

TEST_CASE("rates: weight-only quantisation multiplies in the activations' dtype") {
  Lowering l = lowering(Kernels::Fused);
  l.weights = DType::Q4_K;
  CHECK(flops(make_rates(toy(), l, Mode::Calibrated), RateClass::Matrix) == 500);
  l.weights = DType::FP32;  // the wider of the two
  CHECK(flops(make_rates(toy(), l, Mode::Calibrated), RateClass::Matrix) == 100);
  l = lowering(Kernels::Fused);
  l.cache = DType::FP32;
  const Rates r = make_rates(toy(), l, Mode::Calibrated);
  CHECK(flops(r, RateClass::Matrix) == 500);
  CHECK(flops(r, RateClass::TiledAttention) == 100);
}

TEST_CASE("rates: products may multiply in another dtype than their operands, attention does not") {
  const Hardware hw = toy();
  Lowering l = lowering(Kernels::Fused, DType::FP32);
  l.products = DType::FP16;
  const Rates r = make_rates(hw, l, Mode::Calibrated);
  CHECK(flops(r, RateClass::Matrix) == 1000 * 0.5);
  CHECK(flops(r, RateClass::TiledAttention) ==
        flops(calibrated(hw, Kernels::Fused, DType::FP32), RateClass::TiledAttention));
}

TEST_CASE("rates: where operands are narrow, weights that are not multiply at their own rate") {
  Hardware hw = toy();
  hw.peak_flops_per_second[DType::FP8] = datasheet(2000);
  hw.matrix_rate[DType::FP8] = measured(0.25);
  Lowering l = lowering(Kernels::Fused, DType::FP8);
  l.weights = parse_weight_types("fp8,head=bf16,norm=fp32");
  const Rates r = make_rates(hw, l, Mode::Calibrated);
  CHECK(flops(r, RateClass::Matrix) == 500);  // 2000 · 0.25
  REQUIRE(r.other_products.size() == 1);      // norms multiply nothing
  CHECK(r.other_products.at(DType::BF16).value == 500);
  // The other way round: most are wide.
  l.weights = parse_weight_types("bf16,experts=fp8");
  hw.matrix_rate[DType::FP8] = measured(0.75);
  const Rates wide = make_rates(hw, l, Mode::Calibrated);
  CHECK(flops(wide, RateClass::Matrix) == 500);
  CHECK(wide.other_products.at(DType::FP8).value == 1500);
  // Weights alone are narrow: all products are of the activations' type.
  l.activations = DType::BF16;
  CHECK(make_rates(hw, l, Mode::Calibrated).other_products.empty());
}

TEST_CASE("rates: narrow weights move at their own rate, wide ones of the same model at theirs") {
  Hardware hw = toy();
  hw.product_bandwidth = measured(0.75);
  hw.quantized_product_bandwidth = measured(0.25);
  const double memory = hw.memory_bandwidth.value;
  Lowering l = lowering(Kernels::Fused);
  const auto rate = [&](BandwidthClass c) { return bytes(make_rates(hw, l, Mode::Calibrated), c); };
  CHECK(rate(BandwidthClass::Product) == 0.75 * memory);
  CHECK(rate(BandwidthClass::QuantizedProduct) == 0.75 * memory);
  l.weights = DType::Q4_K;
  CHECK(rate(BandwidthClass::QuantizedProduct) == 0.25 * memory);
  l.weights = parse_weight_types("int4,head=fp16");
  CHECK(rate(BandwidthClass::Product) == 0.75 * memory);
  CHECK(rate(BandwidthClass::QuantizedProduct) == 0.25 * memory);
}

TEST_CASE("rates: weights of a stored type are read at its rate, in int8 at another") {
  Hardware hw = toy();
  hw.peak_flops_per_second[DType::INT8] = datasheet(200);
  hw.weight_bandwidth = {{DType::Q8_0, measured(0.25)}, {DType::Q4_0, measured(0.125)}};
  hw.int8_weight_bandwidth = {{DType::Q8_0, measured(0.375)}};
  const double memory = hw.memory_bandwidth.value;
  Lowering l = lowering(Kernels::Fused, DType::FP32);
  const auto reads = [&](Mode mode = Mode::Calibrated) {
    std::map<DType, double> values;
    for (const auto& [dtype, rate] : make_rates(hw, l, mode).weight_bandwidth) {
      values[dtype] = rate.bytes_per_second.value;
    }
    return values;
  };
  CHECK(reads().empty());
  l.weights = DType::Q4_0;
  CHECK(reads() == std::map<DType, double>{{DType::Q4_0, 0.125 * memory}});
  CHECK(reads(Mode::SpeedOfLight).empty());
  l.weights = parse_weight_types("q4_0,head=q8_0");
  CHECK(reads() ==
        std::map<DType, double>{{DType::Q4_0, 0.125 * memory}, {DType::Q8_0, 0.25 * memory}});
  l.products = DType::INT8;
  CHECK(reads() ==
        std::map<DType, double>{{DType::Q4_0, 0.125 * memory}, {DType::Q8_0, 0.375 * memory}});
}

TEST_CASE("rates: missing factors are named, and the eager ones fall back to the memory's") {
  Hardware hw = toy();
  hw.elementwise_bandwidth.reset();
  hw.softmax_bandwidth.reset();
  const Rates fallback = calibrated(hw, Kernels::Eager);
  CHECK(bytes(fallback, BandwidthClass::Elementwise) == 250);
  CHECK(bytes(fallback, BandwidthClass::Softmax) == 250);
  hw.memory_bandwidth_factor.reset();
  hw.matrix_rate.clear();
  const Rates none = calibrated(hw, Kernels::Eager);
  CHECK(bytes(none, BandwidthClass::Elementwise) == 500);
  CHECK(flops(none, RateClass::Matrix) == 1000);
  CHECK(misses(none, "memory_bandwidth"));
  CHECK(misses(none, "matrix_rate fp16"));
  CHECK(misses(none, "softmax_bandwidth"));
}

TEST_CASE(
    "rates: where only large products were measured, their factor stands in for attention's") {
  Hardware hw = toy();
  hw.tiled_attention_rate.clear();
  hw.batched_matrix_rate.clear();
  const Rates fused = calibrated(hw, Kernels::Fused);
  CHECK(flops(fused, RateClass::TiledAttention) == 500);
  CHECK(misses(fused, "tiled_attention_rate fp16"));
  const Rates eager = calibrated(hw, Kernels::Eager);
  CHECK(flops(eager, RateClass::BatchedMatrix) == 500);
  CHECK(misses(eager, "batched_matrix_rate fp16"));
}

TEST_CASE("rates: every factor that an estimate used carries its source and reference") {
  const Rates r = calibrated(toy(), Kernels::Eager);
  CHECK(r.factors.size() >= 7);
  for (const UsedFactor& f : r.factors) {
    CAPTURE(f.name);
    CHECK_FALSE(f.source.empty());
    CHECK_FALSE(f.reference.empty());
  }
  const auto matrix = std::find_if(r.factors.begin(), r.factors.end(), [](const UsedFactor& f) {
    return f.name == "matrix_rate fp16";
  });
  REQUIRE(matrix != r.factors.end());
  CHECK(matrix->peak == 1000);
  CHECK(matrix->factor == 0.5);
  CHECK(matrix->source == "measured");
  CHECK(matrix->reference == "us, today");
}

TEST_CASE("rates: a device that cannot multiply a dtype is an error that names both") {
  Hardware hw = toy();
  hw.peak_flops_per_second.erase(DType::FP32);
  check_line(message_of([&] { calibrated(hw, Kernels::Fused, DType::FP32); }), {"toy", "fp32"});
}

TEST_CASE("rates: modes have names") {
  CHECK(name(Mode::SpeedOfLight) == "speed-of-light");
  CHECK(name(Mode::Calibrated) == "calibrated");
}

TEST_CASE("rates: an engine brings the host's times, its graphs and how it reads prompts") {
  Engine e;
  e.name = "toy";
  e.host_launch = Seconds{11};
  e.launch_gap = Seconds{0.5};
  e.graphs = Graphs::Decode;
  e.host.step = Seconds{13};
  e.prefill_tokens = 32;
  e.cuts_prompts = true;
  for (const Kernels kernels : {Kernels::Eager, Kernels::Fused}) {
    const Rates r = make_rates(toy(), lowering(kernels), Mode::Calibrated, e);
    CHECK(r.host_operator_latency == Seconds{11});
    CHECK(r.launch_gap == Seconds{0.5});
    CHECK(r.host.step == Seconds{13});
    CHECK(r.prefill_tokens == 32);
    CHECK(r.cuts_prompts);
    // Prompts run outside graphs, decode steps inside.
    CHECK(in_pass(r, false).latency[0] == Seconds{3.5});
    CHECK(in_pass(r, false).host_operator_latency == Seconds{11});
    CHECK(in_pass(r, true).latency[0] == Seconds{3});
    CHECK(in_pass(r, true).host_operator_latency == Seconds{0});
    const Rates light = make_rates(toy(), lowering(kernels), Mode::SpeedOfLight, e);
    CHECK(light.host_operator_latency == Seconds{0});
    CHECK(light.launch_gap == Seconds{0});
    CHECK(light.host.step == Seconds{0});
    CHECK(light.prefill_tokens == 32);  // what is read is not a matter of speed
  }
  e.host_launch = {};
  CHECK(make_rates(toy(), lowering(Kernels::Eager), Mode::Calibrated, e).host_operator_latency ==
        Seconds{7});
}

TEST_CASE("rates: an engine's attention kernel has its share of FlashAttention-2's rate") {
  const auto rate = [](Mode mode, double share) {
    Engine e;
    e.name = "toy";
    e.attention_rate = share;
    const Rates r = make_rates(toy(), lowering(Kernels::Fused), mode, e);
    return r.flops_per_second[static_cast<std::size_t>(RateClass::TiledAttention)].value;
  };
  CHECK(rate(Mode::Calibrated, 0.5) == 0.5 * rate(Mode::Calibrated, 1));
  CHECK(rate(Mode::SpeedOfLight, 0.5) == rate(Mode::SpeedOfLight, 1));
  // PyTorch has FlashAttention-2 since 2.2.
  CHECK(load_engine(catalog(), "pytorch:2.1").attention_rate == 0.5);
  CHECK(load_engine(catalog(), "pytorch:2.2").attention_rate == 1);
  CHECK(load_engine(catalog(), "pytorch").attention_rate == 1);
}

TEST_CASE("rates: fp16 products that add up in fp16 have a peak of their own where it is known") {
  Engine e;
  e.accumulates_in_fp16 = true;
  Hardware hw = toy();
  const auto rate = [&](DType dtype) {
    return flops(make_rates(hw, lowering(Kernels::Fused, dtype), Mode::Calibrated, e),
                 RateClass::Matrix);
  };
  CHECK(rate(DType::FP16) == 500);
  hw.fp16_accumulation_flops_per_second = datasheet(2000);
  CHECK(rate(DType::FP16) == 1000);
  CHECK(rate(DType::BF16) == 500);
  e.accumulates_in_fp16 = false;
  CHECK(rate(DType::FP16) == 500);
}

TEST_CASE("rates: experts run as products, unless grouped products were measured") {
  Hardware hw = toy();
  hw.product_bandwidth = measured(0.25);
  hw.product_latency = measured(9);
  const Rates as_products = calibrated(hw, Kernels::Fused);
  CHECK(!as_products.experts);
  CHECK(bytes(as_products, BandwidthClass::Experts) == 125);
  const auto latency = [](const Rates& r, BandwidthClass c) {
    return r.latency[static_cast<std::size_t>(c)];
  };
  CHECK(latency(as_products, BandwidthClass::QuantizedExperts) == Seconds{9});

  hw.expert_product_latency = measured(4);
  hw.expert_bandwidth = measured(0.5);
  hw.quantized_expert_bandwidth = measured(0.125);
  hw.expert_rate[DType::FP16] = measured(0.25);
  hw.quantized_expert_rate[DType::FP16] = measured(0.125);
  hw.quantized_expert_rate[DType::FP16].by_length = {{1, 0.0625}, {8, 0.125}};
  Lowering four_bits = lowering(Kernels::Fused);
  four_bits.weights = DType::INT4;
  const Rates r = make_rates(hw, four_bits, Mode::Calibrated);
  CHECK(bytes(r, BandwidthClass::Experts) == 250);
  CHECK(bytes(r, BandwidthClass::QuantizedExperts) == 62.5);
  CHECK(latency(r, BandwidthClass::Experts) == Seconds{4});
  CHECK(latency(r, BandwidthClass::Product) == Seconds{9});
  CHECK(r.experts->flops_per_second.value == 250);
  CHECK(r.quantized_experts->flops_per_second.value == 125);
  CHECK(r.quantized_experts->by_rows.at(1) == 0.5);
  // Datasheet peaks know no experts.
  const Rates light = make_rates(hw, four_bits, Mode::SpeedOfLight);
  CHECK(!light.experts);
  CHECK(bytes(light, BandwidthClass::Experts) == 500);

  // Marlin's kernels: an engine's, for some types, where the device knows them.
  Engine marlin;
  marlin.marlin_experts = {DType::INT4};
  CHECK(make_rates(hw, four_bits, Mode::Calibrated, marlin).quantized_experts->by_rows.at(1) ==
        0.5);
  hw.marlin_expert_rate[DType::FP16] = measured(0.2);
  CHECK(bytes(make_rates(hw, four_bits, Mode::Calibrated, marlin),
              BandwidthClass::QuantizedExperts) == 62.5);
  hw.marlin_expert_bandwidth = measured(0.1);
  const Rates in_marlin = make_rates(hw, four_bits, Mode::Calibrated, marlin);
  CHECK(in_marlin.quantized_experts->flops_per_second.value == 200);
  CHECK(bytes(in_marlin, BandwidthClass::QuantizedExperts) == 50);
  CHECK(bytes(in_marlin, BandwidthClass::Experts) == 250);
  CHECK(make_rates(hw, four_bits, Mode::Calibrated).quantized_experts->flops_per_second.value ==
        125);
  four_bits.weights = DType::MXFP4;
  CHECK(make_rates(hw, four_bits, Mode::Calibrated, marlin)
            .quantized_experts->flops_per_second.value == 125);

  // Their rows are summed as all memory moves, or as was measured.
  CHECK(bytes(in_marlin, BandwidthClass::CombineExperts) == bytes(r, BandwidthClass::Memory));
  hw.expert_combine_bandwidth = measured(0.01);
  const Rates combines = make_rates(hw, four_bits, Mode::Calibrated);
  CHECK(bytes(combines, BandwidthClass::CombineExperts) == 5);
  CHECK(bytes(make_rates(hw, four_bits, Mode::SpeedOfLight), BandwidthClass::CombineExperts) ==
        500);
  CHECK(bytes(combines, BandwidthClass::Memory) == bytes(r, BandwidthClass::Memory));
}

TEST_CASE("rates: text reads fewer experts than a uniform choice") {
  const Rates r = calibrated(toy(), Kernels::Fused);
  // Loads over 1 : 75: 0.805 of the 51 experts at 16 tokens (1.26 rows each), 0.70 at 64 (2.3).
  CHECK(r.uneven_loads.at(1) == 1);
  CHECK(r.uneven_loads.at(1.255) == doctest::Approx(1 / 0.81).epsilon(0.02));
  CHECK(r.uneven_loads.at(2.3) == doctest::Approx(1 / 0.70).epsilon(0.02));
  CHECK(r.uneven_loads.at(100) < 1.01);
  // A bound that counted more bytes than text reads would be slower than forecasts.
  CHECK(make_rates(toy(), lowering(Kernels::Fused), Mode::SpeedOfLight).uneven_loads.at(2.3) ==
        r.uneven_loads.at(2.3));
}
