#include "roofline/kernel.h"

#include <doctest/doctest.h>

#include "tests/near.h"

using namespace kvcast;
using namespace kvcast::roofline;

namespace {

constexpr Kernel product{.rows = 5, .outputs = 7, .inner = 11};
constexpr Kernel prefill{.kind = Kernel::Kind::PrefillAttention,
                         .batch = 2,
                         .num_attention_heads = 6,
                         .num_key_value_heads = 3,
                         .head_dim = 4,
                         .length = 5};
constexpr Kernel decode{.kind = Kernel::Kind::DecodeAttention,
                        .batch = 2,
                        .num_attention_heads = 6,
                        .num_key_value_heads = 3,
                        .head_dim = 4,
                        .length = 5};

/// 100 FLOP/s, 10 bytes/s, factors of 1, latencies of 3 s and, for each kernel, another.
Hardware toy() {
  const auto fitted = [](double value) { return Sourced{value, Source::Fitted, "toy", ""}; };
  Hardware hw;
  hw.name = "toy";
  hw.peak_flops_per_second[DType::FP16] = fitted(100);
  hw.vector_flops_per_second = fitted(100);
  hw.memory_bandwidth = fitted(10);
  hw.memory_capacity = hw.on_chip_memory_capacity = fitted(1e9);
  hw.operator_latency = fitted(3);
  hw.host_operator_latency = fitted(0);
  hw.matrix_rate[DType::FP16] = hw.tiled_attention_rate[DType::FP16] = fitted(1);
  hw.memory_bandwidth_factor = fitted(1);
  return hw;
}

}  // namespace

TEST_CASE("kernel: a product multiplies all rows, and moves each operand once") {
  const Work w = work(product);
  CHECK(w.flops == Count(2 * 5 * 7 * 11));
  CHECK(w.bytes() == Count(2 * (5 * 11 + 7 * 11 + 5 * 7)));
  // 770 FLOPs at 100 a second: 7.7 s; 334 bytes at 10 a second: 33.4 s, of which half are waited
  // for, so that 7.7 + 16.7 s are not the longer ones.
  Hardware hw = toy();
  CHECK(seconds_of(product, hw).value == near(33.4 + 3));
  hw.product_latency = Sourced{0.5, Source::Fitted, "toy", ""};
  hw.product_overlap = Sourced{0.5, Source::Fitted, "toy", ""};
  CHECK(seconds_of(product, hw).value == near(33.4 + 0.5));
  // With 25 FLOP/s: 30.8 s and 16.7 s.
  hw.matrix_rate[DType::FP16].value = 0.25;
  CHECK(seconds_of(product, hw).value == near(30.8 + 16.7 + 0.5));
}

TEST_CASE("kernel: a prompt's attention is causal, and reads each key and value head once") {
  // 15 of 25 pairs are visible: 4 FLOPs for each of a head's numbers and 4 for the softmax, whose
  // sum divides each of the 2 x 5 x 24 results.
  const Work w = work(prefill);
  CHECK(w.flops == Count(2 * 6 * 15 * (4 * 4 + 4) + 240));
  // Queries and results: 2 x 5 x 24 each; keys and values: 2 x 5 x 12 each.
  CHECK(w.bytes() == Count(2 * (2 * 240 + 2 * 120)));
  Hardware hw = toy();
  CHECK(seconds_of(prefill, hw).value == near(144 + 3));
  hw.tiled_attention_latency = Sourced{0.25, Source::Fitted, "toy", ""};
  CHECK(seconds_of(prefill, hw).value == near(144.25));
  CHECK(seconds_of(decode, hw).value == near(67.2 + 3));
}

TEST_CASE("kernel: a decode step's attention has one query for each sequence") {
  const Work w = work(decode);
  CHECK(w.flops == Count(2 * 6 * 5 * (4 * 4 + 4) + 48));
  CHECK(w.bytes() == Count(2 * (2 * 48 + 2 * 120)));  // 672
  Hardware hw = toy();
  hw.decode_attention_latency = Sourced{0.75, Source::Fitted, "toy", ""};
  CHECK(seconds_of(decode, hw).value == near(67.2 + 0.75));
}

TEST_CASE("kernel: a device that cannot multiply the dtype has no seconds") {
  Kernel wide = product;
  wide.dtype = DType::FP32;
  CHECK_THROWS(seconds_of(wide, toy()));
}
