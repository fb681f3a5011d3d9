#include "model/execute/plain_loops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "model/execute/exchange.h"
#include "model/execute/plain_tokens.h"
#include "model/execute/positions.h"

namespace kvcast::execute {
namespace {

template <typename N>
Real<N> activation(Function function, Real<N> x) {
  switch (function) {
    case Function::Relu: return maximum(x, {0});
    case Function::Silu: return x / (Real<N>{1} + exponential(-x));
    case Function::Gelu:
      return Real<N>{0.5F} * x * (Real<N>{1} + error_function(x * constant<N>(std::sqrt(0.5))));
    case Function::GeluTanh: {
      const Real<N> inner = constant<N>(std::sqrt(2 / 3.14159265358979323846)) *
                            (x + constant<N>(0.044715) * (x * x * x));
      return Real<N>{0.5F} * x * (Real<N>{1} + hyperbolic_tangent(inner));
    }
    default: KVCAST_ASSERT(false); return x;
  }
}

/// Which element of y goes with element i of x, see Elementwise.
class Aligned {
 public:
  Aligned(const Shape& x, const Shape& y) : x_(x), y_(y) {
    if (y.rank() > x.rank()) run_ = x.elements() / y.elements();
  }
  std::size_t operator()(std::size_t i) const {
    if (run_ > 0) return i / run_;
    std::size_t result = 0;
    std::size_t stride = 1;
    for (std::size_t d = 0; d < x_.rank(); ++d) {
      const std::size_t dim = x_[x_.rank() - 1 - d];
      const std::size_t index = i % dim;
      i /= dim;
      if (d >= y_.rank()) break;
      const std::size_t y_dim = y_[y_.rank() - 1 - d];
      result += index % y_dim * stride;
      stride *= y_dim;
    }
    return result;
  }

 private:
  const Shape& x_;
  const Shape& y_;
  std::size_t run_ = 0;
};

/// N is what the numbers are computed in: float or double.
template <typename N>
class PlainLoops : public PlainTokens<N> {
  using Base = PlainTokens<N>;
  using Base::call_;
  using Base::constant;
  using Base::in_;
  using Base::in_shape;
  using Base::lowest;
  using Base::out_;
  using Base::out_shape;

 public:
  using Real = execute::Real<N>;
  using Base::Base;
  using Base::operator();

  void operator()(const Embedding&) {
    const std::size_t features = out_shape().back();
    for (std::size_t t = 0; t < in_shape(1).elements(); ++t) {
      const auto id = static_cast<std::size_t>(in_[1](t).value);
      for (std::size_t f = 0; f < features; ++f) {
        out_(t * features + f, in_[0].gather(id * features + f));
      }
    }
  }

  void operator()(const Linear&) {
    const std::size_t in = in_shape(0).back();
    const std::size_t out = out_shape().back();
    for (std::size_t r = 0; r < call_.output.rows(); ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        Real sum;
        for (std::size_t i = 0; i < in; ++i) sum += in_[0](r * in + i) * in_[1](o * in + i);
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
    for (std::size_t r = 0; r < call_.output.rows() * op.num_heads; ++r) {
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

  void operator()(const LargestProbability& op) {
    const std::size_t heads = in_shape(0)[1];
    const std::size_t queries = in_shape(0)[2];
    const std::size_t keys = in_shape(0)[3];
    std::size_t next = 0;
    for (std::size_t b = 0; b < in_shape(0)[0]; ++b) {
      for (std::size_t j = 0; j < keys; ++j) {
        for (std::size_t i = 0; i < queries; ++i, ++next) {
          Real largest = in_.size() > 1 ? in_[1](next) : Real{0};
          for (std::size_t h = 0; h < heads; ++h) {
            const std::size_t row = ((b * heads + h) * queries + i) * keys;
            largest =
                maximum(largest, op.pool > 0 ? pooled(row, j, keys, op.pool) : in_[0](row + j));
          }
          out_(next, largest);
        }
      }
    }
  }

  void operator()(const KeepTokens&) {
    const std::size_t heads = in_shape(0)[1];
    const std::size_t tokens = in_shape(0)[3];
    const std::size_t kept = out_shape()[1];
    for (std::size_t b = 0; b < in_shape(0)[0]; ++b) {
      std::vector<Real> sums(tokens);
      for (std::size_t h = 0; h < heads; ++h) {
        for (std::size_t j = 0; j < tokens; ++j) sums[j] += in_[0]((b * heads + h) * tokens + j);
      }
      std::vector<N> numbers;
      for (const Real sum : sums) numbers.push_back(sum.value);
      const std::vector<std::size_t> indices = kept_tokens<N>(numbers, kept);
      for (std::size_t i = 0; i < kept; ++i) {
        out_(b * kept + i, Real{static_cast<N>(indices[i])});
      }
    }
  }

  void operator()(const GatherRows&) {
    const std::size_t batch = out_shape()[0];
    const std::size_t tokens = in_shape(0)[1];
    const std::size_t kept = out_shape()[1];
    const std::size_t features = in_shape(0).rank() > 2 ? in_shape(0)[2] : 1;
    for (std::size_t i = 0; i < batch * kept; ++i) {
      const auto row = i / kept * tokens + static_cast<std::size_t>(in_[1](i).value);
      for (std::size_t f = 0; f < features; ++f) {
        out_(i * features + f, in_[0](row * features + f));
      }
    }
  }

  void operator()(const Softmax&) {
    const std::size_t n = out_shape().back();
    std::vector<Real> row(n);
    for (std::size_t r = 0; r < call_.output.rows(); ++r) {
      Real peak{lowest};
      for (std::size_t i = 0; i < n; ++i) peak = maximum(peak, in_[0](r * n + i));
      Real sum;
      for (std::size_t i = 0; i < n; ++i) {
        row[i] = exponential(in_[0](r * n + i) - peak);
        sum += row[i];
      }
      for (std::size_t i = 0; i < n; ++i) out_(r * n + i, row[i] / sum);
    }
  }

  void operator()(const Elementwise& op) {
    const std::size_t n = out_shape().elements();
    const Real parameter = constant(op.parameter);
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
        case Function::Relu:
        case Function::Silu:
        case Function::Gelu:
        case Function::GeluTanh: out_(i, activation(op.function, x)); break;
      }
    }
  }

  void operator()(const GatedActivation& op) {
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      out_(i, activation(op.function, in_[0](i)) * in_[1](i));
    }
  }

  void operator()(const RowMean&) {
    const std::size_t n = in_shape(0).back();
    for (std::size_t r = 0; r < call_.inputs[0].rows(); ++r) {
      Real sum = in_[0](r * n);
      for (std::size_t i = 1; i < n; ++i) sum += in_[0](r * n + i);
      out_(r, sum / constant(static_cast<double>(n)));
    }
  }

  void operator()(const RmsNorm& op) {
    const std::size_t n = out_shape().back() / op.groups;
    std::vector<Real> weight(n);
    for (std::size_t i = 0; i < n; ++i) {
      weight[i] = op.unit_offset ? Real{1} + in_[1](i) : in_[1](i);
    }
    for (std::size_t r = 0; r < call_.output.rows() * op.groups; ++r) {
      Real squares;
      for (std::size_t i = 0; i < n; ++i) squares += in_[0](r * n + i) * in_[0](r * n + i);
      const Real mean = squares / constant(static_cast<double>(n));
      const Real root = inverse_square_root(mean + constant(op.eps));
      for (std::size_t i = 0; i < n; ++i) out_(r * n + i, in_[0](r * n + i) * root * weight[i]);
    }
  }

  void operator()(const LayerNorm& op) {
    const std::size_t n = out_shape().back();
    std::vector<Real> centered(n);
    for (std::size_t r = 0; r < call_.output.rows(); ++r) {
      Real sum;
      for (std::size_t i = 0; i < n; ++i) sum += in_[0](r * n + i);
      const Real mean = sum / constant(static_cast<double>(n));
      Real squares;
      for (std::size_t i = 0; i < n; ++i) {
        centered[i] = in_[0](r * n + i) - mean;
        squares += centered[i] * centered[i];
      }
      const Real variance = squares / constant(static_cast<double>(n));
      const Real root = inverse_square_root(variance + constant(op.eps));
      for (std::size_t i = 0; i < n; ++i) {
        Real y = centered[i] * root;
        if (in_.size() > 1) y = y * in_[1](i);
        if (in_.size() > 2) y = y + in_[2](i);
        out_(r * n + i, y);
      }
    }
  }

  void operator()(const Rope& op) {
    const std::size_t tokens = out_shape()[1];
    const std::size_t half = op.table->inverse_frequencies.size();
    const bool given = in_.size() > 1;
    const std::vector<N> positions = positions_of(op, 1, given ? call_.output.rows() : tokens);
    const RopeAngleTable<N> angles(*op.table, positions, op.inverse);
    std::size_t head = 0;  // index of the head's first element
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      for (std::size_t t = 0; t < tokens; ++t) {
        const std::size_t row = given ? b * tokens + t : t;
        for (std::size_t h = 0; h < op.num_heads; ++h, head += op.head_dim) {
          for (std::size_t j = 0; j < half; ++j) {
            const Real c{angles.cosine(row, j)};
            const Real s{angles.sine(row, j)};
            const Real x = in_[0](head + j);
            const Real y = in_[0](head + half + j);
            out_(head + j, x * c - y * s);
            out_(head + half + j, y * c + x * s);
          }
          for (std::size_t d = 2 * half; d < op.head_dim; ++d) out_(head + d, in_[0](head + d));
        }
      }
    }
  }

  void operator()(const RopeAngles& op) {
    const std::size_t tokens = call_.output.rows();
    const std::size_t head_dim = out_shape().back();
    const std::size_t half = op.table->inverse_frequencies.size();
    const std::vector<N> positions = positions_of(op, 0, tokens);
    for (std::size_t t = 0; t < tokens; ++t) {
      const Real position =
          constant(rope_position(*op.table, static_cast<std::size_t>(positions[t])));
      for (std::size_t d = 0; d < head_dim; ++d) {
        // Dims that do not rotate have the frequency 0.
        const bool rotates = d < 2 * half;
        const Real frequency = constant(rotates ? op.table->inverse_frequencies[d % half] : 0);
        const Real angle = position * frequency;
        const double gain = op.inverse ? 1 / op.table->gain : op.table->gain;
        const N factor = rotates ? static_cast<N>(gain) : 1;
        const N sine = op.inverse ? -std::sin(angle.value) : std::sin(angle.value);
        out_(t * head_dim + d, counted(factor * (op.sine ? sine : std::cos(angle.value))));
      }
    }
  }

  void operator()(const RotateHalf& op) {
    const std::size_t head_dim = out_shape().back() / op.num_heads;
    const std::size_t half = op.rotary_dims / 2;
    for (std::size_t i = 0; i < out_shape().elements(); ++i) {
      const std::size_t d = i % head_dim;
      const std::size_t partner = d < half ? i + half : (d < 2 * half ? i - half : i);
      const Real sign{d < half ? -1.0F : (d < 2 * half ? 1.0F : 0.0F)};
      out_(i, sign * in_[0](partner));
    }
  }

  void operator()(const CacheAppend&) {
    // The output is the cache itself, so the rows before are there already.
    const std::size_t features = out_shape()[2];
    const std::size_t past = in_shape(0)[1];
    const std::size_t rows = in_shape(1)[1];
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      for (std::size_t i = 0; i < rows * features; ++i) {
        out_((b * (past + rows) + past) * features + i, in_[1](b * rows * features + i));
      }
    }
  }

  void operator()(const CacheEvict& op) {
    const std::size_t features = out_shape()[2];
    const std::size_t rows = out_shape()[1];
    const std::size_t dropped = call_.value(op.dropped);
    if (dropped == 0) return;
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      for (std::size_t i = op.kept_first * features; i < rows * features; ++i) {
        out_(b * rows * features + i, in_[0]((b * (rows + dropped) + dropped) * features + i));
      }
    }
  }

  void operator()(const JoinRows&) {
    const std::size_t past = in_shape(0).elements() / out_shape()[0];
    const std::size_t rows = in_shape(1).elements() / out_shape()[0];
    std::size_t next = 0;
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      for (std::size_t i = 0; i < past; ++i) out_(next++, in_[0](b * past + i));
      for (std::size_t i = 0; i < rows; ++i) out_(next++, in_[1](b * rows + i));
    }
  }

  void operator()(const Send& op) {
    // The message is the rows themselves.
    copy_rows(in_[0], in_shape(0)[1], call_.value(op.first_row), out_, out_shape()[1], 0,
              out_shape()[1]);
    send_message(call_, op);
  }

  void operator()(const Receive& op) {
    receive_message(call_, op);
    copy_rows(in_[1], in_shape(1)[1], 0, out_, out_shape()[1], call_.value(op.first_row),
              in_shape(1)[1]);
  }

  void operator()(const RepeatHeads& op) {
    const std::size_t tokens = out_shape()[1];
    const std::size_t features = in_shape(0)[2];
    for (std::size_t t = 0; t < out_shape()[0] * tokens; ++t) {
      for (std::size_t i = 0; i < features * op.repeats; ++i) {
        const std::size_t head = i / op.head_dim / op.repeats;
        out_(t * features * op.repeats + i,
             in_[0](t * features + head * op.head_dim + i % op.head_dim));
      }
    }
  }

  void operator()(const LastToken&) {
    const std::size_t tokens = in_shape(0)[1];
    const std::size_t features = in_shape(0)[2];
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      for (std::size_t i = 0; i < features; ++i) {
        out_(b * features + i, in_[0]((b * tokens + tokens - 1) * features + i));
      }
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

  void operator()(const RelativePositionBias& op) {
    const std::size_t heads = out_shape()[0];
    const std::size_t queries = out_shape()[1];
    const std::size_t keys = out_shape()[2];
    const std::size_t first = call_.value(op.first_position);
    std::vector<Real> table(in_shape(0).elements());
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = in_[0](i);
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t i = 0; i < queries; ++i) {
        for (std::size_t j = 0; j < keys; ++j) {
          const std::size_t bucket = relative_bucket(op, first + i, j);
          out_((h * queries + i) * keys + j, table[bucket * heads + h]);
        }
      }
    }
  }

  void operator()(const AlibiBias& op) {
    const std::size_t heads = out_shape()[0];
    const std::size_t keys = out_shape()[2];
    for (std::size_t h = 0; h < heads; ++h) {
      const float slope = alibi_slope(h, heads);
      for (std::size_t j = 0; j < keys; ++j) {
        out_(h * keys + j, counted<N>(alibi_bias(slope, j)) * constant(op.scale));
      }
    }
  }

  void operator()(const CausalMask& op) {
    const std::size_t queries = out_shape()[0];
    const std::size_t keys = out_shape()[1];
    const std::size_t past = call_.value(op.mask.past);
    for (std::size_t i = 0; i < queries; ++i) {
      const KeyRange visible = visible_range(op.mask, past + i, keys);
      for (std::size_t j = 0; j < keys; ++j) {
        const bool seen = j >= visible.first && j < visible.end;
        out_(i * keys + j, Real{seen ? 0 : masked_score});
      }
    }
  }

 private:
  /// `count` rows of each sequence; from and to have so many rows.
  void copy_rows(Reader<N>& from, std::size_t from_rows, std::size_t from_row, Writer<N>& to,
                 std::size_t to_rows, std::size_t to_row, std::size_t count) {
    const std::size_t features = out_shape()[2];
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      const std::size_t read = (b * from_rows + from_row) * features;
      const std::size_t written = (b * to_rows + to_row) * features;
      for (std::size_t i = 0; i < count * features; ++i) to(written + i, from(read + i));
    }
  }

  /// The mean of `pool` probabilities of a row around key j, zeros beyond its ends.
  Real pooled(std::size_t row, std::size_t j, std::size_t keys, std::size_t pool) {
    Real sum;
    for (std::size_t p = 0; p < pool; ++p) {
      const std::size_t key = j + p;  // of the padded row
      const bool inside = key >= pool / 2 && key - pool / 2 < keys;
      sum += inside ? in_[0](row + key - pool / 2) : Real{0};
    }
    return sum / constant(static_cast<double>(pool));
  }

  /// `n` given positions, if the node has that input, or consecutive ones.
  template <typename RopeOp>
  std::vector<N> positions_of(const RopeOp& op, std::size_t input, std::size_t n) {
    const bool given = in_.size() > input;
    const std::size_t first = given ? 0 : call_.value(op.first_position);
    std::vector<N> positions(n);
    for (std::size_t t = 0; t < n; ++t) {
      positions[t] = given ? in_[input](t).value : static_cast<N>(first + t);
    }
    return positions;
  }
};

}  // namespace

std::uint64_t CountedWork::bytes() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t b : read) sum += b;
  for (const std::uint64_t b : written) sum += b;
  return sum;
}

CountedWork& CountedWork::operator+=(const CountedWork& other) {
  flops += other.flops;
  for (std::size_t i = 0; i < num_storages; ++i) {
    read[i] += other.read[i];
    written[i] += other.written[i];
  }
  return *this;
}

CountedWork run_plain(const Call& call, DType dtype) {
  const auto run = [&](auto loops) {
    counted_flops = 0;
    std::visit(loops, call.node.op);
    return loops.counted_work();
  };
  return dtype == DType::FP64 ? run(PlainLoops<double>(call)) : run(PlainLoops<float>(call));
}

}  // namespace kvcast::execute
