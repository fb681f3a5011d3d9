// Whole passes of training in fp64: the gradients of every family against dual numbers, and every
// operator's work against the formulas.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/record/training_recording.h"
#include "tests/execute/oracle.h"
#include "tests/gradient/training_numbers.h"
#include "tests/near.h"

namespace kvcast::execute {
namespace {

constexpr std::uint64_t batch = 2;
constexpr std::uint64_t tokens = 9;

Lowering in_fp64(Kernels attention, Kernels elementwise) {
  Lowering l;
  l.attention = attention;
  l.elementwise = elementwise;
  l.weights = DType::FP64;
  l.activations = DType::FP64;
  l.cache = DType::FP64;
  return l;
}

/// Tokens that repeat, the next ones as targets, some of them left out.
FixedInputs inputs_of(const Architecture& a) {
  FixedInputs inputs;
  std::vector<double>& ids = inputs["tokens"];
  std::vector<double>& targets = inputs["targets"];
  double left = 0;
  for (std::size_t i = 0; i < batch * tokens; ++i) {
    ids.push_back(static_cast<double>(i * i % a.vocab_size));
    targets.push_back(i % 5 == 3 ? -1 : static_cast<double>((i + 1) * (i + 1) % a.vocab_size));
    left += i % 5 == 3 ? 0 : 1;
  }
  std::vector<double>& positions = inputs["positions"];
  positions.resize(tokens);
  std::iota(positions.begin(), positions.end(), 0.0);
  inputs["target_share"] = {1 / left};
  return inputs;
}

TrainingRecording recorded(const Architecture& a, const Lowering& lowering, Recompute recompute,
                           double z_loss = 0, double dropout = 0, std::uint64_t loss_chunks = 1) {
  TrainingOptions options;
  options.loss_chunks = loss_chunks;
  options.dropout = dropout;
  options.recompute = recompute;
  options.gradients = DType::FP64;
  options.z_loss = z_loss;
  return record_training(a, {}, lowering, options);
}

Architecture architecture_of(const std::string& name) {
  return OracleCase(name).checkpoint.architecture();
}

using Gradients = std::map<std::string, std::vector<double>>;

Gradients gradients_of(const Graph& graph, PlainRun<double>& run) {
  Gradients gradients;
  for (const TensorId id : graph.outputs()) {
    const TensorInfo& t = graph.tensor(id);
    if (t.storage == Storage::Gradients) gradients[t.name] = run.numbers(t.storage, t.name);
  }
  return gradients;
}

double difference(const Gradients& a, const Gradients& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (const auto& [name, numbers] : a) {
    double scale = 0;
    double apart = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      scale = std::max(scale, std::abs(numbers[i]));
      apart = std::max(apart, std::abs(numbers[i] - b.at(name).at(i)));
    }
    if (scale > 1e-9) largest = std::max(largest, apart / scale);
  }
  return largest;
}

constexpr std::pair<Kernels, Kernels> kernels[] = {{Kernels::Fused, Kernels::Fused},
                                                   {Kernels::Eager, Kernels::Eager},
                                                   {Kernels::Fused, Kernels::Eager},
                                                   {Kernels::Eager, Kernels::Fused}};

TEST_CASE("training pass: work as recorded, and gradients that recomputation leaves as they are") {
  for (const std::string name :
       {"llama_gqa_llama3_rope", "gpt2", "gemma2", "qwen3", "phi3_partial_rope", "phi3_longrope",
        "falcon_rw", "lfm2", "apertus", "falcon_h1", "jamba_dense", "qwen3_5_text",
        "gemma3n_text"}) {
    CAPTURE(name);
    const Architecture a = architecture_of(name);
    const FixedInputs inputs = inputs_of(a);
    std::optional<Gradients> first;
    for (const auto& [attention, elementwise] : kernels) {
      CAPTURE(attention == Kernels::Eager);
      CAPTURE(elementwise == Kernels::Eager);
      std::optional<Gradients> kept;
      for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
        CAPTURE(static_cast<int>(recompute));
        const TrainingRecording r = recorded(a, in_fp64(attention, elementwise), recompute, 0.01);
        const SymbolValues symbols = r.symbols.resolve({batch, tokens, tokens});
        PlainRun<double> run = counted_run(r.first.graph, symbols, inputs, 1);
        const Gradients gradients = gradients_of(r.first.graph, run);
        if (!kept) kept = gradients;
        CHECK((gradients == *kept));
        if (!first) first = gradients;
        CHECK(difference(gradients, *first) < 1e-12);
        counted_run(r.update, symbols, inputs, 2);
        if (recompute == Recompute::None) counted_run(r.next.graph, symbols, inputs, 3);
      }
    }
  }
}

TEST_CASE("training pass: gradients of every family are those that dual numbers say") {
  std::size_t trained = 0;
  for (const std::string& name : oracle_cases()) {
    CAPTURE(name);
    const Architecture a = architecture_of(name);
    for (const Kernels k : {Kernels::Fused, Kernels::Eager}) {
      CAPTURE(k == Kernels::Eager);
      std::optional<TrainingRecording> r;
      try {
        r = recorded(a, in_fp64(k, k), Recompute::None, 0.01);
      } catch (const Error&) {
        continue;  // it has an encoder
      }
      const SymbolValues symbols = r->symbols.resolve({batch, tokens, tokens});
      const AdjointPair pair = adjoint_pair(r->first, symbols, inputs_of(a), 1);
      CHECK(pair.size > 0);
      CHECK(pair.error() < 1e-12);
      ++trained;
    }
  }
  CHECK(trained == 2 * 125);  // else a family is no longer trained
}

// A second witness, which knows nothing of duals: (L(w + hv) - L(w - hv)) / 2h.
TEST_CASE(
    "training pass: gradients are what losses differ by, a step of the weights to each side") {
  constexpr double step = 1e-6;
  for (const std::string name : {"llama_gqa_llama3_rope", "gemma2", "gpt2", "falcon_h1"}) {
    CAPTURE(name);
    const Architecture a = architecture_of(name);
    const TrainingRecording r =
        recorded(a, in_fp64(Kernels::Fused, Kernels::Fused), Recompute::None, 0.01);
    const SymbolValues symbols = r.symbols.resolve({batch, tokens, tokens});
    double along = 0;
    const auto loss_at = [&](double change) {
      PlainRun<double> run(r.first.graph, symbols);
      fill(run, r.first.graph, inputs_of(a), 1);
      std::mt19937 random(7);
      std::normal_distribution<double> normal;
      std::map<std::string, std::vector<double>> directions;
      for (const TensorId id : r.first.graph.outputs()) {
        const TensorInfo& t = r.first.graph.tensor(id);
        if (t.storage != Storage::Gradients) continue;
        std::vector<double>& direction = directions[t.name];
        for (double& w : run.numbers(Storage::Weights, t.name)) {
          direction.push_back(normal(random));
          w += change * direction.back();
        }
      }
      run.run();
      double loss = 0;
      along = 0;
      for (const TensorId id : r.first.graph.outputs()) {
        const TensorInfo& t = r.first.graph.tensor(id);
        if (t.storage != Storage::Gradients) {
          loss += run.numbers(id).at(0);
          continue;
        }
        const std::vector<double>& gradient = run.numbers(Storage::Gradients, t.name);
        along =
            std::inner_product(gradient.begin(), gradient.end(), directions[t.name].begin(), along);
      }
      return loss;
    };
    const double difference_of_losses = loss_at(step) - loss_at(-step);
    loss_at(0);
    CHECK(std::abs(along) > 1e-2);
    CHECK(difference_of_losses / (2 * step) == near(along).epsilon(1e-6));
  }
}

TEST_CASE("training pass: losses in chunks of rows leave the gradients, and a chunk's logits") {
  // A tied table, soft caps and casts, a head of its own.
  for (const std::string name : {"llama_gqa_llama3_rope", "gemma2", "falcon_h1"}) {
    CAPTURE(name);
    const Architecture a = architecture_of(name);
    const FixedInputs inputs = inputs_of(a);
    for (const Kernels k : {Kernels::Fused, Kernels::Eager}) {
      std::optional<Gradients> whole;
      std::optional<double> loss;
      std::optional<std::uint64_t> flops;
      for (const std::uint64_t chunks : {1U, 2U, 4U, 9U}) {  // of 9 tokens: 4 and 5, 2, 2, 2 and 3
        CAPTURE(chunks);
        const TrainingRecording r =
            recorded(a, in_fp64(k, k), Recompute::Selective, 0.01, 0, chunks);
        const SymbolValues symbols = r.symbols.resolve({batch, tokens, tokens});
        PlainRun<double> run = counted_run(r.first.graph, symbols, inputs, 1);
        counted_run(r.next.graph, symbols, inputs, 3);
        double sum = 0;
        std::uint64_t most_rows = 0;
        std::size_t losses = 0;
        for (const Node& n : r.first.graph.nodes()) {
          if (!is_any<CrossEntropy>(n.op)) continue;
          ++losses;
          sum += run.numbers(n.outputs[1]).at(0);
          most_rows = std::max(most_rows, r.first.graph.tensor(n.output()).shape[1].at(symbols));
        }
        CHECK(losses == chunks);
        CHECK(most_rows == (tokens + chunks - 1) / chunks);
        const Gradients gradients = gradients_of(r.first.graph, run);
        if (!whole) whole = gradients;
        if (!loss) loss = sum;
        CHECK(difference(gradients, *whole) < 1e-13);
        CHECK(sum == near(*loss).epsilon(1e-14));
        const std::uint64_t own_flops = r.hardware_flops.at(symbols);
        if (!flops) flops = own_flops;
        CHECK(own_flops == *flops);
        if (chunks != 4) continue;
        const AdjointPair pair = adjoint_pair(r.first, symbols, inputs, 1);
        CHECK(pair.size > 0);
        CHECK(pair.error() < 1e-12);
      }
    }
  }
}

TEST_CASE("training pass: with chunks of the loss the logits of one are alive") {
  Architecture a = architecture_of("llama_gqa_llama3_rope");
  a.vocab_size = 100000;
  const auto peak = [&](std::uint64_t chunks, bool in_place) {
    const TrainingRecording r =
        recorded(a, in_fp64(Kernels::Fused, Kernels::Fused), Recompute::None, 0, 0, chunks);
    const SymbolValues symbols = r.symbols.resolve({batch, 64, 64});
    return static_cast<double>(activation_bytes(r.first, symbols, in_place).peak);
  };
  const double logits = 8.0 * batch * 64 * 100000;
  for (const bool in_place : {true, false}) {
    CAPTURE(in_place);
    for (const std::uint64_t chunks : {1U, 2U, 8U}) {
      CAPTURE(chunks);
      // Eager ones leave the gradient beside two more.
      const double alive = (in_place ? 1 : 3) * logits / static_cast<double>(chunks);
      const double found = peak(chunks, in_place);
      CHECK(found > alive);
      // The rest: rows of 64 numbers or fewer, of which there are under a hundred.
      CHECK(found < alive + 100.0 * 8 * batch * 64 * 64);
    }
  }
}

TEST_CASE("training pass: dropout draws the same masks there, back and again") {
  const Architecture a = architecture_of("gpt2");
  FixedInputs inputs = inputs_of(a);
  inputs["dropout_seed"] = {7};
  const Lowering lowering = in_fp64(Kernels::Eager, Kernels::Fused);
  std::optional<Gradients> kept;
  for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
    CAPTURE(static_cast<int>(recompute));
    const TrainingRecording r = recorded(a, lowering, recompute, 0, 0.25);
    const SymbolValues symbols = r.symbols.resolve({batch, tokens, tokens});
    PlainRun<double> run = counted_run(r.first.graph, symbols, inputs, 1);
    const Gradients gradients = gradients_of(r.first.graph, run);
    if (!kept) kept = gradients;
    CHECK((gradients == *kept));
    if (recompute != Recompute::None) continue;
    const AdjointPair pair = adjoint_pair(r.first, symbols, inputs, 1);
    CHECK(pair.size > 0);
    CHECK(pair.error() < 1e-12);
    // Of the embedding, and in each layer of probabilities and two branches.
    std::size_t masks = 0;
    double dropped = 0;
    double all = 0;
    std::set<std::vector<double>> different;
    for (const Node& n : r.first.graph.nodes()) {
      if (!is_any<DropoutMask>(n.op)) continue;
      ++masks;
      const std::vector<double>& numbers = run.numbers(n.output());
      different.insert(numbers);
      for (const double x : numbers) {
        REQUIRE((x == 0 || x == near(1 / 0.75)));
        dropped += x == 0 ? 1 : 0;
        ++all;
      }
    }
    CHECK(masks == 1 + 3 * a.decoder.layers.size());
    CHECK(different.size() == masks);
    CHECK(std::abs(dropped / all - 0.25) < 4 * std::sqrt(0.25 * 0.75 / all));
  }
  inputs["dropout_seed"] = {8};
  const TrainingRecording r = recorded(a, lowering, Recompute::None, 0, 0.25);
  PlainRun<double> other =
      counted_run(r.first.graph, r.symbols.resolve({batch, tokens, tokens}), inputs, 1);
  CHECK(difference(gradients_of(r.first.graph, other), *kept) > 1e-3);
}

TEST_CASE("training pass: what is accumulated is the sum of the passes") {
  const Architecture a = architecture_of("llama_gqa_llama3_rope");
  const TrainingRecording r = recorded(a, in_fp64(Kernels::Fused, Kernels::Fused), Recompute::None);
  const SymbolValues symbols = r.symbols.resolve({batch, tokens, tokens});
  const FixedInputs inputs = inputs_of(a);
  PlainRun<double> once = counted_run(r.first.graph, symbols, inputs, 1);
  PlainRun<double> twice(r.next.graph, symbols);
  fill(twice, r.next.graph, inputs, 1);
  twice.run();
  twice.run();
  Gradients doubled = gradients_of(r.first.graph, once);
  for (auto& [name, numbers] : doubled) {
    for (double& x : numbers) x *= 2;
  }
  CHECK(difference(gradients_of(r.next.graph, twice), doubled) < 1e-14);
}

TEST_CASE("training pass: a heavier loss, sequences in another order, and each of them twice") {
  for (const std::string name : {"llama_gqa_llama3_rope", "gemma2", "falcon_h1"}) {
    CAPTURE(name);
    const Architecture a = architecture_of(name);
    const TrainingRecording r =
        recorded(a, in_fp64(Kernels::Fused, Kernels::Fused), Recompute::None);
    const auto gradients = [&](const FixedInputs& inputs, std::uint64_t sequences) {
      PlainRun<double> run(r.first.graph, r.symbols.resolve({sequences, tokens, tokens}));
      fill(run, r.first.graph, inputs, 1);
      run.run();
      return gradients_of(r.first.graph, run);
    };
    const FixedInputs inputs = inputs_of(a);
    const Gradients once = gradients(inputs, batch);

    FixedInputs heavier = inputs;
    heavier["target_share"][0] *= 8;
    Gradients eightfold = once;
    for (auto& [weight, numbers] : eightfold) {
      for (double& x : numbers) x *= 8;
    }
    CHECK((gradients(heavier, batch) == eightfold));

    FixedInputs turned = inputs;
    FixedInputs twice = inputs;
    for (const char* list : {"tokens", "targets"}) {
      std::vector<double>& numbers = turned[list];
      std::rotate(numbers.begin(), numbers.begin() + tokens, numbers.end());
      twice[list].insert(twice[list].end(), inputs.at(list).begin(), inputs.at(list).end());
    }
    twice["target_share"][0] /= 2;
    CHECK(difference(gradients(turned, batch), once) < 1e-12);
    CHECK(difference(gradients(twice, 2 * batch), once) < 1e-12);
  }
}

TEST_CASE("training pass: what is added to all keys moves no probability, but where they rotate") {
  for (const auto& [name, rotates] : {std::pair("gpt2", false), {"qwen2", true}}) {
    CAPTURE(name);
    const Architecture a = architecture_of(name);
    const TrainingRecording r =
        recorded(a, in_fp64(Kernels::Eager, Kernels::Eager), Recompute::None);
    const SymbolValues symbols = r.symbols.resolve({batch, tokens, tokens});
    PlainRun<double> run = counted_run(r.first.graph, symbols, inputs_of(a), 1);
    std::size_t biases = 0;
    for (const auto& [weight, gradient] : gradients_of(r.first.graph, run)) {
      if (!weight.ends_with("key.bias")) continue;
      ++biases;
      double largest = 0;
      for (const double x : gradient) largest = std::max(largest, std::abs(x));
      CHECK((largest > 1e-12) == rotates);
    }
    CHECK(biases == a.decoder.layers.size());
  }
}

TEST_CASE("training pass: frozen weights have no gradient, the others the same one") {
  const Architecture a = architecture_of("qwen3");
  const Lowering lowering = in_fp64(Kernels::Fused, Kernels::Fused);
  const TrainingRecording all = recorded(a, lowering, Recompute::None);
  TrainingOptions options;
  options.gradients = DType::FP64;
  options.trains = [](const std::string& weight) { return weight.starts_with("layers.1."); };
  const TrainingRecording some = record_training(a, {}, lowering, options);
  const SymbolValues symbols = all.symbols.resolve({batch, tokens, tokens});
  const FixedInputs inputs = inputs_of(a);
  PlainRun<double> of_all = counted_run(all.first.graph, symbols, inputs, 1);
  PlainRun<double> of_some = counted_run(some.first.graph, symbols, inputs, 1);
  const Gradients expected = gradients_of(all.first.graph, of_all);
  const Gradients gradients = gradients_of(some.first.graph, of_some);
  CHECK(gradients.size() < expected.size());
  CHECK(!gradients.empty());
  for (const auto& [name, numbers] : gradients) {
    CAPTURE(name);
    CHECK(name.starts_with("layers.1."));
    CHECK((numbers == expected.at(name)));
  }
}

TEST_CASE("training pass: no gradient goes from a token to those after it") {
  // Only the third token of each sequence has a target.
  const Architecture a = architecture_of("llama_mha");
  FixedInputs inputs = inputs_of(a);
  for (std::size_t i = 0; i < inputs["targets"].size(); ++i) {
    inputs["targets"][i] = i % tokens == 2 ? 5 : -1;
  }
  // Ids that do not repeat: a row of the table has the gradient of one token.
  for (std::size_t i = 0; i < batch * tokens; ++i) inputs["tokens"][i] = static_cast<double>(i);
  REQUIRE(!a.tied_embeddings);
  for (const Kernels k : {Kernels::Fused, Kernels::Eager}) {
    const TrainingRecording r = recorded(a, in_fp64(k, k), Recompute::None);
    const SymbolValues symbols = r.symbols.resolve({batch, tokens, tokens});
    PlainRun<double> run = counted_run(r.first.graph, symbols, inputs, 1);
    const std::vector<double>& table = run.numbers(Storage::Gradients, "embedding.weight");
    for (std::size_t i = 0; i < batch * tokens; ++i) {
      double largest = 0;
      for (std::size_t f = 0; f < a.hidden_size; ++f) {
        largest = std::max(largest, std::abs(table[i * a.hidden_size + f]));
      }
      CHECK((largest > 0) == (i % tokens <= 2));
    }
  }
}

}  // namespace
}  // namespace kvcast::execute
