// Scores and values of the fast kernels: few queries and more than dot products take, keys about a
// panel and a vector, heads that are no multiple of a vector.
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/kernels.h"
#include "tests/execute/operand_of.h"
#include "tests/execute/whole_numbers.h"

namespace kvcast::execute {
namespace {

constexpr std::size_t batch = 2;

struct Sizes {
  Heads heads;
  std::size_t queries;
  std::size_t keys;

  std::size_t query_row() const { return heads.num_attention_heads * heads.head_dim; }
  std::size_t key_row() const { return heads.num_key_value_heads * heads.head_dim; }
  /// Of one pair in [batch, heads, queries, keys].
  std::size_t pair(std::size_t b, std::size_t h, std::size_t i, std::size_t j) const {
    return ((b * heads.num_attention_heads + h) * queries + i) * keys + j;
  }
  std::size_t query(std::size_t b, std::size_t i, std::size_t h) const {
    return (b * queries + i) * query_row() + h * heads.head_dim;
  }
  /// Sequences have room for a row more than there are keys, as in a cache.
  std::size_t key(std::size_t b, std::size_t j, std::size_t h) const {
    const std::size_t per_key = heads.num_attention_heads / heads.num_key_value_heads;
    return (b * (keys + 1) + j) * key_row() + h / per_key * heads.head_dim;
  }
};

template <typename Attend>
std::vector<float> sums_of(const Sizes& s, std::size_t count, Attend attend) {
  std::vector<float> sums(count + 1);
  sums.back() = 0.5F;
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t h = 0; h < s.heads.num_attention_heads; ++h) {
      for (std::size_t i = 0; i < s.queries; ++i) {
        for (std::size_t j = 0; j < s.keys; ++j) {
          for (std::size_t d = 0; d < s.heads.head_dim; ++d) attend(sums, b, h, i, j, d);
        }
      }
    }
  }
  return sums;
}

template <typename Check>
void for_all_sizes(Check check) {
  for (const Heads& heads :
       {Heads{6, 3, 20}, Heads{4, 4, 32}, Heads{3, 1, 16}, Heads{6, 3, 64}, Heads{18, 2, 16}}) {
    for (const std::size_t queries : {1u, 2u, 8u, 9u, 25u, 50u}) {
      for (const std::size_t keys : {1u, 15u, 64u, 81u, 515u}) {
        CAPTURE(heads.head_dim);
        CAPTURE(queries);
        CAPTURE(keys);
        check(Sizes{heads, queries, keys});
      }
    }
  }
}

TEST_CASE("eager attention: scores of all sizes are sums of products, nothing is beside them") {
  for_all_sizes([](const Sizes& s) {
    const std::size_t h = s.heads.num_attention_heads;
    std::vector<float> q = whole_numbers(batch * s.queries * s.query_row(), 1);
    std::vector<float> k = whole_numbers(batch * (s.keys + 1) * s.key_row(), 2);
    std::vector<float> scores(batch * h * s.queries * s.keys + 1, 0.5F);
    const std::vector<Operand> inputs{
        operand_of(q, {batch, s.queries, s.query_row()}, s.queries * s.query_row()),
        operand_of(k, {batch, s.keys, s.key_row()}, (s.keys + 1) * s.key_row())};
    const Operand output =
        operand_of(scores, {batch, h, s.queries, s.keys}, h * s.queries * s.keys);
    run_fast({{AttentionScores{s.heads}, {}, {}, "", "", no_layer}, inputs, output, {}});
    const std::vector<float> expected =
        sums_of(s, scores.size() - 1, [&](auto& sums, auto b, auto head, auto i, auto j, auto d) {
          sums[s.pair(b, head, i, j)] += q[s.query(b, i, head) + d] * k[s.key(b, j, head) + d];
        });
    CHECK((scores == expected));
  });
}

TEST_CASE("eager attention: values of all sizes are sums of products, nothing is beside them") {
  for_all_sizes([](const Sizes& s) {
    const std::size_t h = s.heads.num_attention_heads;
    std::vector<float> p = whole_numbers(batch * h * s.queries * s.keys, 1);
    std::vector<float> v = whole_numbers(batch * (s.keys + 1) * s.key_row(), 2);
    std::vector<float> out(batch * s.queries * s.query_row() + 1, 0.5F);
    const std::vector<Operand> inputs{
        operand_of(p, {batch, h, s.queries, s.keys}, h * s.queries * s.keys),
        operand_of(v, {batch, s.keys, s.key_row()}, (s.keys + 1) * s.key_row())};
    const Operand output =
        operand_of(out, {batch, s.queries, s.query_row()}, s.queries * s.query_row());
    run_fast({{AttentionValues{s.heads}, {}, {}, "", "", no_layer}, inputs, output, {}});
    const std::vector<float> expected =
        sums_of(s, out.size() - 1, [&](auto& sums, auto b, auto head, auto i, auto j, auto d) {
          sums[s.query(b, i, head) + d] += p[s.pair(b, head, i, j)] * v[s.key(b, j, head) + d];
        });
    CHECK((out == expected));
  });
}

}  // namespace
}  // namespace kvcast::execute
