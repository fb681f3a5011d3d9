// One query over a cache long enough for several stretches of several pieces of keys: no oracle's
// prompt is.
#include <cmath>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/kernels.h"
#include "model/execute/plain_loops.h"
#include "tests/execute/operand_of.h"
#include "tests/execute/relative_difference.h"

namespace kvcast::execute {
namespace {

struct Sizes {
  std::size_t batch = 1;
  std::size_t keys = 6000;
  std::uint64_t window = 0;
};

/// Largest difference of the fast kernel from the plain loops, of their range.
double difference(TiledAttention op, const Sizes& sizes) {
  const Heads v = op.value_heads();
  op.mask = {true, sizes.window, sizes.keys - 1};
  op.scale = 0.5;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto filled = [&](std::size_t count) {
    std::vector<float> numbers(count);
    for (float& x : numbers) x = normal(random);
    return numbers;
  };
  const std::size_t features = op.heads.num_key_value_heads * op.heads.head_dim;
  const std::size_t value_features = v.num_key_value_heads * v.head_dim;
  std::vector<float> query = filled(sizes.batch * op.heads.num_attention_heads * op.heads.head_dim);
  std::vector<float> keys = filled(sizes.batch * sizes.keys * features);
  std::vector<float> values = filled(sizes.batch * sizes.keys * value_features);
  // Later keys are longer, so that the largest score keeps growing.
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] *= 0.2F + static_cast<float>(i / features % sizes.keys) / 3000;
  }
  const auto operand = [&](std::vector<float>& numbers, std::size_t rows, std::size_t columns) {
    return operand_of(numbers, {sizes.batch, rows, columns}, rows * columns);
  };
  std::vector<float>& read = op.values_are_keys ? keys : values;
  const std::vector<Operand> inputs{operand(query, 1, query.size() / sizes.batch),
                                    operand(keys, sizes.keys, features),
                                    operand(read, sizes.keys, value_features)};
  const std::size_t width = v.num_attention_heads * v.head_dim;
  std::vector<float> fast(sizes.batch * width);
  std::vector<float> plain(fast.size());
  const Operand fast_output = operand(fast, 1, width);
  const Operand plain_output = operand(plain, 1, width);
  const Node node{op, {}, {}, "", "", no_layer};
  run_fast({node, inputs, fast_output, {}});
  run_plain({node, inputs, plain_output, {}});
  return relative_difference(fast, plain);
}

TEST_CASE("decode attention: long caches as the plain loops compute them") {
  TiledAttention plain;
  plain.heads = {6, 3, 20};  // no multiple of a vector, two queries a key
  TiledAttention sums_whole_rows = plain;
  sums_whole_rows.heads = {7, 7, 8};
  sums_whole_rows.num_value_heads = 1;
  sums_whole_rows.value_dim = 56;
  sums_whole_rows.values_are_keys = true;
  RopeTable table;
  table.inverse_frequencies = {1, 0.1, 0.01};
  TiledAttention rotates = sums_whole_rows;
  rotates.key_rope = std::make_shared<const RopeTable>(table);
  TiledAttention one_key_head = plain;
  one_key_head.heads = {5, 1, 40};
  for (const TiledAttention& op : {plain, sums_whole_rows, rotates, one_key_head}) {
    CHECK(difference(op, {}) < 1e-5);
    CHECK(difference(op, {.batch = 2, .keys = 5001}) < 1e-5);
    CHECK(difference(op, {.keys = 5003, .window = 4500}) < 1e-5);
    CHECK(difference(op, {.keys = 3}) < 1e-5);
  }
}

}  // namespace
}  // namespace kvcast::execute
