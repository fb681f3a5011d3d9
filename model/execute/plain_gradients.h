/// The operators of training as plain loops that count, and with them all operators.
#pragma once

#include <cmath>
#include <vector>

#include "model/execute/plain_forward.h"

namespace kvcast::execute {

/// f'(x)·g; `saved` is x, or f(x) where the function saves its result.
template <typename Real>
Real activation_gradient(Function function, double parameter, Real saved, Real g) {
  const Real one{1};
  switch (function) {
    case Function::ClampBelow: return at_least(saved, Real::constant(parameter)) ? g : Real{0};
    case Function::Clamp: {
      const bool is_above = at_least(saved, Real::constant(-parameter));
      const bool is_below = at_least(Real::constant(parameter), saved);
      return is_above && is_below ? g : Real{0};
    }
    case Function::Relu: return above(saved, {0}) ? g : Real{0};
    case Function::SquaredRelu: return Real{2} * maximum(saved, {0}) * g;
    case Function::Square: return Real{2} * saved * g;
    case Function::InverseRoot: return Real{-0.5F} * saved * saved * saved * g;
    case Function::SoftCap: {
      const Real share = saved / Real::constant(parameter);
      return g * (one - share * share);
    }
    case Function::Sigmoid: return g * saved * (one - saved);
    case Function::Silu: {
      const Real sigmoid = one / (one + exponential(-saved));
      return g * sigmoid * (one + saved * (one - sigmoid));
    }
    case Function::QuickGelu: {
      const Real steep = Real::constant(quick_gelu_slope) * saved;
      const Real sigmoid = one / (one + exponential(-steep));
      return g * sigmoid * (one + steep * (one - sigmoid));
    }
    case Function::Gelu: {
      const Real below =
          Real{0.5F} * (one + error_function(saved * Real::constant(std::sqrt(0.5))));
      const Real density = Real::constant(1 / std::sqrt(2 * 3.14159265358979323846)) *
                           exponential(Real{-0.5F} * saved * saved);
      return g * (below + saved * density);
    }
    case Function::GeluTanh: {
      const Real steep = Real::constant(std::sqrt(2 / 3.14159265358979323846));
      const Real square = saved * saved;
      const Real inner = steep * (saved + Real::constant(0.044715) * (square * saved));
      const Real tangent = hyperbolic_tangent(inner);
      // 1 - tanh², where 1/cosh² overflows.
      const Real slope = steep * (one + Real::constant(3 * 0.044715) * square);
      return g * (Real{0.5F} * (one + tangent) +
                  Real{0.5F} * saved * (one - tangent * tangent) * slope);
    }
    default: KVCAST_ASSERT(false); return saved;
  }
}

template <typename N>
class PlainLoops : public PlainForward<N> {
  using Base = PlainForward<N>;
  using Base::in_;
  using Base::kept_values_;
  using Base::kv_in_row;
  using Base::more_;
  using Base::out_;
  using Base::query_index;
  using Base::rotated_keys_;

 public:
  using Base::call;
  using Base::in_shape;
  using Base::out_shape;
  using Real = execute::Real<N>;
  using Base::Base;
  using Base::operator();

  void operator()(const WeightGradient& op) {
    const std::size_t rows = call.inputs[0].rows();
    const std::size_t out = out_shape()[0] / op.num_blocks;
    const std::size_t in = out_shape()[1];
    const std::size_t heads_per_block = op.num_heads / op.num_blocks;
    for (std::size_t w = 0; w < out_shape().elements(); ++w) {
      const std::size_t first_head = w / in / out * heads_per_block;
      Real sum = so_far(2, w);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t h = first_head; h < first_head + heads_per_block; ++h) {
          const std::size_t head = r * op.num_heads + h;
          sum += in_[0](head * out + w / in % out) * in_[1](head * in + w % in);
        }
      }
      out_(w, sum);
    }
  }

  void operator()(const ExpertInputGradient& op) {
    const std::size_t chosen = op.forward.num_experts_per_tok;
    const std::size_t in = in_shape(2)[1];
    const std::size_t out = in_shape(0).back() / chosen;
    const bool own_rows = out_shape().back() != in;
    std::vector<Real> sums(out_shape().elements());
    for (std::size_t r = 0; r < call.inputs[0].rows() * chosen; ++r) {
      const auto block = static_cast<std::size_t>(in_[1](r).value) * out;
      const std::size_t x = (own_rows ? r : r / chosen) * in;
      for (std::size_t o = 0; o < out; ++o) {
        const Real g = in_[0](r * out + o);
        for (std::size_t i = 0; i < in; ++i) sums[x + i] += g * in_[2]((block + o) * in + i);
      }
    }
    write(sums, out_);
  }

  void operator()(const ExpertWeightGradient& op) {
    const std::size_t chosen = op.forward.num_experts_per_tok;
    const std::size_t in = out_shape()[1];
    const std::size_t out = in_shape(0).back() / chosen;
    const bool own_rows = in_shape(1).back() != in;
    std::vector<Real> sums = sums_so_far(3);
    for (std::size_t r = 0; r < call.inputs[0].rows() * chosen; ++r) {
      const auto block = static_cast<std::size_t>(in_[2](r).value) * out;
      const std::size_t x = (own_rows ? r : r / chosen) * in;
      for (std::size_t o = 0; o < out; ++o) {
        const Real g = in_[0](r * out + o);
        for (std::size_t i = 0; i < in; ++i) sums[(block + o) * in + i] += g * in_[1](x + i);
      }
    }
    write(sums, out_);
  }

  void operator()(const SumRepeats&) {
    const Aligned aligned(in_shape(0), out_shape());
    std::vector<Real> sums = sums_so_far(1);
    for (std::size_t i = 0; i < in_shape(0).elements(); ++i) sums[aligned(i)] += in_[0](i);
    write(sums, out_);
  }

  void operator()(const SumHeads& op) {
    const std::size_t copies = op.repeats * op.head_dim;  // of one head, side by side
    std::vector<Real> sums(out_shape().elements());
    for (std::size_t i = 0; i < in_shape(0).elements(); ++i) {
      sums[i / copies * op.head_dim + i % op.head_dim] += in_[0](i);
    }
    write(sums, out_);
  }

  void operator()(const SpreadMean&) {
    const std::size_t n = out_shape().back();
    const Real features = Real::constant(static_cast<double>(n));
    for (std::size_t i = 0; i < out_shape().elements(); ++i) out_(i, in_[0](i / n) / features);
  }

  void operator()(const TransposedValues& op) {
    const Heads& h = op.heads;
    const std::size_t queries = in_shape(0)[2];
    const std::size_t keys = in_shape(0)[3];
    std::vector<Real> sums(out_shape().elements());
    for (std::size_t i = 0; i < in_shape(0).elements(); ++i) {
      const std::size_t head = i / keys / queries % h.num_attention_heads;
      const std::size_t b = i / keys / queries / h.num_attention_heads;
      const Real s = in_[0](i);
      const std::size_t query = query_index(h, b * queries + i / keys % queries, head);
      const std::size_t key =
          (b * keys + i % keys) * h.num_key_value_heads * h.head_dim + kv_in_row(h, head);
      for (std::size_t d = 0; d < h.head_dim; ++d) sums[key + d] += s * in_[1](query + d);
    }
    write(sums, out_);
  }

  void operator()(const TiledAttentionGradient& op) {
    if (op.forward.kept > 0) Base::read_kept(op.forward, 4);
    const Mask& mask = op.forward.mask;
    const std::size_t queries = in_shape(3)[1];
    const std::size_t keys = in_shape(4)[1];
    const std::size_t past = mask.causal ? call.value(mask.past) : 0;
    AttentionSums sums;
    sums.queries.resize(out_shape().elements());
    sums.keys.resize(in_shape(4).elements());
    if (!op.forward.values_are_keys) sums.values.resize(in_shape(5).elements());
    for (std::size_t b = 0; b < in_shape(3)[0]; ++b) {
      for (std::size_t head = 0; head < op.forward.heads.num_attention_heads; ++head) {
        for (std::size_t i = 0; i < queries; ++i) {
          const KeyRange visible = visible_range(mask, past + i, keys);
          attend_back(op.forward, b, head, i, Base::seen_by(op.forward, b * queries + i, visible),
                      sums);
        }
      }
    }
    write(sums.queries, out_);
    write(sums.keys, more_[0]);
    if (!op.forward.values_are_keys) write(sums.values, more_[1]);
  }

  void operator()(const ElementwiseGradient& op) {
    if (op.function == Function::Xielu) return xielu_gradient();
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      out_(i, activation_gradient(op.function, op.parameter, in_[0](i), in_[1](i)));
    }
  }

  void operator()(const XieluWeightGradient& op) {
    Real sum;
    for (std::size_t i = 0; i < in_shape(0).elements(); ++i) {
      const Real x = in_[1](i);
      const Real side = op.of_negative ? minimum(x, {0}) : maximum(x, {0});
      sum += in_[0](i) * (op.of_negative ? exponential(side) - Real{1} - side : side * side);
    }
    out_(0, so_far(3, 0) + activation(Function::Sigmoid, in_[2](0)) * sum);
  }

  void operator()(const CausalConvWeightGradient&) {
    const std::size_t features = out_shape()[0];
    const std::size_t kernel = out_shape()[2];
    const std::size_t tokens = in_shape(0)[1];
    for (std::size_t w = 0; w < out_shape().elements(); ++w) {
      const std::size_t c = w / kernel;
      Real sum = so_far(2, w);
      for (std::size_t r = 0; r < call.inputs[0].rows(); ++r) {
        const std::size_t back = kernel - 1 - w % kernel;
        const Real x = r % tokens >= back ? in_[1]((r - back) * features + c) : Real{0};
        sum += in_[0](r * features + c) * x;
      }
      out_(w, sum);
    }
  }

  void operator()(const GatedActivationGradient& op) {
    if (op.forward.cutoff) return cut_gate(op.forward);
    const Function f = op.forward.function;
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      const Real gate = in_[0](i);
      const Real g = in_[2](i);
      if (op.forward.limit > 0) {
        clamped_gate(op.forward, i, gate, g);
        continue;
      }
      const Real y = activation(f, gate);
      out_(i, activation_gradient(f, 0, saves_result(f) ? y : gate, g * in_[1](i)));
      more_[0](i, g * y);
    }
  }

  void operator()(const SoftmaxGradient&) {
    const std::size_t n = out_shape().back();
    for (std::size_t first = 0; first < out_shape().elements(); first += n) {
      Real sum;
      for (std::size_t i = first; i < first + n; ++i) sum += in_[1](i) * in_[0](i);
      for (std::size_t i = first; i < first + n; ++i) out_(i, in_[0](i) * (in_[1](i) - sum));
    }
  }

  void operator()(const RmsNormGradient& op) {
    const std::size_t n = out_shape().back() / op.forward.groups;
    const Real features = Real::constant(static_cast<double>(n));
    std::vector<Real> weight(in_.size() > 3 ? n : 0);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      weight[i] = op.forward.unit_offset ? Real{1} + in_[3](i) : in_[3](i);
    }
    std::vector<Real> normed(n);
    std::vector<Real> u(n);
    for (std::size_t r = 0; r < out_shape().elements() / n; ++r) {
      const Real root = in_[2](r);
      Real sum;
      for (std::size_t i = 0; i < n; ++i) {
        normed[i] = in_[1](r * n + i) * root;
        u[i] = in_[0](r * n + i);
        if (!weight.empty()) u[i] = u[i] * weight[i];
        sum += u[i] * normed[i];
      }
      const Real mean = sum / features;
      for (std::size_t i = 0; i < n; ++i) out_(r * n + i, root * (u[i] - normed[i] * mean));
    }
  }

  void operator()(const LayerNormGradient& op) {
    const std::size_t n = out_shape().back() / op.forward.groups;
    const Real features = Real::constant(static_cast<double>(n));
    std::vector<Real> normed(n);
    std::vector<Real> u(n);
    for (std::size_t r = 0; r < out_shape().elements() / n; ++r) {
      const Real mean = in_[2](2 * r);
      const Real root = in_[2](2 * r + 1);
      Real sum;
      Real product;
      for (std::size_t i = 0; i < n; ++i) {
        normed[i] = (in_[1](r * n + i) - mean) * root;
        u[i] = in_[0](r * n + i);
        if (in_.size() > 3) u[i] = u[i] * in_[3]((r * n + i) % in_shape(3).elements());
        sum += u[i];
        product += u[i] * normed[i];
      }
      const Real mean_u = sum / features;
      const Real mean_product = product / features;
      for (std::size_t i = 0; i < n; ++i) {
        out_(r * n + i, root * (u[i] - mean_u - normed[i] * mean_product));
      }
    }
  }

  void operator()(const NormWeightGradient& op) {
    const std::size_t n = in_shape(0).back() / op.groups;
    std::vector<Real> sums = sums_so_far(3);
    for (std::size_t i = 0; i < in_shape(0).elements(); ++i) {
      const std::size_t r = i / n;
      const Real normed =
          op.centers ? (in_[1](i) - in_[2](2 * r)) * in_[2](2 * r + 1) : in_[1](i) * in_[2](r);
      sums[i % sums.size()] += in_[0](i) * normed;
    }
    write(sums, out_);
  }

  void operator()(const ScatterAdd& op) {
    const std::size_t features = out_shape().back();
    const std::size_t tokens = in_shape(1).elements();
    const bool goes_on = in_.size() > 2;
    KVCAST_ASSERT(!goes_on || call.inputs[2].data == call.output.data);
    for (std::size_t i = 0; !goes_on && i < out_shape().elements(); ++i) out_(i, {0});
    Reader<N> sums(call.output);
    for (std::size_t t = 0; t < tokens; ++t) {
      // Below the first row the difference is beyond the last one.
      std::size_t id = static_cast<std::size_t>(in_[1](t).value) - op.first_row;
      const bool is_there = id < out_shape().elements() / features;
      if (!is_there && !op.first_for_unknown) continue;
      if (!is_there) id = 0;
      const std::size_t row = id * features;
      for (std::size_t f = 0; f < features; ++f) {
        out_.scatter(row + f, sums.gather(row + f) + in_[0](t * features + f));
      }
    }
    in_.push_back(sums);
  }

  void operator()(const LogSumExp& op) {
    const std::size_t n = in_shape(0).back();
    for (std::size_t r = 0; r < call.output.rows(); ++r) {
      out_(r, log_sum_exp(0, r * n, op.columns));
    }
  }

  void operator()(const CrossEntropy& op) {
    const std::size_t n = out_shape().back();
    if (call.inputs.size() > 3) return of_part(op, n);
    const Real weight = Real::constant(op.weight) * in_[2](0);
    std::vector<Real> row(n);
    Real sum;
    for (std::size_t r = 0; r < call.output.rows(); ++r) {
      const Real target = in_[1](r);
      const bool counts = !(target.value < N{0});
      const std::size_t chosen = counts ? static_cast<std::size_t>(target.value) : 0;
      Real peak{Base::lowest};
      for (std::size_t v = 0; v < n; ++v) peak = maximum(peak, in_[0](r * n + v));
      Real exponentials;
      for (std::size_t v = 0; v < n; ++v) {
        row[v] = exponential(in_[0](r * n + v) - peak);
        exponentials += row[v];
      }
      const Real lse = peak + logarithm(exponentials);
      Real loss = lse - in_[0](r * n + chosen);
      const Real share = counts ? weight : Real{0};
      Real factor = share / exponentials;
      if (op.z > 0) {
        loss += Real::constant(op.z) * lse * lse;
        factor = factor * (Real{1} + Real::constant(2 * op.z) * lse);
      }
      sum += counts ? loss : Real{0};
      for (std::size_t v = 0; v < n; ++v) row[v] = factor * row[v];
      row[chosen] = row[chosen] - share;
      for (std::size_t v = 0; v < n; ++v) out_(r * n + v, row[v]);
    }
    more_[0](0, weight * sum);
  }

  /// Of `n` numbers of an input, from `first` on.
  Real log_sum_exp(std::size_t input, std::size_t first, std::size_t n) {
    Real peak{Base::lowest};
    for (std::size_t i = 0; i < n; ++i) peak = maximum(peak, in_[input](first + i));
    Real exponentials;
    for (std::size_t i = 0; i < n; ++i) exponentials += exponential(in_[input](first + i) - peak);
    return peak + logarithm(exponentials);
  }

  void of_part(const CrossEntropy& op, std::size_t n) {
    const Real weight = Real::constant(op.weight) * in_[2](0);
    const std::size_t parts = in_shape(3).back();
    std::vector<Real> row(n);
    Real sum;
    for (std::size_t r = 0; r < call.output.rows(); ++r) {
      const Real target = in_[1](r);
      const bool counts = !(target.value < N{0});
      std::size_t chosen = counts ? static_cast<std::size_t>(target.value) - op.first : op.columns;
      const bool is_here = chosen < op.columns;
      if (!is_here) chosen = 0;
      const Real lse = log_sum_exp(3, r * parts, parts);
      Real loss = lse - in_[0](r * n + chosen);
      Real factor = counts ? weight : Real{0};
      if (op.z > 0) {
        loss += Real::constant(op.z) * lse * lse;
        factor = factor * (Real{1} + Real::constant(2 * op.z) * lse);
      }
      sum += is_here ? loss : Real{0};
      for (std::size_t v = 0; v < op.columns; ++v) {
        row[v] = factor * exponential(in_[0](r * n + v) - lse);
      }
      row[chosen] = row[chosen] - (is_here ? weight : Real{0});
      for (std::size_t v = 0; v < n; ++v) out_(r * n + v, row[v]);
    }
    more_[0](0, weight * sum);
  }

  void operator()(const MeanAbsoluteError& op) {
    const Real features = Real::constant(static_cast<double>(out_shape().back()));
    const Real weight = Real::constant(op.weight) * in_[2](0) / features;
    Real sum;
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      const Real difference = in_[0](i) - in_[1](i);
      sum += magnitude(difference);
      out_(i, with_sign_of(weight, difference));
    }
    more_[0](0, weight * sum);
  }

  void operator()(const SumOfSquares&) {
    Real sum;
    for (std::size_t i = 0; i < in_shape(0).elements(); ++i) sum += in_[0](i) * in_[0](i);
    out_(0, sum);
  }

  void operator()(const ClipFactor&) {
    Real sum;
    for (std::size_t i = 1; i < in_.size(); ++i) sum += in_[i](0);
    const Real norm = square_root(sum);
    const Real clip = minimum(Real{1}, in_[0](3) / (norm + Real::constant(1e-6)));
    for (std::size_t i = 0; i < 3; ++i) out_(i, in_[0](i));
    out_(3, clip);
    more_[0](0, norm);
  }

  void operator()(const AdamW& op) {
    const Real rate = in_[4](0);
    const Real of_mean = in_[4](1);
    const Real of_variance = in_[4](2);
    const Real clip = in_[4](3);
    Real kept{1};
    if (op.weight_decay > 0) kept = Real{1} - rate * Real::constant(op.weight_decay);
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      const Real g = clip * in_[1](i);
      const Real mean = Real::constant(op.beta1) * in_[2](i) + Real::constant(1 - op.beta1) * g;
      const Real variance =
          Real::constant(op.beta2) * in_[3](i) + Real::constant(1 - op.beta2) * g * g;
      const Real root = square_root(variance * of_variance);
      const Real step = rate * (mean * of_mean / (root + Real::constant(op.eps)));
      Real w = in_[0](i);
      if (op.weight_decay > 0) w = kept * w;
      w = w - step;
      out_(i, w);
      more_[0](i, mean);
      more_[1](i, variance);
      if (more_.size() > 2) more_[2](i, w);
    }
  }

  template <typename O>
  void operator()(const O& op) {
    run_shared(*this, op);
  }

 private:
  struct AttentionSums {
    std::vector<Real> queries;
    std::vector<Real> keys;
    std::vector<Real> values;
  };

  /// Of a sum that input `input` begins, if the node has it.
  Real so_far(std::size_t input, std::size_t i) {
    return in_.size() > input ? in_[input](i) : Real{0};
  }
  std::vector<Real> sums_so_far(std::size_t input) {
    std::vector<Real> sums(out_shape().elements());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = so_far(input, i);
    return sums;
  }
  static void write(const std::vector<Real>& numbers, Writer<N>& to) {
    for (std::size_t i = 0; i < numbers.size(); ++i) to(i, numbers[i]);
  }

  void xielu_gradient() {
    const Real half = Real{0.5F};
    const Real above = Real{2} * softplus(in_[2](0));
    const Real below = half + softplus(in_[3](0));
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      const Real x = in_[0](i);
      const Real high = maximum(x, {0});
      const Real low = minimum(x, {0});
      out_(i, in_[1](i) * (half + above * high + below * (exponential(low) - Real{1})));
    }
  }

  /// Of what stands above most of each row.
  void cut_gate(const GatedActivation& op) {
    const Function f = op.function;
    const std::size_t n = out_shape().back();
    const Real features = Real::constant(static_cast<double>(n));
    std::vector<Real> centered(n);
    std::vector<Real> through(n);
    for (std::size_t first = 0; first < out_shape().elements(); first += n) {
      const auto [edge, deviation] = Base::edge_of(*op.cutoff, first, centered);
      Real sum;
      for (std::size_t i = 0; i < n; ++i) {
        const Real z = maximum(in_[0](first + i) - edge, {0});
        const Real g = in_[2](first + i);
        const Real y = activation(f, z);
        const Real of_z = activation_gradient(f, 0, saves_result(f) ? y : z, g * in_[1](first + i));
        more_[0](first + i, g * y);
        through[i] = z.value > N{0} ? of_z : Real{0};
        sum += through[i];
      }
      const Real mean = sum / features;
      const Real slope = Real::constant(*op.cutoff) * mean / deviation;
      const Real factor = deviation.value > N{0} ? slope : Real{0};
      for (std::size_t i = 0; i < n; ++i) {
        out_(first + i, through[i] - mean - factor * centered[i]);
      }
    }
  }

  /// Of g·sigmoid(alpha·g)·(u + 1); numbers beyond the limit have no gradient.
  void clamped_gate(const GatedActivation& op, std::size_t i, Real gate, Real g) {
    const Real one{1};
    const Real limit = Real::constant(op.limit);
    const Real up = in_[1](i);
    const Real low = minimum(gate, limit);
    const Real inside = minimum(maximum(up, Real::constant(-op.limit)), limit);
    const Real steep = Real::constant(op.alpha) * low;
    const Real sigmoid = activation(Function::Sigmoid, steep);
    const Real of_gate = g * (inside + one) * (sigmoid * (one + steep * (one - sigmoid)));
    const Real of_up = g * (low * sigmoid);
    const bool gate_moves = at_least(limit, gate);
    const bool above_least = at_least(up, Real::constant(-op.limit));
    const bool below_most = at_least(limit, up);
    out_(i, gate_moves ? of_gate : Real{0});
    more_[0](i, above_least && below_most ? of_up : Real{0});
  }

  void attend_back(const TiledAttention& op, std::size_t b, std::size_t head, std::size_t i,
                   const std::vector<std::size_t>& seen, AttentionSums& sums) {
    const Heads& h = op.heads;
    const Heads v = op.value_heads();
    const std::size_t row = b * in_shape(3)[1] + i;
    const std::size_t q = query_index(h, row, head);
    const std::size_t o = query_index(v, row, head);
    const std::size_t keys = in_shape(4)[1];
    const std::size_t of_values = op.values_are_keys ? 4 : 5;
    const std::size_t bias = of_values + 1;
    std::vector<Real>& value_sums = op.values_are_keys ? sums.keys : sums.values;
    const Real lse = in_[2](row * h.num_attention_heads + head);
    Real delta;
    for (std::size_t d = 0; d < v.head_dim; ++d) delta += in_[0](o + d) * in_[1](o + d);
    const auto key_at = [&](std::size_t at) {
      return op.kept > 0 ? rotated_keys_[at] : in_[4](at);
    };
    const auto value_at = [&](std::size_t at) {
      if (op.kept == 0) return in_[of_values](at);
      return op.values_are_keys ? rotated_keys_[at] : kept_values_[at];
    };
    for (const std::size_t j : seen) {
      const std::size_t k = (b * keys + j) * in_shape(4)[2] + kv_in_row(h, head);
      const std::size_t value = (b * keys + j) * in_shape(of_values)[2] + kv_in_row(v, head);
      Real s;
      for (std::size_t d = 0; d < h.head_dim; ++d) s += in_[3](q + d) * key_at(k + d);
      if (op.scale != 1) s = s * Real::constant(op.scale);
      Real tangent;
      if (op.softcap > 0) {
        tangent = hyperbolic_tangent(s / Real::constant(op.softcap));
        s = Real::constant(op.softcap) * tangent;
      }
      if (in_.size() > bias && op.kept == 0)
        s = s + in_[bias](bias_index(in_shape(bias), head, i, j));
      const Real p = exponential(s - lse);
      Real of_p;
      for (std::size_t d = 0; d < v.head_dim; ++d) {
        of_p += in_[0](o + d) * value_at(value + d);
        value_sums[value + d] += p * in_[0](o + d);
      }
      Real of_s = p * (of_p - delta);
      if (op.softcap > 0) of_s = of_s * (Real{1} - tangent * tangent);
      if (op.scale != 1) of_s = of_s * Real::constant(op.scale);
      for (std::size_t d = 0; d < h.head_dim; ++d) {
        sums.queries[q + d] += of_s * key_at(k + d);
        sums.keys[k + d] += of_s * in_[3](q + d);
      }
    }
  }
};

}  // namespace kvcast::execute
