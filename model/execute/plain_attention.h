/// The attention operators as plain loops that count, and the operands that all such loops share.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "model/execute/counted_numbers.h"
#include "model/execute/plain_loops.h"
#include "model/execute/positions.h"
#include "model/execute/step_rows.h"

namespace kvcast::execute {

/// The operands of one call, counting what is touched. N is what the numbers are computed in: float
/// or double, or a type of this kind.
template <typename N>
class PlainOperands {
 public:
  using Real = execute::Real<N>;

  explicit PlainOperands(const Call& c) : call(c), out_(c.output) {
    for (const Operand& operand : c.inputs) in_.emplace_back(operand);
    for (const Operand& operand : c.more_outputs) more_.emplace_back(operand);
  }

  const Call& call;
  const Shape& in_shape(std::size_t i) const { return call.inputs[i].shape; }
  const Shape& out_shape() const { return call.output.shape; }

  // What shared_operators.h reaches elements by.
  using Number = Real;
  static Real constant(double x) { return Real::constant(x); }
  Real value(std::size_t input, std::size_t b, std::size_t i) {
    return in_[input](b * in_shape(input).sequence_elements() + i);
  }
  /// Element i of sequence b, read anew.
  Real gather(std::size_t input, std::size_t b, std::size_t i) {
    return in_[input].gather(b * in_shape(input).sequence_elements() + i);
  }
  /// Elements like those of an input that came in a message.
  void gather_received(std::size_t input, std::size_t elements) {
    in_[input].gather_elsewhere(elements);
  }
  void put(std::size_t b, std::size_t i, Real x) {
    out_(b * out_shape().sequence_elements() + i, x);
  }
  void put(std::size_t b, std::size_t i, Real x, std::size_t output) {
    if (output == 0) return put(b, i, x);
    more_[output - 1](b * call.more_outputs[output - 1].shape.sequence_elements() + i, x);
  }
  void move(std::size_t input, std::size_t b, std::size_t from, std::size_t to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) put(b, to + i, value(input, b, from + i));
  }
  void take(std::size_t input, std::size_t b, std::size_t i, std::span<N> numbers) {
    for (N& x : numbers) x = number_of(value(input, b, i++));
  }
  void lay(std::size_t b, std::size_t i, std::span<const N> numbers) {
    for (const N x : numbers) put(b, i++, Real{x});
  }
  template <typename F>
  void each(std::size_t rows, std::size_t /*elements*/, F f) {
    for (std::size_t r = 0; r < rows; ++r) f(r);
  }

  CountedWork counted_work() const {
    CountedWork w;
    w.flops = counted_flops;
    for (const Reader<N>& r : in_) w.read[slot(r)] += r.bytes();
    w.written[slot(out_)] += out_.bytes();
    for (const Writer<N>& m : more_) w.written[slot(m)] += m.bytes();
    return w;
  }

 protected:
  /// Below every score, in fp64 too: what the mask holds.
  static constexpr N lowest = std::numeric_limits<float>::lowest();

  std::vector<Reader<N>> in_;
  Writer<N> out_;
  std::vector<Writer<N>> more_;  ///< the outputs after the first

 private:
  static std::size_t slot(const Touched& t) {
    return static_cast<std::size_t>(t.operand().info->storage);
  }
};

template <typename N>
class PlainAttention : public PlainOperands<N> {
 protected:
  using Base = PlainOperands<N>;
  using Base::in_;
  using Base::lowest;
  using Base::more_;
  using Base::out_;

 public:
  using Base::call;
  using Base::in_shape;
  using Base::out_shape;
  using Real = execute::Real<N>;
  using Angle = typename AngleNumber<N>::Type;
  using Base::Base;

  void operator()(const AttentionScores& op) {
    const Heads& h = op.heads;
    const std::size_t queries = out_shape()[2];
    const std::size_t keys = out_shape()[3];
    std::size_t next = 0;
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      for (std::size_t head = 0; head < h.num_attention_heads; ++head) {
        for (std::size_t i = 0; i < queries; ++i) {
          for (std::size_t j = 0; j < keys; ++j) {
            out_(next++,
                 dot(h, query_index(h, b * queries + i, head), kv_at(h, b * keys + j, head)));
          }
        }
      }
    }
  }

  void operator()(const AttentionValues& op) {
    const Heads& h = op.heads;
    const std::size_t queries = in_shape(0)[2];
    const std::size_t keys = in_shape(0)[3];
    for (std::size_t b = 0; b < in_shape(0)[0]; ++b) {
      for (std::size_t head = 0; head < h.num_attention_heads; ++head) {
        for (std::size_t i = 0; i < queries; ++i) {
          const std::size_t row = ((b * h.num_attention_heads + head) * queries + i) * keys;
          for (std::size_t d = 0; d < h.head_dim; ++d) {
            Real sum;
            for (std::size_t j = 0; j < keys; ++j) {
              sum += in_[0](row + j) * in_[1](kv_at(h, b * keys + j, head) + d);
            }
            out_(query_index(h, b * queries + i, head) + d, sum);
          }
        }
      }
    }
  }

  void operator()(const SparseValues& op) {
    const Heads& h = op.heads;
    const std::size_t queries = in_shape(0)[2];
    const std::size_t keys = in_shape(0)[3];
    const std::size_t row = in_shape(1)[2];
    const Real threshold = Real::constant(op.threshold);
    std::vector<bool> kept(in_shape(0).elements());
    std::vector<bool> wanted(in_shape(0)[0] * keys, false);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      kept[i] = at_least(in_[0](i), threshold);
      const std::size_t b = i / (h.num_attention_heads * queries * keys);
      if (kept[i]) wanted[b * keys + i % keys] = true;
    }
    std::vector<Real> rows(in_shape(1).elements());
    for (std::size_t j = 0; j < wanted.size(); ++j) {
      if (wanted[j]) read_row(op, j * row, row, j % keys, rows);
    }
    for (std::size_t i = 0; i < kept.size() / keys; ++i) {
      const std::size_t b = i / queries / h.num_attention_heads;
      const std::size_t head = i / queries % h.num_attention_heads;
      for (std::size_t d = 0; d < h.head_dim; ++d) {
        Real sum;
        for (std::size_t j = 0; j < keys; ++j) {
          if (kept[i * keys + j])
            sum += in_[0](i * keys + j) * rows[kv_at(h, b * keys + j, head) + d];
        }
        out_(query_index(h, b * queries + i % queries, head) + d, sum);
      }
    }
    note_skipped(call, op, kept, wanted);
  }

  void operator()(const TiledAttention& op) {
    KVCAST_ASSERT(call.step == nullptr || (op.kept == 0 && !op.key_rope));
    if (op.key_rope) rotate_keys(op);
    if (op.kept > 0) read_kept(op, 1);
    const Heads& h = op.heads;
    for (const SequencePart& part : parts_of(call, op.mask)) {
      for (std::size_t head = 0; head < h.num_attention_heads; ++head) {
        for (std::size_t i = 0; i < part.queries; ++i) {
          const std::size_t row = part.first_query + i;
          KeyRange visible = visible_range(op.mask, part.past + i, part.keys);
          if (op.has_first) visible.first = static_cast<std::size_t>(in_.back()(row).value);
          attend(op, part, head, i, seen_by(op, row, visible));
        }
      }
    }
  }

 protected:
  static std::size_t query_index(const Heads& h, std::size_t row, std::size_t head) {
    return (row * h.num_attention_heads + head) * h.head_dim;
  }
  static std::size_t kv_at(const Heads& h, std::size_t row, std::size_t head) {
    return kv_in_row(h, head) + row * h.num_key_value_heads * h.head_dim;
  }
  /// Of the head's first feature in a row of keys or values.
  static std::size_t kv_in_row(const Heads& h, std::size_t head) {
    return head / (h.num_attention_heads / h.num_key_value_heads) * h.head_dim;
  }

 private:
  Real dot(const Heads& h, std::size_t q, std::size_t k) {
    Real sum;
    for (std::size_t d = 0; d < h.head_dim; ++d) sum += in_[0](q + d) * key(k + d);
    return sum;
  }
  Real key(std::size_t i) { return rotated_keys_.empty() ? in_[1](i) : rotated_keys_[i]; }

  /// One row of kept keys or values, turned back where it is kept rotated.
  void read_row(const SparseValues& op, std::size_t first, std::size_t size, std::size_t position,
                std::vector<Real>& rows) {
    for (std::size_t i = 0; i < size; ++i) rows[first + i] = in_[1](first + i);
    if (!op.unrotate) return;
    const std::size_t half = op.unrotate->inverse_frequencies.size();
    const RopeAngleTable<N>& angles = rope_angles<N>(op.unrotate, position + 1, true);
    for (std::size_t head = 0; head < op.rope_heads; ++head) {
      for (std::size_t j = 0; j < half; ++j) {
        const RopeTable::Pair pair = op.unrotate->pair(j);
        Real& x = rows[first + head * size / op.rope_heads + pair.first];
        Real& y = rows[first + head * size / op.rope_heads + pair.second];
        const Real c{angles.cosines(position)[j]};
        const Real s{angles.sines(position)[j]};
        const Real turned = x * c - y * s;
        y = y * c + x * s;
        x = turned;
      }
    }
  }

  /// Rotates the keys that some query sees.
  void rotate_keys(const TiledAttention& op) {
    const Heads& h = op.heads;
    const std::size_t keys = in_shape(1)[1];
    const std::size_t past = op.mask.causal ? call.value(op.mask.past) : 0;
    const std::size_t first = visible_range(op.mask, past, keys).first;
    const std::size_t end = visible_range(op.mask, past + out_shape()[1] - 1, keys).end;
    const std::size_t half = op.key_rope->inverse_frequencies.size();
    const RopeAngleTable<Angle>& angles = rope_angles<Angle>(op.key_rope, keys);
    rotated_keys_.resize(in_shape(1).elements());
    for (std::size_t b = 0; b < in_shape(1)[0]; ++b) {
      for (std::size_t t = first; t < end; ++t) {
        for (std::size_t head = 0; head < h.num_key_value_heads; ++head) {
          const std::size_t at = ((b * keys + t) * h.num_key_value_heads + head) * h.head_dim;
          for (std::size_t j = 0; j < half; ++j) {
            const RopeTable::Pair pair = op.key_rope->pair(j);
            rotate(at + pair.first, at + pair.second, angles.cosines(t)[j], angles.sines(t)[j]);
          }
          for (std::size_t d = 2 * half; d < h.head_dim; ++d)
            rotated_keys_[at + d] = in_[1](at + d);
        }
      }
    }
  }
  void rotate(std::size_t i, std::size_t j, Angle cosine, Angle sine) {
    const Real c{cosine};
    const Real s{sine};
    rotated_keys_[i] = in_[1](i) * c - in_[1](j) * s;
    rotated_keys_[j] = in_[1](j) * c + in_[1](i) * s;
  }

 protected:
  /// The keys that a query attends to, one of all sequences' queries.
  std::vector<std::size_t> seen_by(const TiledAttention& op, std::size_t query, KeyRange visible) {
    const std::size_t count = visible.end - visible.first;
    std::vector<std::size_t> seen(op.kept > 0 ? std::min<std::size_t>(op.kept, count) : count);
    const std::size_t row = query * call.inputs.back().shape.back();
    for (std::size_t n = 0; n < seen.size(); ++n) {
      seen[n] =
          op.kept > 0 ? static_cast<std::size_t>(in_.back()(row + n).value) : visible.first + n;
    }
    return seen;
  }

  /// Copies the rows that queries attend to, of the inputs from `of_keys` on: each query its own
  /// where that is less than all visible ones once.
  void read_kept(const TiledAttention& op, std::size_t of_keys) {
    const std::size_t queries = out_shape()[1];
    const std::size_t keys = in_shape(of_keys)[1];
    const std::size_t past = call.value(op.mask.past);
    const std::size_t visible = visible_range(op.mask, past + queries - 1, keys).end;
    const bool apart = call.value(op.visible_keys) < visible;
    rotated_keys_.resize(in_shape(of_keys).elements());
    if (!op.values_are_keys) kept_values_.resize(in_shape(of_keys + 1).elements());
    const auto copy = [&](std::size_t input, std::size_t row, std::vector<Real>& to) {
      const std::size_t width = in_shape(input)[2];
      for (std::size_t e = row * width; e < (row + 1) * width; ++e) {
        to[e] = apart ? in_[input].gather(e) : in_[input](e);
      }
    };
    const auto copy_rows = [&](std::size_t b, const std::vector<std::size_t>& rows) {
      for (const std::size_t j : rows) {
        copy(of_keys, b * keys + j, rotated_keys_);
        if (!op.values_are_keys) copy(of_keys + 1, b * keys + j, kept_values_);
      }
    };
    std::vector<std::size_t> all(visible);
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (std::size_t b = 0; b < out_shape()[0]; ++b) {
      if (!apart) copy_rows(b, all);
      for (std::size_t i = 0; apart && i < queries; ++i) {
        copy_rows(b, seen_by(op, b * queries + i, visible_range(op.mask, past + i, keys)));
      }
    }
  }

  // Copies of rows, laid out as the inputs.
  std::vector<Real> rotated_keys_;  ///< of TiledAttention with key_rope, or of the keys it keeps
  std::vector<Real> kept_values_;   ///< of their values, unless values are keys

 private:
  void attend(const TiledAttention& op, const SequencePart& part, std::size_t head, std::size_t i,
              const std::vector<std::size_t>& seen) {
    const Heads& h = op.heads;
    const Heads v = op.value_heads();
    const std::size_t query = part.first_query + i;
    const std::size_t inputs = in_.size() - (op.has_first ? 1 : 0);
    const bool has_bias = inputs > 3 && !op.has_sinks && op.kept == 0;
    const std::size_t of_values = op.values_are_keys ? 1 : 2;
    const std::vector<Real>& copied = op.values_are_keys ? rotated_keys_ : kept_values_;
    const std::size_t row = in_shape(of_values)[2];
    std::vector<Real> p(part.keys);
    Real peak{lowest};
    for (const std::size_t j : seen) {
      Real s = dot(h, query_index(h, query, head), kv_at(h, part.first_key + j, head));
      if (op.scale != 1) s = s * Real::constant(op.scale);
      if (op.softcap > 0)
        s = Real::constant(op.softcap) * hyperbolic_tangent(s / Real::constant(op.softcap));
      if (has_bias) s = s + in_[3](bias_index(in_shape(3), head, i, j));
      p[j] = s;
      peak = maximum(peak, s);
    }
    Real sum;
    if (op.has_sinks) {
      const Real sink = in_[inputs - 1](head);
      peak = maximum(peak, sink);
      sum += exponential(sink - peak);
    }
    for (const std::size_t j : seen) {
      p[j] = exponential(p[j] - peak);
      sum += p[j];
    }
    for (std::size_t d = 0; d < v.head_dim; ++d) {
      Real o;
      for (const std::size_t j : seen) {
        const std::size_t at = (part.first_key + j) * row + kv_in_row(v, head) + d;
        o += p[j] * (op.kept > 0 ? copied[at] : in_[of_values](at));
      }
      out_(query_index(v, query, head) + d, o / sum);
    }
    if (!more_.empty()) more_[0](query * h.num_attention_heads + head, peak + logarithm(sum));
  }
};

}  // namespace kvcast::execute
