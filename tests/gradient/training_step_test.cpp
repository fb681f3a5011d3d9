// Steps of training by the executor, on a store's numbers.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/executor.h"
#include "model/execute/machine_probe.h"
#include "model/execute/training_store.h"
#include "model/record/training_recording.h"
#include "tests/execute/oracle.h"

namespace kvcast::execute {
namespace {

struct Setting {
  std::string name = "llama_gqa_llama3_rope";
  Kernels kernels = Kernels::Fused;
  Recompute recompute = Recompute::None;
  Loops loops = Loops::Fast;
  DType dtype = DType::FP32;
  std::uint64_t batch = 2;
  std::uint64_t tokens = 9;
};

/// A model, the graphs of a step, and what they need.
class Trainer {
 public:
  explicit Trainer(const Setting& s)
      : s_(s),
        checkpoint_(OracleCase(s.name).checkpoint.architecture(), 1),
        recording_(record(s)),
        store_({{"", &checkpoint_, false}},
               {&recording_.first.graph, &recording_.next.graph, &recording_.update}, s.dtype),
        first_(recording_.first.graph, store_, s.loops, s.dtype),
        next_(recording_.next.graph, store_, s.loops, s.dtype),
        update_(recording_.update, store_, s.loops, s.dtype),
        cache_(s.dtype) {}

  const Architecture& architecture() const { return checkpoint_.architecture(); }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const TrainingRecording& recording() const { return recording_; }
  const TrainingStore& store() const { return store_; }

  /// Of sequences [first, first + batch) of a text that does not end; `all` of them make a step.
  double pass(std::size_t first, std::size_t all, bool accumulates) {
    const std::uint64_t vocabulary = architecture().vocab_size;
    std::vector<float> ids;
    std::vector<float> targets;
    const auto id = [&](std::size_t b, std::size_t t) {
      return static_cast<float>((b * 7 + t * t * 3 + t) % vocabulary);
    };
    for (std::size_t b = first; b < first + s_.batch; ++b) {
      for (std::size_t t = 0; t < s_.tokens; ++t) {
        ids.push_back(id(b, t));
        targets.push_back(id(b, t + 1));
      }
    }
    std::vector<float> positions(s_.tokens);
    std::iota(positions.begin(), positions.end(), 0.0F);
    const std::vector<float> share{1 / static_cast<float>(all * s_.tokens)};
    const Output losses = (accumulates ? next_ : first_)
                              .run(symbols(),
                                   {{"tokens", ids},
                                    {std::string(targets_name), targets},
                                    {"positions", positions},
                                    {std::string(target_share_name), share}},
                                   cache_, arena_);
    return number(losses);
  }
  /// Returns the gradient's norm.
  double update(std::size_t step, float rate, float most) {
    const AdamW op = TrainingOptions{}.optimizer;
    const auto unbiased = [&](double beta) {
      return static_cast<float>(1 / (1 - std::pow(beta, static_cast<double>(step))));
    };
    const std::vector<float> settings{rate, unbiased(op.beta1), unbiased(op.beta2), most};
    return number(
        update_.run(symbols(), {{std::string(optimizer_name), settings}}, cache_, arena_));
  }
  std::vector<double> numbers(Storage storage, const std::string& name) const {
    std::vector<double> copy;
    const TrainingStore::Tensor& t = store_.tensors().at({storage, name});
    with_numbers(s_.dtype, t.data, [&](auto* n) { copy.assign(n, n + t.elements); });
    return copy;
  }
  std::map<std::string, std::vector<double>> all(Storage storage) const {
    std::map<std::string, std::vector<double>> copies;
    for (const auto& [key, t] : store_.tensors()) {
      if (key.first == storage) copies[key.second] = numbers(storage, key.second);
    }
    return copies;
  }

 private:
  static TrainingRecording record(const Setting& s) {
    Lowering l;
    l.attention = l.elementwise = s.kernels;
    l.weights = s.dtype;
    l.activations = l.cache = s.dtype;
    TrainingOptions options;
    options.recompute = s.recompute;
    return record_training(OracleCase(s.name).checkpoint.architecture(), {}, l, options);
  }
  SymbolValues symbols() const {
    return recording_.symbols.resolve({s_.batch, s_.tokens, s_.tokens});
  }
  double number(const Output& out) const {
    CHECK(out.shape == Shape{1});
    double x = 0;
    with_numbers(s_.dtype, out.data.get(), [&](const auto* n) { x = n[0]; });
    return x;
  }

  Setting s_;
  Checkpoint checkpoint_;
  TrainingRecording recording_;
  TrainingStore store_;
  Executor first_;
  Executor next_;
  Executor update_;
  CacheStore cache_;
  Arena arena_;
};

double largest_difference(const std::map<std::string, std::vector<double>>& ours,
                          const std::map<std::string, std::vector<double>>& expected) {
  REQUIRE(ours.size() == expected.size());
  double largest = 0;
  for (const auto& [name, numbers] : expected) {
    // Keys' biases without rotations have the gradient 0, of which only rounding is left.
    const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
    if (*high - *low < 1e-6) continue;
    largest = std::max(largest, relative_difference(ours.at(name), numbers));
  }
  return largest;
}

constexpr const char* models[] = {"llama_gqa_llama3_rope",
                                  "llama_mqa_linear_rope",
                                  "gpt2",
                                  "gemma2",
                                  "qwen3",
                                  "phi3_partial_rope",
                                  "falcon_rw",
                                  "opt",
                                  "gpt_neox",
                                  "cohere",
                                  "openelm",
                                  "apertus",
                                  "lfm2",
                                  "falcon_h1",
                                  "granitemoehybrid_dense",
                                  "jamba_dense",
                                  "qwen3_5_text",
                                  "gemma3n_text_full"};

TEST_CASE("training step: fast kernels give the gradients of fp64, and on any number of threads") {
  for (const std::string name : models) {
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(name);
      CAPTURE(kernels == Kernels::Eager);
      Setting s{.name = name, .kernels = kernels, .batch = 2, .tokens = 75};
      Setting exact = s;
      exact.loops = Loops::Counting;
      exact.dtype = DType::FP64;
      Trainer plain(exact);
      const double loss = plain.pass(0, 2, false);
      use_threads(1);
      Trainer one(s);
      const double loss_of_one = one.pass(0, 2, false);
      use_threads(2);
      Trainer two(s);
      CHECK(two.pass(0, 2, false) == loss_of_one);
      CHECK(std::abs(loss_of_one - loss) < 1e-5 * loss);
      // A delta rule divides by the lengths of keys and queries, some of which are small.
      const double limit = name.starts_with("qwen3_5") ? 1e-3 : 1e-4;
      CHECK(largest_difference(one.all(Storage::Gradients), plain.all(Storage::Gradients)) < limit);
      CHECK((one.all(Storage::Gradients) == two.all(Storage::Gradients)));
      // A random model knows nothing.
      CHECK(std::abs(loss - std::log(static_cast<double>(plain.architecture().vocab_size))) < 2);
    }
  }
}

TEST_CASE("training step: recomputation leaves the gradients as they are, bit for bit") {
  for (const std::string name : {"llama_gqa_llama3_rope", "gemma2", "gpt2"}) {
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(name);
      Setting s{.name = name, .kernels = kernels, .tokens = 75};
      Trainer kept(s);
      kept.pass(0, 2, false);
      for (const Recompute recompute : {Recompute::Selective, Recompute::Full}) {
        s.recompute = recompute;
        Trainer again(s);
        again.pass(0, 2, false);
        CHECK((again.all(Storage::Gradients) == kept.all(Storage::Gradients)));
      }
    }
  }
}

TEST_CASE("training step: micro-batches give the gradients of one batch") {
  Setting s{.loops = Loops::Counting, .dtype = DType::FP64, .batch = 6};
  Trainer whole(s);
  const double loss = whole.pass(0, 6, false);
  s.batch = 2;
  Trainer parts(s);
  double sum = parts.pass(0, 6, false);
  sum += parts.pass(2, 6, true);
  sum += parts.pass(4, 6, true);
  CHECK(std::abs(sum - loss) < 1e-12);
  CHECK(largest_difference(parts.all(Storage::Gradients), whole.all(Storage::Gradients)) < 1e-12);
  // The next step begins anew.
  sum = parts.pass(0, 6, false);
  sum += parts.pass(2, 6, true);
  sum += parts.pass(4, 6, true);
  CHECK(largest_difference(parts.all(Storage::Gradients), whole.all(Storage::Gradients)) < 1e-12);
}

TEST_CASE("training step: weights are the checkpoint's, states 0, an update moves them all") {
  Trainer t({.tokens = 75});
  std::uint64_t bytes = 0;
  for (const auto& [key, tensor] : t.store().tensors()) {
    bytes += tensor.elements * sizeof(float);
    std::vector<float> expected(tensor.elements);
    if (key.first == Storage::Weights) t.checkpoint().reader(tensor.info).read_rows(0, expected);
    const auto numbers = tensor.numbers<float>();
    CHECK(std::equal(numbers.begin(), numbers.end(), expected.begin()));
  }
  CHECK(bytes == t.store().bytes());
  CHECK(bytes == 4 * 4 * t.recording().parameters);
  const auto weights = t.all(Storage::Weights);
  t.pass(0, 2, false);
  const auto gradients = t.all(Storage::Gradients);
  double squares = 0;
  for (const auto& [name, numbers] : gradients) {
    for (const double g : numbers) squares += g * g;
  }
  const double norm = t.update(1, 0.01F, 0.25F);
  CHECK(std::abs(norm - std::sqrt(squares)) < 1e-5 * norm);
  CHECK(norm > 0.25);
  const auto moved = t.all(Storage::Weights);
  double clipped = 0;
  for (const auto& [name, numbers] : moved) {
    const std::vector<double> means = t.numbers(Storage::OptimizerStates, "mean." + name);
    const TensorInfo& info = t.store().tensors().at({Storage::Weights, name}).info;
    // Vectors do not decay.
    const double kept = info.shape.size() < 2 ? 1 : 1 - 0.01 * 0.1;
    double largest = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double g = gradients.at(name)[i] * 0.25 / norm;
      const double expected =
          kept * weights.at(name)[i] - 0.01 * g / (std::abs(g) + TrainingOptions{}.optimizer.eps);
      // A gradient near eps divides rounding by it.
      if (std::abs(g) > 1e-6) largest = std::max(largest, std::abs(numbers[i] - expected));
      clipped += means[i] * means[i] / (0.1 * 0.1);
    }
    CAPTURE(name);
    CHECK(largest < 1e-5);
  }
  CHECK(std::abs(std::sqrt(clipped) - 0.25) < 1e-5);
}

TEST_CASE("training step: one batch is learnt by heart") {
  for (const std::string name : {"llama_gqa_llama3_rope", "gpt2", "qwen3"}) {
    CAPTURE(name);
    Trainer t({.name = name, .tokens = 16});
    double loss = 0;
    for (std::size_t step = 1; step <= 300; ++step) {
      loss = t.pass(0, 2, false);
      t.update(step, 0.01F, 1);
    }
    CHECK(loss < 0.05);
  }
}

}  // namespace
}  // namespace kvcast::execute
