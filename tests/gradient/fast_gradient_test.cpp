// The fast kernels of training against the plain loops, and on one thread against two.
#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "model/execute/kernels.h"
#include "model/execute/machine_probe.h"
#include "model/execute/plain_loops.h"
#include "model/graph/work.h"
#include "tests/execute/relative_difference.h"

namespace kvcast::execute {
namespace {

constexpr double fp32_tolerance = 1e-5;

/// Tensors of one operator in both types of number.
class Numbers {
 public:
  Numbers(Shape shape, unsigned seed) : shape_(shape), narrow_(shape.elements()) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& x : narrow_) x = normal(random);
    widen();
  }
  /// Whole numbers below `limit`, and as many -1.
  void choose(unsigned limit) {
    for (std::size_t i = 0; i < narrow_.size(); ++i) {
      narrow_[i] = i % 7 == 3 ? -1.0F : static_cast<float>(i * i * 31 % limit);
    }
    widen();
  }
  void set(std::vector<float> values) {
    narrow_ = std::move(values);
    widen();
  }
  void round_from_wide() {
    for (std::size_t i = 0; i < wide_.size(); ++i) narrow_[i] = static_cast<float>(wide_[i]);
  }
  Operand operand(const TensorInfo& info, bool wide) {
    Operand o;
    o.info = &info;
    o.shape = shape_;
    o.data = wide ? reinterpret_cast<float*>(wide_.data()) : narrow_.data();
    o.batch_stride = shape_.sequence_elements();
    return o;
  }
  const std::vector<float>& narrow() const { return narrow_; }
  const std::vector<double>& wide() const { return wide_; }

 private:
  void widen() { wide_.assign(narrow_.begin(), narrow_.end()); }
  Shape shape_;
  std::vector<float> narrow_;
  std::vector<double> wide_;
};

/// One operator, its inputs and outputs. `shared` outputs lie where an input does.
struct OperatorRun {
  Op op;
  std::vector<Numbers> inputs;
  std::vector<Numbers> outputs;
  std::vector<std::pair<std::size_t, std::size_t>> shared = {};  ///< output, input

  void run(bool wide) {
    const TensorInfo info{"", {}, wide ? DType::FP64 : DType::FP32, Storage::Activations, {}};
    std::vector<Operand> in;
    std::vector<Operand> out;
    for (Numbers& x : inputs) in.push_back(x.operand(info, wide));
    for (Numbers& x : outputs) out.push_back(x.operand(info, wide));
    for (const auto& [o, i] : shared) out[o].data = in[i].data;
    const Node node{op, {}, {}, "", "", no_layer};
    const std::vector<std::uint64_t> symbols{1, 1, 1};
    Call call{node, in, out[0], symbols};
    call.more_outputs = std::span(out).subspan(1);
    if (wide) {
      run_plain(call, DType::FP64);
    } else {
      run_fast(call);
    }
  }
  const Numbers& result(std::size_t o) const {
    for (const auto& [output, input] : shared) {
      if (output == o) return inputs[input];
    }
    return outputs[o];
  }
};

void check(const OperatorRun& start) {
  CAPTURE(name(start.op));
  OperatorRun plain = start;
  plain.run(true);
  OperatorRun one = start;
  OperatorRun two = start;
  use_threads(1);
  one.run(false);
  use_threads(2);
  two.run(false);
  for (std::size_t o = 0; o < start.outputs.size(); ++o) {
    CAPTURE(o);
    const std::vector<double>& expected = plain.result(o).wide();
    const std::vector<float>& fast = one.result(o).narrow();
    const std::vector<double> wide(fast.begin(), fast.end());
    if (expected.size() == 1) {
      CHECK(std::abs(wide[0] - expected[0]) <= fp32_tolerance * std::abs(expected[0]));
    } else {
      CHECK(relative_difference(wide, expected) < fp32_tolerance);
    }
    CHECK((one.result(o).narrow() == two.result(o).narrow()));
  }
}

OperatorRun run_of(Op op, const std::vector<Shape>& inputs, const std::vector<Shape>& outputs,
                   std::vector<std::pair<std::size_t, std::size_t>> shared = {}) {
  OperatorRun r{std::move(op), {}, {}, std::move(shared)};
  unsigned seed = 1;
  for (const Shape& shape : inputs) r.inputs.emplace_back(shape, seed++);
  for (const Shape& shape : outputs) r.outputs.emplace_back(shape, seed++);
  return r;
}
void check(Op op, const std::vector<Shape>& inputs, const std::vector<Shape>& outputs,
           std::vector<std::pair<std::size_t, std::size_t>> shared = {}) {
  check(run_of(std::move(op), inputs, outputs, std::move(shared)));
}

TEST_CASE("fast gradients: products") {
  // Sizes about the pieces that threads get.
  for (const auto& [rows, out, in] : {std::tuple<std::size_t, std::size_t, std::size_t>{5, 7, 3},
                                      {66, 130, 70},
                                      {517, 96, 33},
                                      {130, 1100, 40}}) {
    check(Linear{}, {{2, rows, in}, {out, in}}, {{2, rows, out}});
    check(Linear{}, {{2, rows, in}, {out, in}, {out}}, {{2, rows, out}});
    check(Linear{true}, {{2, rows, out}, {out, in}}, {{2, rows, in}});
    check(WeightGradient{}, {{2, rows, out}, {2, rows, in}}, {{out, in}});
    check(WeightGradient{}, {{2, rows, out}, {2, rows, in}, {out, in}}, {{out, in}}, {{0, 2}});
  }
  // 6 heads over 3 blocks of 8 outputs and 5 inputs.
  check(WeightGradient{6, 3}, {{2, 70, 48}, {2, 70, 30}}, {{24, 5}});
  check(WeightGradient{6, 3}, {{2, 70, 48}, {2, 70, 30}, {24, 5}}, {{24, 5}}, {{0, 2}});
  check(TransposedValues{{6, 3, 20}}, {{2, 6, 70, 90}, {2, 70, 120}}, {{2, 90, 60}});
}

TEST_CASE("fast gradients: products with the weights of chosen experts") {
  constexpr std::size_t tokens = 37;
  std::vector<float> chosen;
  for (std::size_t t = 0; t < tokens; ++t) {
    chosen.push_back(static_cast<float>(t % 3));
    chosen.push_back(static_cast<float>(3 + t % 2));  // none chooses the last of 6
  }
  const auto check_with = [&](OperatorRun run, std::size_t experts) {
    run.inputs[experts].set(chosen);
    check(run);
  };
  const ExpertLinear op{6, 2, {}, 1};
  for (const std::size_t in : {40U, 80U}) {
    const Shape x{1, tokens, in};
    const Shape g{1, tokens, 2 * 24};
    check_with(run_of(ExpertInputGradient{op}, {g, {1, tokens, 2}, {6 * 24, 40}}, {x}), 1);
    check_with(run_of(ExpertWeightGradient{op}, {g, x, {1, tokens, 2}}, {{6 * 24, 40}}), 2);
    check_with(run_of(op, {x, {1, tokens, 2}, {6 * 24, 40}, {6 * 24}}, {g}), 1);
  }
  OperatorRun more =
      run_of(ExpertWeightGradient{op},
             {{1, tokens, 48}, {1, tokens, 40}, {1, tokens, 2}, {6 * 24, 40}}, {{6 * 24, 40}});
  more.shared = {{0, 3}};
  check_with(more, 2);
  check(run_of(CombineExpertsGradient{2}, {{1, tokens, 40}, {1, tokens, 80}, {1, tokens, 2, 1}},
               {{1, tokens, 80}, {1, tokens, 2, 1}}));
  check(run_of(SplitHeads{3, 2, false}, {{2, 5, 30}}, {{2, 5, 12}}));
  check(run_of(SplitHeads{3, 2, true}, {{2, 5, 30}}, {{2, 5, 4}}));
  check(run_of(PlaceFeatures{2}, {{2, 5, 4}}, {{2, 5, 9}}));
}

TEST_CASE("fast gradients: sums") {
  check(SumRepeats{}, {{2, 300, 130}}, {{130}});
  check(SumRepeats{}, {{2, 300, 130}, {130}}, {{130}}, {{0, 1}});
  check(SumRepeats{}, {{2, 300, 130}}, {{300, 130}});
  check(SumRepeats{}, {{2, 300, 130}}, {{2, 300, 1}});
  check(SumRepeats{}, {{2, 300, 130}}, {{10}});
  check(SumRepeats{}, {{2, 300, 130}}, {{2, 300, 13, 1}});
  check(SumHeads{3, 10}, {{2, 300, 120}}, {{2, 300, 40}});
  check(SpreadMean{}, {{2, 300, 1}}, {{2, 300, 70}});
  check(SumOfSquares{}, {{300, 130}}, {{1}});
}

TEST_CASE("fast gradients: elementary functions") {
  const Shape shape{2, 300, 70};
  for (const Function f :
       {Function::ClampBelow, Function::Square, Function::SoftCap, Function::InverseRoot,
        Function::Relu, Function::Silu, Function::Gelu, Function::GeluTanh, Function::QuickGelu,
        Function::SquaredRelu, Function::Sigmoid, Function::Clamp}) {
    CAPTURE(name(f));
    check(ElementwiseGradient{f, 0.4}, {shape, shape}, {shape});
    check(ElementwiseGradient{f, 0.4}, {shape, shape}, {shape}, {{0, 0}});
  }
  for (const Function f : {Function::Relu, Function::Silu, Function::Gelu, Function::GeluTanh,
                           Function::QuickGelu, Function::SquaredRelu, Function::Sigmoid}) {
    CAPTURE(name(f));
    check(GatedActivationGradient{{f}}, {shape, shape, shape}, {shape, shape});
    check(GatedActivationGradient{{f}}, {shape, shape, shape}, {shape, shape}, {{0, 0}});
  }
  // Far from 0: nothing overflows, slopes are 0 and 1.
  for (const Function f :
       {Function::Silu, Function::Gelu, Function::GeluTanh, Function::QuickGelu}) {
    CAPTURE(name(f));
    OperatorRun r = run_of(ElementwiseGradient{f, 0}, {{1, 6}, {1, 6}}, {{1, 6}});
    r.inputs[0].set({-1e4F, -90, -12, 12, 90, 1e4F});
    check(r);
  }
}

TEST_CASE("fast gradients: a clamped gate") {
  const GatedActivation gate{.limit = 0.8, .alpha = 1.702};
  check(GatedActivationGradient{gate}, {{2, 30, 130}, {2, 30, 130}, {2, 30, 130}},
        {{2, 30, 130}, {2, 30, 130}});
}

TEST_CASE("fast gradients: a gate of what stands above most of a row") {
  const GatedActivation gate{.function = Function::GeluTanh, .cutoff = 0.6};
  const Shape shape{2, 30, 130};
  check(GatedActivationGradient{gate}, {shape, shape, shape}, {shape, shape});
  check(GatedActivationGradient{gate}, {shape, shape, shape}, {shape, shape}, {{0, 0}});
  OperatorRun even =
      run_of(GatedActivationGradient{gate}, {{2, 4}, {2, 4}, {2, 4}}, {{2, 4}, {2, 4}});
  even.inputs[0].set({2, 2, 2, 2, 1, 2, 3, 4});  // a row without deviation
  check(even);
}

TEST_CASE("fast gradients: xIELU") {
  const Shape shape{2, 300, 70};
  check(ElementwiseGradient{Function::Xielu}, {shape, shape, {1}, {1}}, {shape});
  check(ElementwiseGradient{Function::Xielu}, {shape, shape, {1}, {1}}, {shape}, {{0, 0}});
  for (const bool of_negative : {false, true}) {
    check(XieluWeightGradient{of_negative}, {shape, shape, {1}}, {{1}});
    check(XieluWeightGradient{of_negative}, {shape, shape, {1}, {1}}, {{1}}, {{0, 3}});
  }
}

TEST_CASE("fast gradients: convolutions over time") {
  const Shape x{2, 150, 70};
  check(CausalConv{4, true}, {x, {70, 1, 4}}, {x});
  check(CausalConvWeightGradient{}, {x, x}, {{70, 1, 4}});
  check(CausalConvWeightGradient{}, {x, x, {70, 1, 4}}, {{70, 1, 4}}, {{0, 2}});
}

TEST_CASE("fast gradients: state spaces") {
  constexpr std::size_t tokens = 150;
  for (const bool by_row : {false, true}) {
    for (const bool delta : {false, true}) {
      if (by_row && delta) continue;
      for (const std::size_t heads : {3U, 30U}) {  // of 3 groups; parts of a sum have 1 or more
        CAPTURE(by_row);
        CAPTURE(delta);
        CAPTURE(heads);
        constexpr std::size_t keys = 16;
        const std::size_t values = by_row ? 1 : 24;
        StateScan op;
        op.num_heads = heads;
        op.num_groups = 3;
        op.delta = delta;
        op.skips = !delta;
        op.min_step = 0.05;
        const Shape qk{2, tokens, 3 * keys};
        const Shape v{2, tokens, heads * values};
        const Shape steps{2, tokens, heads};
        const Shape decay = by_row ? Shape{heads, keys} : Shape{heads};
        const Shape decays = by_row ? Shape{2, heads, keys} : Shape{2, heads};
        OperatorRun r = run_of(StateScanGradient{op}, {v, qk, qk, v, steps, {heads}, decay},
                               {qk, qk, v, steps, decays});
        if (delta) {
          r.inputs.emplace_back(steps, 20);
          r.outputs.emplace_back(steps, 21);
          // A product with k·kᵀ·beta must not grow.
          for (const std::size_t i : {2U, 7U}) {
            std::vector<float> small = r.inputs[i].narrow();
            for (float& k : small) k = 0.25F * std::abs(k);
            r.inputs[i].set(small);
          }
        } else {
          r.inputs.emplace_back(Shape{heads}, 20);
          r.outputs.emplace_back(Shape{2, heads}, 21);
        }
        check(r);
      }
    }
  }
}

TEST_CASE("fast gradients: mixed streams") {
  const Shape x{2, 37, 40};
  check(MixStreamsGradient{3, true}, {x, x, x, x, x, x, {2, 37, 9}}, {x, x, x, {2, 37, 9}});
  check(MixStreamsGradient{1, false}, {x, x, x, x, {2, 37, 3}}, {x, {2, 37, 3}});
}

TEST_CASE("fast gradients: weights among near logits") {
  const Routing routing{.num_experts = 6,
                        .num_experts_per_tok = 2,
                        .score = Routing::Score::SoftmaxOfNear,
                        .tolerance = 0.8};
  OperatorRun route = run_of(Route{routing, {}}, {{1, 37, 6}}, {{1, 37, 2}, {1, 37, 2, 1}});
  route.run(true);
  route.outputs[0].round_from_wide();
  OperatorRun back =
      run_of(RouteGradient{routing}, {{1, 37, 6}, {1, 37, 2}, {1, 37, 2, 1}}, {{1, 37, 6}});
  back.inputs[1] = route.outputs[0];
  check(back);
}

TEST_CASE("fast gradients: norms and softmax") {
  const Shape x{2, 150, 96};
  check(SoftmaxGradient{}, {{2, 3, 70, 90}, {2, 3, 70, 90}}, {{2, 3, 70, 90}});
  check(SoftmaxGradient{}, {{2, 3, 70, 90}, {2, 3, 70, 90}}, {{2, 3, 70, 90}}, {{0, 0}});
  const auto forward = [&](bool center, std::uint64_t groups, bool weight) {
    Op op = RmsNorm{0.1, true, groups};
    if (center) op = LayerNorm{0.1, groups};
    std::vector<Shape> inputs{x};
    if (weight) inputs.push_back({96 / groups});
    check(op, inputs, {x, {2, 150, groups * (center ? 2 : 1)}});
  };
  for (const bool center : {false, true}) {
    for (const std::uint64_t groups : {1U, 4U}) {
      forward(center, groups, true);
      forward(center, groups, false);
      const Shape saved{2, 150, groups * (center ? 2 : 1)};
      Op op = RmsNormGradient{{0.1, true, groups}};
      if (center) op = LayerNormGradient{{0.1, groups}};
      check(op, {x, x, saved}, {x});
      check(op, {x, x, saved, {96 / groups}}, {x});
      const NormWeightGradient of_weight{center, groups};
      check(of_weight, {x, x, saved}, {{96 / groups}});
      check(of_weight, {x, x, saved, {96 / groups}}, {{96 / groups}}, {{0, 3}});
      if (center) check(of_weight, {x, x, saved}, {{96}});
    }
  }
}

TEST_CASE("fast gradients: rows of a table") {
  for (const bool goes_on : {false, true}) {
    std::vector<Shape> inputs{{2, 150, 130}, {2, 150}};
    if (goes_on) inputs.push_back({40, 130});
    std::vector<std::pair<std::size_t, std::size_t>> shared;
    if (goes_on) shared = {{0, 2}};
    OperatorRun r = run_of(ScatterAdd{}, inputs, {{40, 130}}, shared);
    std::vector<float> ids(300);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<float>(i * i * 31 % 40);
    r.inputs[1].set(ids);
    check(r);
  }
}

TEST_CASE("fast gradients: losses") {
  for (const double z : {0.0, 0.01}) {
    OperatorRun r = run_of(CrossEntropy{0.7, z}, {{2, 50, 701}, {2, 50}, {1}}, {{2, 50, 701}, {1}});
    r.inputs[1].choose(701);
    r.inputs[2].set({0.01F});
    check(r);
    r.shared = {{0, 0}};
    check(r);
  }
  for (const double z : {0.0, 0.01}) {
    OperatorRun r = run_of(CrossEntropy{0.7, z, 30, 55}, {{2, 50, 70}, {2, 50}, {1}, {2, 50, 3}},
                           {{2, 50, 70}, {1}});
    r.inputs[1].choose(101);
    r.inputs[2].set({0.01F});
    check(r);
    r.shared = {{0, 0}};
    check(r);
  }
  check(LogSumExp{55}, {{2, 50, 70}}, {{2, 50, 1}});
  check(MeanAbsoluteError{0.7}, {{2, 50, 101}, {2, 50, 101}, {1}}, {{2, 50, 101}, {1}});
}

TEST_CASE("fast gradients: a step of AdamW") {
  OperatorRun r =
      run_of(AdamW{.weight_decay = 0.1}, {{50, 101}, {50, 101}, {50, 101}, {50, 101}, {4}},
             {{50, 101}, {50, 101}, {50, 101}}, {{0, 0}, {1, 2}, {2, 3}});
  std::vector<float> variances = r.inputs[3].narrow();
  for (float& v : variances) v = v * v;
  r.inputs[3].set(variances);
  r.inputs[4].set({0.01F, 5.0F, 8.0F, 0.3F});
  check(r);
  OperatorRun clip = run_of(ClipFactor{}, {{4}, {1}, {1}}, {{4}, {1}});
  clip.inputs[1].set({9});
  clip.inputs[2].set({16});
  for (const float most : {1.0F, 6.0F}) {
    clip.inputs[0].set({0.01F, 5.0F, 8.0F, most});
    check(clip);
  }
}

/// `change` what differs from a plain causal attention of 6 heads over 3.
void check_attention(std::size_t head_dim, std::size_t queries, std::size_t keys, Shape bias,
                     const std::function<void(TiledAttention&)>& change) {
  TiledAttention op;
  op.heads = {6, 3, head_dim};
  op.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  change(op);
  const Heads v = op.value_heads();
  Symbols symbols;
  op.visible_pairs = visible_pairs(op.mask, queries, keys, symbols);
  op.visible_keys = visible_keys(op.mask, queries, keys, symbols);
  const Shape q{2, queries, 6 * head_dim};
  const Shape k{2, keys, op.heads.num_key_value_heads * head_dim};
  const Shape values{2, keys, v.num_key_value_heads * v.head_dim};
  const Shape out{2, queries, 6 * v.head_dim};
  OperatorRun forward = run_of(op, {q, k, values}, {out, {2, queries, 6}});
  if (op.values_are_keys) forward.inputs[2] = forward.inputs[1];
  if (bias.rank() > 0) forward.inputs.emplace_back(bias, 9);
  check(forward);
  forward.run(true);
  for (Numbers& x : forward.outputs) x.round_from_wide();
  OperatorRun back = run_of(TiledAttentionGradient{op}, {out}, {q, k});
  back.inputs.push_back(forward.outputs[0]);
  back.inputs.push_back(forward.outputs[1]);
  back.inputs.push_back(forward.inputs[0]);
  back.inputs.push_back(forward.inputs[1]);
  if (!op.values_are_keys) {
    back.inputs.push_back(forward.inputs[2]);
    back.outputs.emplace_back(values, 7);
  }
  if (bias.rank() > 0) back.inputs.push_back(forward.inputs[3]);
  check(back);
}

TEST_CASE("fast gradients: attention over chosen keys") {
  constexpr std::size_t tokens = 70;
  constexpr std::size_t kept = 20;
  for (const bool values_are_keys : {false, true}) {
    TiledAttention op;
    op.heads = {6, 3, 24};
    op.scale = 0.2;
    op.kept = kept;
    op.values_are_keys = values_are_keys;
    op.visible_keys = tokens;
    const Shape q{1, tokens, 144};
    const Shape k{1, tokens, 72};
    OperatorRun forward = run_of(op, {q, k, k, {1, tokens, kept}}, {q, {1, tokens, 6}});
    if (values_are_keys) forward.inputs[2] = forward.inputs[1];
    std::vector<float> chosen(tokens * kept);  // every third of the last ones, or all
    for (std::size_t i = 0; i < tokens; ++i) {
      for (std::size_t n = 0; n < std::min(kept, i + 1); ++n) {
        const std::size_t step = i >= 3 * kept ? 3 : 1;
        chosen[i * kept + n] = static_cast<float>(i >= kept ? i - (kept - 1 - n) * step : n);
      }
    }
    forward.inputs[3].set(chosen);
    check(forward);  // with what it saves
    forward.run(true);
    for (Numbers& x : forward.outputs) x.round_from_wide();
    OperatorRun back = run_of(TiledAttentionGradient{op}, {q}, {q, k});
    for (const Numbers* const x :
         {&forward.outputs[0], &forward.outputs[1], &forward.inputs[0], &forward.inputs[1]}) {
      back.inputs.push_back(*x);
    }
    if (!values_are_keys) {
      back.inputs.push_back(forward.inputs[2]);
      back.outputs.emplace_back(k, 7);
    }
    back.inputs.push_back(forward.inputs[3]);
    check(back);
  }
}

TEST_CASE("fast gradients: tiled attention") {
  for (const std::size_t head_dim : {16U, 20U, 64U}) {
    CAPTURE(head_dim);
    for (const auto& [queries, keys] :
         {std::pair<std::size_t, std::size_t>{3, 3}, {64, 64}, {150, 150}, {70, 200}}) {
      CAPTURE(queries);
      CAPTURE(keys);
      const std::size_t past = keys - queries;
      const auto of = [&](const std::function<void(TiledAttention&)>& change, Shape bias = {}) {
        check_attention(head_dim, queries, keys, bias, [&](TiledAttention& op) {
          op.mask.past = past;
          change(op);
        });
      };
      of([](TiledAttention& /*op*/) {});
      of([](TiledAttention& op) { op.scale = 1; });
      of([](TiledAttention& op) { op.mask.window = 40; });
      of([](TiledAttention& op) { op.mask.chunk = 50; });
      of([](TiledAttention& op) { op.mask.causal = false; });
      of([](TiledAttention& op) { op.softcap = 1.5; });
      of([](TiledAttention& /*op*/) {}, {6, 1, keys});
      of([](TiledAttention& op) { op.softcap = 1.5; }, {6, queries, keys});
      of([](TiledAttention& op) { op.heads.num_key_value_heads = 6; });
      of([](TiledAttention& op) { op.value_dim = 24; });
      of([](TiledAttention& op) {
        op.num_value_heads = 2;
        op.value_dim = 24;
      });
      of([](TiledAttention& op) {
        op.heads.num_key_value_heads = 1;
        op.values_are_keys = true;
        op.num_value_heads = 1;
        op.value_dim = 12;
      });
    }
  }
}

}  // namespace
}  // namespace kvcast::execute
