#include "roofline/op_cost.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/io/files/csv_table.h"
#include "model/record/rank_recording.h"
#include "roofline/step_cost.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

using namespace kvcast;
using namespace kvcast::roofline;
using nlohmann::json;

namespace {

Rates rates(double flops, double bytes, double latency = 0, double on_chip = 1e18) {
  Rates r = flat_rates(flops, bytes, latency);
  r.on_chip_bytes = on_chip;
  return r;
}

OpGroup group(std::uint64_t flops, std::uint64_t bytes, RateClass rate_class = RateClass::Matrix,
              BandwidthClass bandwidth_class = BandwidthClass::Memory) {
  OpGroup g;
  g.rate_class = rate_class;
  g.bandwidth_class = bandwidth_class;
  g.work.flops = flops;
  g.work.read[0] = bytes;
  g.count = 1;
  return g;
}

const std::vector<std::uint64_t> values{1, 1, 1};

}  // namespace

TEST_CASE("op_cost: an operator takes the longer of its two roofs, and a latency") {
  // 12 FLOPs at 4 a second: 3 s; 10 bytes at 2 a second: 5 s; latency 0.5 s
  const OpTime t = time_of(group(12, 10), rates(4, 2, 0.5), values);
  CHECK(t.flops == Flops{12});
  CHECK(t.bytes == Bytes{10});
  CHECK(t.bytes_reread == Bytes{0});
  CHECK(t.compute == Seconds{3});
  CHECK(t.memory == Seconds{5});
  CHECK(t.total == Seconds{5.5});
  CHECK(t.bound == Bound::Memory);
}

TEST_CASE("op_cost: the bound is the roof that binds, or the latency when it exceeds both") {
  CHECK(time_of(group(12, 10), rates(1, 2), values).bound == Bound::Compute);  // 12 s, 5 s
  CHECK(time_of(group(12, 10), rates(4, 1), values).bound == Bound::Memory);   // 3 s, 10 s
  CHECK(time_of(group(12, 10), rates(4, 2, 5.1), values).bound == Bound::Latency);
  CHECK(time_of(group(12, 10), rates(4, 2, 5.0), values).bound == Bound::Memory);  // a tie
  CHECK(time_of(group(10, 10), rates(2, 2), values).bound == Bound::Memory);       // a tie
}

TEST_CASE("op_cost: a latency and an exposed share are those of what the bytes move at") {
  Rates own = rates(4, 2);  // 3 s of arithmetic, 5 s of memory
  for (std::size_t i = 0; i < num_bandwidth_classes; ++i) {
    own.latency[i] = Seconds{static_cast<double>(i) / 2};
  }
  own.latency[static_cast<std::size_t>(BandwidthClass::Softmax)] = Seconds{6};
  own.exposed[static_cast<std::size_t>(BandwidthClass::Product)] = 0.75;
  for (std::size_t i = 0; i < num_bandwidth_classes; ++i) {
    const auto moves_at = static_cast<BandwidthClass>(i);
    const OpTime t = time_of(group(12, 10, RateClass::Matrix, moves_at), own, values);
    const double busy = moves_at == BandwidthClass::Product ? 3 + 5 * 0.75 : 5;
    CHECK(t.total == Seconds{busy} + own.latency[i]);
    CHECK((t.bound == Bound::Latency) == (moves_at == BandwidthClass::Softmax));
  }
}

TEST_CASE(
    "op_cost: arithmetic waits for the exposed part of the loads, and hides behind the rest") {
  Rates r = rates(4, 2);
  r.exposed.fill(0.5);
  const auto time = [&](std::uint64_t flops) { return time_of(group(flops, 10), r, values); };
  CHECK(time(8).total == Seconds{5});  // 2 s, and half of 5 s of loads, are within the loads
  CHECK(time(8).bound == Bound::Memory);
  CHECK(time(12).total == Seconds{3 + 5 * 0.5});
  CHECK(time(12).bound == Bound::Compute);
  CHECK(time(40).total == Seconds{10 + 5 * 0.5});
}

TEST_CASE("op_cost: an operator without arithmetic takes no compute time, in any rate class") {
  Rates r = rates(4, 2);
  r.flops_per_second.fill({0});  // a rate class that this lowering does not use
  const OpTime t = time_of(group(0, 10), r, values);
  CHECK(t.compute == Seconds{0});
  CHECK(t.total == Seconds{5});
}

TEST_CASE("op_cost: a grouped product has the rate of one expert's rows") {
  Rates r = rates(4, 2);
  r.experts = ExpertRate{FlopsPerSecond{16}, RateCurve({{2, 0.25}, {4, 0.5}}, 1)};
  OpGroup g = group(96, 10, RateClass::Matrix, BandwidthClass::Experts);
  g.length = 32;
  g.groups = 8;  // 4 rows each: 96 FLOPs at half of 16 a second
  CHECK(time_of(g, r, values).compute == Seconds{12});
  g.groups = 16;  // 2 rows each: a quarter
  CHECK(time_of(g, r, values).compute == Seconds{24});
  CHECK(time_of(g, r, values).memory == Seconds{5});
  // Without a rate of their own, as products: 96 FLOPs at 4 a second.
  g.bandwidth_class = BandwidthClass::QuantizedExperts;
  CHECK(time_of(g, r, values).compute == Seconds{24});
}

TEST_CASE("op_cost: a product of another type than most has the rate of its own") {
  Rates r = rates(4, 2);
  r.other_products[DType::BF16] = {2};
  OpGroup g = group(12, 10);
  CHECK(time_of(g, r, values).compute == Seconds{3});
  g.products = DType::BF16;
  CHECK(time_of(g, r, values).compute == Seconds{6});
  g.products = DType::FP16;  // no rate of its own
  CHECK(time_of(g, r, values).compute == Seconds{3});
}

TEST_CASE("op_cost: the head of an FP8 checkpoint multiplies in 16 bits, its matrices in FP8") {
  const Architecture a = load_model(catalog(), "llama-3.1-8b");
  Lowering l;
  l.activations = DType::FP8;
  l.weights = parse_weight_types("fp8-block");
  const Recording recording = record(a, {}, l);
  std::size_t wide = 0;
  for (const OpGroup& g : fold(recording.prefill(), l)) {
    CAPTURE(g.label);
    CHECK(g.products == (g.label == "head" ? std::optional(DType::BF16) : std::nullopt));
    if (g.products) ++wide;
  }
  CHECK(wide == 1);
  l.activations = DType::BF16;
  for (const OpGroup& g : fold(record(a, {}, l).prefill(), l)) CHECK_FALSE(g.products);
}

TEST_CASE("op_cost: uneven loads read fewer experts, of more rows each") {
  Rates r = rates(4, 2);
  r.experts = ExpertRate{FlopsPerSecond{16}, RateCurve({{2, 0.25}, {4, 0.5}}, 1)};
  r.uneven_loads = RateCurve(std::vector<double>{1, 2}, {1, 2});
  OpGroup g = group(96, 10, RateClass::Matrix, BandwidthClass::Experts);
  g.length = 32;
  g.groups = 16;  // 2 rows each if all were chosen alike; half of them have 4 rows each
  const OpTime t = time_of(g, r, values);
  CHECK(t.compute == Seconds{12});
  CHECK(t.memory == Seconds{2.5});
  CHECK(t.bytes == Bytes{10});  // as counted
  g.groups = 32;                // one row each: a token alone
  CHECK(time_of(g, r, values).memory == Seconds{5});
}

TEST_CASE("op_cost: the experts that a step reads share the rows that chose them") {
  const Recording r = record(load_model(catalog(), "mixtral-8x7b"), {}, fused);
  const std::vector<OpGroup> groups = fold(r.decode(), fused);
  const auto gate = std::find_if(groups.begin(), groups.end(),
                                 [](const OpGroup& g) { return g.label == "expert_gate"; });
  REQUIRE(gate != groups.end());
  CHECK(gate->bandwidth_class == BandwidthClass::Experts);
  // 16 tokens choose 2 of 8 experts in each of 32 layers: 1024 rows, of 32·8·(1 - 0.75^16) = 253.4
  // experts.
  const SymbolValues at = r.symbols.resolve({16, 100, 101});
  CHECK(gate->length.at(at) == 1024);
  CHECK(gate->groups.at(at) == 253);
  const auto combine = std::find_if(groups.begin(), groups.end(),
                                    [](const OpGroup& g) { return g.label == "combine"; });
  REQUIRE(combine != groups.end());
  CHECK(combine->bandwidth_class == BandwidthClass::CombineExperts);
  Lowering narrow = fused;
  narrow.weights = DType::INT4;
  const Recording quantized = record(load_model(catalog(), "mixtral-8x7b"), {}, narrow);
  const std::vector<OpGroup> of_four_bits = fold(quantized.decode(), narrow);
  CHECK(std::any_of(of_four_bits.begin(), of_four_bits.end(), [](const OpGroup& g) {
    return g.label == "expert_down" && g.bandwidth_class == BandwidthClass::QuantizedExperts;
  }));
}

TEST_CASE("op_cost: each rate class and each bandwidth class has its own rate") {
  Rates r;
  r.flops_per_second = {FlopsPerSecond{1},  FlopsPerSecond{2},  FlopsPerSecond{4},
                        FlopsPerSecond{16}, FlopsPerSecond{32}, FlopsPerSecond{8}};
  r.bytes_per_second = {BytesPerSecond{1}, BytesPerSecond{32}, BytesPerSecond{2},
                        BytesPerSecond{4}, BytesPerSecond{8},  BytesPerSecond{16}};
  r.on_chip_bytes = 1e18;
  struct Case {
    RateClass rate_class;
    BandwidthClass bandwidth_class;
    double compute_s, memory_s;
  };
  for (const Case& c : {Case{RateClass::Matrix, BandwidthClass::Memory, 16, 8},
                        Case{RateClass::Matrix, BandwidthClass::Product, 16, 0.25},
                        Case{RateClass::BatchedMatrix, BandwidthClass::Memory, 8, 8},
                        Case{RateClass::TiledAttention, BandwidthClass::Attention, 4, 0.5},
                        Case{RateClass::DecodeAttention, BandwidthClass::Decode, 1, 1},
                        Case{RateClass::StateScan, BandwidthClass::Memory, 0.5, 8},
                        Case{RateClass::Vector, BandwidthClass::Elementwise, 2, 4},
                        Case{RateClass::Vector, BandwidthClass::Softmax, 2, 2}}) {
    const OpTime t = time_of(group(16, 8, c.rate_class, c.bandwidth_class), r, values);
    CHECK(t.compute == Seconds{c.compute_s});
    CHECK(t.memory == Seconds{c.memory_s});
  }
}

TEST_CASE("op_cost: a repeated operand is read again once the chip cannot hold it between uses") {
  // A mask of 10 bytes over 4 heads; scores of 80 bytes read and 80 written: 170 bytes once.
  // Between two uses of a mask byte flow 160/4 + 10 = 50 bytes.
  OpGroup g = group(0, 170, RateClass::Vector, BandwidthClass::Elementwise);
  g.broadcast = {10, 4};
  const OpTime held = time_of(g, rates(1, 2, 0, 50), values);
  CHECK(held.bytes_reread == Bytes{0});
  CHECK(held.memory == Seconds{85});
  const OpTime lost = time_of(g, rates(1, 2, 0, 49.9), values);
  CHECK(lost.bytes == Bytes{170});
  CHECK(lost.bytes_reread == Bytes{30});  // 3 more times
  CHECK(lost.memory == Seconds{100});
}

TEST_CASE("op_cost: intermediates that fit the chip move at its rate") {
  // 8 of 10 bytes are intermediates, in place: 4 bytes of the chip.
  OpGroup g = group(0, 2, RateClass::Vector, BandwidthClass::Elementwise);
  g.work.read[static_cast<std::size_t>(Storage::Activations)] = 4;
  g.work.written[static_cast<std::size_t>(Storage::Activations)] = 4;
  g.intermediate_bytes = 8;
  Rates r = rates(1, 2, 0, 4);
  CHECK(time_of(g, r, values).memory == Seconds{5});  // nobody measured the chip's rate
  r.on_chip_bytes_per_second = {BytesPerSecond{4}};
  const OpTime held = time_of(g, r, values);
  CHECK(held.bytes == Bytes{10});
  CHECK(held.bytes_on_chip == Bytes{8});
  CHECK(held.memory == Seconds{1 + 2});
  r.on_chip_bytes = 3.9;
  CHECK(time_of(g, r, values).memory == Seconds{5});
  r = rates(1, 8, 0, 4);
  r.on_chip_bytes_per_second = {BytesPerSecond{4}};  // no chip is slower than its memory
  CHECK(time_of(g, r, values).memory == Seconds{1.25});
}

TEST_CASE("op_cost: intermediates are those of eager operators that only move numbers") {
  std::set<std::string> with;
  std::set<std::string> without;
  for (const OpGroup& g : fold(record(tiny(), {}, eager).prefill(), eager)) {
    (g.intermediate_bytes.is_zero() ? without : with).insert(g.op);
    if (g.op != "attention_scores") continue;
    // A token: 6 heads of 8 query and, repeated, key numbers; 6 scores; two bytes each.
    CHECK(g.intermediate_bytes.at(std::vector<std::uint64_t>{1, 1, 1}) == 2 * (48 + 48 + 6));
  }
  for (const char* op : {"add", "multiply", "scale", "copy", "row_mean", "rotate_half",
                         "attention_scores", "attention_values"}) {
    CHECK_MESSAGE(with.contains(op), op);
    CHECK_MESSAGE(!without.contains(op), op);
  }
  for (const char* op : {"linear", "softmax", "silu", "repeat_heads", "cache_append"}) {
    CHECK_MESSAGE(without.contains(op), op);
    CHECK_MESSAGE(!with.contains(op), op);
  }
  for (const OpGroup& g : fold(record(tiny(), {}, fused).prefill(), fused)) {
    CHECK(g.intermediate_bytes.is_zero());
  }
}

TEST_CASE("op_cost: an operator with a length has its rates there") {
  Rates r = rates(4, 2, 0.5);
  r.flops_by_length[static_cast<std::size_t>(RateClass::TiledAttention)] =
      RateCurve({{10, 0.25}, {20, 0.75}}, 1);
  r.bytes_by_length[static_cast<std::size_t>(BandwidthClass::Softmax)] =
      RateCurve({{10, 0.25}}, 0.5);
  OpGroup attention = group(12, 2, RateClass::TiledAttention, BandwidthClass::Attention);
  CHECK(time_of(attention, r, values).total == Seconds{3.5});  // no length
  attention.length = 15;
  CHECK(time_of(attention, r, values).compute == Seconds{6});  // half of the rate
  CHECK(time_of(attention, r, values).memory == Seconds{1});
  CHECK(time_of(attention, r, values).total == Seconds{6.5});
  OpGroup softmax = group(4, 10, RateClass::Vector, BandwidthClass::Softmax);
  softmax.length = 30;
  CHECK(time_of(softmax, r, values).compute == Seconds{1});
  CHECK(time_of(softmax, r, values).memory == Seconds{10});
}

TEST_CASE("op_cost: softmax and tiled attention of many queries have the length of their keys") {
  for (const Lowering& lowering : {eager, Lowering{}}) {
    const Recording r = record(tiny(), {}, lowering, {.chunked = true});
    std::uint64_t with_length = 0;
    for (const OpGroup& g : fold(r.prefill(), lowering)) {
      if (g.length.is_zero() || g.op == "linear") continue;
      CHECK(g.op == (lowering.attention == Kernels::Eager ? "softmax" : "tiled_attention"));
      CHECK(g.length == Count(symbol::kv_len));
      with_length += g.count;
    }
    CHECK(with_length == 3);  // layers
    for (const OpGroup& g : fold(r.decode(), lowering))
      CHECK((g.length.is_zero() || g.op == "linear"));
  }
}

TEST_CASE("op_cost: products with weights have the length of their rows") {
  const Recording r = record(tiny(), {}, {});
  std::uint64_t layers = 0;
  for (const OpGroup& g : fold(r.prefill(), {})) {
    if (g.op != "linear") continue;
    CHECK(g.bandwidth_class == BandwidthClass::Product);
    const bool head = g.label == "head";
    CHECK(g.length.at(r.symbols.resolve({3, 17, 19})) == (head ? 3 : 3 * 17));
    if (!head) layers += g.count;
  }
  CHECK(layers == 3 * 7);
  for (const OpGroup& g : fold(r.decode(), {})) {
    if (g.op == "linear") CHECK(g.length.at(r.symbols.resolve({3, 17, 19})) == 3);
  }
}

TEST_CASE("op_cost: convolutions and products of heads have the length of their rows") {
  const auto lengths = [](const Recording& r, const Graph& graph, const std::string& op) {
    std::set<std::uint64_t> found;
    for (const OpGroup& g : fold(graph, {})) {
      if (g.op != op) continue;
      CHECK(g.bandwidth_class == BandwidthClass::Product);
      found.insert(g.length.at(r.symbols.resolve({3, 1500, 19})));
    }
    return found;
  };
  // Frames of a sound, and half as many after the stride of the second.
  const Recording whisper = record(load_model(catalog(), "whisper-base"), {}, {});
  CHECK(lengths(whisper, whisper.prefill(), "conv1d") ==
        std::set<std::uint64_t>{3 * 1500, 3 * 3000});
  const Recording slim =
      record(load_model(catalog(), "opt-125m"), {{"slim", {{"option", "xcache"}}}}, {});
  CHECK(lengths(slim, slim.decode(), "head_linear") == std::set<std::uint64_t>{3});
}

TEST_CASE("op_cost: an M1's products take what was measured, whatever their rows") {
  Hardware m1 = load_hardware(catalog(), "m2-pro-cpu");
  m1.peak_flops_per_second[DType::FP32].value = 0.98e12;  // as data/hardware/m2-pro-cpu.json says
  m1.matrix_rate[DType::FP32].value = 1;
  m1.operator_latency.value = 0;
  Lowering fp32;
  fp32.weights = fp32.activations = fp32.cache = DType::FP32;
  const Rates r = make_rates(m1, fp32, Mode::Calibrated);
  const CsvTable table = CsvTable::read(catalog().root() / "measurements/sgemm_m1.csv");
  std::size_t found = 0;
  for (const CsvRow& row : table.rows()) {
    const std::uint64_t rows = row.whole("rows");
    const std::uint64_t inputs = row.whole("inputs");
    const std::uint64_t outputs = row.whole("outputs");
    if (rows == 1) continue;
    CAPTURE(rows);
    OpGroup product =
        group(2 * rows * inputs * outputs, 4 * (inputs * outputs + rows * inputs + rows * outputs),
              RateClass::Matrix, BandwidthClass::Product);
    product.length = rows;
    CHECK(time_of(product, r, values).total.value ==
          near(row.number("shortest_ms") * 1e-3).epsilon(0.08));
    ++found;
  }
  CHECK(found == 13);
}

TEST_CASE("op_cost: what nobody measured by its length has none") {
  // A window, an encoder that sees all, steps that take tokens back.
  const Architecture window = tiny(R"({"model_type": "mistral", "sliding_window": 8})");
  for (const OpGroup& g : fold(record(window, {}, {}).prefill(), {})) {
    CHECK((g.length.is_zero() || g.op == "linear"));
  }
  const Architecture whisper = load_model(catalog(), "whisper-base");
  for (const Lowering& lowering : {eager, Lowering{}}) {
    std::uint64_t with_length = 0;
    for (const OpGroup& g : fold(record(whisper, {}, lowering).prefill(), lowering)) {
      if (g.phase.find("encoder") == std::string::npos || g.length.is_zero()) continue;
      if (g.bandwidth_class == BandwidthClass::Product) continue;
      CHECK(g.op == "softmax");  // of eager attention, whose rows are all keys
      with_length += g.count;
    }
    CHECK((with_length > 0) == (lowering.attention == Kernels::Eager));
  }
  const Recording lazy = record(tiny(), {{"lazyllm", {{"begin", "0.75"}, {"end", "0.5"}}}}, eager);
  for (const OpGroup& g : fold(lazy.decode(), eager)) {
    CHECK((g.length.is_zero() || g.op == "linear"));
  }
}

TEST_CASE("op_cost: doubling a bandwidth or a rate never slows an operator") {
  const Recording r = record(tiny(), {}, eager);
  const SymbolValues at = r.symbols.resolve({3, 17, 19});
  for (const Graph* graph : {&r.prefill(), &r.decode()}) {
    for (const OpGroup& g : fold(*graph, eager)) {
      const double base = time_of(g, rates(50, 20, 0.5, 1000), at).total.value;
      CHECK(time_of(g, rates(50, 40, 0.5, 1000), at).total.value <= base);
      CHECK(time_of(g, rates(100, 20, 0.5, 1000), at).total.value <= base);
      CHECK(time_of(g, rates(50, 20, 0.25, 1000), at).total.value <= base);
      CHECK(time_of(g, rates(50, 20, 0.5, 2000), at).total.value <= base);
    }
  }
}

TEST_CASE("op_cost: folding keeps every operator and all work") {
  for (const std::string& patch :
       {std::string("{}"), std::string(R"({"model_type": "gemma2", "sliding_window": 7})")}) {
    for (const Lowering& lowering : {eager, Lowering{}}) {
      const Recording r = record(tiny(patch), {}, lowering);
      for (const Graph* graph : {&r.prefill(), &r.decode()}) {
        const std::vector<OpGroup> groups = fold(*graph, lowering);
        std::uint64_t operators = 0;
        for (const OpGroup& g : groups) operators += g.count;
        CHECK(operators == graph->nodes().size());
        CHECK(kvcast::roofline::total_work(groups) == kvcast::total_work(*graph));
        CHECK(groups.size() < graph->nodes().size());
      }
    }
  }
}

TEST_CASE("op_cost: identical layers fold to one group an operator, different ones do not") {
  const auto attention = [](const std::string& patch) {
    std::vector<std::uint64_t> counts;
    const Recording r = record(tiny(patch), {}, {});
    for (const OpGroup& g : fold(r.prefill(), {})) {
      if (g.op == "tiled_attention") counts.push_back(g.count);
    }
    return counts;
  };
  CHECK(attention("{}") == std::vector<std::uint64_t>{3});
  // windows on layers 0 and 2
  CHECK(attention(R"({"model_type": "gemma2", "sliding_window": 7})") ==
        std::vector<std::uint64_t>{2, 1});
}

TEST_CASE("op_cost: tiled attention of one query is decoding's, of several prefill's") {
  const Recording r = record(tiny(), {}, {});
  const auto check = [](const Graph& graph, RateClass rate_class, BandwidthClass bandwidth_class) {
    std::size_t found = 0;
    for (const OpGroup& g : fold(graph, {})) {
      if (g.op != "tiled_attention") continue;
      ++found;
      CHECK(g.rate_class == rate_class);
      CHECK(g.bandwidth_class == bandwidth_class);
    }
    CHECK(found > 0);
  };
  check(r.prefill(), RateClass::TiledAttention, BandwidthClass::Attention);
  check(r.decode(), RateClass::DecodeAttention, BandwidthClass::Decode);
}

TEST_CASE("op_cost: eager element-wise kernels and softmax move at their own bandwidths") {
  const Recording r = record(tiny(), {}, eager);
  for (const OpGroup& g : fold(r.prefill(), eager)) {
    CAPTURE(g.op);
    const bool softmax = g.op == "softmax";
    const bool memory = g.op == "attention_scores" || g.op == "attention_values" ||
                        g.op == "embedding" || g.op == "cache_append";
    if (softmax) CHECK(g.bandwidth_class == BandwidthClass::Softmax);
    if (memory) CHECK(g.bandwidth_class == BandwidthClass::Memory);
    if (g.op == "linear") CHECK(g.bandwidth_class == BandwidthClass::Product);
    if (g.op == "scale" || g.op == "add" || g.op == "square" || g.op == "rotate_half") {
      CHECK(g.bandwidth_class == BandwidthClass::Elementwise);
    }
  }
  const Recording of_fused = record(tiny(), {}, {});
  for (const OpGroup& g : fold(of_fused.prefill(), {})) {
    CHECK(g.bandwidth_class == (g.op == "tiled_attention" ? BandwidthClass::Attention
                                : g.op == "linear"        ? BandwidthClass::Product
                                                          : BandwidthClass::Memory));
  }
}

TEST_CASE("op_cost: the mask repeats over batch and heads, cos over the batch, a norm not at all") {
  const Recording r = record(tiny(), {}, eager);
  const SymbolValues at = r.symbols.resolve({3, 17, 19});
  bool mask = false;
  bool angles = false;
  for (const OpGroup& g : fold(r.prefill(), eager)) {
    if (g.label == "mask" && g.op == "add") {
      mask = true;
      CHECK(g.broadcast.operand_bytes.at(at) == 2 * 17 * 17);
      CHECK(g.broadcast.times.at(at) == 3 * 6);
    } else if (g.label == "query_rope" && g.op == "multiply") {
      angles = true;
      CHECK(g.broadcast.operand_bytes.at(at) == 2 * 17 * 8);
      CHECK(g.broadcast.times.at(at) == 3);
    } else if (g.label == "attention_norm" || g.label == "residual") {
      CHECK(g.broadcast.operand_bytes.is_zero());
    }
  }
  CHECK(mask);
  CHECK(angles);
}

TEST_CASE("op_cost: a rank's messages are no work of its device") {
  const Lowering lowering;
  const Recording r = record_rank(tiny(), parse_methods("kvr:p=3"), lowering, {{4, 3, 2}, 1});
  const Work all = kvcast::total_work(r.prefill());
  const Work device = kvcast::roofline::total_work(fold(r.prefill(), lowering));
  const std::vector<std::uint64_t> at = r.symbols.resolve({1, 3, 7});
  CHECK(all.flops == device.flops);
  CHECK(device.sent_bytes().is_zero());
  // 3 layers, keys and values of 3 heads of 8 in fp16: 4 rows come in and 7 go out, each read once
  // and written once.
  CHECK(all.bytes().at(at) - device.bytes().at(at) == 3 * 2 * 3 * 8 * 2 * (4 + 7) * 2);
}

TEST_CASE("op_cost: bounds have names") {
  CHECK(name(Bound::Compute) == "compute");
  CHECK(name(Bound::Memory) == "memory");
  CHECK(name(Bound::Link) == "link");
  CHECK(name(Bound::Latency) == "latency");
}

namespace {

/// Labels of the groups of a product [5, 32] x [7, 32] with the bytes that each reads and writes.
std::string product_groups(const Lowering& lowering) {
  Symbols symbols;
  Recorder r(symbols, lowering);
  const Value x = r.input("x", {5, 32}, lowering.activations);
  r.output(r.linear("up", x, r.weight("weight", {7, 32})));
  std::string text;
  for (const OpGroup& g : fold(r.take(), lowering)) {
    std::uint64_t read = 0;
    std::uint64_t written = 0;
    for (const Count& c : g.work.read) read += c.constant();
    for (const Count& c : g.work.written) written += c.constant();
    text += g.label + " " + std::to_string(read) + " " + std::to_string(written) + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("op_cost: engines with wide activations convert what products read and write") {
  Lowering l;
  // x is 5 x 32 x 2 bytes, the weight 7 x 32 x 2, the result 5 x 7 x 2.
  CHECK(product_groups(l) == "up 768 70\n");
  l.activations = DType::FP32;
  CHECK(product_groups(l) == "up 1088 140\n");
  l.operands = DType::FP16;
  CHECK(product_groups(l) == "up 1088 140\nup_convert_input 640 320\nup_convert_output 70 140\n");
  // Blocks of 32 are 34 bytes: the weight is 7 of them, the input that is quantised 5.
  l.weights = DType::Q8_0;
  CHECK(product_groups(l) == "up 878 140\nup_quantize 640 170\n");
  l.dequantizes_weights = true;
  CHECK(product_groups(l) ==
        "up 1088 140\nup_dequantize 238 448\nup_convert_input 640 320\nup_convert_output 70 140\n");
}

TEST_CASE("op_cost: operands of 8 bits need no kernel, as the rates of products have it") {
  Lowering l;
  l.weights = DType::FP8;
  l.activations = DType::BF16;
  l.operands = DType::FP8;
  CHECK(product_groups(l) == "up 544 70\n");  // x is 5 x 32 x 2 bytes, the weight 7 x 32
  l.weights = DType::BF16;
  CHECK(product_groups(l) == "up 768 70\n");
}

TEST_CASE("op_cost: a product's bytes move as its own weight is stored") {
  Lowering l = fused;
  l.weights = parse_weight_types("int4,head=fp16");
  for (const OpGroup& g : fold(record(tiny(), {}, l).decode(), l)) {
    if (g.rate_class != RateClass::Matrix) continue;
    CAPTURE(g.label);
    CHECK((g.bandwidth_class == BandwidthClass::Product) == (g.label == "head"));
  }
}

TEST_CASE("op_cost: weights become 16 bits before products of a prompt, not of a decode step") {
  Lowering l = fused;
  l.weights = DType::INT8;
  l.operands = DType::FP16;
  l.dequantizes_weights = true;
  const Recording recording = record(tiny(), {}, l);
  const auto count = [&](const Graph& graph, const std::string& end) {
    const std::vector<OpGroup> groups = fold(graph, l);
    return std::count_if(groups.begin(), groups.end(),
                         [&](const OpGroup& g) { return g.label.ends_with(end); });
  };
  CHECK(count(recording.prefill(), "_dequantize") > 0);
  CHECK(count(recording.prefill(), "_quantize") == 0);
  CHECK(count(recording.decode(), "_dequantize") == 0);
  CHECK(count(recording.decode(), "_quantize") > 0);
}

TEST_CASE("op_cost: caches that each query head reads come again from the chip") {
  OpGroup g = group(12, 10);
  g.reread_bytes = 20;
  Rates r = rates(4, 2);
  CHECK(time_of(g, r, values).total == Seconds{5});
  r.on_chip_read_bytes_per_second = 4;  // 20 bytes at 4 a second: 5 s more
  CHECK(time_of(g, r, values).total == Seconds{10});

  const Recording recording = record(tiny(), {}, fused);  // 6 heads over 3
  const auto reread = [&](const Lowering& l, std::uint64_t times) {
    for (const OpGroup& op : fold(recording.decode(), l)) {
      const Count& cache = op.work.read[static_cast<std::size_t>(Storage::KvCache)];
      const bool attends = op.rate_class == RateClass::DecodeAttention;
      CHECK(op.reread_bytes == (attends ? cache * times : Count()));
    }
  };
  Lowering l = fused;
  reread(l, 0);
  l.reads_groups_again = true;
  reread(l, 1);
  l.groups_read_once = {4};
  reread(l, 1);
  l.groups_read_once = {4, 2};
  reread(l, 0);
}
