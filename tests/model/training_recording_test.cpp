#include "model/record/training_recording.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "model/config/layer_map.h"
#include "model/families/config_reader.h"
#include "model/graph/work.h"
#include "model/methods/method.h"
#include "tests/model/message_of.h"
#include "tests/model/tiny_models.h"

using namespace kvcast;

namespace {

constexpr std::uint64_t batch = 2;
constexpr std::uint64_t tokens = 96;

Lowering lowering_of(Kernels attention, DType dtype) {
  return {attention, attention, dtype, dtype, dtype};
}

/// Saved between the two ways by one more layer.
std::uint64_t saved_by_a_layer(const std::string& model, const std::string& layers_key,
                               const Lowering& lowering, Recompute recompute,
                               const Parallelism& split = {}) {
  const auto saved = [&](int layers) {
    const Architecture a = load_model(catalog(), model, {{layers_key, std::to_string(layers)}});
    const TrainingRecording r =
        record_training(a, {}, lowering, {.recompute = recompute, .split = split});
    return activation_bytes(r.first, r.symbols.resolve({batch, tokens, tokens})).saved;
  };
  return saved(4) - saved(3);
}

/// 2·rows·in·out of every product with a weight.
std::uint64_t products(const Architecture& a) {
  const Stack& s = a.decoder;
  std::uint64_t per_token = a.vocab_size * a.hidden_size;
  for (const LayerShape& l : s.layers) {
    const std::uint64_t q = l.heads.num_attention_heads * l.heads.head_dim;
    const std::uint64_t kv = l.heads.num_key_value_heads * l.heads.head_dim;
    per_token += a.hidden_size * (2 * q + 2 * kv + 3 * l.intermediate_size);
  }
  return 2 * batch * tokens * per_token;
}

std::size_t count_of_label(const Graph& graph, const std::string& label) {
  return static_cast<std::size_t>(std::count_if(graph.nodes().begin(), graph.nodes().end(),
                                                [&](const Node& n) { return n.label == label; }));
}

}  // namespace

TEST_CASE(
    "training: each product costs twice its FLOPs on the way back, attention two and a half") {
  for (const std::string name : {"llama-3.2-1b", "smollm2-135m", "tinyllama-1.1b"}) {
    CAPTURE(name);
    const Architecture a = load_model(catalog(), name);
    const Heads& h = a.decoder.layers.front().heads;
    const std::uint64_t pairs =
        batch * a.decoder.layers.size() * h.num_attention_heads * tokens * (tokens + 1) / 2;
    const TrainingRecording r = record_training(a, {}, lowering_of(Kernels::Fused, DType::BF16));
    const SymbolValues values = r.symbols.resolve({batch, tokens, tokens});
    CHECK(r.model_flops.at(values) == 3 * (products(a) + pairs * 4 * h.head_dim));
    CHECK(r.hardware_flops.at(values) == 3 * products(a) + pairs * (4 + 10) * h.head_dim);

    const TrainingRecording eager =
        record_training(a, {}, lowering_of(Kernels::Eager, DType::BF16));
    const std::uint64_t all =
        batch * a.decoder.layers.size() * h.num_attention_heads * tokens * tokens;
    CHECK(eager.model_flops.at(values) == 3 * (products(a) + all * 4 * h.head_dim));
    CHECK(eager.hardware_flops.at(values) == eager.model_flops.at(values));
  }
}

TEST_CASE("training: full recomputation runs each layer's forward pass once more") {
  const Architecture a = load_model(catalog(), "llama-3.2-1b");
  const Lowering lowering = lowering_of(Kernels::Fused, DType::BF16);
  const TrainingRecording none = record_training(a, {}, lowering);
  const TrainingRecording full = record_training(a, {}, lowering, {.recompute = Recompute::Full});
  const SymbolValues values = none.symbols.resolve({batch, tokens, tokens});
  const Heads& h = a.decoder.layers.front().heads;
  const std::uint64_t pairs =
      batch * a.decoder.layers.size() * h.num_attention_heads * tokens * (tokens + 1) / 2;
  const std::uint64_t layers =
      products(a) - 2 * batch * tokens * a.vocab_size * a.hidden_size + pairs * 4 * h.head_dim;
  CHECK(full.model_flops == none.model_flops);
  CHECK(full.hardware_flops.at(values) == none.hardware_flops.at(values) + layers);
  const auto bytes = [&](const TrainingRecording& r) {
    return activation_bytes(r.first, r.symbols.resolve({batch, tokens, tokens}));
  };
  CHECK(bytes(full).saved < bytes(none).saved);
  CHECK(bytes(full).peak < bytes(none).peak);
}

// Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4, without dropout's masks and
// copies: 34sbh + 5as²b becomes 32sbh + 2as²b at two bytes a number.
TEST_CASE("training: a layer of GPT saves what the published formula says") {
  const Architecture a = load_model(catalog(), "gpt2");
  const std::uint64_t h = a.hidden_size;
  const std::uint64_t heads = a.decoder.layers.front().heads.num_attention_heads;
  Lowering lowering = lowering_of(Kernels::Eager, DType::FP32);  // probabilities stay in one type
  lowering.elementwise = Kernels::Fused;
  const std::uint64_t statistics = 2 * 2 * 4 * batch * tokens;  // mean and root of two norms
  CHECK(saved_by_a_layer("gpt2", "n_layer", lowering, Recompute::None) ==
        2 * (32 * tokens * batch * h + 2 * heads * tokens * tokens * batch) + statistics);
  CHECK(saved_by_a_layer("gpt2", "n_layer", lowering, Recompute::Selective) ==
        2 * 32 * tokens * batch * h + statistics);
  CHECK(saved_by_a_layer("gpt2", "n_layer", lowering, Recompute::Full) ==
        2 * 2 * tokens * batch * h);
}

// karpathy/llm.c, README: train_gpt2.c has 73,323,776 fp32 activations at batch 4 and 64 tokens. It
// keeps the losses of rows, where we have their sum, and probabilities beside the logits, where we
// have the logits' gradient. Its kernels do at once what the eager graph does in steps.
TEST_CASE("training: GPT-2's activations are those of llm.c") {
  const Architecture a = load_model(catalog(), "gpt2");
  Lowering lowering = lowering_of(Kernels::Eager, DType::FP32);
  lowering.elementwise = Kernels::Fused;
  const TrainingRecording r = record_training(a, {}, lowering);
  constexpr std::uint64_t rows = 4 * 64;
  const SymbolValues symbols = r.symbols.resolve({4, 64, 64});
  const std::set<std::string> in_other_kernels{"embedding", "positions", "scale", "mask",
                                               "merge_heads"};
  std::uint64_t numbers = 0;
  for (const Node& node : r.first.graph.nodes().first(r.first.first_backward.index)) {
    if (in_other_kernels.contains(node.label)) continue;
    for (const TensorId id : node.outputs) {
      numbers += r.first.graph.tensor(id).elements().at(symbols);
    }
  }
  CHECK(numbers == 73'323'776 - rows + 1);
}

// The published table's own numbers: 34sbh + 5as²b bytes, of two bytes a number and one of each
// mask, and its parts under tensor and sequence parallelism and selective recomputation. s is 2048,
// b 1. Beside them there are the statistics of two norms, fp32. Source: Korthikanti et al. 2022,
// tables 2 and 3; training.md, section 3.
TEST_CASE("training: with dropout a layer of 22B and 175B saves the bytes that are published") {
  struct Published {
    std::uint64_t h, heads;
    std::uint64_t none, tp, tp_sp, tp_selective, tp_sp_selective, full;
  };
  for (const Published& p : {Published{6144, 64, 1'769'996'288, 331'350'016, 221'249'536,
                                       163'577'856, 53'477'376, 25'165'824},
                             Published{12288, 96, 2'868'903'936, 578'813'952, 358'612'992,
                                       327'155'712, 106'954'752, 50'331'648}}) {
    CAPTURE(p.h);
    const auto saved = [&](Recompute recompute, std::uint64_t tp, bool sequence_parallel) {
      Lowering lowering = lowering_of(Kernels::Eager, DType::FP16);
      lowering.elementwise = Kernels::Fused;
      std::uint64_t of_layers[2];
      for (const std::uint64_t layers : {3U, 4U}) {
        const Architecture a = load_model(catalog(), "gpt2",
                                          {{"n_layer", std::to_string(layers)},
                                           {"n_embd", std::to_string(p.h)},
                                           {"n_head", std::to_string(p.heads)},
                                           {"n_positions", "2048"},
                                           {"vocab_size", "51200"}});
        const TrainingRecording r =
            record_training(a, {}, lowering,
                            {.recompute = recompute,
                             .dropout = 0.1,
                             .split = {.tp = tp, .sequence_parallel = sequence_parallel}});
        of_layers[layers - 3] = activation_bytes(r.first, r.symbols.resolve({1, 2048, 2048})).saved;
      }
      const std::uint64_t rows = sequence_parallel ? 2048 / tp : 2048;
      const std::uint64_t statistics = recompute == Recompute::Full ? 0 : 2 * 2 * 4 * rows;
      return of_layers[1] - of_layers[0] - statistics;
    };
    CHECK(saved(Recompute::None, 1, false) == p.none);
    CHECK(saved(Recompute::None, 8, false) == p.tp);
    CHECK(saved(Recompute::None, 8, true) == p.tp_sp);
    CHECK(saved(Recompute::Selective, 8, false) == p.tp_selective);
    CHECK(saved(Recompute::Selective, 8, true) == p.tp_sp_selective);
    CHECK(saved(Recompute::Full, 1, false) == p.full);
  }
}

// Derived: the inputs of its products, norms, rotation and gate, the sums of a tiled attention.
TEST_CASE("training: a layer of Llama saves 2(4D + 2H·hd + 2G·hd + 3F) + 4H + 8 bytes a token") {
  for (const std::string name : {"llama-7b", "llama-3.2-1b"}) {
    CAPTURE(name);
    const Architecture a = load_model(catalog(), name);
    const LayerShape& l = a.decoder.layers.front();
    const std::uint64_t q = l.heads.num_attention_heads * l.heads.head_dim;
    const std::uint64_t kv = l.heads.num_key_value_heads * l.heads.head_dim;
    const std::uint64_t a_token =
        2 * (4 * a.hidden_size + 2 * q + 2 * kv + 3 * l.intermediate_size) +
        4 * l.heads.num_attention_heads + 8;
    if (name == "llama-7b") CHECK(a_token == 131720);
    CHECK(saved_by_a_layer(name, "num_hidden_layers", lowering_of(Kernels::Fused, DType::BF16),
                           Recompute::None) == batch * tokens * a_token);
  }
}

// Source: Korthikanti et al. 2022, table 2, without dropout's masks: of the 34 and 5as/h there, 32
// and 2as/h. Tensor parallelism leaves the norms' inputs and outputs whole, 8 of them.
TEST_CASE("training: split heads and widths divide what a layer of GPT saves, not its norms") {
  Lowering lowering = lowering_of(Kernels::Eager, DType::FP32);  // twice the formula's bytes
  lowering.elementwise = Kernels::Fused;
  const std::uint64_t h = 768;
  const std::uint64_t heads = 12;
  const std::uint64_t tokens_of_batch = tokens * batch;
  const std::uint64_t statistics = 2 * 2 * 4 * tokens_of_batch;  // of two norms, fp32
  for (const std::uint64_t tp : {2U, 4U}) {
    CAPTURE(tp);
    const auto saved = [&](Recompute recompute) {
      return saved_by_a_layer("gpt2", "n_layer", lowering, recompute, {.tp = tp});
    };
    const std::uint64_t inputs = 8 * tokens_of_batch * h + 24 * tokens_of_batch * h / tp;
    CHECK(saved(Recompute::None) ==
          2 * (inputs + 2 * heads / tp * tokens * tokens * batch) + statistics);
    CHECK(saved(Recompute::Selective) == 2 * inputs + statistics);
    CHECK(saved(Recompute::Full) == 2 * 2 * tokens_of_batch * h);
  }
}

// The same, section 4.2.2: devices that split rows too keep a part of everything.
TEST_CASE("training: with split rows a layer of Llama saves a part of everything") {
  const Lowering lowering = lowering_of(Kernels::Fused, DType::BF16);
  const auto saved = [&](const Parallelism& split) {
    return saved_by_a_layer("llama-7b", "num_hidden_layers", lowering, Recompute::None, split);
  };
  const std::uint64_t norms = 2 * 4 * 4096 + 8;
  const std::uint64_t rest = 131720 - norms;
  CHECK(saved({.tp = 8}) == batch * tokens * (norms + rest / 8));
  CHECK(saved({.tp = 8, .sequence_parallel = true}) == batch * tokens * 131720 / 8);
  CHECK(saved_by_a_layer("llama-7b", "num_hidden_layers", lowering, Recompute::Full,
                         {.tp = 8, .sequence_parallel = true}) == batch * tokens * 2 * 4096 / 8);
}

// Two all-reduces forward and two back, or a reduce-scatter and a gathering for each, which is
// repeated on the way back: Korthikanti et al., sections 4.1 and 4.2.2.
TEST_CASE("training: messages of a layer on the way there and back") {
  const auto messages = [](bool sequence_parallel) {
    std::map<std::string, int> count;
    for (const int layers : {3, 4}) {
      const Architecture a =
          load_model(catalog(), "llama-7b", {{"num_hidden_layers", std::to_string(layers)}});
      const TrainingRecording r =
          record_training(a, {}, lowering_of(Kernels::Fused, DType::BF16),
                          {.split = {.tp = 4, .sequence_parallel = sequence_parallel}});
      for (std::size_t n = 0; n < r.first.graph.nodes().size(); ++n) {
        const auto* const op = std::get_if<Collective>(&r.first.graph.nodes()[n].op);
        if (op == nullptr) continue;
        const bool back = n >= r.first.first_backward.index;
        count[std::string(name(op->kind)) + (back ? " back" : "")] += layers == 4 ? 1 : -1;
      }
    }
    std::erase_if(count, [](const auto& c) { return c.second == 0; });
    return count;
  };
  using Counts = std::map<std::string, int>;
  CHECK(messages(false) == Counts{{"all_reduce", 2}, {"all_reduce back", 2}});
  CHECK(messages(true) == Counts{{"all_gather", 2},
                                 {"reduce_scatter", 2},
                                 {"all_gather back", 4},
                                 {"reduce_scatter back", 2}});
}

// 2 bytes read and 2 written of each logit, beside the targets, the share and the loss in fp32;
// transformers' loss reads 2 and writes 4, reads 4 and writes 4, then reads 4 and writes 2.
TEST_CASE("training: a fused loss widens what it reads; others keep logits in fp32") {
  const Architecture a = load_model(catalog(), "tinyllama-1.1b", {{"num_hidden_layers", "1"}});
  const auto loss_bytes = [&](Kernels elementwise) {
    const Lowering lowering{Kernels::Fused, elementwise, DType::BF16, DType::BF16, DType::BF16};
    const TrainingRecording r = record_training(a, {}, lowering);
    const SymbolValues sizes = r.symbols.resolve({batch, tokens, tokens});
    std::uint64_t bytes = 0;
    for (const Node& n : r.first.graph.nodes()) {
      if (n.label != "loss" && !n.label.starts_with("cast_logits")) continue;
      bytes += work(r.first.graph, n).bytes().at(sizes);
    }
    return bytes;
  };
  const std::uint64_t logits = batch * tokens * a.vocab_size;
  const std::uint64_t others = 4 * (batch * tokens + 1 + 1);
  CHECK(loss_bytes(Kernels::Fused) == 4 * logits + others);
  CHECK(loss_bytes(Kernels::Eager) == 20 * logits + others);
}

TEST_CASE("training: frozen weights get no products, dead paths none") {
  const Architecture a = load_model(catalog(), "smollm2-135m");
  const Lowering lowering = lowering_of(Kernels::Fused, DType::FP32);
  TrainingOptions options;
  options.trains = [](const std::string&) { return false; };
  const TrainingRecording nothing = record_training(a, {}, lowering, options);
  CHECK(nothing.first.first_backward.index == nothing.first.graph.nodes().size());
  CHECK(nothing.trained_parameters == 0);

  options.trains = [](const std::string& name) { return name == "layers.20.down.weight"; };
  const TrainingRecording one = record_training(a, {}, lowering, options);
  CHECK(one.trained_parameters == a.hidden_size * a.decoder.layers.front().intermediate_size);
  const Graph& graph = one.first.graph;
  std::size_t weight_gradients = 0;
  for (std::size_t n = one.first.first_backward.index; n < graph.nodes().size(); ++n) {
    CHECK(graph.nodes()[n].layer != 19);
    if (std::holds_alternative<WeightGradient>(graph.nodes()[n].op)) ++weight_gradients;
  }
  CHECK(weight_gradients == 1);
  // Nothing below the trained weight.
  CHECK(count_of_label(graph, "query_input_gradient") == a.decoder.layers.size() - 21);
}

TEST_CASE("training: further micro-batches add to the gradients and cost no more FLOPs") {
  const Architecture a = load_model(catalog(), "gpt2");
  const TrainingRecording r = record_training(a, {}, lowering_of(Kernels::Fused, DType::FP32));
  const SymbolValues values = r.symbols.resolve({batch, tokens, tokens});
  const Work first = total_work(r.first.graph);
  const Work next = total_work(r.next.graph);
  CHECK(first.flops.at(values) == next.flops.at(values));
  constexpr auto gradients = static_cast<std::size_t>(Storage::Gradients);
  // The first pass reads only the tied table that the head's product has written: added rows.
  const std::uint64_t rows = batch * tokens * a.hidden_size + tokens * a.hidden_size;
  CHECK(first.read[gradients].at(values) == 4 * rows);
  CHECK(next.read[gradients].at(values) ==
        4 * (r.trained_parameters + rows - a.decoder.position_rows * a.hidden_size));
}

TEST_CASE("training: states are 16 bytes a parameter in fp32 and in mixed precision") {
  const Architecture a = load_model(catalog(), "pythia-160m");
  for (const DType dtype : {DType::FP32, DType::BF16}) {
    const TrainingRecording r = record_training(a, {}, lowering_of(Kernels::Fused, dtype));
    CHECK(r.trained_parameters == record(a, {}, {}).parameters);
    const std::uint64_t all = (r.weight_bytes + r.gradient_bytes + r.optimizer_bytes).constant();
    CHECK(all == 16 * r.parameters);
  }
  const TrainingRecording wide =
      record_training(a, {}, lowering_of(Kernels::Fused, DType::BF16), {.gradients = DType::FP32});
  CHECK((wide.weight_bytes + wide.gradient_bytes + wide.optimizer_bytes).constant() ==
        18 * wide.parameters);
}

TEST_CASE("training: an owner's keys collect the gradients of the layers that share them") {
  const Architecture a = load_model(catalog(), "pythia-160m");
  const TrainingRecording r = record_training(a, parse_methods("mlkv:layers=6,heads=1"),
                                              lowering_of(Kernels::Fused, DType::FP32));
  std::set<std::string> trained;
  for (const TensorId id : r.first.graph.outputs()) {
    if (r.first.graph.tensor(id).storage == Storage::Gradients) {
      trained.insert(r.first.graph.tensor(id).name);
    }
  }
  CHECK(trained.contains("layers.0.key.weight"));
  CHECK_FALSE(trained.contains("layers.1.key.weight"));
  CHECK(r.trained_parameters == record(a, parse_methods("mlkv:layers=6,heads=1"), {}).parameters);
}

// Derived: 6P_B + 6(P_A + P_predictor) a token, of which frozen weights get no gradients: the
// targets cost 2P_B, the base on predictions 2P_B forward and 2P_B back. Attention, the targets'
// head and unused keys and values apart.
TEST_CASE("training: KV Prediction trains the auxiliary and the predictor through a frozen base") {
  const Architecture base = load_model(catalog(), "openelm-1.1b");
  const Architecture auxiliary = load_model(catalog(), "openelm-450m");
  FindModel find = [](const std::string& name) { return load_model(catalog(), name); };
  TrainingOptions options;
  options.find_model = find;
  const std::vector<MethodSpec> kvp = parse_methods("kvp:auxiliary=openelm-450m");
  const TrainingRecording r =
      record_training(base, kvp, lowering_of(Kernels::Fused, DType::FP32), options);
  std::uint64_t trained = 0;
  for (const TensorId id : r.first.graph.outputs()) {
    const TensorInfo& t = r.first.graph.tensor(id);
    if (t.storage != Storage::Gradients) continue;
    CHECK((t.name.starts_with("auxiliary.") || t.name.starts_with("predictor.")));
    trained += t.elements().constant();
  }
  CHECK(trained == r.trained_parameters);
  const std::uint64_t p_auxiliary = count_parameters(auxiliary);
  CHECK(trained > p_auxiliary);
  CHECK(r.parameters == trained + count_parameters(base));
  const SymbolValues values = r.symbols.resolve({1, 16, 16});
  const double a_token = static_cast<double>(r.model_flops.at(values)) / 16;
  const double formula =
      6.0 * static_cast<double>(count_parameters(base)) + 6.0 * static_cast<double>(trained);
  CHECK(a_token == doctest::Approx(formula).epsilon(0.05));
  // Nothing below the frozen base's first query.
  std::size_t first_layer = 0;
  for (const Node& n : r.first.graph.nodes()) {
    const bool reads_base = std::any_of(n.inputs.begin(), n.inputs.end(), [&](TensorId id) {
      return r.first.graph.tensor(id).name == "layers.0.query.weight";
    });
    if (reads_base) ++first_layer;
  }
  CHECK(first_layer == 2);  // forward, of the targets and of the base
  // Full recomputation runs the layers of the auxiliary and of the base once more, and the maps,
  // which are small; not those of the targets, which have no way back.
  options.recompute = Recompute::Full;
  const TrainingRecording again =
      record_training(base, kvp, lowering_of(Kernels::Fused, DType::FP32), options);
  CHECK(again.model_flops.at(values) == r.model_flops.at(values));
  const auto run_again =
      static_cast<double>(again.hardware_flops.at(values) - r.hardware_flops.at(values)) / 16;
  const double embedding_and_head = static_cast<double>(
      base.vocab_size * base.hidden_size + auxiliary.vocab_size * auxiliary.hidden_size);
  const double of_layers =
      static_cast<double>(count_parameters(base) + p_auxiliary) - embedding_and_head;
  CHECK(run_again == doctest::Approx(2 * of_layers).epsilon(0.1));
  const auto saved = [](const TrainingRecording& recording) {
    return activation_bytes(recording.first, recording.symbols.resolve({1, 512, 512})).saved;
  };
  CHECK(saved(again) < saved(r));
  options.recompute = Recompute::None;
  // Without its own loss the auxiliary's head is dead.
  options.auxiliary_loss = 0;
  const TrainingRecording without =
      record_training(base, kvp, lowering_of(Kernels::Fused, DType::FP32), options);
  CHECK(without.model_flops.at(values) < r.model_flops.at(values));
}

// A layer's products with weights: queries and the attention's output, keys and values, the MLP.
// The targets are 2P_B, the base there 2P_B and back 2P_B,
// for its weights are frozen; auxiliary and predictor 6P each. What no loss needs is not computed:
// the base's own keys and values where it has predicted ones, of the targets what follows the last
// layer's keys and values, and on the way back what is below the base's first attention.
TEST_CASE("training: KV Prediction's FLOPs are those of its formula, to the last one") {
  struct Case {
    const char* base;
    const char* method;
  };
  for (const Case& c : {Case{"openelm-1.1b", "kvp:auxiliary=openelm-450m"},
                        Case{"openelm-3b", "kvp:auxiliary=openelm-270m"},
                        Case{"smollm2-135m", "kvp:auxiliary=lp-0.50"}}) {
    CAPTURE(std::string(c.method));
    const Architecture base = load_model(catalog(), c.base);
    TrainingOptions options;
    options.find_model = [](const std::string& name) { return load_model(catalog(), name); };
    const auto flops = [&](Kernels kernels) {
      const TrainingRecording r = record_training(base, parse_methods(c.method),
                                                  lowering_of(kernels, DType::FP32), options);
      return r.model_flops.at(r.symbols.resolve({batch, tokens, tokens}));
    };
    const Architecture auxiliary =
        record_training(base, parse_methods(c.method), lowering_of(Kernels::Fused, DType::FP32),
                        options)
            .helper_models.front()
            .architecture;
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      const std::uint64_t pairs =
          kernels == Kernels::Fused ? tokens * (tokens + 1) / 2 : tokens * tokens;
      constexpr std::uint64_t rows = batch * tokens;
      // Of a layer, there; 2 a multiply-add.
      const auto queries = [&](const Architecture& a, const LayerShape& l) {
        return 2 * rows * a.hidden_size * l.heads.num_attention_heads * l.heads.head_dim;
      };
      const auto kv = [&](const Architecture& a, const LayerShape& l) {
        return 2 * rows * a.hidden_size * 2 * l.heads.num_key_value_heads * l.heads.head_dim;
      };
      const auto attention = [&](const LayerShape& l) {
        return batch * pairs * l.heads.num_attention_heads * 4 * l.heads.head_dim;
      };
      const auto rest = [&](const Architecture& a, const LayerShape& l) {
        return queries(a, l) + 2 * rows * a.hidden_size * 3 * l.intermediate_size;
      };
      const auto head = [&](const Architecture& a) {
        return 2 * rows * a.hidden_size * a.vocab_size;
      };
      const std::vector<LayerShape>& layers = base.decoder.layers;
      const std::vector<LayerShape>& helpers = auxiliary.decoder.layers;
      std::uint64_t targets = kv(base, layers.back());
      for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
        const LayerShape& l = layers[i];
        targets += queries(base, l) + kv(base, l) + attention(l) + rest(base, l);
      }
      std::uint64_t on_predictions = 2 * head(base);
      for (const LayerShape& l : layers) {
        on_predictions += 2 * (queries(base, l) + rest(base, l)) + 3 * attention(l);
      }
      // No way back through the first queries; a tiled kernel has their gradient all the same.
      on_predictions -= queries(base, layers.front());
      if (kernels == Kernels::Eager) on_predictions -= attention(layers.front()) / 2;
      std::uint64_t of_auxiliary = 3 * head(auxiliary);
      for (const LayerShape& l : helpers) {
        of_auxiliary +=
            3 * (queries(auxiliary, l) + kv(auxiliary, l) + attention(l) + rest(auxiliary, l));
      }
      const LayerMap map = code_layer_map(base, auxiliary);
      std::uint64_t predictor = 0;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const Heads& from = helpers[map[i]].heads;
        const Heads& to = layers[i].heads;
        predictor += 3 * 2 * 2 * rows * from.num_key_value_heads * from.head_dim *
                     to.num_key_value_heads * to.head_dim;
      }
      CHECK(flops(kernels) == targets + on_predictions + of_auxiliary + predictor);
    }
  }
}

TEST_CASE("training: three models in one pass are drawn as one, however deep they are") {
  TrainingOptions options;
  options.find_model = [](const std::string& name) { return load_model(catalog(), name); };
  const auto boxes = [&](const std::string& layers) {
    const Architecture a = load_model(catalog(), "smollm2-135m", {{"num_hidden_layers", layers}});
    const TrainingRecording r = record_training(a, parse_methods("kvp:auxiliary=lp-0.50"),
                                                lowering_of(Kernels::Fused, DType::FP32), options);
    std::ostringstream dot;
    write_dot(dot, r.first.graph, r.symbols, a.name);
    const std::string text = dot.str();
    CHECK(text.find("auxiliary.layers layer 0 to ") != std::string::npos);
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find(" [label=", at)) != text.npos; ++at) ++count;
    return count;
  };
  CHECK(boxes("12") == boxes("30"));
}

TEST_CASE("training: refused with the reason") {
  const auto message = [](const std::string& model, const std::string& method) {
    return message_of([&] {
      record_training(load_model(catalog(), model), parse_methods(method),
                      lowering_of(Kernels::Fused, DType::FP32));
    });
  };
  CHECK(message("t5-small", "plain").find("which has an encoder") != std::string::npos);
  CHECK(message("gpt2", "random-prune:keep=0.5").find("expected plain, mlkv or kvp") !=
        std::string::npos);
}
