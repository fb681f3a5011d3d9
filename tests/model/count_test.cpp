#include "model/base/count.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"

using namespace kvcast;

namespace {

const Count batch = symbol::batch;
const Count prompt = symbol::prompt_len;
const Count kv = symbol::kv_len;

std::uint64_t at(const Symbols& s, const Count& c, std::uint64_t b, std::uint64_t p,
                 std::uint64_t k) {
  return c.at(s.resolve({b, p, k}));
}

}  // namespace

TEST_CASE("count: a polynomial's value is the sum of its products") {
  // 3·b·p² + 5·k - 7 at b = 2, p = 11, k = 13: 3·2·121 + 65 - 7 = 784
  const Count c = 3 * batch * prompt * prompt + 5 * kv - 7;
  CHECK(at(Symbols(), c, 2, 11, 13) == 784);
}

TEST_CASE("count: equal polynomials are equal however they were built") {
  CHECK((batch + prompt) * (batch + prompt) ==
        batch * batch + 2 * (prompt * batch) + prompt * prompt);
  CHECK((batch + prompt) * (batch - prompt) + prompt * prompt == batch * batch);
  CHECK(batch - batch == Count());
  CHECK((batch - batch).is_zero());
  CHECK((6 * batch).scaled(1, 4) == (3 * batch).scaled(1, 2));
  CHECK((6 * batch).scaled(1, 3) == 2 * batch);
  CHECK((prompt.scaled(1, 2) + prompt.scaled(1, 2)) == prompt);
  CHECK_FALSE(batch * prompt == batch * kv);
  CHECK_FALSE(batch.scaled(1, 2) == batch);
}

TEST_CASE("count: a count may be added to itself and taken from itself") {
  const Count half = Count(symbol::kv_len).scaled(1, 2);
  Count a = 3 * Count(symbol::batch) + half + 7;
  a += a;
  CHECK(a == 6 * Count(symbol::batch) + symbol::kv_len + 14);
  CHECK(a.denominator() == 1);
  a -= half;
  CHECK(a.denominator() == 2);
  a -= a;
  CHECK(a.is_zero());
  CHECK(a == Count());
}

TEST_CASE("count: fractions stay exact and round up once, at the end") {
  // 3·p/2 + 3·p/2 at p = 5 is 15; each alone is 7.5 -> 8
  const Count half = (3 * prompt).scaled(1, 2);
  CHECK(at(Symbols(), half, 2, 5, 3) == 8);
  CHECK(at(Symbols(), half + half, 2, 5, 3) == 15);
  CHECK(at(Symbols(), half.scaled(1, 3), 2, 5, 3) == 3);  // 2.5
  // p(p+1)/2 is whole for every p
  const Count triangle = (prompt * prompt + prompt).scaled(1, 2);
  for (std::uint64_t p = 0; p < 20; ++p) CHECK(at(Symbols(), triangle, 2, p, 3) == p * (p + 1) / 2);
}

TEST_CASE("count: constants, zero and dependence are told apart") {
  CHECK(Count().is_constant());
  CHECK(Count(7).is_constant());
  CHECK(Count(7).constant() == 7);
  CHECK(Count(0).is_zero());
  CHECK((prompt - prompt + 5).constant() == 5);
  CHECK_FALSE(prompt.is_constant());
  CHECK((batch * kv + 2).depends_on(symbol::kv_len));
  CHECK_FALSE((batch * kv + 2).depends_on(symbol::prompt_len));
  CHECK_FALSE((batch * kv - kv * batch).depends_on(symbol::kv_len));
}

TEST_CASE("count: < is a strict order that agrees with ==") {
  const std::vector<Count> counts{
      Count(),       1,         2,     batch, prompt, batch * prompt, batch + 1, batch.scaled(1, 2),
      batch * batch, 2 * batch, kv - 1};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::size_t j = 0; j < counts.size(); ++j) {
      CAPTURE(i);
      CAPTURE(j);
      const int relations =
          (counts[i] < counts[j]) + (counts[j] < counts[i]) + (counts[i] == counts[j]);
      CHECK(relations == 1);
    }
  }
}

TEST_CASE("count: a value that does not fit 64 bits throws, at its construction or evaluation") {
  const std::uint64_t big = std::uint64_t{1} << 40;
  CHECK_THROWS_AS(Count(std::numeric_limits<std::uint64_t>::max()), Error);
  CHECK_THROWS_AS(Count(big) * Count(big), Error);
  CHECK_THROWS_AS((batch * big) * (prompt * big), Error);
  const std::uint64_t half = std::uint64_t{1} << 62;
  CHECK_THROWS_AS(Count(half) + Count(half), Error);
  const Symbols s;
  // 2^63 + 2^62 fits an unsigned 64-bit number although no coefficient is that large.
  CHECK(at(s, 3 * batch, half, 2, 3) == 3 * half);
  CHECK_THROWS_AS(at(s, 4 * batch, half, 2, 3), Error);
  CHECK_THROWS_AS(at(s, batch * prompt, half, 4, 3), Error);
  CHECK_THROWS_AS(at(s, batch * prompt * kv, half, half, half), Error);
}

TEST_CASE("count: a product of more than six symbols throws") {
  const Count six = batch * batch * batch * prompt * prompt * kv;
  CHECK(at(Symbols(), six, 2, 3, 5) == 8 * 9 * 5);
  CHECK_THROWS_AS(six * kv, Error);
}

TEST_CASE("symbols: minimum, ceil_fraction and ceil_divide follow their definitions") {
  Symbols s;
  const Count smaller = s.minimum(prompt, 9);
  const Count quarter = s.ceil_divide(prompt, 4);
  const Count both = s.minimum(kv + 2, quarter);
  for (std::uint64_t p = 0; p < 30; ++p) {
    CAPTURE(p);
    CHECK(at(s, smaller, 2, p, 3) == std::min<std::uint64_t>(p, 9));
    CHECK(at(s, quarter, 2, p, 3) == (p + 3) / 4);
    CHECK(at(s, both, 2, p, 3) == std::min<std::uint64_t>(5, (p + 3) / 4));
  }
}

TEST_CASE("symbols: ceil_fraction of a decimal fraction is the decimal answer") {
  // In binary 0.1 is a little more than a tenth; 0.1 of 10 tokens is still 1.
  for (std::uint64_t thousandths = 1; thousandths <= 1000; thousandths += 7) {
    Symbols s;
    const Count kept = s.ceil_fraction(prompt, static_cast<double>(thousandths) / 1000);
    for (const std::uint64_t p : {1u, 2u, 3u, 10u, 99u, 1000u, 1001u, 4096u, 131072u}) {
      CAPTURE(thousandths);
      CAPTURE(p);
      CHECK(at(s, kept, 2, p, 3) == (p * thousandths + 999) / 1000);
    }
  }
}

TEST_CASE("symbols: ceil_fraction of 1 keeps every token, of however long a prompt") {
  Symbols s;
  const Count kept = s.ceil_fraction(prompt, 1.0);
  for (const std::uint64_t p :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{1} << 20,
        (std::uint64_t{1} << 32) - 1, std::uint64_t{1} << 33, std::uint64_t{1} << 40}) {
    CAPTURE(p);
    CHECK(at(s, kept, 2, p, 3) == p);
  }
}

TEST_CASE("symbols: a tiny fraction keeps one token of any prompt, and none of no prompt") {
  Symbols s;
  const Count kept = s.ceil_fraction(prompt, 1e-12);
  CHECK(at(s, kept, 2, 1, 3) == 1);
  CHECK(at(s, kept, 2, 100, 3) == 1);
  CHECK(at(s, kept, 2, 0, 3) == 0);
}

TEST_CASE("symbols: a fraction outside (0, 1] throws") {
  Symbols s;
  for (const double f : {0.0, -0.5, 1.0001, std::numeric_limits<double>::quiet_NaN(),
                         std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_AS(s.ceil_fraction(prompt, f), Error);
  }
}

TEST_CASE("symbols: derivations of constants fold, those of equal counts share one symbol") {
  Symbols s;
  CHECK(s.minimum(7, 5) == Count(5));
  CHECK(s.ceil_fraction(10, 0.25) == Count(3));
  CHECK(s.ceil_divide(10, 4) == Count(3));
  CHECK(s.ceil_divide(prompt, 1) == prompt);
  CHECK(s.minimum(prompt, prompt) == prompt);
  CHECK_FALSE(s.has_derived());
  const Count a = s.minimum(prompt, 9);
  const Count b = s.minimum(prompt, 9);
  CHECK(a == b);
  CHECK(s.has_derived());
  CHECK(s.size() == symbol::num_free + 1);
  CHECK_FALSE(s.minimum(prompt, 8) == a);
}

TEST_CASE("symbols: breakpoints are the cache lengths at which a window ends") {
  Symbols s;
  s.minimum(prompt, 100);  // not of kv_len
  s.minimum(kv, 9);
  s.minimum(kv, 4);
  const std::vector<std::uint64_t> points = s.kv_len_breakpoints(s.resolve({2, 3, 5}));
  CHECK(points == std::vector<std::uint64_t>{4, 9});
  CHECK_FALSE(s.kv_len_breakpoints_vary());
  s.minimum(kv, prompt);
  CHECK(s.kv_len_breakpoints_vary());
  CHECK(s.kv_len_breakpoints(s.resolve({2, 30, 5})) == std::vector<std::uint64_t>{4, 9, 30});
  Symbols t;
  t.minimum(kv, t.minimum(prompt, 7));  // of the prompt by way of another symbol
  CHECK(t.kv_len_breakpoints_vary());
}

TEST_CASE(
    "symbols: breakpoints of chunks are where one ends, for the token and for those before it") {
  Symbols s;
  s.whole_chunks(kv - 1, 4);  // whole chunks of the tokens before a step
  CHECK(s.kv_len_breakpoints(s.resolve({2, 3, 5}), 13) == std::vector<std::uint64_t>{4, 8, 12});
  Symbols t;
  t.whole_chunks(kv - prompt, 4);  // before the last three tokens: kv_len - 2 are 4 and 8
  CHECK(t.kv_len_breakpoints(t.resolve({2, 3, 5}), 13) == std::vector<std::uint64_t>{6, 10});
  CHECK(t.kv_len_breakpoints(t.resolve({2, 3, 5})).empty());
}

TEST_CASE("symbols: what a run finds is what is expected until then, and never above its most") {
  Symbols s;
  const Symbol most_only = s.found_by_run(prompt, "a");
  const Symbol expected = s.found_by_run(prompt, "b", s.minimum(prompt, 4));
  const Count rest = s.minimum(prompt - expected, 3);
  const auto at = [&](const SymbolValues& v) {
    return std::vector<std::uint64_t>{v[most_only.id], v[expected.id], rest.at(v)};
  };
  using Values = std::vector<std::uint64_t>;
  CHECK(at(s.resolve({2, 6, 5})) == Values{6, 4, 2});
  CHECK(at(s.resolve_most({2, 6, 5})) == Values{6, 6, 0});
  const std::vector<FoundCount> found{{expected, 5}};
  CHECK(at(s.resolve({2, 6, 5}, found)) == Values{6, 5, 1});
  CHECK(at(s.resolve_most({2, 6, 5}, found)) == Values{6, 5, 1});
  // One after the other is as both at once.
  std::vector<FoundCount> growing{{most_only, 2}};
  SymbolValues values = s.resolve({2, 6, 5}, growing);
  CHECK(at(values) == Values{2, 4, 2});
  growing.push_back({expected, 6});
  s.resolve_newest(values, growing);
  CHECK(at(values) == Values{2, 6, 0});
  CHECK(values == s.resolve({2, 6, 5}, growing));
}

TEST_CASE("symbols: at many points at once they are what they are at each") {
  Symbols s;
  const Count window = s.minimum(kv + 3, 100);
  const Count kept = s.ceil_fraction(prompt, 0.3);
  const Count chunks = s.whole_chunks(prompt + window, 16);
  s.expected_distinct(batch * kept, {{0.125, 60}, {0.5, 4}});
  s.minimum(s.minimum(chunks.scaled(1, 3) * batch, kept * window), batch * 500);
  s.drawn_sum(batch * prompt, 0.25, 1.5);
  s.found_by_run(kept, "found", s.minimum(kept, 7));
  std::vector<SymbolValues> points;
  for (const std::uint64_t b : {1u, 2u, 256u}) {
    for (const std::uint64_t p : {1u, 9u, 10u, 1000u, 131072u}) {
      for (const std::uint64_t k : {1u, 96u, 97u, 98u, 1000003u})
        points.push_back(s.resolve({b, p, k}));
    }
  }
  const std::size_t n = points.size();
  std::vector<double> values(s.size() * n, -1);
  const auto is_equal = [&](std::size_t id) {
    for (std::size_t i = 0; i < n; ++i) {
      if (values[id * n + i] != static_cast<double>(points[i][id])) return false;
    }
    return true;
  };
  for (std::size_t id = 0; id < symbol::num_free; ++id) {
    for (std::size_t i = 0; i < n; ++i) values[id * n + i] = static_cast<double>(points[i][id]);
  }
  s.resolve(values, n);
  for (std::size_t id = symbol::num_free; id < s.size(); ++id) {
    CAPTURE(s.name(Symbol{static_cast<std::uint16_t>(id)}));
    CHECK(is_equal(id));
  }
}

TEST_CASE("symbols: a drawn sum lies so many standard deviations above its mean") {
  Symbols s;
  const Count fullest = s.drawn_sum(batch * prompt, 0.25, 1.5);
  CHECK(at(s, fullest, 4, 100, 1) == 130);  // 100 + 1.5 · 20
  CHECK(at(s, fullest, 1, 1, 1) == 2);      // 1.75
  CHECK(at(s, fullest, 0, 1, 1) == 0);
}

TEST_CASE("symbols: what has no value at the sizes of a pass is none of its tokens") {
  Symbols s;
  const Count before = s.minimum(kv - prompt, 5);
  CHECK(at(s, before, 1, 10, 12) == 2);
  CHECK(at(s, before, 1, 10, 9) == 0);
  CHECK_THROWS_AS((kv - prompt).at(s.resolve({1, 10, 9})), Error);
  std::vector<double> values{1, 1, 10, 10, 12, 9, -1, -1};
  s.resolve(values, 2);
  CHECK(values[6] == 2);
  CHECK(values[7] == 0);
}

TEST_CASE("symbols: a model of many layers may give each of them sizes of its own") {
  Symbols s;
  Count sum;
  for (std::uint64_t layer = 1; layer <= 600; ++layer) sum += s.minimum(prompt, layer);
  CHECK(sum.at(s.resolve({1, 600, 1})) == 600 * 601 / 2);
}

TEST_CASE("symbols: to_string writes the highest powers first, as a person does") {
  const Symbols s;
  CHECK(s.to_string(0) == "0");
  CHECK(s.to_string(12) == "12");
  CHECK(s.to_string(batch) == "batch");
  CHECK(s.to_string(2 * batch * prompt + 5) == "2·batch·prompt_len + 5");  // as count.h says
  CHECK(s.to_string(prompt.scaled(1, 2)) == "(prompt_len)/2");
  CHECK(s.to_string(kv - 1).find("- 1") != std::string::npos);
}
