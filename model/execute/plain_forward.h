/// The other operators of forward passes as plain loops that count.
#pragma once

#include <cmath>
#include <vector>

#include "model/execute/plain_attention.h"
#include "model/execute/positions.h"
#include "model/execute/shared_operators.h"
#include "model/execute/state_scan.h"

namespace kvcast::execute {

/// f(x), one of GatedActivation's functions.
template <typename Real>
Real activation(Function function, Real x) {
  switch (function) {
    case Function::Relu: return maximum(x, {0});
    case Function::QuickGelu:
      return x / (Real{1} + exponential(-(Real::constant(quick_gelu_slope) * x)));
    case Function::SquaredRelu: {
      const Real positive = maximum(x, {0});
      return positive * positive;
    }
    case Function::Sigmoid: return Real{1} / (Real{1} + exponential(-x));
    case Function::Silu: return x / (Real{1} + exponential(-x));
    case Function::Gelu:
      return Real{0.5F} * x * (Real{1} + error_function(x * Real::constant(std::sqrt(0.5))));
    case Function::GeluTanh: {
      const Real inner = Real::constant(std::sqrt(2 / 3.14159265358979323846)) *
                         (x + Real::constant(0.044715) * (x * x * x));
      return Real{0.5F} * x * (Real{1} + hyperbolic_tangent(inner));
    }
    default: KVCAST_ASSERT(false); return x;
  }
}

template <typename N>
class PlainForward : public PlainAttention<N> {
 protected:
  using Base = PlainAttention<N>;
  using Base::in_;
  using Base::lowest;
  using Base::more_;
  using Base::out_;

 public:
  using Base::call;
  using Base::in_shape;
  using Base::out_shape;
  using Real = execute::Real<N>;
  using Base::Base;
  using Base::operator();

  void operator()(const Embedding& op) {
    const std::size_t features = out_shape().back();
    for (std::size_t t = 0; t < in_shape(1).elements(); ++t) {
      auto id = static_cast<std::size_t>(in_[1](t).value);
      // As in engines, a row is read for an id of another device too, and set to 0.
      const bool is_here = !op.is_part || holds_row(op, in_shape(0)[0], id);
      id = is_here ? id - op.first_row : 0;
      if (op.first_for_unknown && id >= in_shape(0)[0]) id = 0;
      for (std::size_t f = 0; f < features; ++f) {
        const Real x = in_[0].gather(id * features + f);
        out_(t * features + f, is_here ? x : Real{0});
      }
    }
  }

  void operator()(const Linear& op) {
    const std::size_t in = in_shape(0).back();
    const std::size_t out = out_shape().back();
    // Numbers of W from one of an output's to the next, and to the next output's.
    const std::size_t step = op.transposed ? out : 1;
    const std::size_t row = op.transposed ? 1 : in;
    for (std::size_t r = 0; r < call.output.rows(); ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        Real sum;
        for (std::size_t i = 0; i < in; ++i) sum += in_[0](r * in + i) * in_[1](o * row + i * step);
        if (in_.size() > 2) sum += in_[2](o);
        out_(r * out + o, sum);
      }
    }
  }

  void operator()(const HeadLinear& op) {
    const std::size_t in = in_shape(1)[1];
    const std::size_t out = in_shape(1)[0] / op.num_blocks;
    const std::size_t heads_per_block = op.num_heads / op.num_blocks;
    const std::size_t from = op.transposed ? out : in;  // features of one head
    const std::size_t to = op.transposed ? in : out;
    for (std::size_t r = 0; r < call.output.rows() * op.num_heads; ++r) {
      const std::size_t block = r % op.num_heads / heads_per_block * out;
      for (std::size_t o = 0; o < to; ++o) {
        Real sum;
        for (std::size_t i = 0; i < from; ++i) {
          const std::size_t row = block + (op.transposed ? i : o);
          sum += in_[0](r * from + i) * in_[1](row * in + (op.transposed ? o : i));
        }
        out_(r * to + o, sum);
      }
    }
  }

  /// Row r of x [rows, K·in or in] for the k-th expert.
  void operator()(const ExpertLinear& op) {
    const std::size_t in = in_shape(2)[1];
    const std::size_t chosen = op.num_experts_per_tok;
    const std::size_t out = out_shape().back() / chosen;
    const bool own_rows = in_shape(0).back() != in;
    for (std::size_t r = 0; r < call.output.rows() * chosen; ++r) {
      const auto block = static_cast<std::size_t>(in_[1](r).value) * out;
      const std::size_t x = (own_rows ? r : r / chosen) * in;
      for (std::size_t o = 0; o < out; ++o) {
        Real sum;
        for (std::size_t i = 0; i < in; ++i) sum += in_[0](x + i) * in_[2]((block + o) * in + i);
        if (in_.size() > 3) sum += in_[3](block + o);
        out_(r * out + o, sum);
      }
    }
  }

  void operator()(const CombineExperts& op) {
    const std::size_t n = out_shape().back();
    const std::size_t chosen = op.num_experts_per_tok;
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      Real sum;
      for (std::size_t k = 0; k < chosen; ++k) {
        const std::size_t row = i / n * chosen + k;
        const Real y = in_[0](row * n + i % n);
        sum += in_.size() > 1 ? in_[1](row) * y : y;
      }
      out_(i, sum);
    }
  }

  void operator()(const Softmax&) {
    const std::size_t n = out_shape().back();
    std::vector<Real> row(n);
    for (std::size_t r = 0; r < call.output.rows(); ++r) {
      Real peak{lowest};
      for (std::size_t i = 0; i < n; ++i) peak = maximum(peak, in_[0](r * n + i));
      Real sum;
      if (in_.size() > 1) {
        const Real sink = in_[1](r / out_shape()[2] % out_shape()[1]);
        peak = maximum(peak, sink);
        sum += exponential(sink - peak);
      }
      for (std::size_t i = 0; i < n; ++i) {
        row[i] = exponential(in_[0](r * n + i) - peak);
        sum += row[i];
      }
      for (std::size_t i = 0; i < n; ++i) out_(r * n + i, row[i] / sum);
    }
  }

  void xielu() {
    const Real half = Real{0.5F};
    const Real above = softplus(in_[1](0));
    const Real below = half + softplus(in_[2](0));
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      const Real x = in_[0](i);
      const Real high = maximum(x, {0});
      const Real low = minimum(x, {0});
      out_(i, half * x + above * (high * high) + below * (exponential(low) - Real{1} - low));
    }
  }

  void operator()(const Elementwise& op) {
    if (op.function == Function::Xielu) return xielu();
    const std::size_t n = out_shape().elements();
    const Real parameter = Real::constant(op.parameter);
    const bool binary = in_.size() > 1;
    const Aligned aligned(in_shape(0), in_shape(binary ? 1 : 0));
    for (std::size_t i = 0; i < n; ++i) {
      const Real x = in_[0](i);
      switch (op.function) {
        case Function::Copy: out_(i, x); break;
        case Function::Add: out_(i, x + in_[1](aligned(i))); break;
        case Function::Multiply: out_(i, x * in_[1](aligned(i))); break;
        case Function::Center: out_(i, x - in_[1](aligned(i))); break;
        case Function::Scale: out_(i, parameter * x); break;
        case Function::ClampBelow: out_(i, maximum(x, parameter)); break;
        case Function::Square: out_(i, x * x); break;
        case Function::InverseRoot: out_(i, Real{1} / square_root(x + parameter)); break;
        case Function::SoftCap: out_(i, parameter * hyperbolic_tangent(x / parameter)); break;
        case Function::OnePlus: out_(i, Real{1} + x); break;
        case Function::Clamp:
          out_(i, minimum(maximum(x, Real::constant(-op.parameter)), parameter));
          break;
        case Function::Relu:
        case Function::QuickGelu:
        case Function::SquaredRelu:
        case Function::Sigmoid:
        case Function::Silu:
        case Function::Gelu:
        case Function::GeluTanh: out_(i, activation(op.function, x)); break;
        case Function::Xielu: break;
      }
    }
  }

  /// Above which a gate's row of input 0 counts.
  struct Edge {
    Real edge;
    Real deviation;
  };
  /// Of the row that begins with element `first`, whose distances from its mean are `centered`.
  Edge edge_of(double cutoff, std::size_t first, std::vector<Real>& centered) {
    const std::size_t n = centered.size();
    Real sum = in_[0](first);
    for (std::size_t i = 1; i < n; ++i) sum += in_[0](first + i);
    const Real mean = sum / Real::constant(static_cast<double>(n));
    Real squares;
    for (std::size_t i = 0; i < n; ++i) {
      centered[i] = in_[0](first + i) - mean;
      squares += centered[i] * centered[i];
    }
    const Real deviation = square_root(squares / Real::constant(static_cast<double>(n)));
    return {mean + Real::constant(cutoff) * deviation, deviation};
  }

  /// What stands above most of each row of input 0.
  std::vector<Real> above_most(double cutoff) {
    const std::size_t n = in_shape(0).back();
    std::vector<Real> above(in_shape(0).elements());
    std::vector<Real> centered(n);
    for (std::size_t first = 0; first < above.size(); first += n) {
      const Real edge = edge_of(cutoff, first, centered).edge;
      for (std::size_t i = first; i < first + n; ++i) above[i] = maximum(in_[0](i) - edge, {0});
    }
    return above;
  }

  void operator()(const GatedActivation& op) {
    if (op.cutoff) {
      const std::vector<Real> above = above_most(*op.cutoff);
      for (std::size_t i = 0; i < above.size(); ++i) {
        out_(i, activation(op.function, above[i]) * in_[1](i));
      }
      return;
    }
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      if (op.limit == 0) {
        out_(i, activation(op.function, in_[0](i)) * in_[1](i));
        continue;
      }
      const Real limit = Real::constant(op.limit);
      const Real g = minimum(in_[0](i), limit);
      const Real u = minimum(maximum(in_[1](i), Real::constant(-op.limit)), limit);
      const Real sigmoid = activation(Function::Sigmoid, Real::constant(op.alpha) * g);
      out_(i, g * sigmoid * (u + Real{1}));
    }
  }

  void operator()(const RowMean&) {
    const std::size_t n = in_shape(0).back();
    for (std::size_t r = 0; r < call.inputs[0].rows(); ++r) {
      Real sum = in_[0](r * n);
      for (std::size_t i = 1; i < n; ++i) sum += in_[0](r * n + i);
      out_(r, sum / Real::constant(static_cast<double>(n)));
    }
  }

  void operator()(const RmsNorm& op) {
    const std::size_t n = out_shape().back() / op.groups;
    std::vector<Real> weight(n);
    for (std::size_t i = 0; i < n; ++i) {
      if (in_.size() > 1) weight[i] = op.unit_offset ? Real{1} + in_[1](i) : in_[1](i);
    }
    for (std::size_t r = 0; r < call.output.rows() * op.groups; ++r) {
      Real squares;
      for (std::size_t i = 0; i < n; ++i) squares += in_[0](r * n + i) * in_[0](r * n + i);
      const Real mean = squares / Real::constant(static_cast<double>(n));
      const Real root = inverse_square_root(mean + Real::constant(op.eps));
      if (!more_.empty()) more_[0](r, root);
      for (std::size_t i = 0; i < n; ++i) {
        const Real y = in_[0](r * n + i) * root;
        out_(r * n + i, in_.size() > 1 ? y * weight[i] : y);
      }
    }
  }

  void operator()(const LayerNorm& op) {
    const std::size_t n = out_shape().back() / op.groups;
    std::vector<Real> centered(n);
    for (std::size_t r = 0; r < call.output.rows() * op.groups; ++r) {
      Real sum;
      for (std::size_t i = 0; i < n; ++i) sum += in_[0](r * n + i);
      const Real mean = sum / Real::constant(static_cast<double>(n));
      Real squares;
      for (std::size_t i = 0; i < n; ++i) {
        centered[i] = in_[0](r * n + i) - mean;
        squares += centered[i] * centered[i];
      }
      const Real variance = squares / Real::constant(static_cast<double>(n));
      const Real root = inverse_square_root(variance + Real::constant(op.eps));
      if (!more_.empty()) {
        more_[0](2 * r, mean);
        more_[0](2 * r + 1, root);
      }
      for (std::size_t i = 0; i < n; ++i) {
        Real y = centered[i] * root;
        const auto of = [&](std::size_t input) {
          return in_[input]((r * n + i) % in_shape(input).elements());
        };
        if (in_.size() > 1) y = y * of(1);
        if (in_.size() > 2) y = y + of(2);
        out_(r * n + i, y);
      }
    }
  }

  void operator()(const Rope& op) {
    const std::size_t half = op.table->inverse_frequencies.size();
    const auto angles = token_angles<typename Base::Angle>(*this, op, 1, out_shape()[1]);
    std::size_t head = 0;  // index of the head's first element
    for (std::size_t t = 0; t < call.output.rows(); ++t) {
      for (std::size_t h = 0; h < op.num_heads; ++h, head += op.head_dim) {
        for (std::size_t j = 0; j < half; ++j) {
          const Real c{angles.cosines(t)[j]};
          const Real s{angles.sines(t)[j]};
          const RopeTable::Pair pair = op.table->pair(j);
          const Real x = in_[0](head + pair.first);
          const Real y = in_[0](head + pair.second);
          out_(head + pair.first, x * c - y * s);
          out_(head + pair.second, y * c + x * s);
        }
        for (std::size_t d = 2 * half; d < op.head_dim; ++d) out_(head + d, in_[0](head + d));
      }
    }
  }

  void operator()(const RopeAngles& op) {
    const std::size_t tokens = call.output.rows();
    const std::size_t head_dim = out_shape().back();
    const std::size_t half = op.table->inverse_frequencies.size();
    const TokenAngles<N> angles = token_angles<N>(*this, op, 0, tokens);
    const RopeTable& rope = *angles.rope;
    for (std::size_t t = 0; t < tokens; ++t) {
      const Real position = Real::constant(rope_position(rope, angles.positions[t]));
      for (std::size_t d = 0; d < head_dim; ++d) {
        // Dims that do not rotate have the frequency 0.
        const bool rotates = d < 2 * half;
        const Real frequency = Real::constant(
            rotates ? rope.inverse_frequencies[rope.interleaved ? d / 2 : d % half] : 0);
        const Real angle = position * frequency;
        const double gain = op.inverse ? 1 / rope.gain : rope.gain;
        const N factor = rotates ? static_cast<N>(gain) : 1;
        const N sine = op.inverse ? -std::sin(angle.value) : std::sin(angle.value);
        out_(t * head_dim + d, Real::counted(factor * (op.sine ? sine : std::cos(angle.value))));
      }
    }
  }

  void operator()(const RotateHalf& op) {
    const std::size_t head_dim = out_shape().back() / op.num_heads;
    const std::size_t half = op.rotary_dims / 2;
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      const std::size_t d = i % head_dim;
      const bool first = op.interleaved ? d % 2 == 0 : d < half;
      const std::size_t apart = op.interleaved ? 1 : half;
      const std::size_t partner = d >= 2 * half ? i : (first ? i + apart : i - apart);
      const Real sign{d >= 2 * half ? 0.0F : (first ? -1.0F : 1.0F)};
      out_(i, sign * in_[0](partner));
    }
  }

  void operator()(const Conv1d& op) {
    const std::size_t frames = in_shape(0)[1];
    const std::size_t in = in_shape(0)[2];
    const std::size_t out = out_shape()[2];
    const std::size_t padding = op.kernel / 2;
    std::size_t next = 0;
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      for (std::size_t t = 0; t < out_shape()[1]; ++t) {
        for (std::size_t o = 0; o < out; ++o) {
          Real sum;
          for (std::size_t i = 0; i < in; ++i) {
            for (std::size_t k = 0; k < op.kernel; ++k) {
              const std::size_t frame = t * op.stride + k;  // of the padded input
              const bool inside = frame >= padding && frame - padding < frames;
              const Real x = inside ? in_[0]((b * frames + frame - padding) * in + i) : Real{0};
              sum += in_[1]((o * in + i) * op.kernel + k) * x;
            }
          }
          if (in_.size() > 2) sum += in_[2](o);
          out_(next++, sum);
        }
      }
    }
  }

  void operator()(const AlibiBias& op) {
    const std::size_t heads = out_shape()[0];
    const std::size_t keys = out_shape()[2];
    for (std::size_t h = 0; h < heads; ++h) {
      const float slope = alibi_slope(op.first_head + h, op.num_heads);
      for (std::size_t j = 0; j < keys; ++j) {
        out_(h * keys + j, Real::counted(alibi_bias(slope, j)) * Real::constant(op.scale));
      }
    }
  }
};

}  // namespace kvcast::execute
