// Models of different shapes that compute the same: what their gradients have in common, in fp64.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
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

Architecture tiny_model(const std::string& name, std::vector<ConfigOverride> overrides = {}) {
  return load_model(catalog(), KVCAST_SOURCE_DIR "/tests/oracle/" + name + "/config.json",
                    overrides);
}

TrainingRecording recorded_in_fp64(const Architecture& a, Kernels kernels) {
  return record_training(a, {}, {kernels, kernels, DType::FP64, DType::FP64, DType::FP64},
                         {.gradients = DType::FP64});
}

/// A pass with its numbers.
class TinyModel {
 public:
  explicit TinyModel(const TrainingRecording& r) : TinyModel(r.first, r.symbols) {}
  TinyModel(TrainingPass pass, const Symbols& symbols)
      : pass_(std::move(pass)),
        run_(graph(), symbols.resolve({2, num_tokens / 2, num_tokens / 2})) {
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
  void take_weights(TinyModel& other, const Change& change) {
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
  const Graph& graph() const { return pass_.graph; }

  TrainingPass pass_;
  PlainRun<double> run_;
};

/// A model with 6 heads, 2 of keys and values, of which a key of config.json is changed.
TinyModel tiny_llama(const char* key = "num_attention_heads", const char* value = "6") {
  const Architecture a = tiny_model("llama_gqa_llama3_rope", {{key, value}});
  return TinyModel(recorded_in_fp64(a, Kernels::Fused));
}

void check_equal(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double scale = 0;
  for (const double x : b) scale = std::max(scale, std::abs(x));
  CHECK(scale > 0);
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= 1e-12 * scale);
}

/// Each gradient of `a`, beside what `b`'s comes to for it.
void check_gradients(
    TinyModel& a, TinyModel& b,
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
  TinyModel shared = tiny_llama();
  TinyModel copied = tiny_llama("num_key_value_heads", "6");
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
  TinyModel tied = tiny_llama();
  TinyModel untied = tiny_llama("tie_word_embeddings", "false");
  untied.take_weights(tied, [](const std::string&, const Values& numbers) { return numbers; });
  untied.weight("head.weight") = tied.weight("embedding.weight");
  check_gradients(tied, untied, [&](const std::string& weight, const Values& gradient) {
    return weight == "embedding.weight" ? sum(gradient, untied.gradient("head.weight")) : gradient;
  });
}

// Neurons that are there twice, each with half of what it gives on: Φ(Wx)·V = Φ(Wx)·V/2 twice.
TEST_CASE("equal models: copies of a neuron share its gradients, but not those of what it gives") {
  TinyModel narrow = tiny_llama();
  TinyModel wide = tiny_llama("intermediate_size", "106");
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

/// Where layers share keys or values of another one: each of them with copies of that one's
/// weights, "copy.LAYER.NAME", on the same input.
class UnsharedPass {
 public:
  explicit UnsharedPass(const TrainingPass& shared) : from_(shared.graph) {
    for (std::size_t i = 0; i < shared.first_backward.index; ++i) add(from_.nodes()[i]);
  }
  TrainingPass with_gradients() const {
    return kvcast::with_gradients(graph_, {.weight_gradients = DType::FP64});
  }

 private:
  /// Keys or values of another layer.
  bool is_shared(TensorId id, const Node& reader) const {
    const std::optional<NodeId> producer = from_.tensor(id).producer;
    if (!producer || from_.node(*producer).layer == reader.layer) return false;
    const std::string& label = from_.node(*producer).label;
    return label == "key" || label == "key_rope" || label == "value";
  }
  /// What is kept for the way back comes last, and nothing reads it before.
  std::vector<TensorInfo> results(const Node& node) const {
    std::vector<TensorInfo> all;
    const std::size_t count = is_any<CrossEntropy>(node.op) ? 2 : 1;
    for (const TensorId id : std::span(node.outputs).first(count)) all.push_back(from_.tensor(id));
    return all;
  }
  TensorId placed(TensorId id, const std::string& prefix = "") {
    TensorInfo t = from_.tensor(id);
    if (t.storage == Storage::Weights) t.name.insert(0, prefix);
    const auto [at, is_new] = at_.try_emplace({id, t.name});
    if (is_new) at->second = graph_.add_tensor(t);
    return at->second;
  }
  /// A layer's own product for `id`, and all that is done with it.
  TensorId copied(TensorId id, int layer) {
    Node node = from_.node(*from_.tensor(id).producer);
    const bool is_product = is_any<Linear>(node.op);
    const std::string prefix = "copy." + std::to_string(layer) + ".";
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      node.inputs[i] =
          i == 0 && !is_product ? copied(node.inputs[i], layer) : placed(node.inputs[i], prefix);
    }
    node.layer = layer;
    std::vector<TensorInfo> made = results(node);
    return graph_.add_node(std::move(node), std::move(made)).front();
  }
  void add(Node node) {
    for (TensorId& id : node.inputs) id = is_shared(id, node) ? copied(id, node.layer) : placed(id);
    std::vector<TensorInfo> made = results(node);
    const TensorId from = node.output();
    at_[{from, from_.tensor(from).name}] =
        graph_.add_node(std::move(node), std::move(made)).front();
  }

  const Graph& from_;
  Graph graph_;
  std::map<std::pair<TensorId, std::string>, TensorId> at_;
};

TEST_CASE("equal models: an owner's keys and values have the sum of what each layer's own have") {
  for (const std::string name : {"mlkv_llama", "mlkv_neox"}) {
    for (const SharedKeys keys : {SharedKeys::Rotated, SharedKeys::Released}) {
      for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
        CAPTURE(name);
        CAPTURE(keys == SharedKeys::Released);
        CAPTURE(kernels == Kernels::Eager);
        Architecture a = tiny_model(name);
        a.decoder.shared_keys = keys;
        const TrainingRecording r = recorded_in_fp64(a, kernels);
        TinyModel shared(r);
        TinyModel unshared(UnsharedPass(r.first).with_gradients(), r.symbols);
        const auto of_copies = [&](const std::string& weight) {
          std::vector<std::string> copies;
          for (const std::string& copy : unshared.trained()) {
            if (copy.starts_with("copy.") && copy.ends_with("." + weight)) copies.push_back(copy);
          }
          return copies;
        };
        for (const std::string& weight : shared.trained()) {
          unshared.weight(weight) = shared.weight(weight);
          for (const std::string& c : of_copies(weight)) unshared.weight(c) = shared.weight(weight);
        }
        std::size_t summed = 0;
        check_gradients(shared, unshared, [&](const std::string& weight, Values gradient) {
          for (const std::string& copy : of_copies(weight)) {
            ++summed;
            const Values& own = unshared.gradient(copy);
            // What is added to all keys moves no probability, but where they rotate.
            const bool counts = keys == SharedKeys::Rotated || !weight.ends_with("key.bias");
            CHECK(counts ==
                  std::any_of(own.begin(), own.end(), [](double x) { return std::abs(x) > 1e-6; }));
            gradient = sum(std::move(gradient), own);
          }
          return gradient;
        });
        std::size_t followers = 0;
        for (const LayerShape& l : a.decoder.layers) followers += l.kv_layer ? 1U : 0U;
        const std::size_t biases = name == "mlkv_neox" ? 2 : 1;
        CHECK(followers > 1);
        CHECK(summed == followers * 2 * biases);
      }
    }
  }
}

}  // namespace
}  // namespace kvcast::execute
