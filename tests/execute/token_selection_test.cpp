#include "model/forward/token_selection.h"

#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "model/methods/prompt_scores.h"
#include "tests/execute/oracle.h"

namespace kvcast::execute {
namespace {

/// The drawing of tests/oracle/make_selection.py: multiples of 1/32 from -2 to 2 by splitmix64.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  double next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    return (static_cast<double>((z >> 40) % 129) - 64) / 32;
  }

 private:
  std::uint64_t state_;
};

struct Case {
  explicit Case(const nlohmann::json& stored) : json(stored) {
    const Heads heads{number("heads"), number("kv_heads"), number("head_dim")};
    model.decoder.layers.resize(number("layers"), {heads, 0});
    model.decoder.attention_scale = 1 / std::sqrt(static_cast<double>(heads.head_dim));
  }
  std::uint64_t number(const char* key) const { return json.at(key).get<std::uint64_t>(); }

  const nlohmann::json& json;
  Architecture model;
};

/// Fills the cache with the case's queries and keys and runs the recorded score pass over it.
template <typename N>
std::vector<double> importance_of(const Case& c, DType dtype, Loops loops) {
  Symbols symbols;
  Recorder r(symbols, {Kernels::Fused, Kernels::Fused, dtype, dtype, dtype});
  record_importance(r, c.model, c.number("queries"), c.number("pool"));
  const Graph graph = r.take();
  const WeightStore weights({}, {&graph}, WeightForm::Plain, dtype);
  const Executor executor(graph, weights, loops, dtype);
  const SymbolValues values = symbols.resolve({1, c.number("prompt_len"), 1});

  CacheStore cache(dtype);
  executor.reserve(cache, values);
  cache.allocate();
  Numbers numbers(c.number("seed"));
  for (std::size_t i = 0; i < c.model.decoder.layers.size(); ++i) {
    for (const std::string part : {"queries", "keys"}) {
      const std::string name = "layers." + std::to_string(i) + "." + part;
      for (const TensorInfo& t : graph.tensors()) {
        if (t.name != name) continue;
        Operand operand;
        for (const Count& dim : t.shape) operand.shape.push_back(dim.at(values));
        cache.bind(name, operand);
        for (std::size_t e = 0; e < operand.shape.elements(); ++e) {
          operand.numbers<N>()[e] = static_cast<N>(numbers.next());
        }
      }
    }
  }
  Arena arena;
  const Output out = executor.run(values, {}, cache, arena);
  const N* first = reinterpret_cast<const N*>(out.data.get());
  return {first, first + out.shape.elements()};
}

TEST_CASE("selection: 50 random cases keep the tokens of an independent implementation") {
  const nlohmann::json cases = read_json_file(oracle_folder() / "selection.json");
  REQUIRE(cases.size() == 50);
  for (const nlohmann::json& stored : cases) {
    const Case c(stored);
    CAPTURE(c.json.dump());
    const TokenSelection selection{.keep = stored.at("keep").get<double>(),
                                   .chunk = c.number("chunk")};
    const auto expected = stored.at("kept").get<std::vector<std::uint64_t>>();
    CHECK(select_tokens(importance_of<float>(c, DType::FP32, Loops::Fast), selection) == expected);
    CHECK(select_tokens(importance_of<float>(c, DType::FP32, Loops::Counting), selection) ==
          expected);
    CHECK(select_tokens(importance_of<double>(c, DType::FP64, Loops::Counting), selection) ==
          expected);
  }
}

TEST_CASE("selection: the first among equals is kept, and positions rise") {
  const std::vector<double> equal(7, 0.25);
  CHECK(select_tokens(equal, {.keep = 0.5}) == std::vector<std::uint64_t>{0, 1, 2, 3});
  const std::vector<double> x{0, 3, 1, 3, 2, 3};
  CHECK(select_tokens(x, {.keep = 0.3}) == std::vector<std::uint64_t>{1, 3});
  CHECK(select_tokens(x, {.keep = 1}) == std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5});
  const double nan = std::nan("");
  CHECK(select_tokens(std::vector{nan, 1.0, nan, -1.0, nan}, {.keep = 0.4}) ==
        std::vector<std::uint64_t>{1, 3});
  CHECK(select_tokens(std::vector{nan, nan, nan}, {.keep = 0.3}) == std::vector<std::uint64_t>{0});
}

TEST_CASE("selection: the last chunk is judged by the mean of the tokens that it has") {
  // Chunks of 4: sums 8 and 3, means 2 and 3. The last one, of one token, wins.
  const std::vector<double> x{2, 2, 2, 2, 3};
  CHECK(select_tokens(x, {.keep = 0.5, .chunk = 4}) == std::vector<std::uint64_t>{4});
  CHECK(select_tokens(x, {.keep = 0.51, .chunk = 4}) == std::vector<std::uint64_t>{0, 1, 2, 3, 4});
  // A chunk larger than the prompt is all of it.
  CHECK(select_tokens(x, {.keep = 0.1, .chunk = 9}).size() == 5);
}

TEST_CASE("selection: recorded counts are an upper bound that a run makes exact") {
  Symbols symbols;
  TokenSelection selection{.keep = 0.5, .chunk = 4};
  const Count kept = kept_tokens(symbols, symbol::prompt_len, selection);
  REQUIRE(selection.kept_tokens);
  // 11 tokens are chunks of 4, 4 and 3; two of them have at most 8 tokens.
  CHECK(kept.at(symbols.resolve({1, 11, 1})) == 8);
  const std::vector<FoundCount> found{{*selection.kept_tokens, 7}};
  CHECK(kept.at(symbols.resolve({1, 11, 1}, found)) == 7);
  CHECK(kept.at(symbols.resolve({1, 3, 1})) == 3);
}

}  // namespace
}  // namespace kvcast::execute
