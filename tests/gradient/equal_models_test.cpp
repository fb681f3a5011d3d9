// Models of different shapes that compute the same: what their gradients have in common, in fp64.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/record/training_recording.h"
#include "tests/gradient/training_numbers.h"
#include "tests/near.h"
#include "tests/source_catalog.h"

namespace kvcast::execute {
namespace {

constexpr std::uint64_t num_tokens = 18;  ///< of two sequences
constexpr std::uint64_t width = 36;
constexpr std::uint64_t head_dim = 6;
constexpr std::uint64_t neurons = 53;

using Values = std::vector<double>;

/// A model with 6 heads, 2 of keys and values, of which a key of config.json is changed.
class TinyLlama {
 public:
  TinyLlama() : TinyLlama("num_attention_heads", "6") {}
  TinyLlama(const char* key, const char* value)
      : recording_(record_training(
            load_model(catalog(),
                       KVCAST_SOURCE_DIR "/tests/oracle/llama_gqa_llama3_rope/config.json",
                       {{key, value}}),
            {}, lowering(), {.gradients = DType::FP64})),
        run_(graph(), recording_.symbols.resolve({2, num_tokens / 2, num_tokens / 2})) {
    FixedInputs inputs;
    for (std::size_t i = 0; i < num_tokens; ++i) {
      inputs["tokens"].push_back(static_cast<double>(i * i % 61));
      inputs["targets"].push_back(static_cast<double>((i + 1) * (i + 1) % 61));
    }
    inputs["positions"].resize(num_tokens / 2);
    std::iota(inputs["positions"].begin(), inputs["positions"].end(), 0.0);
    inputs["target_share"] = {1.0 / num_tokens};
    fill(run_, graph(), inputs, 1);
  }

  /// Those of `weight` in the other model, as `change` makes them.
  using Change = std::function<Values(const std::string& weight, const Values& others)>;
  void take_weights(TinyLlama& other, const Change& change) {
    for (const TensorInfo& t : other.graph().tensors()) {
      if (t.storage != Storage::Weights) continue;
      Values& own = run_.numbers(Storage::Weights, t.name);
      const Values made = change(t.name, other.weight(t.name));
      REQUIRE(made.size() == own.size());
      own = made;
    }
  }
  void run() { run_.run(); }
  double loss() {
    for (const TensorId id : graph().outputs()) {
      if (graph().tensor(id).storage == Storage::Activations) return run_.numbers(id).at(0);
    }
    return NAN;
  }
  Values& weight(const std::string& name) { return run_.numbers(Storage::Weights, name); }
  const Values& gradient(const std::string& name) { return run_.numbers(Storage::Gradients, name); }
  std::vector<std::string> trained() const {
    std::vector<std::string> names;
    for (const TensorId id : graph().outputs()) {
      const TensorInfo& t = graph().tensor(id);
      if (t.storage == Storage::Gradients) names.push_back(t.name);
    }
    return names;
  }

 private:
  static Lowering lowering() {
    return {Kernels::Fused, Kernels::Fused, DType::FP64, DType::FP64, DType::FP64};
  }
  const Graph& graph() const { return recording_.first.graph; }

  TrainingRecording recording_;
  PlainRun<double> run_;
};

void check_equal(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double scale = 0;
  for (const double x : b) scale = std::max(scale, std::abs(x));
  CHECK(scale > 0);
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= 1e-12 * scale);
}

/// Each gradient of `a`, beside what `b`'s comes to for it.
void check_gradients(
    TinyLlama& a, TinyLlama& b,
    const std::function<Values(const std::string& weight, const Values& gradient)>& of_b) {
  a.run();
  b.run();
  CHECK(a.loss() == near(b.loss()).epsilon(1e-12));
  for (const std::string& name : a.trained()) {
    CAPTURE(name);
    check_equal(a.gradient(name), of_b(name, b.gradient(name)));
  }
}

Values part(const Values& all, std::size_t first, std::size_t count) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

Values sum(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST_CASE("equal models: a head of keys that queries share has the sum of what copies of it have") {
  constexpr std::size_t block = head_dim * width;
  const auto is_shared = [](const std::string& weight) {
    return weight.ends_with("key.weight") || weight.ends_with("value.weight");
  };
  TinyLlama shared;
  TinyLlama copied("num_key_value_heads", "6");
  copied.take_weights(shared, [&](const std::string& weight, const Values& of_shared) {
    if (!is_shared(weight)) return of_shared;
    Values copies;
    for (std::size_t head = 0; head < 6; ++head) {
      const Values one = part(of_shared, head / 3 * block, block);
      copies.insert(copies.end(), one.begin(), one.end());
    }
    return copies;
  });
  std::size_t summed = 0;
  check_gradients(shared, copied, [&](const std::string& weight, const Values& gradient) {
    if (!is_shared(weight)) return gradient;
    ++summed;
    Values sums;
    for (std::size_t head = 0; head < 6; head += 3) {
      const Values three =
          sum(sum(part(gradient, head * block, block), part(gradient, (head + 1) * block, block)),
              part(gradient, (head + 2) * block, block));
      sums.insert(sums.end(), three.begin(), three.end());
    }
    return sums;
  });
  CHECK(summed == 4);
}

TEST_CASE("equal models: a tied table has the sum of what table and head have") {
  TinyLlama tied;
  TinyLlama untied("tie_word_embeddings", "false");
  untied.take_weights(tied, [](const std::string&, const Values& numbers) { return numbers; });
  untied.weight("head.weight") = tied.weight("embedding.weight");
  check_gradients(tied, untied, [&](const std::string& weight, const Values& gradient) {
    return weight == "embedding.weight" ? sum(gradient, untied.gradient("head.weight")) : gradient;
  });
}

// Neurons that are there twice, each with half of what it gives on: Φ(Wx)·V = Φ(Wx)·V/2 twice.
TEST_CASE("equal models: copies of a neuron share its gradients, but not those of what it gives") {
  TinyLlama narrow;
  TinyLlama wide("intermediate_size", "106");
  const auto into_neurons = [](const std::string& weight) {
    return weight.ends_with("gate.weight") || weight.ends_with("up.weight");
  };
  wide.take_weights(narrow, [&](const std::string& weight, const Values& numbers) {
    Values copies = numbers;
    if (into_neurons(weight)) copies.insert(copies.end(), numbers.begin(), numbers.end());
    if (weight.ends_with("down.weight")) {
      copies.clear();
      for (std::size_t row = 0; row < width; ++row) {
        for (std::size_t i = 0; i < 2 * neurons; ++i) {
          copies.push_back(numbers[row * neurons + i % neurons] / 2);
        }
      }
    }
    return copies;
  });
  std::size_t found = 0;
  check_gradients(narrow, wide, [&](const std::string& weight, const Values& gradient) {
    if (into_neurons(weight)) {  // each copy has half
      ++found;
      const Values first = part(gradient, 0, neurons * width);
      const Values second = part(gradient, neurons * width, neurons * width);
      check_equal(first, second);
      return sum(first, second);
    }
    if (!weight.ends_with("down.weight")) return gradient;
    ++found;
    Values one;
    for (std::size_t row = 0; row < width; ++row) {  // each copy has all
      const Values copies = part(gradient, row * 2 * neurons, 2 * neurons);
      check_equal(part(copies, 0, neurons), part(copies, neurons, neurons));
      one.insert(one.end(), copies.begin(), copies.begin() + neurons);
    }
    return one;
  });
  CHECK(found == 6);
}

}  // namespace
}  // namespace kvcast::execute
