#include "roofline/training_forecast.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/families/config_reader.h"
#include "model/io/files/csv_table.h"
#include "roofline/interconnect.h"
#include "tests/near.h"
#include "tests/roofline/test_models.h"

using namespace kvcast;
using namespace kvcast::roofline;

namespace {

Configuration training_of(const std::string& model, const std::string& hardware,
                          const std::vector<ConfigOverride>& overrides = {},
                          const std::string& engine = "ideal", std::uint64_t dp = 1) {
  Configuration c;
  c.architecture = load_model(catalog(), model, overrides);
  c.hardware = load_hardware(catalog(), hardware);
  c.engine = load_engine(catalog(), engine);
  c.lowering.weights = c.lowering.activations = c.lowering.cache = DType::BF16;
  apply(c.engine, true, true, c.lowering);
  c.parallelism.dp = dp;
  if (dp > 1) c.interconnect = find_interconnect(catalog(), "", c.hardware, dp);
  return c;
}

double gigabytes(double bytes) { return bytes / 1e9; }

}  // namespace

// The rows: data/measurements/README.md, "Steps of training".
TEST_CASE("training forecast: measured steps of PyTorch, time and memory") {
  const CsvTable table = CsvTable::read(KVCAST_SOURCE_DIR "/data/measurements/training_steps.csv");
  // Mean errors; of what the forecast is known not to have, see there.
  struct Errors {
    double time = 0;
    double memory = 0;
    double worst_memory = 0;
    std::size_t rows = 0;
  };
  std::map<std::string, Errors> errors;
  for (const CsvRow& row : table.rows()) {
    if (row.text("precision") != "bf16") continue;
    const std::string& model = row.text("model");
    std::vector<ConfigOverride> overrides;
    if (model == "llama-7b") overrides.push_back({"max_position_embeddings", row.text("seq_len")});
    for (const char* key : {"num_hidden_layers", "hidden_size", "num_attention_heads",
                            "num_key_value_heads", "intermediate_size", "vocab_size"}) {
      if (model != "gpt2") overrides.push_back({key, row.text(key)});
    }
    Configuration c = training_of(model, row.text("hardware"), overrides, "pytorch");
    if (row.text("attention") == "eager") c.lowering.attention = Kernels::Eager;
    const TrainingForecaster forecaster(
        c, {.recompute = parse_recompute(row.text("recompute")), .states = DType::BF16});
    const TrainingForecast f =
        forecaster.at({row.whole("batch"), row.whole("seq_len"), row.whole("micro_batches")});
    const bool known = model != "gpt2" && model != "olmoe-1b-7b";
    Errors& e = errors[known ? row.text("attention") : "others"];
    const double memory = std::abs(f.peak_memory_bytes / row.number("peak_memory_bytes") - 1);
    e.time += std::abs(f.step_s / row.number("step_s") - 1);
    e.memory += memory;
    e.worst_memory = std::max(e.worst_memory, memory);
    ++e.rows;
    // Measured in a process without leftovers.
    const bool in_layers = row.text("recompute") == "full";
    if (known && !in_layers && !row.text("step_spread").empty()) CHECK(memory < 0.025);
  }
  for (auto& [kind, e] : errors) {
    const auto rows = static_cast<double>(e.rows);
    e.time /= rows;
    e.memory /= rows;
    MESSAGE(kind, ": ", e.rows, " rows, time ", e.time, ", memory ", e.memory, ", worst ",
            e.worst_memory);
  }
  CHECK(errors["tiled"].rows == 25);
  CHECK(errors["tiled"].time < 0.1);
  CHECK(errors["tiled"].memory < 0.025);
  CHECK(errors["tiled"].worst_memory < 0.06);
  CHECK(errors["eager"].rows == 7);
  CHECK(errors["eager"].memory < 0.05);
}

// Source: Rajbhandari et al. 2020 (arXiv:1910.02054), figure 1: 7.5 billion parameters, 64 devices.
TEST_CASE("training forecast: ZeRO shards states, gradients and weights in turn") {
  const std::vector<ConfigOverride> shape{{"num_hidden_layers", "36"}, {"vocab_size", "32000"}};
  const auto states = [&](ShardedStates sharded) {
    Configuration c = training_of("llama-7b", "a100-80gb", shape);
    c.parallelism.dp = 8;
    c.interconnect = find_interconnect(catalog(), "", c.hardware, 8);
    const TrainingForecaster forecaster(c, {}, sharded);
    const TrainingForecast f = forecaster.at({8, 128, 1});
    return std::pair{f.weight_bytes + f.gradient_bytes + f.optimizer_bytes,
                     static_cast<double>(forecaster.recording().parameters)};
  };
  const auto [all, p] = states(ShardedStates::None);
  CHECK(all == 16 * p);
  CHECK(states(ShardedStates::Optimizer).first == 4 * p + 12 * p / 8);
  CHECK(states(ShardedStates::Gradients).first == 2 * p + 14 * p / 8);
  CHECK(states(ShardedStates::Weights).first == 16 * p / 8);
}

TEST_CASE("training forecast: what a step is made of") {
  const TrainingForecaster plain(training_of("llama-3.2-1b", "a100-80gb"), {});
  const TrainingForecast one = plain.at({8, 1024, 1});
  CHECK(one.step_s == doctest::Approx(one.forward_s + one.backward_s + one.update_s));
  CHECK(one.backward_s > 1.8 * one.forward_s);
  CHECK(one.mfu < 0.7);
  CHECK(one.hfu > one.mfu);  // scores computed again
  CHECK(one.tokens_per_s * one.step_s == doctest::Approx(8 * 1024));

  // Micro-batches repeat the passes, not the update; they need less memory.
  const TrainingForecast two = plain.at({16, 1024, 2});
  CHECK(two.update_s == one.update_s);
  CHECK(two.forward_s == doctest::Approx(2 * one.forward_s));
  CHECK(two.model_flops == 2 * one.model_flops);
  CHECK(two.activation_bytes == one.activation_bytes);
  CHECK(two.peak_memory_bytes < plain.at({16, 1024, 1}).peak_memory_bytes);

  const TrainingForecaster full(training_of("llama-3.2-1b", "a100-80gb"),
                                {.recompute = Recompute::Full});
  const TrainingForecast again = full.at({8, 1024, 1});
  CHECK(again.model_flops == one.model_flops);
  CHECK(again.hardware_flops > one.hardware_flops);
  CHECK(again.step_s > one.step_s);
  CHECK(again.saved_activation_bytes < 0.4 * one.saved_activation_bytes);  // the logits stay

  // The rows of the breakdown are the step.
  double sum = 0;
  for (const BreakdownRow& row : plain.breakdown({16, 1024, 2})) sum += row.total.value;
  CHECK(sum == doctest::Approx(two.step_s));
}

TEST_CASE("training forecast: replicas share the sequences and sum the gradients") {
  const auto at = [](std::uint64_t dp, ShardedStates sharded, std::uint64_t seq_len = 1024) {
    return TrainingForecaster(training_of("llama-3.2-1b", "a100-80gb", {}, "ideal", dp), {},
                              sharded)
        .at({8, seq_len, 1});
  };
  const TrainingForecast one = at(1, ShardedStates::None);
  const TrainingForecast eight = at(8, ShardedStates::None);
  CHECK(eight.model_flops == one.model_flops);
  CHECK(eight.step_s < one.step_s / 4);
  CHECK(eight.communication_s == 0);  // as long as the way back hides it
  CHECK(at(8, ShardedStates::None, 16).communication_s > 0);
  double before = eight.peak_memory_bytes;
  for (const ShardedStates sharded :
       {ShardedStates::Optimizer, ShardedStates::Gradients, ShardedStates::Weights}) {
    const double bytes = at(8, sharded).peak_memory_bytes;
    CHECK(bytes < before);
    before = bytes;
  }
  CHECK_THROWS_AS(TrainingForecaster(training_of("gpt2", "a100-80gb"), {}).at({4, 128, 8}), Error);
}

// Model FLOPs of a token by the conventions in print; training.md, section 3.
TEST_CASE("training forecast: conventions of model FLOPs") {
  // llm-foundry's 1b: 24 layers of 2048, vocabulary 50368, learned positions, biases.
  const std::vector<ConfigOverride> foundry{{"n_layer", "24"},
                                            {"n_embd", "2048"},
                                            {"n_head", "16"},
                                            {"vocab_size", "50368"},
                                            {"n_positions", "2048"}};
  const TrainingForecaster f(training_of("gpt2", "a100-80gb", foundry), {});
  CHECK(f.recording().parameters == 1'315'950'592);
  const double palm = f.conventions(2048).palm;
  CHECK(palm == 6.0 * 1'315'950'592 + 12.0 * 24 * 2048 * 2048);
  // 20,513 tokens a second of an A100 are 59.86 % by this convention.
  CHECK(palm * 20513 / 312e12 == doctest::Approx(0.5986).epsilon(1e-3));
  // Megatron-Bridge: Llama 3 8B, 8192 tokens: 51.48 GFLOP; 744 TFLOP/s at 14,451 tokens a second.
  const TrainingForecaster llama(training_of("llama-3-8b", "h100-sxm"), {});
  CHECK(llama.conventions(8192).megatron == doctest::Approx(51.48e9).epsilon(1e-3));
  CHECK(gigabytes(llama.conventions(8192).megatron * 14451) ==
        doctest::Approx(744e3).epsilon(2e-3));
}
