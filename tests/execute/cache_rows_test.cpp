#include "model/execute/cache_rows.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/generate.h"
#include "model/execute/rank_run.h"
#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

constexpr std::array narrow_types{DType::FP16, DType::BF16, DType::FP8, DType::INT8};

/// A float type by its definition.
struct Definition {
  DType dtype;
  int bits;
  int mantissa;
  int bias;
};
constexpr std::array definitions{Definition{DType::FP16, 16, 10, 15},
                                 Definition{DType::BF16, 16, 7, 127},
                                 Definition{DType::FP8, 8, 3, 7}};

/// Infinite or no number where the type's definition says so.
double value_of(const Definition& d, unsigned code) {
  const unsigned exponent = code >> d.mantissa & ((1u << (d.bits - 1 - d.mantissa)) - 1u);
  const unsigned fraction = code & ((1u << d.mantissa) - 1u);
  const double sign = code >> (d.bits - 1) != 0 ? -1 : 1;
  const bool last = exponent == (1u << (d.bits - 1 - d.mantissa)) - 1u;
  if (d.dtype == DType::FP8 && last && fraction == 7) return std::nan("");
  if (d.dtype != DType::FP8 && last) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  const int shift = exponent == 0 ? 1 : static_cast<int>(exponent);
  return sign * std::ldexp(fraction + (exponent == 0 ? 0u : 1u << d.mantissa),
                           shift - d.bias - d.mantissa);
}

float widened(DType dtype, unsigned code) {
  const auto low = static_cast<std::uint16_t>(code);
  std::byte row[2];
  std::memcpy(row, &low, 2);
  float x = 0;
  widen_row({dtype, 1, 1}, row, 0, 1, &x);
  return x;
}

unsigned narrowed(const Definition& d, float x) {
  std::uint16_t code = 0;
  std::byte row[2] = {};
  narrow_row({d.dtype, 1, 1}, &x, row);
  std::memcpy(&code, row, 2);
  return d.bits == 8 ? code & 0xffu : code;
}

}  // namespace

TEST_CASE("cache_rows: every code is the number of its definition, and comes back") {
  for (const Definition& d : definitions) {
    CAPTURE(name(d.dtype));
    for (unsigned code = 0; code < 1u << d.bits; ++code) {
      const double expected = value_of(d, code);
      const float x = widened(d.dtype, code);
      if (std::isnan(expected)) {
        REQUIRE(std::isnan(x));
        REQUIRE(std::isnan(widened(d.dtype, narrowed(d, x))));
        continue;
      }
      REQUIRE(x == expected);
      REQUIRE(narrowed(d, x) == code);
    }
  }
}

TEST_CASE("cache_rows: numbers are rounded to the nearest, ties to even") {
  std::mt19937 random(3);
  for (const Definition& d : definitions) {
    CAPTURE(name(d.dtype));
    const unsigned largest =
        d.dtype == DType::FP8 ? 0x7eu : ((1u << (d.bits - 1 - d.mantissa)) - 1u) << d.mantissa;
    for (unsigned code = 0; code + 1 < largest; ++code) {
      // Of two neighbours, what lies between them. Those of bf16 have no fp32 between subnormals.
      const double low = value_of(d, code);
      const double high = value_of(d, code + 1);
      const auto middle = static_cast<float>((low + high) / 2);
      CAPTURE(code);
      REQUIRE(narrowed(d, middle) == (code % 2 == 0 ? code : code + 1));
      const float below = std::nextafter(middle, 0.0F);
      const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
      REQUIRE(narrowed(d, below) == code);
      REQUIRE(narrowed(d, above) == code + 1);
      REQUIRE(narrowed(d, -above) == (code + 1 + (1u << (d.bits - 1))));
    }
  }
}

TEST_CASE("cache_rows: what is too large") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(widened(DType::FP8, narrowed(definitions[2], 1e6F)) == 448);
  CHECK(widened(DType::FP8, narrowed(definitions[2], -465.0F)) == -448);
  CHECK(std::isnan(widened(DType::FP8, narrowed(definitions[2], infinity))));
  CHECK(widened(DType::FP16, narrowed(definitions[0], 65519.0F)) == 65504);
  CHECK(widened(DType::FP16, narrowed(definitions[0], 65520.0F)) == infinity);
  CHECK(widened(DType::BF16, narrowed(definitions[1], -infinity)) == -infinity);
}

TEST_CASE(
    "cache_rows: int8 has a scale for each group, and parts of a row are parts of the whole") {
  constexpr std::size_t features = 24;
  const CacheForm form{DType::INT8, features, 8};
  CHECK(form.row_bytes() == features + 3 * sizeof(float));
  std::vector<float> x(features);
  for (std::size_t i = 0; i < features; ++i) {
    x[i] = std::ldexp(static_cast<float>(i % 8) - 3.4F, static_cast<int>(i / 8) * 10 - 10);
  }
  x[12] = 0;
  std::vector<std::byte> row(form.row_bytes());
  narrow_row(form, x.data(), row.data());
  std::vector<float> all(features);
  widen_row(form, row.data(), 0, features, all.data());
  for (std::size_t i = 0; i < features; ++i) {
    float largest = 0;
    for (std::size_t j = i / 8 * 8; j < i / 8 * 8 + 8; ++j)
      largest = std::max(largest, std::abs(x[j]));
    CHECK(std::abs(all[i] - x[i]) <= largest / 254 * 1.00001F);
    if (std::abs(x[i]) == largest) CHECK(all[i] == doctest::Approx(x[i]).epsilon(1e-6));
    for (std::size_t n = 1; i + n <= features; ++n) {
      std::vector<float> part(n);
      widen_row(form, row.data(), i, n, part.data());
      REQUIRE(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(i)));
    }
  }
  for (std::size_t i = 0; i < 8; ++i) x[i] = 0;
  x[17] = std::numeric_limits<float>::infinity();
  narrow_row(form, x.data(), row.data());
  widen_row(form, row.data(), 0, features, all.data());
  CHECK(all[3] == 0);
  CHECK(std::isfinite(all[15]));
  CHECK(std::isnan(all[16]));
}

namespace {

Generation run(const Checkpoint& checkpoint, DType cache, const std::string& methods = "plain",
               Kernels kernels = Kernels::Fused, std::uint64_t chunk = 0) {
  SessionOptions o{.methods = parse_methods(methods), .attention = kernels, .logits = Logits::All};
  o.cache = cache;
  o.chunk = chunk;
  Request request;
  request.tokens = {made_up_prompt(70, checkpoint.architecture().vocab_size)};
  request.output_len = 9;
  request.continuation = {made_up_prompt(8, checkpoint.architecture().vocab_size)};
  std::vector<float> all;
  request.on_logits = [&](const Output& logits) {
    all.insert(all.end(), logits.data.get(), logits.data.get() + logits.shape.elements());
  };
  Generation g = Session(checkpoint, o).run(request);
  Floats data = allocate_floats(all.size());
  std::copy(all.begin(), all.end(), data.get());
  g.set_logits(DType::FP32, Shape({1, all.size()}), std::move(data));
  return g;
}

/// Of logits, as a share of their range: some roundings of the type's last place, grown by the
/// layers of these models; a latent row has one scale.
double drift(DType dtype) {
  switch (dtype) {
    case DType::FP16: return 0.002;
    case DType::BF16: return 0.02;
    case DType::INT8: return 0.1;
    default: return 0.2;
  }
}

}  // namespace

TEST_CASE("cache_rows: runs keep the cache narrow, near to fp32, whichever kernels read it") {
  for (const char* model : {"llama_gqa_llama3_rope", "gpt2", "gemma2", "qwen3", "deepseek_v3"}) {
    const Checkpoint checkpoint(oracle_folder() / model);
    CAPTURE(model);
    const Generation wide = run(checkpoint, DType::FP32);
    for (const DType dtype : narrow_types) {
      CAPTURE(name(dtype));
      const Generation g = run(checkpoint, dtype);
      const double bits = bits_per_element(dtype);
      CHECK(g.kv_cache_bytes == wide.kv_cache_bytes * static_cast<std::uint64_t>(bits) / 32);
      const double apart = relative_difference(g.logits, wide.logits);
      CHECK(apart > 1e-6);
      CHECK(apart < drift(dtype));
      // The step-by-step kernels get copies in fp32, and a pass's own rows before they are rounded.
      const Generation eager = run(checkpoint, dtype, "plain", Kernels::Eager);
      CHECK(relative_difference(eager.logits, g.logits) < drift(dtype));
    }
  }
}

TEST_CASE("cache_rows: methods and ranks keep it so") {
  const Checkpoint checkpoint(oracle_folder() / "llama_gqa_llama3_rope");
  for (const DType dtype : {DType::BF16, DType::INT8, DType::FP16}) {
    for (const std::string methods : {"streaming:sinks=2,window=20", "random-prune:keep=0.5",
                                      "lazyllm:begin=0.8,end=0.3", "plain"}) {
      CAPTURE(methods);
      CAPTURE(name(dtype));
      const Generation wide = run(checkpoint, DType::FP32, methods);
      const Generation g = run(checkpoint, dtype, methods);
      const double apart = relative_difference(g.logits, wide.logits);
      CHECK(apart > 1e-6);
      CHECK(apart < drift(dtype));
    }
    const Generation whole = run(checkpoint, dtype, "plain", Kernels::Fused, 16);
    CHECK(
        relative_difference(whole.logits, run(checkpoint, dtype).logits.last(whole.logits.size())) <
        drift(dtype) / 4);
    for (const std::string placement : {"kvr:p=3", "tsp:p=3"}) {
      CAPTURE(placement);
      SessionOptions o{.methods = parse_methods(placement)};
      o.cache = dtype;
      const auto request = [&](std::size_t) {
        Request r;
        r.tokens = {made_up_prompt(70, checkpoint.architecture().vocab_size)};
        r.output_len = 5;
        return r;
      };
      const RankRun shared = run_ranks(checkpoint, o, {30, 20, 20}, request);
      SessionOptions one = o;
      one.methods = {};
      const Generation alone = Session(checkpoint, one).run(request(0));
      CHECK(relative_difference(shared.generation.logits, alone.logits) < drift(dtype) / 4);
      o.cache = DType::FP32;
      const RankRun wide = run_ranks(checkpoint, o, {30, 20, 20}, request);
      const std::uint64_t bytes = wide.ranks.at(0).message_bytes;
      CHECK(shared.ranks.at(0).message_bytes ==
            bytes * static_cast<std::uint64_t>(bits_per_element(dtype)) / 32);
    }
  }
}

TEST_CASE("cache_rows: a run in fp64 keeps its cache so") {
  const Checkpoint checkpoint(oracle_folder() / "llama_gqa_llama3_rope");
  SessionOptions o{.dtype = DType::FP64};
  o.cache = DType::INT8;
  CHECK(message_of([&] { const Session session(checkpoint, o); }) ==
        "a cache in int8: got a run in fp64, expected a run in fp32");
}

}  // namespace kvcast::execute
