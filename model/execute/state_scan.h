/// Scans of states and their gradients, written once as the operators of shared_operators.h are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/execute/row_loops.h"
#include "model/execute/shared_operators.h"

namespace kvcast::execute {

template <typename N>
Real<N> dot_row(const Real<N>* x, const Real<N>* y, std::size_t n) {
  Real<N> sum;
  for (std::size_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}
template <typename N>
void add_scaled_row(Real<N> factor, const Real<N>* x, Real<N>* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

/// The step of a token between the limits of its scan.
template <typename X>
typename X::Number limited(const X& x, const StateScan& op, typename X::Number step) {
  if (op.min_step > 0) step = maximum(step, x.constant(op.min_step));
  if (std::isfinite(op.max_step)) step = minimum(step, x.constant(op.max_step));
  return step;
}

/// One StateScan.
template <typename X>
class StateScanRun {
  using Number = typename X::Number;
  using Numbers = std::vector<Number>;

 public:
  StateScanRun(X& x, const StateScan& op)
      : x_(x),
        op_(op),
        tokens_(x.in_shape(0)[1]),
        key_dim_(x.in_shape(0)[2] / op.num_groups),
        value_dim_(x.in_shape(2)[2] / op.num_heads) {
    std::size_t longest = tokens_;
    if (x.call.step == nullptr) {
      for (std::size_t b = 0; b < x.in_shape(0)[0]; ++b) parts_.push_back({b, 0, tokens_, b, 0});
    } else {
      longest = 0;
      for (const SequenceRows& s : x.call.step->sequences) {
        parts_.push_back({0, s.first_token, s.first_token + s.tokens, 0, parts_.size()});
        longest = std::max(longest, s.tokens);
      }
    }
    chunk_ = std::min<std::size_t>(op.chunk, longest);
  }

  void run() {
    const std::size_t batch = x_.in_shape(0)[0];
    if (x_.in_shape(5).rank() > 1) {
      run_by_row();
      return;
    }
    chunk_begins_.resize(tokens_);
    for (const Part& p : parts_) {
      for (std::size_t t = p.begin; t < p.end; ++t) {
        chunk_begins_[t] = p.begin + (t - p.begin) / chunk_ * chunk_;
      }
    }
    scores_.resize(batch * op_.num_groups * tokens_ * chunk_);
    if (op_.delta) key_scores_.resize(scores_.size());
    x_.each(batch * op_.num_groups * tokens_, scores_.size() * key_dim_, [&](std::size_t r) {
      score(r, 0, true, scores_);
      if (op_.delta) score(r, 1, false, key_scores_);
    });
    decays_.resize(op_.num_heads);
    for (std::size_t h = 0; h < decays_.size(); ++h) decays_[h] = exponential(x_.value(5, h, 0));
    // Made before the threads start: what they throw could not be caught.
    work_.resize(parts_.size() * op_.num_heads * head_numbers());
    x_.each(parts_.size() * op_.num_heads, x_.out_shape().elements() * key_dim_,
            [&](std::size_t r) { scan(r / op_.num_heads, r % op_.num_heads); });
  }

 private:
  /// A sequence, or in a step its tokens among those of all.
  struct Part {
    std::size_t b;      ///< of the inputs
    std::size_t begin;  ///< its first token
    std::size_t end;
    std::size_t state_b;
    std::size_t state_row;
  };

  /// With a decay of each row of a state.
  void run_by_row() {
    const std::size_t heads = parts_.size() * op_.num_heads;
    decays_.resize(op_.num_heads * key_dim_);
    for (std::size_t i = 0; i < decays_.size(); ++i) {
      decays_[i] = exponential(x_.value(5, i / key_dim_, i % key_dim_));
    }
    work_.resize(heads * (key_dim_ + 2) * value_dim_);
    x_.each(heads, x_.out_shape().elements() * key_dim_,
            [&](std::size_t r) { scan_by_row(r / op_.num_heads, r % op_.num_heads); });
  }

  Number time_step(const Part& p, std::size_t head, std::size_t h) const {
    const Number step = softplus(x_.value(3, p.b, head) + x_.value(4, h, 0));
    // A step computes a single token as decode steps do.
    if (x_.call.step != nullptr && p.end - p.begin == 1) return step;
    return limited(x_, op_, step);
  }

  void scan_by_row(std::size_t part, std::size_t h) {
    const Part& of = parts_[part];
    const std::size_t b = of.b;
    const std::size_t dims = value_dim_;
    const std::size_t size = key_dim_ * dims;
    Number* const state = work_.data() + (part * op_.num_heads + h) * (key_dim_ + 2) * dims;
    Number* const u = state + size;
    Number* const y = u + dims;
    read_state(of, h, size, state);
    const std::size_t g = h / (op_.num_heads / op_.num_groups);
    for (std::size_t t = of.begin; t < of.end; ++t) {
      const std::size_t key = (t * op_.num_groups + g) * key_dim_;
      const std::size_t head = t * op_.num_heads + h;
      const Number step = time_step(of, head, h);
      const Number minus_step = -step;
      for (std::size_t p = 0; p < dims; ++p) {
        u[p] = step * x_.value(2, b, head * dims + p);
        y[p] = Number{0};
      }
      for (std::size_t n = 0; n < key_dim_; ++n) {
        const Number left = exponential(minus_step * decays_[h * key_dim_ + n]);
        const Number k = x_.value(1, b, key + n);
        const Number q = x_.value(0, b, key + n);
        Number* const row = state + n * dims;
        for (std::size_t p = 0; p < dims; ++p) {
          row[p] = left * row[p] + k * u[p];
          y[p] += q * row[p];
        }
      }
      for (std::size_t p = 0; p < dims; ++p) {
        if (op_.skips) y[p] += x_.value(6, h, 0) * x_.value(2, b, head * dims + p);
        x_.put(b, head * dims + p, y[p]);
      }
    }
    write_state(of, h, size, state);
  }

  /// A head's state before the pass.
  void read_state(const Part& p, std::size_t h, std::size_t size, Number* state) {
    const std::size_t input = 6 + std::size_t{op_.delta} + std::size_t{op_.skips};
    const bool continues = x_.call.inputs.size() > input && x_.in_shape(input)[1] > 0;
    const std::size_t first = (p.state_row * op_.num_heads + h) * size;
    for (std::size_t i = 0; i < size; ++i) {
      state[i] = continues ? x_.value(input, p.state_b, first + i) : Number{0};
    }
  }
  void write_state(const Part& p, std::size_t h, std::size_t size, const Number* state) {
    const std::size_t first = (p.state_row * op_.num_heads + h) * size;
    for (std::size_t i = 0; i < size; ++i) x_.put(p.state_b, first + i, state[i], 1);
  }

  /// Products of row r of an input with the keys of its chunk before it, its own with `own`.
  void score(std::size_t r, std::size_t input, bool own, Numbers& scores) {
    const std::size_t i = r % tokens_;
    const std::size_t g = r / tokens_ % op_.num_groups;
    const std::size_t b = r / tokens_ / op_.num_groups;
    const std::size_t first = chunk_begins_[i];
    for (std::size_t j = first; j < i + (own ? 1 : 0); ++j) {
      Number sum{0};
      for (std::size_t n = 0; n < key_dim_; ++n) {
        sum += x_.value(input, b, (i * op_.num_groups + g) * key_dim_ + n) *
               x_.value(1, b, (j * op_.num_groups + g) * key_dim_ + n);
      }
      scores[r * chunk_ + j - first] = sum;
    }
  }

  /// What one head works on.
  struct Head {
    Number* state;  ///< [N, P]
    Number* sums;   ///< of decays from the chunk's first token on
    Number* u;      ///< [chunk, P]
    Number* y;      ///< [P]
  };
  std::size_t head_numbers() const {
    return key_dim_ * value_dim_ + chunk_ + chunk_ * value_dim_ + value_dim_;
  }

  void scan(std::size_t part, std::size_t h) {
    const Part& p = parts_[part];
    Head head{};
    head.state = work_.data() + (part * op_.num_heads + h) * head_numbers();
    head.sums = head.state + key_dim_ * value_dim_;
    head.u = head.sums + chunk_;
    head.y = head.u + chunk_ * value_dim_;
    const std::size_t size = key_dim_ * value_dim_;
    read_state(p, h, size, head.state);
    for (std::size_t first = p.begin; first < p.end; first += chunk_) {
      scan_chunk(p, h, first, std::min(chunk_, p.end - first), head);
    }
    write_state(p, h, size, head.state);
  }

  void scan_chunk(const Part& part, std::size_t h, std::size_t first, std::size_t n,
                  const Head& head) {
    const auto [state, sums, u, y] = head;
    const std::size_t b = part.b;
    const std::size_t heads = op_.num_heads;
    const std::size_t g = h / (heads / op_.num_groups);
    const std::size_t dims = value_dim_;
    const auto scored = [&](const Numbers& scores, std::size_t i, std::size_t j) {
      return scores[((b * op_.num_groups + g) * tokens_ + first + i) * chunk_ + j];
    };
    Number sum{0};
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t t = first + i;
      const std::size_t key = (t * op_.num_groups + g) * key_dim_;
      const std::size_t value = (t * heads + h) * dims;
      const Number step = time_step(part, t * heads + h, h);
      sum += step * decays_[h];
      sums[i] = sum;
      const Number decay = exponential(-sum);
      for (std::size_t p = 0; p < dims; ++p) u[i * dims + p] = x_.value(2, b, value + p);
      if (op_.delta) {
        read(state, b, 1, key, decay, y);
        for (std::size_t p = 0; p < dims; ++p) u[i * dims + p] = u[i * dims + p] - y[p];
        for (std::size_t j = 0; j < i; ++j) {
          const Number w = exponential(sums[j] - sum) * scored(key_scores_, i, j);
          for (std::size_t p = 0; p < dims; ++p) {
            u[i * dims + p] = u[i * dims + p] - w * u[j * dims + p];
          }
        }
      }
      const Number factor = op_.delta ? x_.value(6, b, t * heads + h) : step;
      for (std::size_t p = 0; p < dims; ++p) u[i * dims + p] = factor * u[i * dims + p];
      read(state, b, 0, key, decay, y);
      for (std::size_t j = 0; j <= i; ++j) {
        const Number w = exponential(sums[j] - sum) * scored(scores_, i, j);
        for (std::size_t p = 0; p < dims; ++p) y[p] += w * u[j * dims + p];
      }
      if (op_.skips) {
        const Number skip = x_.value(op_.delta ? 7 : 6, h, 0);
        for (std::size_t p = 0; p < dims; ++p) y[p] += skip * x_.value(2, b, value + p);
      }
      for (std::size_t p = 0; p < dims; ++p) x_.put(b, value + p, y[p]);
    }
    const Number left = exponential(-sum);
    for (std::size_t i = 0; i < key_dim_ * dims; ++i) state[i] = left * state[i];
    for (std::size_t j = 0; j < n; ++j) {
      const Number w = exponential(sums[j] - sum);
      for (std::size_t p = 0; p < dims; ++p) u[j * dims + p] = w * u[j * dims + p];
      for (std::size_t k = 0; k < key_dim_; ++k) {
        const Number of_key = x_.value(1, b, ((first + j) * op_.num_groups + g) * key_dim_ + k);
        for (std::size_t p = 0; p < dims; ++p) state[k * dims + p] += of_key * u[j * dims + p];
      }
    }
  }

  /// y = decay·Sᵀ·x for the row of an input that begins at `at`.
  void read(const Number* state, std::size_t b, std::size_t input, std::size_t at, Number decay,
            Number* y) {
    std::fill_n(y, value_dim_, Number{0});
    for (std::size_t k = 0; k < key_dim_; ++k) {
      const Number of_x = x_.value(input, b, at + k);
      for (std::size_t p = 0; p < value_dim_; ++p) y[p] += of_x * state[k * value_dim_ + p];
    }
    for (std::size_t p = 0; p < value_dim_; ++p) y[p] = decay * y[p];
  }

  X& x_;
  const StateScan& op_;
  std::size_t tokens_;
  std::size_t key_dim_;
  std::size_t value_dim_;
  std::size_t chunk_ = 1;
  std::vector<Part> parts_;
  std::vector<std::size_t> chunk_begins_;  ///< of each token's chunk, its first token
  Numbers scores_;      ///< q·k by sequence, group, token, and place in the token's chunk
  Numbers key_scores_;  ///< k·k
  Numbers decays_;      ///< e^A by head, or by head and row
  Numbers work_;        ///< of all heads
};

template <typename X>
void run_shared(X& x, const StateScan& op) {
  StateScanRun<X>(x, op).run();
}

/// One StateScanGradient.
template <typename X>
class StateScanBack {
  using Number = typename X::Number;
  using Numbers = std::vector<Number>;
  static constexpr std::size_t block = StateScanGradient::block;

 public:
  StateScanBack(X& x, const StateScanGradient& op)
      : x_(x),
        op_(op.forward),
        parts_(op.num_parts()),
        batch_(x.in_shape(1)[0]),
        tokens_(x.in_shape(1)[1]),
        key_dim_(x.in_shape(1)[2] / op_.num_groups),
        value_dim_(x.in_shape(3)[2] / op_.num_heads),
        rows_(x.in_shape(6).rank() > 1 ? key_dim_ : 1),
        size_(key_dim_ * value_dim_) {}

  void run() {
    decays_.resize(op_.num_heads * rows_);
    for (std::size_t i = 0; i < decays_.size(); ++i) {
      decays_[i] = exponential(x_.value(6, i / rows_, i % rows_));
    }
    const std::size_t units = batch_ * op_.num_groups * parts_;
    // Made before the threads start: what they throw could not be caught.
    sums_.resize(units * 2 * tokens_ * key_dim_);
    work_.resize(units * work_numbers());
    held_.resize(units * tokens_);
    x_.each(units, 17 * tokens_ * op_.num_heads * size_, [&](std::size_t unit) { go_back(unit); });
    x_.each(batch_ * tokens_ * op_.num_groups, sums_.size(), [&](std::size_t r) { sum_parts(r); });
  }

 private:
  /// What one unit works on, one head after another.
  struct Unit {
    Number* of_q;    ///< [tokens, N], summed over its heads
    Number* of_k;    ///< [tokens, N]
    Number* starts;  ///< states before each block
    Number* states;  ///< before a block's first token, and after each
    Number* of_state;
    Number* steps;    ///< of each token
    Number* before;   ///< steps before softplus
    Number* left;     ///< decays [tokens, rows]
    Number* u;        ///< [tokens, P]
    Number* missing;  ///< u/beta of a delta rule [tokens, P]
    Number* q;        ///< of one token
    Number* k;
    Number* k_gradient;
    Number* g;
    Number* v;
    Number* of_u;
    Number* of_v;
    Number* of_decay;    ///< [rows], of one head
    std::uint8_t* held;  ///< a limit sets the step
  };
  std::size_t work_numbers() const {
    return ((tokens_ + block - 1) / block + std::min(block, tokens_) + 2) * size_ +
           tokens_ * (2 + rows_ + 2 * value_dim_) + 3 * key_dim_ + 4 * value_dim_ + rows_;
  }
  Unit unit_at(std::size_t i) {
    Unit u{};
    u.of_q = sums_.data() + i * 2 * tokens_ * key_dim_;
    u.of_k = u.of_q + tokens_ * key_dim_;
    u.held = held_.data() + i * tokens_;
    Number* next = work_.data() + i * work_numbers();
    const auto take = [&](std::size_t n) { return std::exchange(next, next + n); };
    u.starts = take((tokens_ + block - 1) / block * size_);
    u.states = take((std::min(block, tokens_) + 1) * size_);
    u.of_state = take(size_);
    u.steps = take(tokens_);
    u.before = take(tokens_);
    u.left = take(tokens_ * rows_);
    u.u = take(tokens_ * value_dim_);
    u.missing = take(tokens_ * value_dim_);
    for (Number** const part : {&u.q, &u.k, &u.k_gradient}) *part = take(key_dim_);
    for (Number** const part : {&u.g, &u.v, &u.of_u, &u.of_v}) *part = take(value_dim_);
    u.of_decay = take(rows_);
    return u;
  }

  void go_back(std::size_t i) {
    const Unit u = unit_at(i);
    const std::size_t group = i / parts_ % op_.num_groups;
    const std::size_t heads = op_.num_heads / op_.num_groups;
    const std::size_t part = i % parts_;
    for (std::size_t h = part * heads / parts_; h < (part + 1) * heads / parts_; ++h) {
      go_back(u, {i / parts_ / op_.num_groups, group, group * heads + h});
    }
  }

  struct Place {
    std::size_t b;
    std::size_t group;
    std::size_t head;
  };
  void load(std::size_t input, const Place& p, std::size_t at, std::size_t n, Number* to) {
    for (std::size_t i = 0; i < n; ++i) to[i] = x_.value(input, p.b, at + i);
  }
  std::size_t at_head(const Place& p, std::size_t t) const { return t * op_.num_heads + p.head; }
  void load_key(const Place& p, std::size_t t, Number* to) {
    load(2, p, (t * op_.num_groups + p.group) * key_dim_, key_dim_, to);
  }
  void load_value(std::size_t input, const Place& p, std::size_t t, Number* to) {
    load(input, p, at_head(p, t) * value_dim_, value_dim_, to);
  }

  void go_back(const Unit& u, const Place& p) {
    take_steps(u, p);
    scan(u, p);
    std::fill_n(u.of_state, size_, Number{0});
    std::fill_n(u.of_decay, rows_, Number{0});
    Number of_skip{0};
    for (std::size_t end = tokens_; end > 0;) {
      const std::size_t first = (end - 1) / block * block;
      std::copy_n(u.starts + first / block * size_, size_, u.states);
      for (std::size_t t = first; t < end; ++t) {
        load_key(p, t, u.k);
        Number* const state = u.states + (t - first) * size_;
        advance(u, t, state, state + size_);
      }
      while (end > first) {
        --end;
        pass_token(u, p, end, u.states + (end - first) * size_, of_skip);
      }
    }
    for (std::size_t n = 0; n < rows_; ++n) x_.put(p.b, p.head * rows_ + n, u.of_decay[n], 4);
    if (op_.skips) x_.put(p.b, p.head, of_skip, op_.delta ? 6 : 5);
  }

  void take_steps(const Unit& u, const Place& p) {
    using N = decltype(number_of(Number{0}));
    for (std::size_t t = 0; t < tokens_; ++t) {
      u.before[t] = x_.value(4, p.b, at_head(p, t)) + x_.value(5, p.head, 0);
      const Number step = softplus(u.before[t]);
      u.held[t] = number_of(step) < static_cast<N>(op_.min_step) ||
                  number_of(step) > static_cast<N>(op_.max_step);
      u.steps[t] = limited(x_, op_, step);
      const Number minus_step = -u.steps[t];
      for (std::size_t n = 0; n < rows_; ++n) {
        u.left[t * rows_ + n] = exponential(minus_step * decays_[p.head * rows_ + n]);
      }
    }
  }

  /// Over all tokens: what each adds to the state, and the states before the blocks.
  void scan(const Unit& u, const Place& p) {
    Number* const state = u.states;
    std::fill_n(state, size_, Number{0});
    for (std::size_t t = 0; t < tokens_; ++t) {
      if (t % block == 0) std::copy_n(state, size_, u.starts + t / block * size_);
      load_key(p, t, u.k);
      load_value(3, p, t, u.v);
      Number* const added = u.u + t * value_dim_;
      Number* const missing = u.missing + t * value_dim_;
      if (op_.delta) {
        std::fill_n(missing, value_dim_, Number{0});
        for (std::size_t n = 0; n < key_dim_; ++n) add_row(u.k[n], state + n * value_dim_, missing);
        const Number left = u.left[t * rows_];
        for (std::size_t i = 0; i < value_dim_; ++i) missing[i] = u.v[i] - left * missing[i];
        const Number beta = x_.value(7, p.b, at_head(p, t));
        for (std::size_t i = 0; i < value_dim_; ++i) added[i] = beta * missing[i];
      } else {
        for (std::size_t i = 0; i < value_dim_; ++i) added[i] = u.steps[t] * u.v[i];
      }
      advance(u, t, state, state);
    }
  }

  /// The state after a token, whose key is loaded.
  void advance(const Unit& u, std::size_t t, const Number* from, Number* to) {
    const Number* const added = u.u + t * value_dim_;
    for (std::size_t n = 0; n < key_dim_; ++n) {
      const Number left = u.left[t * rows_ + (rows_ > 1 ? n : 0)];
      const Number k = u.k[n];
      for (std::size_t i = n * value_dim_; i < (n + 1) * value_dim_; ++i) {
        to[i] = left * from[i] + k * added[i - n * value_dim_];
      }
    }
  }

  /// `state` is that before the token; the one after it follows.
  void pass_token(const Unit& u, const Place& p, std::size_t t, const Number* state,
                  Number& of_skip) {
    const std::size_t dims = value_dim_;
    const std::size_t head = at_head(p, t);
    load(1, p, (t * op_.num_groups + p.group) * key_dim_, key_dim_, u.q);
    load_key(p, t, u.k);
    load_value(0, p, t, u.g);
    load_value(3, p, t, u.v);
    std::fill_n(u.of_u, dims, Number{0});
    for (std::size_t n = 0; n < key_dim_; ++n) {
      Number* const of_row = u.of_state + n * dims;
      add_row(u.q[n], u.g, of_row);
      u.of_q[t * key_dim_ + n] += dot(state + size_ + n * dims, u.g);
      u.k_gradient[n] = dot(of_row, u.u + t * dims);
      add_row(u.k[n], of_row, u.of_u);
    }
    const Number factor = op_.delta ? x_.value(7, p.b, head) : u.steps[t];
    for (std::size_t i = 0; i < dims; ++i) u.of_v[i] = factor * u.of_u[i];
    Number of_step{0};
    if (op_.delta) {
      x_.put(p.b, head, dot(u.of_u, u.missing + t * dims), 5);
      for (std::size_t n = 0; n < key_dim_; ++n) {
        const Number k = u.k[n];
        Number* const of_row = u.of_state + n * dims;
        for (std::size_t i = 0; i < dims; ++i) of_row[i] = of_row[i] - k * u.of_v[i];
        u.k_gradient[n] = u.k_gradient[n] - u.left[t * rows_] * dot(state + n * dims, u.of_v);
      }
    } else {
      of_step = dot(u.of_u, u.v);
    }
    for (std::size_t n = 0; n < key_dim_; ++n) u.of_k[t * key_dim_ + n] += u.k_gradient[n];
    for (std::size_t row = 0; row < rows_; ++row) {
      const std::size_t n = size_ / rows_;  // numbers that decay alike
      const Number left = u.left[t * rows_ + row];
      Number* const of_rows = u.of_state + row * n;
      const Number of_left = dot(of_rows, state + row * n, n);
      const Number slope = decays_[p.head * rows_ + row] * (left * of_left);
      of_step = of_step - slope;
      u.of_decay[row] = u.of_decay[row] - u.steps[t] * slope;
      for (std::size_t i = 0; i < n; ++i) of_rows[i] = left * of_rows[i];
    }
    if (op_.skips) {
      const Number skip = x_.value(op_.delta ? 8 : 7, p.head, 0);
      for (std::size_t i = 0; i < dims; ++i) {
        u.of_v[i] += skip * u.g[i];
        of_skip += u.g[i] * u.v[i];
      }
    }
    for (std::size_t i = 0; i < dims; ++i) x_.put(p.b, head * dims + i, u.of_v[i], 2);
    const Number through = of_step * (Number{1} / (Number{1} + exponential(-u.before[t])));
    x_.put(p.b, head, u.held[t] != 0 ? Number{0} : through, 3);
  }

  /// Of row r of q and k.
  void sum_parts(std::size_t r) {
    const std::size_t group = r % op_.num_groups;
    const std::size_t t = r / op_.num_groups % tokens_;
    const std::size_t b = r / op_.num_groups / tokens_;
    const std::size_t first = (b * op_.num_groups + group) * parts_;
    for (std::size_t n = 0; n < key_dim_; ++n) {
      Number of_q{0};
      Number of_k{0};
      for (std::size_t part = first; part < first + parts_; ++part) {
        const Number* const sums = sums_.data() + part * 2 * tokens_ * key_dim_ + t * key_dim_ + n;
        of_q += sums[0];
        of_k += sums[tokens_ * key_dim_];
      }
      const std::size_t at = (t * op_.num_groups + group) * key_dim_ + n;
      x_.put(b, at, of_q);
      x_.put(b, at, of_k, 1);
    }
  }

  // A call costs more than a few numbers do.
  static constexpr std::size_t few = 8;
  Number dot(const Number* x, const Number* y) const { return dot(x, y, value_dim_); }
  static Number dot(const Number* x, const Number* y, std::size_t n) {
    if (n > few) return dot_row(x, y, n);
    Number sum{0};
    for (std::size_t i = 0; i < n; ++i) sum += x[i] * y[i];
    return sum;
  }
  /// y += factor·x
  void add_row(Number factor, const Number* x, Number* y) const {
    if (value_dim_ > few) return add_scaled_row(factor, x, y, value_dim_);
    for (std::size_t i = 0; i < value_dim_; ++i) y[i] += factor * x[i];
  }

  X& x_;
  const StateScan& op_;
  std::size_t parts_;
  std::size_t batch_;
  std::size_t tokens_;
  std::size_t key_dim_;
  std::size_t value_dim_;
  std::size_t rows_;  ///< of a state that decay apart, or 1
  std::size_t size_;  ///< of a state
  Numbers decays_;    ///< e^A by head, or by head and row
  Numbers sums_;      ///< of q̄ and k̄, by unit
  Numbers work_;      ///< by unit
  std::vector<std::uint8_t> held_;
};

template <typename X>
void run_shared(X& x, const StateScanGradient& op) {
  StateScanBack<X>(x, op).run();
}

}  // namespace kvcast::execute
