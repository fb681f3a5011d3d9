// Passes of training on two devices that split heads and widths, or layers, run side by side in
// fp64: their gradients are those of one device that has all.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/record/training_recording.h"
#include "tests/gradient/training_numbers.h"
#include "tests/model/message_of.h"
#include "tests/source_catalog.h"

namespace kvcast::execute {
namespace {

constexpr std::uint64_t sequences = 2;
constexpr std::uint64_t tokens_each = 8;
constexpr std::size_t ranks = 2;

TrainingRecording recorded_part(const Architecture& a, Recompute recompute,
                                const Parallelism& split, std::uint64_t slice) {
  Lowering l;
  l.attention = Kernels::Fused;
  l.elementwise = Kernels::Fused;
  l.weights = l.activations = l.cache = DType::FP64;
  TrainingOptions options;
  options.recompute = recompute;
  options.loss_chunks = recompute == Recompute::Selective ? 3 : 1;
  options.gradients = DType::FP64;
  options.split = split;
  options.place = slice;
  return record_training(a, {}, l, options);
}

FixedInputs inputs_for(const Architecture& a) {
  FixedInputs inputs;
  for (std::size_t i = 0; i < sequences * tokens_each; ++i) {
    inputs["tokens"].push_back(static_cast<double>(i * i % a.vocab_size));
    inputs["targets"].push_back(static_cast<double>((i + 1) * (i + 1) % a.vocab_size));
  }
  inputs["positions"].resize(tokens_each);
  std::iota(inputs["positions"].begin(), inputs["positions"].end(), 0.0);
  inputs["target_share"] = {1.0 / (sequences * tokens_each)};
  return inputs;
}

std::size_t size_of(const std::vector<Count>& shape, std::size_t dims) {
  std::size_t product = 1;
  for (std::size_t i = 0; i < dims; ++i) product *= shape[i].constant();
  return product;
}

/// Where the numbers of a device's weight lie in the whole one; beyond its end: nowhere, they are
/// 0.
std::vector<std::size_t> places_of(const TensorInfo& t) {
  const std::size_t rows = size_of(t.shape, t.shape.size() - 1);
  const std::size_t columns = t.shape.back().constant();
  const WeightPart part = t.part.value_or(WeightPart{.whole = t.shape});
  const std::size_t whole_rows = size_of(part.whole, part.whole.size() - 1) / part.blocks;
  const std::size_t whole_columns = part.whole.back().constant();
  const bool is_vector = t.shape.size() == 1;
  const std::size_t rows_here = rows / part.blocks_here;
  std::vector<std::size_t> places;
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t block = part.first_block + r / rows_here;
    const std::size_t row = block * whole_rows + part.first_row + r % rows_here;
    for (std::size_t c = 0; c < columns; ++c) {
      places.push_back(is_vector ? part.first_row + part.first_column + c
                                 : row * whole_columns + part.first_column + c);
    }
  }
  return places;
}

/// What the devices do together: each waits until all are there.
class Group {
 public:
  void exchange(std::size_t rank, const Collective& op, const Operand& input,
                const Operand& output) {
    inputs_[rank] = input.numbers<double>();
    barrier_.arrive_and_wait();
    std::vector<double> result(output.shape.elements());
    const std::size_t features = output.shape.back();
    const std::size_t rows = result.size() / sequences / features;
    for (std::size_t i = 0; i < result.size(); ++i) {
      const std::size_t b = i / features / rows;
      const std::size_t row = i / features % rows;
      const std::size_t f = i % features;
      switch (op.kind) {
        case CollectiveKind::AllReduce:
          for (const double* x : inputs_) result[i] += x[i];
          break;
        case CollectiveKind::ReduceScatter:
          for (const double* x : inputs_) {
            result[i] += x[((b * ranks + rank) * rows + row) * features + f];
          }
          break;
        case CollectiveKind::AllGather: {
          const std::size_t all = op.of_rows ? rows : features;
          const std::size_t part = all / ranks;
          const std::size_t at = op.of_rows ? row : f;
          const double* const x = inputs_[at / part];
          result[i] = op.of_rows ? x[(b * part + row % part) * features + f]
                                 : x[(b * rows + row) * part + f % part];
          break;
        }
        case CollectiveKind::AllToAll: break;
      }
    }
    barrier_.arrive_and_wait();  // all have read what the outputs may take the place of
    std::copy(result.begin(), result.end(), output.numbers<double>());
  }

 private:
  std::barrier<> barrier_{ranks};
  const double* inputs_[ranks] = {};
};

/// The largest difference from the whole pass's gradients, over the largest number of each.
double apart(const Architecture& a, Recompute recompute, bool sequence_parallel) {
  const TrainingRecording whole = recorded_part(a, recompute, {}, 0);
  const FixedInputs inputs = inputs_for(a);
  const auto symbols = [](const TrainingRecording& r) {
    return r.symbols.resolve({sequences, tokens_each, tokens_each});
  };
  PlainRun<double> expected(whole.first.graph, symbols(whole));
  fill(expected, whole.first.graph, inputs, 1);

  std::vector<TrainingRecording> parts;
  std::vector<std::unique_ptr<PlainRun<double>>> runs;
  Group group;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    parts.push_back(
        recorded_part(a, recompute, {.tp = ranks, .sequence_parallel = sequence_parallel}, rank));
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Graph& graph = parts[rank].first.graph;
    runs.push_back(std::make_unique<PlainRun<double>>(graph, symbols(parts[rank])));
    FixedInputs own = inputs;
    if (sequence_parallel) {  // of its own rows, for a table of positions
      std::vector<double>& positions = own["positions"];
      const auto rows = static_cast<std::ptrdiff_t>(tokens_each / ranks);
      const auto first = positions.begin() + static_cast<std::ptrdiff_t>(rank) * rows;
      positions = std::vector<double>(first, first + rows);
    }
    fill(*runs[rank], graph, own, 1);
    for (const TensorInfo& t : graph.tensors()) {
      if (t.storage != Storage::Weights) continue;
      const std::vector<double>& from = expected.numbers(Storage::Weights, t.name);
      std::vector<double>& to = runs[rank]->numbers(Storage::Weights, t.name);
      const std::vector<std::size_t> places = places_of(t);
      for (std::size_t i = 0; i < to.size(); ++i) {
        to[i] = places[i] < from.size() ? from[places[i]] : 0;
      }
    }
    runs[rank]->on_collective = [rank, &group](const Collective& op, const Operand& input,
                                               const Operand& output) {
      group.exchange(rank, op, input, output);
    };
  }
  expected.run();
  std::vector<std::thread> threads;
  for (const auto& run : runs) threads.emplace_back([&run] { run->run(); });
  for (std::thread& thread : threads) thread.join();

  // Of weights that all devices have: summed in the update, or the same everywhere.
  std::set<std::string> summed;
  for (const Node& n : parts[0].update.nodes()) {
    if (n.label == "sum_parts") summed.insert(parts[0].update.tensor(n.inputs[0]).name);
  }
  const auto gradients_in = [](const Graph& graph) {
    std::set<std::string> names;
    for (const TensorId id : graph.outputs()) {
      if (graph.tensor(id).storage == Storage::Gradients) names.insert(graph.tensor(id).name);
    }
    return names;
  };
  REQUIRE(gradients_in(parts[0].first.graph) == gradients_in(whole.first.graph));
  double largest = 0;
  std::map<std::string, std::vector<double>> sums;
  const auto compare = [&](const std::string& name, const std::vector<double>& x,
                           const std::vector<std::size_t>& places) {
    const std::vector<double>& y = expected.numbers(Storage::Gradients, name);
    REQUIRE(x.size() == places.size());
    double scale = 1e-3;  // a bias of keys has a gradient of 0
    for (const double number : y) scale = std::max(scale, std::abs(number));
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (places[i] >= y.size()) continue;
      REQUIRE(std::isfinite(x[i]));
      largest = std::max(largest, std::abs(x[i] - y[places[i]]) / scale);
    }
  };
  const auto losses_of = [](const TrainingRecording& r, PlainRun<double>& run) {
    double sum = 0;
    for (const TensorId id : r.first.graph.outputs()) {
      if (r.first.graph.tensor(id).storage == Storage::Activations) sum += run.numbers(id).at(0);
    }
    return sum;
  };
  double losses = -losses_of(whole, expected);
  for (std::size_t rank = 0; rank < ranks; ++rank) losses += losses_of(parts[rank], *runs[rank]);
  largest = std::max(largest, std::abs(losses));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Graph& graph = parts[rank].first.graph;
    for (const TensorId id : graph.outputs()) {
      const TensorInfo& t = graph.tensor(id);
      if (t.storage != Storage::Gradients) continue;
      const std::vector<double>& x = runs[rank]->numbers(Storage::Gradients, t.name);
      if (!summed.contains(t.name)) {
        compare(t.name, x, places_of(t));
        continue;
      }
      std::vector<double>& sum = sums[t.name];
      sum.resize(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) sum[i] += x[i];
      if (rank + 1 == ranks) compare(t.name, sum, places_of(t));
    }
  }
  return largest;
}

/// What stages send each other: each message is taken once, in order.
class Mailbox {
 public:
  void put(std::uint64_t to, std::vector<double> message) {
    const std::lock_guard lock(mutex_);
    messages_[to].push_back(std::move(message));
    arrived_.notify_all();
  }
  /// Threads do not throw.
  void note_mismatch() { mismatch_ = true; }
  bool has_mismatch() const { return mismatch_; }
  bool is_empty() const {
    return std::all_of(messages_.begin(), messages_.end(),
                       [](const auto& to) { return to.second.empty(); });
  }
  std::vector<double> take(std::uint64_t own) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !messages_[own].empty(); });
    std::vector<double> message = std::move(messages_[own].front());
    messages_[own].pop_front();
    return message;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::uint64_t, std::deque<std::vector<double>>> messages_;
  std::atomic<bool> mismatch_ = false;
};

/// The largest difference of two stages' gradients from the whole pass's, over the largest number
/// of each. A tied embedding's are summed, as the update says.
double stages_apart(const Architecture& a, Recompute recompute) {
  const TrainingRecording whole = recorded_part(a, recompute, {}, 0);
  const FixedInputs inputs = inputs_for(a);
  const auto symbols = [](const TrainingRecording& r) {
    return r.symbols.resolve({sequences, tokens_each, tokens_each});
  };
  PlainRun<double> expected(whole.first.graph, symbols(whole));
  fill(expected, whole.first.graph, inputs, 1);
  expected.run();
  std::vector<TrainingRecording> parts;
  for (std::size_t stage = 0; stage < ranks; ++stage) {
    parts.push_back(recorded_part(a, recompute, {.pp = ranks}, stage));
  }
  Mailbox mail;
  std::vector<std::unique_ptr<PlainRun<double>>> runs;
  for (std::size_t stage = 0; stage < ranks; ++stage) {
    const Graph& graph = parts[stage].first.graph;
    runs.push_back(std::make_unique<PlainRun<double>>(graph, symbols(parts[stage])));
    fill(*runs[stage], graph, inputs, 1);
    runs[stage]->on_message = [stage, &mail](const Node& node, const Operand& input,
                                             const Operand& output) {
      if (const auto* const sent = std::get_if<Send>(&node.op)) {
        if (sent->rank != 1 - stage) mail.note_mismatch();
        const double* const x = input.numbers<double>();
        return mail.put(sent->rank, {x, x + input.shape.elements()});
      }
      const std::vector<double> message = mail.take(stage);
      const std::size_t size = std::min(message.size(), output.shape.elements());
      if (size != message.size() || size != output.shape.elements()) mail.note_mismatch();
      std::copy_n(message.begin(), size, output.numbers<double>());
    };
  }
  std::vector<std::thread> threads;
  for (const auto& run : runs) threads.emplace_back([&run] { run->run(); });
  for (std::thread& thread : threads) thread.join();
  REQUIRE_FALSE(mail.has_mismatch());
  REQUIRE(mail.is_empty());  // nothing is sent again

  std::map<std::string, std::vector<double>> sums;
  for (std::size_t stage = 0; stage < ranks; ++stage) {
    const Graph& graph = parts[stage].first.graph;
    for (const TensorId id : graph.outputs()) {
      const TensorInfo& t = graph.tensor(id);
      if (t.storage != Storage::Gradients) continue;
      const std::vector<double>& x = runs[stage]->numbers(Storage::Gradients, t.name);
      std::vector<double>& sum = sums[t.name];
      REQUIRE((sum.empty() || (a.tied_embeddings && t.name == "embedding.weight")));
      sum.resize(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) sum[i] += x[i];
    }
  }
  double largest = 0;
  for (const TensorId id : whole.first.graph.outputs()) {
    const TensorInfo& t = whole.first.graph.tensor(id);
    if (t.storage != Storage::Gradients) continue;
    const std::vector<double>& y = expected.numbers(Storage::Gradients, t.name);
    const std::vector<double>& x = sums.at(t.name);
    REQUIRE(x.size() == y.size());
    double scale = 1e-3;
    for (const double number : y) scale = std::max(scale, std::abs(number));
    for (std::size_t i = 0; i < x.size(); ++i) {
      REQUIRE(std::isfinite(x[i]));
      largest = std::max(largest, std::abs(x[i] - y[i]) / scale);
    }
  }
  return largest;
}

/// Models of the catalog, made small; an odd vocabulary leaves the last device a row of zeros.
struct Small {
  const char* model;
  std::vector<ConfigOverride> overrides;
};

std::vector<ConfigOverride> of_llama(std::vector<ConfigOverride> more = {}) {
  std::vector<ConfigOverride> all{{"num_hidden_layers", "2"},   {"hidden_size", "16"},
                                  {"num_attention_heads", "4"}, {"num_key_value_heads", "2"},
                                  {"intermediate_size", "12"},  {"vocab_size", "13"}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST_CASE("split pass: gradients of two devices are those of one") {
  const std::vector<Small> all{
      {"llama-3.2-1b", of_llama({{"head_dim", "4"}})},
      {"llama-7b", of_llama({{"num_key_value_heads", "4"}})},
      {"qwen2.5-0.5b", of_llama()},                   // biases
      {"qwen3-0.6b", of_llama({{"head_dim", "4"}})},  // norms of heads
      {"gemma-2-2b", of_llama({{"head_dim", "4"}})},  // norms behind sums, soft caps
      {"mixtral-8x7b", of_llama({{"num_local_experts", "3"}})},
      {"falcon-h1-0.5b",  // states
       of_llama({{"head_dim", "4"},
                 {"mamba_d_ssm", "16"},
                 {"mamba_n_heads", "4"},
                 {"mamba_d_head", "4"},
                 {"mamba_n_groups", "2"},
                 {"mamba_d_state", "6"},
                 {"mamba_chunk_size", "4"}})},
      {"lfm2-350m", of_llama({{"block_ff_dim", "24"}, {"full_attn_idxs", "[1]"}})},
      {"pythia-160m",
       {{"num_hidden_layers", "2"},
        {"hidden_size", "32"},
        {"intermediate_size", "12"},
        {"num_attention_heads", "4"},
        {"vocab_size", "13"}}},
      {"gpt2",
       {{"n_layer", "2"},
        {"n_embd", "16"},
        {"n_head", "4"},
        {"vocab_size", "13"},
        {"n_positions", "16"}}}};
  for (const Small& small : all) {
    CAPTURE(std::string(small.model));
    const Architecture a = load_model(catalog(), small.model, small.overrides);
    for (const bool splits_rows : {false, true}) {
      CAPTURE(splits_rows);
      for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
        CHECK(apart(a, recompute, splits_rows) < 1e-12);
      }
    }
  }
}

TEST_CASE("split pass: gradients of two stages are those of one device") {
  const std::vector<Small> all{{"llama-3.2-1b", of_llama({{"head_dim", "4"}})},  // tied
                               {"llama-7b", of_llama({{"num_key_value_heads", "4"}})},
                               {"gemma-2-2b", of_llama({{"head_dim", "4"}})},
                               {"mixtral-8x7b", of_llama({{"num_local_experts", "3"}})},
                               {"gpt2",
                                {{"n_layer", "3"},
                                 {"n_embd", "16"},
                                 {"n_head", "4"},
                                 {"vocab_size", "13"},
                                 {"n_positions", "16"}}}};
  for (const Small& small : all) {
    CAPTURE(std::string(small.model));
    const Architecture a = load_model(catalog(), small.model, small.overrides);
    for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
      CHECK(stages_apart(a, recompute) < 1e-12);
    }
    for (std::uint64_t stage = 0; stage < 2; ++stage) {
      TrainingOptions options;
      options.split.pp = 2;
      options.place = stage;
      options.ends = {2, 1, 0};
      const Graph update = record_training(a, {}, Lowering{}, options).update;
      const auto sums = std::count_if(update.nodes().begin(), update.nodes().end(),
                                      [](const Node& n) { return n.label == "sum_tied"; });
      CHECK(sums == (a.tied_embeddings ? 1 : 0));
    }
  }
}

TEST_CASE("split pass: refused with the numbers that would do, or with the layer") {
  const auto refusal = [](const char* model, std::vector<ConfigOverride> overrides) {
    const Architecture a = load_model(catalog(), model, overrides);
    return message_of([&] { recorded_part(a, Recompute::None, {.tp = 2}, 0); });
  };
  CHECK(refusal("llama-7b", of_llama({{"num_key_value_heads", "1"}})) ==
        "training: tp 2: got 1 key-value heads, expected a divisor of them");
  CHECK(refusal("llama-7b", of_llama({{"intermediate_size", "13"}})).starts_with("--tp 2: "));
  CHECK(refusal("olmo-2-7b", of_llama({{"num_key_value_heads", "4"}}))
            .ends_with("got features of all devices in the middle of a layer, expected tp 1"));
}

}  // namespace
}  // namespace kvcast::execute
