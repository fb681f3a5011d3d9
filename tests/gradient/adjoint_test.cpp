// Every adjoint against its operator: ⟨ȳ, J·v⟩ = ⟨Jᵀ·ȳ, v⟩ in fp64, J·v by dual numbers.
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/base/error.h"
#include "tests/gradient/training_numbers.h"

namespace kvcast::execute {
namespace {

constexpr double tolerance = 1e-13;

/// The kinds of operators on the way back whose results were broken, and the identity with them.
std::set<std::size_t> broken_kinds;

/// A graph of a few operators, closed by a loss that is linear in what it is given.
class Case {
 public:
  TensorId weight(const std::string& name, std::vector<Count> shape) {
    return graph_.add_tensor({name, std::move(shape), DType::FP64, Storage::Weights, {}});
  }
  TensorId input(const std::string& name, std::vector<Count> shape,
                 std::vector<double> values = {}) {
    if (!values.empty()) fixed_[name] = std::move(values);
    return graph_.add_tensor({name, std::move(shape), DType::FP64, Storage::Activations, {}});
  }
  TensorId add(Op op, std::vector<TensorId> inputs, std::vector<Count> shape) {
    return graph_.add_node({std::move(op), std::move(inputs), {}, "case", "", no_layer},
                           info(std::move(shape)));
  }
  /// The same of an operator with several results.
  std::vector<TensorId> add(Op op, std::vector<TensorId> inputs,
                            const std::vector<std::vector<Count>>& shapes) {
    std::vector<TensorInfo> results;
    for (const std::vector<Count>& shape : shapes) results.push_back(info(shape));
    return graph_.add_node({std::move(op), std::move(inputs), {}, "case", "", no_layer},
                           std::move(results));
  }
  /// The y of a StateScan that begins with no state.
  TensorId scan(StateScan op, std::vector<TensorId> inputs, std::uint64_t state_size) {
    const std::vector<Count> shape = graph_.tensor(inputs[2]).shape;
    inputs.push_back(input("state", {shape[0], 0, state_size}));
    return add(std::move(op), std::move(inputs), {shape, {shape[0], 1, state_size}}).front();
  }
  /// The weights of a Route.
  TensorId route(const Routing& routing, TensorId logits) {
    std::vector<Count> shape = graph_.tensor(logits).shape;
    shape.back() = routing.num_experts_per_tok;
    std::vector<Count> weights = shape;
    weights.push_back(1);
    const Symbol distinct = symbols_.found_by_run(Count(routing.num_experts), "distinct", Count(1));
    return graph_
        .add_node({Route{routing, distinct}, {logits}, {}, "case", "", no_layer},
                  {info(std::move(shape)), info(std::move(weights))})
        .back();
  }
  /// Σ factor∘y: with targets far below y the mean absolute error is linear.
  void close(TensorId y) {
    const std::vector<Count> shape = graph_.tensor(y).shape;
    const TensorId factor = input("factor", shape);
    const TensorId scaled = add(Elementwise{Function::Multiply}, {y, factor}, shape);
    const TensorId far = input("far", shape, {-1e3});
    const TensorId share = input("share", {1}, {1});
    loss(MeanAbsoluteError{}, {scaled, far, share}, shape);
  }
  void loss(Op op, std::vector<TensorId> inputs, std::vector<Count> shape) {
    graph_.add_node({std::move(op), std::move(inputs), {}, "loss", "", no_layer},
                    {info(std::move(shape)), info({1})});
  }
  Symbols& symbols() { return symbols_; }

  /// The pass with random numbers.
  PlainRun<double> run() {
    GradientOptions options;
    options.weight_gradients = DType::FP64;
    pass_ = with_gradients(graph_, options);
    PlainRun<double> run(pass_.graph, symbols_.resolve({1, 1, 1}));
    fill(run, pass_.graph, fixed_, 1);
    run.run();
    return run;
  }

  void check() {
    const SymbolValues values = symbols_.resolve({1, 1, 1});
    for (const bool accumulates : {false, true}) {
      GradientOptions options;
      options.weight_gradients = DType::FP64;
      options.accumulates = accumulates;
      const TrainingPass pass = with_gradients(graph_, options);
      counted_run(pass.graph, values, fixed_, 1);
      for (const unsigned seed : {1U, 2U, 3U}) {
        const AdjointPair pair = adjoint_pair(pass, values, fixed_, seed);
        CHECK(pair.size > 0);
        CHECK(pair.error() < tolerance);
        const CentralDifference d = central_difference(pass, values, fixed_, seed);
        CHECK(std::abs(d.slope - pair.backward) < 1e-6 * pair.size + 10 * d.rounding);
      }
      if (!accumulates) check_broken(pass, values);
    }
  }

 private:
  /// A loss leaves its gradient beside its number, so it is of the way back too.
  void check_broken(const TrainingPass& pass, const SymbolValues& values) {
    for (std::size_t n = 0; n < pass.graph.nodes().size(); ++n) {
      const Node& node = pass.graph.nodes()[n];
      CAPTURE(name(node.op));
      const bool is_loss = is_any<CrossEntropy, LogSumExp, MeanAbsoluteError>(node.op);
      if (n < pass.first_backward.index && !is_loss) continue;
      for (std::size_t i = 0; i < (is_loss ? 1 : node.outputs.size()); ++i) {
        CAPTURE(i);
        CHECK(adjoint_pair(pass, values, fixed_, 1, node.outputs[i]).error() > 1e3 * tolerance);
      }
      broken_kinds.insert(node.op.index());
    }
  }
  static TensorInfo info(std::vector<Count> shape) {
    return {"", std::move(shape), DType::FP64, Storage::Activations, {}};
  }
  Symbols symbols_;
  Graph graph_;
  TrainingPass pass_;  ///< of run()
  FixedInputs fixed_;
};

/// One operator on weights of these shapes.
void check_operator(const Op& op, const std::vector<std::vector<Count>>& inputs,
                    std::vector<Count> output) {
  Case c;
  std::vector<TensorId> ids;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ids.push_back(c.weight("w" + std::to_string(i), inputs[i]));
  }
  c.close(c.add(op, ids, std::move(output)));
  c.check();
}

TEST_CASE("adjoint: products with weights") {
  check_operator(Linear{}, {{2, 3, 5}, {7, 5}}, {2, 3, 7});
  check_operator(Linear{}, {{2, 3, 5}, {7, 5}, {7}}, {2, 3, 7});
  // 6 heads over 3 blocks of 4 outputs and 5 inputs.
  check_operator(HeadLinear{6, 3, false}, {{2, 3, 30}, {12, 5}}, {2, 3, 24});
  check_operator(HeadLinear{6, 3, true}, {{2, 3, 24}, {12, 5}}, {2, 3, 30});
}

TEST_CASE("adjoint: rows of a table are added up where ids repeat") {
  Case c;
  const TensorId table = c.weight("table", {5, 4});
  const TensorId ids = c.input("ids", {2, 3}, {4, 0, 4, 2, 4, 0});
  c.close(c.add(Embedding{}, {table, ids}, {2, 3, 4}));
  c.check();
}

TEST_CASE("adjoint: ids without a row of the table add to row 0") {
  Case c;
  const TensorId table = c.weight("table", {5, 4});
  const TensorId ids = c.input("ids", {2, 3}, {4, 0, 5, 2, 7, 0});
  c.close(c.add(Embedding{.first_for_unknown = true}, {table, ids}, {2, 3, 4}));
  c.check();
}

TEST_CASE("adjoint: convolutions over time, of sequences longer and shorter than the kernel") {
  for (const std::uint64_t tokens : {2U, 7U}) {
    check_operator(CausalConv{4}, {{2, tokens, 3}, {3, 1, 4}}, {2, tokens, 3});
    check_operator(CausalConv{4}, {{2, tokens, 3}, {3, 1, 4}, {3}}, {2, tokens, 3});
  }
}

/// 6 heads in groups of `heads_of_group`, keys of 4, values of 5 features.
void check_scan(std::uint64_t heads_of_group, std::uint64_t tokens, bool by_row,
                const std::function<void(StateScan&)>& change) {
  CAPTURE(heads_of_group);
  CAPTURE(tokens);
  Case c;
  StateScan op;
  op.num_heads = 6 * heads_of_group;
  op.num_groups = 6;
  op.chunk = by_row ? 1 : 4;
  op.skips = true;
  change(op);
  Mask of_chunk;
  of_chunk.chunk = op.chunk;
  op.pairs = visible_pairs(of_chunk, tokens, tokens, c.symbols());
  op.chunks = (tokens + op.chunk - 1) / op.chunk;
  const std::uint64_t heads = op.num_heads;
  const std::vector<Count> decay =
      by_row ? std::vector<Count>{heads, 4} : std::vector<Count>{heads};
  std::vector<TensorId> inputs{
      c.weight("q", {2, tokens, 24}),        c.weight("k", {2, tokens, 24}),
      c.weight("v", {2, tokens, heads * 5}), c.weight("dt", {2, tokens, heads}),
      c.weight("dt_bias", {heads}),          c.weight("A", decay)};
  if (op.delta) inputs.push_back(c.weight("beta", {2, tokens, heads}));
  if (op.skips) inputs.push_back(c.weight("D", {heads}));
  c.close(c.scan(op, std::move(inputs), heads * 20));
  c.check();
}

TEST_CASE("adjoint: state spaces") {
  const auto limits = [](StateScan& op) {
    op.min_step = 0.5;
    op.max_step = 1.5;
  };
  const auto delta = [](StateScan& op) {
    op.delta = true;
    op.skips = false;
  };
  // One head of a group, as many as parts of a sum, and more.
  for (const std::uint64_t heads : {1U, 2U, 11U}) {
    check_scan(heads, 9, false, [](StateScan& /*op*/) {});
    check_scan(heads, 9, true, [](StateScan& /*op*/) {});
    check_scan(heads, 9, false, delta);
    check_scan(heads, 9, false, limits);
    check_scan(heads, 9, true, limits);
  }
  // Several blocks of tokens, and one token.
  for (const std::uint64_t tokens : {1U, 64U, 135U}) {
    check_scan(1, tokens, false, [](StateScan& /*op*/) {});
    check_scan(1, tokens, true, [](StateScan& op) { op.skips = false; });
    check_scan(1, tokens, false, delta);
  }
}

TEST_CASE("adjoint: mixed streams") {
  Case c;
  const std::vector<Count> shape{2, 3, 5};
  std::vector<TensorId> streams;
  for (const char* const name : {"x0", "x1", "x2"}) streams.push_back(c.weight(name, shape));
  // Three onto themselves, then one onto these.
  std::vector<TensorId> inputs = streams;
  inputs.push_back(c.weight("c", {2, 3, 9}));
  std::vector<TensorId> mixed = c.add(MixStreams{3}, inputs, {shape, shape, shape});
  mixed.insert(mixed.begin(), c.weight("change", shape));
  mixed.push_back(c.weight("shares", {2, 3, 3}));
  const std::vector<TensorId> y = c.add(MixStreams{1}, mixed, {shape, shape, shape});
  const TensorId two = c.add(Elementwise{Function::Multiply}, {y[0], y[1]}, shape);
  c.close(c.add(Elementwise{Function::Add}, {two, y[2]}, shape));
  c.check();
}

TEST_CASE("adjoint: xIELU and its two weights") {
  check_operator(Elementwise{Function::Xielu}, {{2, 3, 5}, {1}, {1}}, {2, 3, 5});
}

TEST_CASE("adjoint: a table that is also the head's weight has one gradient") {
  Case c;
  const TensorId table = c.weight("table", {5, 4});
  const TensorId ids = c.input("ids", {2, 3}, {4, 0, 4, 2, 4, 0});
  const TensorId x = c.add(Embedding{}, {table, ids}, {2, 3, 4});
  c.close(c.add(Linear{}, {x, table}, {2, 3, 5}));
  c.check();
}

TEST_CASE("adjoint: eager attention") {
  const Heads heads{6, 3, 5};
  check_operator(AttentionScores{heads}, {{2, 4, 30}, {2, 7, 15}}, {2, 6, 4, 7});
  check_operator(AttentionValues{heads}, {{2, 6, 4, 7}, {2, 7, 15}}, {2, 4, 30});
  check_operator(Softmax{}, {{2, 3, 4, 7}}, {2, 3, 4, 7});
  check_operator(RepeatHeads{2, 5}, {{2, 4, 15}}, {2, 4, 30});
}

/// `change` what differs from a plain causal attention.
void check_attention(std::uint64_t queries, std::uint64_t keys, std::vector<Count> bias_shape,
                     const std::function<void(TiledAttention&)>& change) {
  Case c;
  TiledAttention op;
  op.heads = {6, 3, 5};
  op.scale = 0.3;
  change(op);
  const Heads& h = op.heads;
  const Heads v = op.value_heads();
  op.visible_pairs = visible_pairs(op.mask, queries, keys, c.symbols());
  op.visible_keys = visible_keys(op.mask, queries, keys, c.symbols());
  std::vector<TensorId> inputs{c.weight("q", {2, queries, h.num_attention_heads * h.head_dim}),
                               c.weight("k", {2, keys, h.num_key_value_heads * h.head_dim})};
  inputs.push_back(op.values_are_keys
                       ? inputs[1]
                       : c.weight("v", {2, keys, v.num_key_value_heads * v.head_dim}));
  if (!bias_shape.empty()) inputs.push_back(c.input("bias", std::move(bias_shape)));
  c.close(c.add(op, inputs, {2, queries, h.num_attention_heads * v.head_dim}));
  c.check();
}

TEST_CASE("adjoint: tiled attention") {
  check_attention(7, 7, {}, [](TiledAttention& /*op*/) {});
  check_attention(4, 7, {}, [](TiledAttention& op) {
    op.mask.past = 3;
    op.scale = 1;
  });
  check_attention(7, 7, {}, [](TiledAttention& op) { op.mask.window = 3; });
  check_attention(7, 7, {}, [](TiledAttention& op) { op.mask.chunk = 3; });
  check_attention(4, 7, {}, [](TiledAttention& op) { op.mask.causal = false; });
  // Caps that scores come near.
  check_attention(7, 7, {}, [](TiledAttention& op) {
    op.scale = 0.9;
    op.softcap = 1.5;
  });
  check_attention(7, 7, {6, 7, 7}, [](TiledAttention& op) { op.softcap = 1.5; });
  check_attention(7, 7, {6, 1, 7}, [](TiledAttention& /*op*/) {});
  // Values of another width, in fewer heads, or in the keys.
  check_attention(7, 7, {}, [](TiledAttention& op) {
    op.num_value_heads = 2;
    op.value_dim = 4;
  });
  check_attention(7, 7, {}, [](TiledAttention& op) {
    op.value_dim = 3;
    op.values_are_keys = true;
    op.num_value_heads = 3;
  });
}

TEST_CASE("adjoint: elementary functions") {
  const std::vector<Count> shape{2, 3, 5};
  for (const Function f : {Function::Copy, Function::OnePlus, Function::Square, Function::Relu,
                           Function::Silu, Function::Gelu, Function::GeluTanh, Function::QuickGelu,
                           Function::SquaredRelu, Function::Sigmoid}) {
    CAPTURE(name(f));
    check_operator(Elementwise{f}, {shape}, shape);
  }
  for (const Function f :
       {Function::Scale, Function::ClampBelow, Function::SoftCap, Function::Clamp}) {
    CAPTURE(name(f));
    check_operator(Elementwise{f, 0.4}, {shape}, shape);
  }
  Case c;  // of a positive number
  const TensorId x = c.weight("x", shape);
  const TensorId square = c.add(Elementwise{Function::Square}, {x}, shape);
  c.close(c.add(Elementwise{Function::InverseRoot, 0.1}, {square}, shape));
  c.check();
}

TEST_CASE("adjoint: what an elementwise operator repeats is summed over its copies") {
  for (const Function f : {Function::Add, Function::Multiply, Function::Center}) {
    CAPTURE(name(f));
    check_operator(Elementwise{f}, {{2, 3, 6}, {2, 3, 6}}, {2, 3, 6});
    check_operator(Elementwise{f}, {{2, 3, 6}, {6}}, {2, 3, 6});
    check_operator(Elementwise{f}, {{2, 3, 6}, {2, 3, 1}}, {2, 3, 6});
    check_operator(Elementwise{f}, {{2, 3, 6}, {3, 6}}, {2, 3, 6});
    check_operator(Elementwise{f}, {{2, 3, 6}, {3}}, {2, 3, 6});           // as of each head
    check_operator(Elementwise{f}, {{2, 3, 6}, {2, 3, 2, 1}}, {2, 3, 6});  // one of each run
  }
}

TEST_CASE("adjoint: an operand that is read twice") {
  Case c;
  const TensorId x = c.weight("x", {2, 3, 4});
  const TensorId y = c.add(Elementwise{Function::Multiply}, {x, x}, {2, 3, 4});
  const TensorId z = c.add(Elementwise{Function::Silu}, {y}, {2, 3, 4});
  c.close(c.add(Elementwise{Function::Add}, {z, y}, {2, 3, 4}));
  c.check();
}

/// 2·3 tokens that choose 2 of 4 experts each, of which none chooses the last.
const std::vector<double> chosen{0, 2, 1, 0, 2, 1, 1, 0, 0, 1, 2, 0};

TEST_CASE("adjoint: products with the weights of chosen experts") {
  for (const std::uint64_t in : {5U, 10U}) {  // shared rows, or each expert's own
    Case c;
    const ExpertLinear op{4, 2, c.symbols().found_by_run(Count(4), "distinct", Count(3)), 1};
    const TensorId x = c.weight("x", {2, 3, in});
    const TensorId experts = c.input("experts", {2, 3, 2}, chosen);
    const TensorId w = c.weight("w", {4 * 7, 5});
    const TensorId bias = c.weight("bias", {4 * 7});
    c.close(c.add(op, {x, experts, w, bias}, {2, 3, 14}));
    c.check();
  }
}

TEST_CASE("adjoint: sums over experts") {
  check_operator(CombineExperts{2}, {{2, 3, 10}, {2, 3, 2, 1}}, {2, 3, 5});
  check_operator(CombineExperts{2}, {{2, 3, 10}}, {2, 3, 5});
}

TEST_CASE("adjoint: weights of chosen experts, by every score") {
  using Score = Routing::Score;
  for (const Score score :
       {Score::Softmax, Score::Sigmoid, Score::SoftmaxOfBest, Score::SoftmaxOfNear}) {
    for (const double least_sum : {0.0, 1e3}) {
      for (const bool normalizes : {false, true}) {
        CAPTURE(static_cast<int>(score));
        CAPTURE(least_sum);
        CAPTURE(normalizes);
        Case c;
        const Routing routing{.num_experts = 5,
                              .num_experts_per_tok = 2,
                              .score = score,
                              .tolerance = 1,
                              .normalizes = normalizes,
                              .least_sum = least_sum,
                              .weight_scale = normalizes ? 2.5 : 1};
        c.close(c.route(routing, c.weight("logits", {2, 3, 5})));
        c.check();
      }
    }
  }
}

TEST_CASE("adjoint: attention over chosen keys, and no gradient of the choice") {
  for (const std::uint64_t kept : {2U, 4U}) {
    for (const bool values_are_keys : {false, true}) {
      CAPTURE(kept);
      CAPTURE(values_are_keys);
      Case c;
      constexpr std::uint64_t tokens = 7;
      TiledAttention op;
      op.heads = {6, 3, 5};
      op.scale = 0.3;
      op.kept = kept;
      op.values_are_keys = values_are_keys;
      // Queries see 1, 2, ... tokens, and attend to `kept` of them at most.
      op.visible_pairs = kept == 2 ? 13 : 22;
      op.visible_keys = tokens;
      std::vector<TensorId> inputs{c.weight("q", {2, tokens, 30}), c.weight("k", {2, tokens, 15})};
      inputs.push_back(values_are_keys ? inputs[1] : c.weight("v", {2, tokens, 15}));
      ChooseKeys choice;
      choice.num_heads = 2;
      choice.kept = kept;
      choice.visible_pairs = 28;
      choice.visible_keys = tokens;
      inputs.push_back(c.add(choice,
                             {c.weight("iq", {2, tokens, 6}), c.weight("ik", {2, tokens, 3}),
                              c.weight("iw", {2, tokens, 2})},
                             std::vector<Count>{2, tokens, kept}));
      c.close(c.add(op, inputs, std::vector<Count>{2, tokens, 30}));
      c.check();
    }
  }
}

TEST_CASE("adjoint: sinks") {
  check_operator(Softmax{}, {{2, 3, 4, 7}, {3}}, {2, 3, 4, 7});
  Case c;
  TiledAttention op;
  op.heads = {6, 3, 5};
  op.scale = 0.3;
  op.has_sinks = true;
  op.mask.causal = true;
  op.visible_pairs = visible_pairs(op.mask, 4, 4, c.symbols());
  op.visible_keys = visible_keys(op.mask, 4, 4, c.symbols());
  const std::vector<TensorId> inputs{c.weight("q", {2, 4, 30}), c.weight("k", {2, 4, 15}),
                                     c.weight("v", {2, 4, 15}), c.weight("sinks", {6})};
  c.close(c.add(op, inputs, {2, 4, 30}));
  c.check();
}

TEST_CASE("adjoint: features that are joined and sliced") {
  check_operator(JoinHeads{3, false}, {{2, 4, 6}, {2, 4, 9}}, {2, 4, 15});
  check_operator(JoinHeads{3, true}, {{2, 4, 6}, {2, 4, 3}}, {2, 4, 15});
  check_operator(SliceFeatures{2}, {{2, 4, 9}}, {2, 4, 5});
}

TEST_CASE("adjoint: rows in parts, each with a loss of its own") {
  Case c;
  const std::vector<std::vector<Count>> shapes{{2, 1, 5}, {2, 3, 5}, {2, 2, 5}};
  const std::vector<TensorId> parts = c.add(SplitRows{}, {c.weight("x", {2, 6, 5})}, shapes);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string number = std::to_string(i);
    const TensorId far = c.input("far" + number, shapes[i], {-1e3});
    const TensorId share = c.input("share" + number, {1}, {0.5 + static_cast<double>(i)});
    c.loss(MeanAbsoluteError{}, {parts[i], far, share}, shapes[i]);
  }
  c.check();
}

TEST_CASE("adjoint: gates") {
  for (const Function f : {Function::Relu, Function::Silu, Function::Gelu, Function::GeluTanh,
                           Function::QuickGelu, Function::SquaredRelu, Function::Sigmoid}) {
    CAPTURE(name(f));
    check_operator(GatedActivation{f}, {{2, 3, 5}, {2, 3, 5}}, {2, 3, 5});
  }
  check_operator(GatedActivation{.limit = 0.8, .alpha = 1.702}, {{2, 3, 5}, {2, 3, 5}}, {2, 3, 5});
  for (const Function f : {Function::Silu, Function::GeluTanh, Function::Sigmoid}) {
    CAPTURE(name(f));
    check_operator(GatedActivation{.function = f, .cutoff = 0.3}, {{2, 3, 7}, {2, 3, 7}},
                   {2, 3, 7});
  }
}

TEST_CASE("adjoint: norms") {
  const std::vector<Count> x{2, 3, 8};
  check_operator(RowMean{}, {x}, {2, 3, 1});
  check_operator(RmsNorm{0.1}, {x}, x);
  check_operator(RmsNorm{0.1}, {x, {8}}, x);
  check_operator(RmsNorm{0.1, true}, {x, {8}}, x);
  check_operator(RmsNorm{0.1, false, 2}, {x, {4}}, x);
  check_operator(RmsNorm{0.1, true, 2}, {x, {4}}, x);
  check_operator(LayerNorm{0.1}, {x}, x);
  check_operator(LayerNorm{0.1}, {x, {8}}, x);
  check_operator(LayerNorm{0.1}, {x, {8}, {8}}, x);
  check_operator(LayerNorm{0.1, 2}, {x, {8}}, x);
  check_operator(LayerNorm{0.1, 2}, {x, {4}}, x);
}

TEST_CASE("adjoint: rotations, with a gain, which the inverse would divide by") {
  for (const bool interleaved : {false, true}) {
    const auto table = std::make_shared<RopeTable>(
        RopeTable{.inverse_frequencies = {1, 0.3}, .gain = 1.2, .interleaved = interleaved});
    for (const bool inverse : {false, true}) {
      // Two pairs of a head of five: one dim stays.
      check_operator(Rope{3, 5, table, 2, inverse}, {{2, 4, 15}}, {2, 4, 15});
    }
    check_operator(RotateHalf{3, 4, interleaved}, {{2, 4, 15}}, {2, 4, 15});
  }
  check_operator(ScaleByPosition{0.3, 2, 1}, {{2, 4, 5}}, {2, 4, 5});
}

/// Σ x∘y over each row of `width` numbers.
std::vector<double> row_products(const std::vector<double>& x, const std::vector<double>& y,
                                 std::size_t width) {
  std::vector<double> sums(x.size() / width, 0);
  for (std::size_t i = 0; i < x.size(); ++i) sums[i / width] += x[i] * y[i];
  return sums;
}

void check_all_near(const std::vector<double>& values, double expected) {
  REQUIRE(!values.empty());
  for (const double value : values) CHECK(std::abs(value - expected) < tolerance);
}

TEST_CASE("adjoint: what a norm or a softmax does not see, its gradient has no part of") {
  const std::vector<Count> shape{2, 3, 8};
  const auto gradient_of = [&](const Op& op) {
    Case c;
    c.close(c.add(op, {c.weight("x", shape)}, shape));
    PlainRun<double> run = c.run();
    return std::pair(run.numbers(Storage::Gradients, "x"), run.numbers(Storage::Weights, "x"));
  };
  const std::vector<double> ones(48, 1);
  // The length of a row, its mean, and a number that is added to all of it.
  const auto [of_rms, x] = gradient_of(RmsNorm{0});
  check_all_near(row_products(of_rms, x, 8), 0);
  check_all_near(row_products(gradient_of(LayerNorm{0.1}).first, ones, 8), 0);
  check_all_near(row_products(gradient_of(Softmax{}).first, ones, 8), 0);
}

TEST_CASE("adjoint: the logits' gradients of a row add up to zero, and are zero without a target") {
  Case c;
  const TensorId x = c.weight("x", {2, 3, 7});
  const TensorId targets = c.input("targets", {2, 3}, {3, -1, 0, 6, 6, -1});
  const TensorId share = c.input("share", {1}, {0.25});
  c.loss(CrossEntropy{0.7, 0}, {x, targets, share}, {2, 3, 7});
  PlainRun<double> run = c.run();
  const std::vector<double> gradient = run.numbers(Storage::Gradients, "x");
  check_all_near(row_products(gradient, std::vector<double>(42, 1), 7), 0);
  const std::vector<double> squares = row_products(gradient, gradient, 7);
  for (const std::size_t row : {1U, 5U}) CHECK(squares[row] == 0);
  for (const std::size_t row : {0U, 2U, 3U, 4U}) CHECK(squares[row] > 0);
}

TEST_CASE("adjoint: a rotation keeps the length of the gradient") {
  Case c;
  const auto table =
      std::make_shared<RopeTable>(RopeTable{.inverse_frequencies = {1, 0.3}, .gain = 1});
  const std::vector<Count> shape{2, 4, 12};
  c.close(c.add(Rope{3, 4, table, 2, false}, {c.weight("x", shape)}, shape));
  PlainRun<double> run = c.run();
  const std::vector<double> gradient = run.numbers(Storage::Gradients, "x");
  // What close() gives: its factors over the features.
  const std::vector<double> given = run.numbers(Storage::Activations, "factor");
  const std::vector<double> after = row_products(gradient, gradient, 96);
  const std::vector<double> before = row_products(given, given, 96);
  CHECK(after[0] > 0);
  CHECK(std::abs(after[0] - before[0] / (12 * 12)) < tolerance);
}

TEST_CASE("adjoint: cross-entropy with rows that have no target") {
  for (const double z : {0.0, 0.2}) {
    Case c;
    const TensorId x = c.weight("x", {2, 3, 7});
    const TensorId targets = c.input("targets", {2, 3}, {3, -1, 0, 6, 6, -1});
    const TensorId share = c.input("share", {1}, {0.25});
    c.loss(CrossEntropy{0.7, z}, {x, targets, share}, {2, 3, 7});
    c.check();
  }
}

TEST_CASE("adjoint: cross-entropy of a part of the vocabulary, behind whose tokens is room") {
  for (const double z : {0.0, 0.2}) {
    Case c;
    const TensorId x = c.weight("x", {2, 3, 7});
    const TensorId sums = c.add(LogSumExp{5}, {x}, {2, 3, 1});
    const TensorId targets = c.input("targets", {2, 3}, {13, -1, 10, 14, 14, -1});
    const TensorId share = c.input("share", {1}, {0.25});
    c.loss(CrossEntropy{0.7, z, 10, 5}, {x, targets, share, sums}, {2, 3, 7});
    c.check();
  }
}

TEST_CASE("adjoint: mean absolute error") {
  Case c;
  const TensorId x = c.weight("x", {2, 3, 7});
  const TensorId y = c.input("y", {2, 3, 7});
  const TensorId share = c.input("share", {1}, {0.25});
  c.loss(MeanAbsoluteError{0.7}, {x, y, share}, {2, 3, 7});
  c.check();
}

// Runs after those above, which fill the list.
TEST_CASE("adjoint: each operator of the way back has been broken and found") {
  const std::size_t last = Op(MeanAbsoluteError{}).index();
  for (std::size_t kind = Op(WeightGradient{}).index(); kind <= last; ++kind) {
    CAPTURE(kind);
    CHECK(broken_kinds.contains(kind));
  }
}

TEST_CASE("adjoint: the mean absolute error has no gradient where it is 0") {
  std::vector<double> x{1, 2, 3, 4};
  std::vector<double> y{1, 5, 2, 4};
  std::vector<double> share{0.5};
  std::vector<double> gradient(4);
  std::vector<double> loss(1);
  const TensorInfo info{"", {2, 2}, DType::FP64, Storage::Activations, {}};
  const auto operand = [&](std::vector<double>& numbers, Shape shape) {
    Operand o;
    o.info = &info;
    o.shape = shape;
    o.data = reinterpret_cast<float*>(numbers.data());
    o.batch_stride = shape.sequence_elements();
    return o;
  };
  const std::vector<Operand> inputs{operand(x, {2, 2}), operand(y, {2, 2}), operand(share, {1})};
  const Operand output = operand(gradient, {2, 2});
  const std::vector<Operand> more{operand(loss, {1})};
  const Node node{MeanAbsoluteError{3}, {}, {}, "", "", no_layer};
  Call call{node, inputs, output, {}};
  call.more_outputs = more;
  run_plain(call, DType::FP64);
  // 3·0.5/2 of each feature.
  CHECK(gradient == std::vector<double>{0, -0.75, 0.75, 0});
  CHECK(loss[0] == 0.75 * 4);
}

TEST_CASE("AdamW: the first step is -lr·sign(g), and decay shrinks what has no gradient") {
  std::vector<double> w{1, 2, 3};
  std::vector<double> g{4, -0.001, 0};
  std::vector<double> m(3);
  std::vector<double> v(3);
  std::vector<double> settings{0.1, 1 / (1 - 0.9), 1 / (1 - 0.95), 0.5};
  const TensorInfo info{"", {3}, DType::FP64, Storage::Activations, {}};
  const auto operand = [&](std::vector<double>& numbers) {
    Operand o;
    o.info = &info;
    o.shape = {numbers.size()};
    o.data = reinterpret_cast<float*>(numbers.data());
    o.batch_stride = 1;
    return o;
  };
  const std::vector<Operand> inputs{operand(w), operand(g), operand(m), operand(v),
                                    operand(settings)};
  const std::vector<Operand> more{inputs[2], inputs[3]};
  const AdamW op{.eps = 1e-8, .weight_decay = 0.2};
  const Node node{op, {}, {}, "", "", no_layer};
  Call call{node, inputs, inputs[0], {}};
  call.more_outputs = more;
  run_plain(call, DType::FP64);
  // The gradient is halved by the clip.
  const auto expected = [](double weight, double gradient) {
    return weight * (1 - 0.1 * 0.2) - 0.1 * gradient / (std::abs(gradient) + 1e-8);
  };
  CHECK(std::abs(w[0] - expected(1, 2)) < 1e-15);
  CHECK(std::abs(w[1] - expected(2, -0.0005)) < 1e-12);
  CHECK(w[2] == 3 * (1 - 0.1 * 0.2));
  CHECK(std::abs(m[0] - 0.1 * 2) < 1e-15);
  CHECK(std::abs(v[0] - 0.05 * 4) < 1e-15);
}

}  // namespace
}  // namespace kvcast::execute
