/// Operators that are written once: the fast kernels and the counting loops differ only in how they
/// reach an element and in what a number is. Most of them move numbers and compute nothing.
///
/// `x` interprets one call:
///   X::Number                      float in the fast kernels, Real<N> in the counting loops
///   x.call, x.in_shape(i), x.out_shape()
///   x.value(input, b, i)           element i of sequence b of an input
///   x.gather(input, b, i)          the same, read anew each time
///   x.gather_received(input, n)    n such elements that came in a message
///   x.put(b, i, number)            writes element i of sequence b of the output
///   x.put(b, i, number, o)         the same of its output o
///   x.constant(c)                  a double as a Number
///   x.move(input, b, from, to, n)  moves n elements of sequence b from an input to the output
///   x.take(input, b, i, numbers)   elements of sequence b from i on, as plain numbers
///   x.lay(b, i, numbers)           the same to the output
///   x.each(rows, elements, f)      f(row) for all rows, in any order; they hold `elements` numbers
/// In tensors without a batch the first dimension takes the place of the sequences.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "model/base/mixed_bits.h"
#include "model/execute/counted_numbers.h"
#include "model/execute/exchange.h"
#include "model/execute/positions.h"
#include "model/execute/step_rows.h"
#include "model/execute/token_places.h"
#include "model/forward/state_space.h"

namespace kvcast::execute {

inline float number_of(float x) { return x; }
inline float maximum(float a, float b) { return std::max(a, b); }
inline float minimum(float a, float b) { return std::min(a, b); }
inline float exponential(float x) { return std::exp(x); }

/// Which element of y goes with element i of x, see Elementwise.
class Aligned {
 public:
  Aligned(const Shape& x, const Shape& y) : x_(x), y_(y) {
    if (y.rank() > x.rank() && y.elements() > 0) run_ = x.elements() / y.elements();
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

/// Whether a part of `rows` rows of a table has the id's.
inline bool holds_row(const Embedding& op, std::size_t rows, std::size_t id) {
  return id >= op.first_row && id < op.first_row + rows;
}

/// The tokens of sequence b of an input [batch, n] or [batch, n, 1].
template <typename X>
std::vector<std::size_t> tokens_of(X& x, std::size_t input, std::size_t b) {
  std::vector<std::size_t> tokens(x.in_shape(input)[1]);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::size_t>(number_of(x.value(input, b, i)));
  }
  return tokens;
}

/// The positions of a sequence's tokens from op.first_position on; in a step of all rows.
template <typename O>
std::vector<std::size_t> first_positions(const Call& call, const O& op, std::size_t tokens) {
  if (call.step != nullptr) return call.step->positions(tokens);
  std::vector<std::size_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), call.value(op.first_position));
  return positions;
}

/// The angles that the tokens of a Rope or RopeAngles turn by.
template <typename N>
struct TokenAngles {
  std::vector<std::size_t> positions;     ///< of every token, or of one sequence's tokens
  std::shared_ptr<const RopeTable> rope;  ///< of the pass; the angles are kept as long as it
  const RopeAngleTable<N>& table;
  const N* cosines(std::size_t t) const { return table.cosines(positions[t % positions.size()]); }
  const N* sines(std::size_t t) const { return table.sines(positions[t % positions.size()]); }
};

/// Positions are those of input `input` where the node has it, else `tokens` consecutive ones; in a
/// step each sequence's own.
template <typename N, typename X, typename O>
TokenAngles<N> token_angles(X& x, const O& op, std::size_t input, std::size_t tokens) {
  const bool given = x.call.inputs.size() > input;
  std::vector<std::size_t> positions = given
                                           ? std::vector<std::size_t>(x.in_shape(input).elements())
                                           : first_positions(x.call, op, tokens);
  std::size_t end = 0;
  for (std::size_t t = 0; t < positions.size(); ++t) {
    if (given) positions[t] = static_cast<std::size_t>(number_of(x.value(input, 0, t)));
    end = std::max(end, positions[t] + 1);
  }
  std::shared_ptr<const RopeTable> rope = table_of_pass(op.table, end);
  const RopeAngleTable<N>& table = rope_angles<N>(rope, end, op.inverse);
  return {std::move(positions), std::move(rope), table};
}

/// Moves the rows that the cache, input 0, has of the first `n` tokens; input 1 names its tokens.
template <typename X>
void move_rows_of(X& x, std::size_t b, const std::vector<std::size_t>& tokens, std::size_t n) {
  const TokenPlaces held(tokens_of(x, 1, b));
  const std::size_t features = x.out_shape()[2];
  x.each(n, n * features, [&](std::size_t i) {
    const std::size_t row = held.row(tokens[i]);
    KVCAST_ASSERT(row < x.in_shape(0)[1]);
    x.move(0, b, row * features, i * features, features);
  });
}

/// For each token the largest probability of all heads, `pool` of them around it averaged first.
template <typename X>
void run_shared(X& x, const LargestProbability& op) {
  using Number = typename X::Number;
  const std::size_t heads = x.in_shape(0)[1];
  const std::size_t queries = x.in_shape(0)[2];
  const std::size_t keys = x.in_shape(0)[3];
  x.each(x.out_shape()[0] * keys, x.in_shape(0).elements(), [&](std::size_t r) {
    const std::size_t b = r / keys;
    const std::size_t j = r % keys;
    for (std::size_t i = 0; i < queries; ++i) {
      const std::size_t at = j * queries + i;
      Number largest = x.call.inputs.size() > 1 ? x.value(1, b, at) : Number{0};
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t row = (h * queries + i) * keys;
        Number p = op.pool > 0 ? Number{0} : x.value(0, b, row + j);
        for (std::size_t k = 0; k < op.pool; ++k) {
          const std::size_t key = j + k;  // of the row between zeros
          const bool inside = key >= op.pool / 2 && key - op.pool / 2 < keys;
          p += inside ? x.value(0, b, row + key - op.pool / 2) : Number{0};
        }
        if (op.pool > 0) p = p / x.constant(static_cast<double>(op.pool));
        largest = maximum(largest, p);
      }
      x.put(b, at, largest);
    }
  });
}

template <typename X>
void run_shared(X& x, const KeepTokens&) {
  const std::size_t heads = x.in_shape(0)[1];
  const std::size_t tokens = x.in_shape(0)[3];
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    std::vector<typename X::Number> sums(tokens);
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t j = 0; j < tokens; ++j) sums[j] += x.value(0, b, h * tokens + j);
    }
    using N = decltype(number_of(sums[0]));
    std::vector<N> numbers;
    for (const auto& sum : sums) numbers.push_back(number_of(sum));
    std::size_t next = 0;
    for (const std::size_t token : kept_tokens<N>(numbers, x.out_shape()[1])) {
      x.put(b, next++, x.constant(static_cast<double>(token)));
    }
  }
}

template <typename X>
void run_shared(X& x, const ChooseKeys& op) {
  using Number = typename X::Number;
  using N = decltype(number_of(Number{0}));
  const std::size_t queries = x.in_shape(0)[1];
  const std::size_t keys = x.in_shape(1)[1];
  const std::size_t dim = x.in_shape(1)[2];
  const std::size_t width = x.out_shape().back();
  const std::size_t past = x.call.value(op.mask.past);
  const std::size_t rows = x.in_shape(0)[0] * queries;
  // Made before the threads start: what they throw could not be caught.
  std::vector<std::vector<N>> scores(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    scores[r].resize(visible_range(op.mask, past + r % queries, keys).end);
  }
  x.each(rows, rows * keys * op.num_heads * dim, [&](std::size_t r) {
    const std::size_t b = r / queries;
    const std::size_t first = r % queries * op.num_heads;
    for (std::size_t j = 0; j < scores[r].size(); ++j) {
      Number sum{0};
      for (std::size_t h = first; h < first + op.num_heads; ++h) {
        Number dot{0};
        for (std::size_t d = 0; d < dim; ++d) {
          dot += x.value(0, b, h * dim + d) * x.value(1, b, j * dim + d);
        }
        sum += x.value(2, b, h) * maximum(dot, Number{0});
      }
      scores[r][j] = number_of(sum);
    }
  });
  for (std::size_t r = 0; r < rows; ++r) {
    const std::vector<std::size_t> kept = kept_keys<N>(scores[r], op.kept);
    std::vector<double> row(width, op.as_mask ? masked_score : 0);
    for (std::size_t n = 0; n < kept.size(); ++n) {
      row[op.as_mask ? kept[n] : n] = op.as_mask ? 0 : static_cast<double>(kept[n]);
    }
    for (std::size_t n = 0; n < width; ++n) {
      x.put(r / queries, r % queries * width + n, x.constant(row[n]));
    }
  }
}

template <typename X>
void run_shared(X& x, const GatherRows&) {
  const std::size_t kept = x.out_shape()[1];
  const std::size_t features = x.out_shape().rank() > 2 ? x.out_shape()[2] : 1;
  x.each(x.out_shape()[0] * kept, x.out_shape().elements(), [&](std::size_t r) {
    const auto row = static_cast<std::size_t>(number_of(x.value(1, r / kept, r % kept)));
    x.move(0, r / kept, row * features, r % kept * features, features);
  });
}

template <typename X>
void run_shared(X& x, const DropTokens&) {
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    const TokenPlaces kept(tokens_of(x, 0, b));
    std::size_t next = 0;
    for (std::size_t token = 0; token < x.in_shape(0)[1] + x.out_shape()[1]; ++token) {
      if (!kept.has(token)) x.put(b, next++, x.constant(static_cast<double>(token)));
    }
  }
}

template <typename X>
void run_shared(X& x, const MissingTokens&) {
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    const TokenPlaces held(tokens_of(x, 0, b));
    std::size_t next = 0;
    for (const std::size_t token : tokens_of(x, 1, b)) {
      if (!held.has(token)) x.put(b, next++, x.constant(static_cast<double>(token)));
    }
  }
}

template <typename X>
void run_shared(X& x, const TokenRows&) {
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    move_rows_of(x, b, tokens_of(x, 2, b), x.out_shape()[1]);
  }
}

template <typename X>
void run_shared(X& x, const TokenStates&) {
  const std::size_t features = x.out_shape()[2];
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    const std::vector<std::size_t> tokens = tokens_of(x, 3, b);
    const std::size_t last = tokens.size() - 1;
    move_rows_of(x, b, tokens, last);
    x.move(2, b, (x.in_shape(2)[1] - 1) * features, last * features, features);
  }
}

template <typename X>
void run_shared(X& x, const StoreStates&) {
  const std::size_t features = x.out_shape()[2];
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    const TokenPlaces held(tokens_of(x, 1, b));
    const std::vector<std::size_t> tokens = tokens_of(x, 3, b);
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const std::size_t row = held.row(tokens[i]);
      KVCAST_ASSERT(row < x.out_shape()[1]);
      x.move(2, b, i * features, row * features, features);
    }
  }
}

template <typename X>
void run_shared(X& x, const TokenMask& op) {
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    const std::vector<std::size_t> keys = tokens_of(x, 1, b);
    std::size_t next = 0;
    for (const std::size_t query : tokens_of(x, 0, b)) {
      for (const std::size_t key : keys) {
        const bool seen = key <= query && reaches(op.window, op.chunk, query, key);
        x.put(b, next++, x.constant(seen ? 0 : masked_score));
      }
    }
  }
}

template <typename X>
void run_shared(X& x, const FirstSeen& op) {
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    const std::vector<std::size_t> keys = tokens_of(x, 0, b);
    const std::size_t queries = x.out_shape()[1];
    std::size_t first = 0;
    for (std::size_t i = 0; i < queries; ++i) {
      const std::size_t query = keys[keys.size() - queries + i];
      while (!reaches(op.window, op.chunk, query, keys[first])) ++first;
      x.put(b, i, x.constant(static_cast<double>(first)));
    }
  }
}

template <typename X>
void run_shared(X& x, const CausalMask& op) {
  const std::size_t keys = x.out_shape()[1];
  const std::size_t past = x.call.value(op.mask.past);
  x.each(x.out_shape()[0], x.out_shape().elements(), [&](std::size_t i) {
    const KeyRange visible = visible_range(op.mask, past + i, keys);
    for (std::size_t j = 0; j < keys; ++j) {
      const bool seen = j >= visible.first && j < visible.end;
      x.put(i, j, x.constant(seen ? 0 : masked_score));
    }
  });
}

template <typename X>
void run_shared(X& x, const DropoutMask& op) {
  const auto seed = static_cast<std::uint64_t>(number_of(x.value(0, 0, 0)));
  const std::uint64_t stream = mixed_bits(seed + op.stream * splitmix_step);
  const std::size_t row = x.out_shape().sequence_elements();
  x.each(x.out_shape()[0], x.out_shape().elements(), [&](std::size_t b) {
    for (std::size_t i = 0; i < row; ++i) {
      const std::uint64_t bits = mixed_bits(stream + (b * row + i) * splitmix_step);
      const double u = static_cast<double>(bits >> 11U) * 0x1p-53;
      x.put(b, i, x.constant(u < op.probability ? 0 : 1 / (1 - op.probability)));
    }
  });
}

template <typename X>
void run_shared(X& x, const RelativePositionBias& op) {
  const std::size_t heads = x.out_shape()[0];
  const std::size_t queries = x.out_shape()[1];
  const std::size_t keys = x.out_shape()[2];
  const std::size_t first = x.call.value(op.first_position);
  std::vector<typename X::Number> table(x.in_shape(0).elements());
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = x.value(0, i / heads, i % heads);
  x.each(queries, x.out_shape().elements(), [&](std::size_t i) {
    for (std::size_t j = 0; j < keys; ++j) {
      const std::size_t bucket = relative_bucket(op, first + i, j);
      for (std::size_t h = 0; h < heads; ++h) x.put(h, i * keys + j, table[bucket * heads + h]);
    }
  });
}

template <typename Number>
void replace_by_softmax(std::vector<Number>& scores) {
  Number peak = scores[0];
  for (const Number& s : scores) peak = maximum(peak, s);
  Number sum{0};
  for (Number& s : scores) {
    s = exponential(s - peak);
    sum += s;
  }
  for (Number& s : scores) s = s / sum;
}

/// The weight of each chosen expert in a softmax of the logits that are near its own; `near` gets
/// each one's terms of the sum.
template <typename Number>
std::vector<Number> shares_of_near(const std::vector<Number>& logits,
                                   const std::vector<std::size_t>& experts, double tolerance,
                                   std::vector<std::vector<Number>>* near = nullptr) {
  using N = decltype(number_of(Number{0}));
  std::vector<Number> shares;
  std::vector<bool> chosen(logits.size());
  for (const std::size_t expert : experts) {
    const Number& best = logits[expert];
    Number sum{0};
    if (near != nullptr) near->emplace_back(logits.size());
    for (std::size_t e = 0; e < logits.size(); ++e) {
      const Number above = logits[e] - best;
      using std::abs;  // of other numbers than real ones too
      const Number magnitude = maximum(Number{abs(number_of(logits[e]))}, best);
      const bool is_far = number_of(above / magnitude) < static_cast<N>(-tolerance);
      const Number exponent = exponential(above);
      const Number term = is_far || chosen[e] ? Number{0} : exponent;
      sum += term;
      if (near != nullptr) near->back()[e] = term;
    }
    shares.push_back(Number{1} / sum);
    chosen[expert] = true;
  }
  return shares;
}

template <typename X>
void run_shared(X& x, const Route& op) {
  using Number = typename X::Number;
  using N = decltype(number_of(Number{0}));
  const Routing& g = op.routing;
  const std::size_t tokens = x.in_shape(0)[1];
  std::vector<Number> scores(g.num_experts);
  std::vector<N> choice(g.num_experts);
  std::vector<Number> weights(g.num_experts_per_tok);
  for (std::size_t r = 0; r < x.in_shape(0)[0] * tokens; ++r) {
    const std::size_t b = r / tokens;
    const std::size_t t = r % tokens;
    for (std::size_t e = 0; e < scores.size(); ++e) {
      scores[e] = x.value(0, b, t * scores.size() + e);
      if (g.score != Routing::Score::Sigmoid) continue;
      scores[e] = Number{1} / (Number{1} + exponential(-scores[e]));
    }
    if (g.score == Routing::Score::Softmax) replace_by_softmax(scores);
    for (std::size_t e = 0; e < scores.size(); ++e) {
      const bool corrected = x.call.inputs.size() > 1;
      choice[e] = number_of(corrected ? scores[e] + x.value(1, e, 0) : scores[e]);
    }
    const std::vector<std::size_t> experts = chosen_experts<N>(choice, g);
    for (std::size_t k = 0; k < experts.size(); ++k) weights[k] = scores[experts[k]];
    if (g.score == Routing::Score::SoftmaxOfBest) replace_by_softmax(weights);
    if (g.score == Routing::Score::SoftmaxOfNear) {
      weights = shares_of_near(scores, experts, g.tolerance);
    }
    if (g.normalizes) {
      Number sum{0};
      for (const Number& w : weights) sum += w;
      if (number_of(sum) < static_cast<N>(g.least_sum)) sum = x.constant(g.least_sum);
      for (Number& w : weights) w = w / sum;
    }
    for (std::size_t k = 0; k < experts.size(); ++k) {
      const bool scaled = g.weight_scale != 1;
      const std::size_t at = t * experts.size() + k;
      x.put(b, at, x.constant(static_cast<double>(experts[k])));
      x.put(b, at, scaled ? x.constant(g.weight_scale) * weights[k] : weights[k], 1);
    }
  }
}

template <typename X>
void run_shared(X& x, const RouteGradient& op) {
  using Number = typename X::Number;
  const Routing& g = op.routing;
  const std::size_t tokens = x.in_shape(0)[1];
  const bool of_all = g.score == Routing::Score::Softmax;
  const bool of_near = g.score == Routing::Score::SoftmaxOfNear;
  const Number zero{0};
  std::vector<Number> all(of_near ? g.num_experts : 0);
  std::vector<Number> p(of_all ? g.num_experts : 0);
  std::vector<std::size_t> experts(g.num_experts_per_tok);
  std::vector<Number> shares(experts.size());  // of the chosen ones, before they are normalised
  std::vector<Number> back(experts.size());
  for (std::size_t r = 0; r < x.in_shape(0)[0] * tokens; ++r) {
    const std::size_t b = r / tokens;
    const std::size_t t = r % tokens;
    for (std::size_t e = 0; e < p.size(); ++e) p[e] = x.value(0, b, t * g.num_experts + e);
    if (of_all) replace_by_softmax(p);
    for (std::size_t k = 0; k < experts.size(); ++k) {
      const std::size_t at = t * experts.size() + k;
      experts[k] = static_cast<std::size_t>(number_of(x.value(1, b, at)));
      shares[k] = of_all ? p[experts[k]] : x.value(0, b, t * g.num_experts + experts[k]);
      if (g.score == Routing::Score::Sigmoid) {
        shares[k] = Number{1} / (Number{1} + exponential(-shares[k]));
      }
      back[k] = x.value(2, b, at);
      if (g.weight_scale != 1) back[k] = x.constant(g.weight_scale) * back[k];
    }
    if (g.score == Routing::Score::SoftmaxOfBest) replace_by_softmax(shares);
    std::vector<std::vector<Number>> near;  // of each chosen one: e^(its logits - the chosen one's)
    if (of_near) {
      for (std::size_t e = 0; e < all.size(); ++e) all[e] = x.value(0, b, t * g.num_experts + e);
      shares = shares_of_near(all, experts, g.tolerance, &near);
    }
    const auto product = [&] {
      Number sum{0};
      for (std::size_t k = 0; k < experts.size(); ++k) sum += back[k] * shares[k];
      return sum;
    };
    if (g.normalizes) {
      Number sum{0};
      for (const Number& s : shares) sum += s;
      using N = decltype(number_of(sum));
      const bool is_least = number_of(sum) < static_cast<N>(g.least_sum);
      if (is_least) sum = x.constant(g.least_sum);
      const Number mean = product() / sum;
      for (Number& d : back) d = (d - (is_least ? zero : mean)) / sum;
    }
    std::vector<Number> logits(g.num_experts, zero);
    for (std::size_t k = 0; k < near.size(); ++k) {
      const Number own = back[k] * shares[k];
      const Number others = own * shares[k];
      logits[experts[k]] += own;
      for (std::size_t e = 0; e < logits.size(); ++e) {
        logits[e] = logits[e] - others * near[k][e];
      }
    }
    if (g.score == Routing::Score::Sigmoid) {
      for (std::size_t k = 0; k < experts.size(); ++k) {
        logits[experts[k]] = back[k] * shares[k] * (Number{1} - shares[k]);
      }
    } else if (!of_near) {
      const Number mean = product();
      for (std::size_t k = 0; k < experts.size(); ++k) {
        logits[experts[k]] = of_all ? back[k] : shares[k] * (back[k] - mean);
      }
      for (std::size_t e = 0; e < p.size(); ++e) logits[e] = p[e] * (logits[e] - mean);
    }
    for (std::size_t e = 0; e < logits.size(); ++e) x.put(b, t * logits.size() + e, logits[e]);
  }
}

template <typename X>
void run_shared(X& x, const CombineExpertsGradient& op) {
  const std::size_t chosen = op.num_experts_per_tok;
  const std::size_t tokens = x.in_shape(0)[1];
  const std::size_t n = x.in_shape(0)[2];
  x.each(x.in_shape(0)[0] * tokens, 3 * x.out_shape().elements(), [&](std::size_t r) {
    const std::size_t b = r / tokens;
    const std::size_t t = r % tokens;
    for (std::size_t k = t * chosen; k < (t + 1) * chosen; ++k) {
      if (x.call.inputs.size() == 1) {
        x.move(0, b, t * n, k * n, n);
        continue;
      }
      const auto weight = x.value(2, b, k);
      typename X::Number sum{0};
      for (std::size_t f = 0; f < n; ++f) {
        const auto g = x.value(0, b, t * n + f);
        sum += g * x.value(1, b, k * n + f);
        x.put(b, k * n + f, weight * g);
      }
      x.put(b, k, sum, 1);
    }
  });
}

/// What a weight's gradient was before the pass, else 0.
template <typename X>
typename X::Number so_far(X& x, std::size_t input, std::size_t i) {
  if (x.call.inputs.size() <= input) return typename X::Number{0};
  return x.value(input, i, 0);
}

template <typename X>
void run_shared(X& x, const ExpertBiasGradient& op) {
  const std::size_t n = x.in_shape(0)[2] / op.num_experts_per_tok;
  std::vector<typename X::Number> sums;
  for (std::size_t i = 0; i < x.out_shape()[0]; ++i) sums.push_back(so_far(x, 2, i));
  for (std::size_t b = 0; b < x.in_shape(1)[0]; ++b) {
    for (std::size_t k = 0; k < x.in_shape(1).sequence_elements(); ++k) {
      const auto expert = static_cast<std::size_t>(number_of(x.value(1, b, k)));
      for (std::size_t f = 0; f < n; ++f) sums[expert * n + f] += x.value(0, b, k * n + f);
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) x.put(i, 0, sums[i]);
}

template <typename X>
void run_shared(X& x, const SinkGradient& op) {
  using Number = typename X::Number;
  const std::size_t heads = x.out_shape()[0];
  std::vector<Number> sums;
  for (std::size_t h = 0; h < heads; ++h) sums.push_back(so_far(x, op.of_probabilities ? 2 : 4, h));
  const std::size_t batch = x.in_shape(0)[0];
  const std::size_t queries = x.in_shape(0)[op.of_probabilities ? 2 : 1];
  const std::size_t n = x.in_shape(0).sequence_elements() / heads / queries;
  for (std::size_t r = 0; r < batch * queries * heads; ++r) {
    const std::size_t b = r / queries / heads;
    const std::size_t row = r % (queries * heads);
    const std::size_t h = op.of_probabilities ? row / queries : row % heads;
    Number both{0};
    Number seen{0};
    for (std::size_t i = row * n; i < (row + 1) * n; ++i) {
      const Number p = x.value(0, b, i);
      both += p * x.value(1, b, i);
      if (op.of_probabilities) seen += p;
    }
    sums[h] = sums[h] - (op.of_probabilities ? Number{1} - seen
                                             : exponential(x.value(3, h, 0) - x.value(2, b, row))) *
                            both;
  }
  for (std::size_t h = 0; h < heads; ++h) x.put(h, 0, sums[h]);
}

template <typename X>
void run_shared(X& x, const SplitHeads& op) {
  const std::size_t rows = x.out_shape()[1];
  const std::size_t n = x.out_shape()[2] / (op.sums ? 1 : op.num_heads);
  const std::size_t all = x.in_shape(0)[2] / op.num_heads;
  x.each(x.out_shape()[0] * rows, op.num_heads * n * rows, [&](std::size_t r) {
    const std::size_t b = r / rows;
    const std::size_t first = r % rows * op.num_heads;
    for (std::size_t h = first; !op.sums && h < first + op.num_heads; ++h) {
      x.move(0, b, h * all + op.first, h * n, n);
    }
    for (std::size_t f = 0; op.sums && f < n; ++f) {
      typename X::Number sum{0};
      for (std::size_t h = first; h < first + op.num_heads; ++h) {
        sum += x.value(0, b, h * all + op.first + f);
      }
      x.put(b, r % rows * n + f, sum);
    }
  });
}

template <typename X>
void run_shared(X& x, const PlaceFeatures& op) {
  const std::size_t rows = x.out_shape()[1];
  const std::size_t all = x.out_shape()[2];
  const std::size_t n = x.in_shape(0)[2];
  x.each(x.out_shape()[0] * rows, x.out_shape().elements(), [&](std::size_t r) {
    const std::size_t row = r % rows;
    for (std::size_t f = 0; f < all; ++f) {
      const bool is_there = f >= op.first && f < op.first + n;
      if (!is_there) x.put(r / rows, row * all + f, typename X::Number{0});
    }
    x.move(0, r / rows, row * n, row * all + op.first, n);
  });
}

template <typename X>
void run_shared(X& x, const MixStreams& op) {
  const std::size_t mixed = op.num_mixed;
  const std::size_t last = x.call.inputs.size() - 1;  // the coefficients
  const std::size_t streams = x.call.more_outputs.size() + 1;
  const std::size_t onto = last > mixed ? mixed : 0;
  const std::size_t tokens = x.out_shape()[1];
  const std::size_t features = x.out_shape()[2];
  x.each(x.out_shape()[0] * tokens, streams * x.out_shape().elements(), [&](std::size_t r) {
    const std::size_t b = r / tokens;
    const std::size_t t = r % tokens;
    for (std::size_t i = 0; i < streams; ++i) {
      for (std::size_t f = t * features; f < (t + 1) * features; ++f) {
        auto sum = x.value(onto + i, b, f);
        for (std::size_t j = 0; j < mixed; ++j) {
          sum += x.value(last, b, (t * streams + i) * mixed + j) * x.value(j, b, f);
        }
        x.put(b, f, sum, i);
      }
    }
  });
}

template <typename X>
void run_shared(X& x, const MixStreamsGradient& op) {
  using Number = typename X::Number;
  const std::size_t mixed = op.num_mixed;
  const std::size_t last = x.call.inputs.size() - 1;  // the coefficients
  const std::size_t streams = last - mixed;
  const std::size_t tokens = x.out_shape()[1];
  const std::size_t features = x.out_shape()[2];
  x.each(x.out_shape()[0] * tokens, streams * mixed * x.out_shape().elements(), [&](std::size_t r) {
    const std::size_t b = r / tokens;
    const std::size_t t = r % tokens;
    for (std::size_t j = 0; j < mixed; ++j) {
      for (std::size_t f = t * features; f < (t + 1) * features; ++f) {
        Number sum = op.onto_mixed ? x.value(j, b, f) : Number{0};
        for (std::size_t i = 0; i < streams; ++i) {
          sum += x.value(last, b, (t * streams + i) * mixed + j) * x.value(i, b, f);
        }
        x.put(b, f, sum, j);
      }
      for (std::size_t i = 0; i < streams; ++i) {
        Number sum{0};
        for (std::size_t f = t * features; f < (t + 1) * features; ++f) {
          sum += x.value(i, b, f) * x.value(streams + j, b, f);
        }
        x.put(b, (t * streams + i) * mixed + j, sum, mixed);
      }
    }
  });
}

template <typename X>
void run_shared(X& x, const CausalConv& op) {
  const std::size_t tokens = x.out_shape()[1];
  const std::size_t features = x.out_shape()[2];
  const std::size_t all = x.in_shape(0)[1];
  const std::size_t earlier = all - tokens;
  std::vector<std::size_t> rows;  // in a step, of the tokens' own inputs
  if (x.call.step != nullptr) rows = x.call.step->new_rows(op.kernel - 1);
  x.each(x.out_shape()[0] * tokens, x.out_shape().elements() * op.kernel, [&](std::size_t r) {
    const std::size_t b = r / tokens;
    // Of the rows under the taps.
    const std::size_t end = 1 + (rows.empty() ? earlier + r % tokens : rows[r]);
    const std::size_t first = op.transposed ? r % tokens : end - op.kernel;
    for (std::size_t c = 0; c < features; ++c) {
      typename X::Number sum{0};
      for (std::size_t j = 0; j < op.kernel; ++j) {
        // Before the first row the difference is beyond the last one.
        const std::size_t at = first + j;
        const bool is_there = at < all;
        const auto row = is_there ? x.value(0, b, at * features + c) : typename X::Number{0};
        sum += x.value(1, c, op.transposed ? op.kernel - 1 - j : j) * row;
      }
      if (x.call.inputs.size() > 2) sum += x.value(2, c, 0);
      x.put(b, r % tokens * features + c, sum);
    }
  });
}

template <typename X>
void run_shared(X& x, const ScaleByPosition& op) {
  const std::size_t tokens = x.out_shape()[1];
  const std::size_t features = x.out_shape()[2];
  const bool given = x.call.inputs.size() > 1;
  std::vector<std::size_t> positions = given ? std::vector<std::size_t>(x.in_shape(1).elements())
                                             : first_positions(x.call, op, tokens);
  std::vector<double> factors(positions.size());
  for (std::size_t t = 0; t < factors.size(); ++t) {
    if (given) {
      positions[t] = static_cast<std::size_t>(number_of(x.value(1, t / tokens, t % tokens)));
    }
    factors[t] = position_factor(op, positions[t]);
  }
  x.each(x.out_shape()[0] * tokens, x.out_shape().elements(), [&](std::size_t r) {
    const auto factor = x.constant(factors[r % factors.size()]);
    const std::size_t row = r % tokens * features;
    for (std::size_t i = 0; i < features; ++i) {
      x.put(r / tokens, row + i, x.value(0, r / tokens, row + i) * factor);
    }
  });
}

template <typename X>
void run_shared(X& x, const JoinHeads& op) {
  const std::size_t rows = x.out_shape()[1];
  const std::size_t a = x.in_shape(0)[2] / op.num_heads;
  const std::size_t b = x.in_shape(1)[2] / (op.shared ? 1 : op.num_heads);
  x.each(x.out_shape()[0] * rows, x.out_shape().elements(), [&](std::size_t r) {
    const std::size_t row = r % rows;
    for (std::size_t h = 0; h < op.num_heads; ++h) {
      const std::size_t to = (row * op.num_heads + h) * (a + b);
      x.move(0, r / rows, (row * op.num_heads + h) * a, to, a);
      x.move(1, r / rows, (op.shared ? row : row * op.num_heads + h) * b, to + a, b);
    }
  });
}

template <typename X>
void run_shared(X& x, const SliceFeatures& op) {
  const std::size_t rows = x.out_shape()[1];
  const std::size_t features = x.out_shape()[2];
  x.each(x.out_shape()[0] * rows, x.out_shape().elements(), [&](std::size_t r) {
    const std::size_t row = r % rows;
    x.move(0, r / rows, row * x.in_shape(0)[2] + op.first, row * features, features);
  });
}

template <typename X>
void run_shared(X& x, const CacheAppend&) {
  // The output is the cache itself: its earlier rows are there.
  const std::size_t features = x.out_shape()[2];
  const std::size_t n = x.in_shape(1)[1] * features;
  if (x.call.step != nullptr) {
    const TensorInfo& cache = *x.call.inputs[0].info;
    const std::vector<std::size_t> rows = is_state(cache.name)
                                              ? x.call.step->new_rows(kept_state_rows(cache))
                                              : x.call.step->new_rows();
    x.each(rows.size(), n,
           [&](std::size_t t) { x.move(1, 0, t * features, rows[t] * features, features); });
    return;
  }
  x.each(x.out_shape()[0], x.out_shape()[0] * n,
         [&](std::size_t b) { x.move(1, b, 0, x.in_shape(0)[1] * features, n); });
}

template <typename X>
void run_shared(X& x, const CacheEvict& op) {
  const std::size_t features = x.out_shape()[2];
  if (x.call.step != nullptr) {
    const std::vector<SequenceRows>& sequences = x.call.step->sequences;
    x.each(sequences.size(), x.call.value(op.moved) * features, [&](std::size_t i) {
      const SequenceRows& s = sequences[i];
      if (s.dropped == 0) return;
      for (std::size_t row = op.kept_first; row < s.rows() - s.dropped; ++row) {
        x.move(0, 0, (s.first_row() + row + s.dropped) * features, (s.first_kept + row) * features,
               features);
      }
    });
    return;
  }
  const std::size_t n = x.call.value(op.moved) * features;
  const std::size_t gap = x.call.value(op.dropped) * features;
  const std::size_t to = op.kept_first * features;
  x.each(x.out_shape()[0], x.out_shape()[0] * n,
         [&](std::size_t b) { x.move(0, b, to + gap, to, n); });
}

template <typename X>
void run_shared(X& x, const JoinRows&) {
  x.each(x.out_shape()[0], x.out_shape().elements(), [&](std::size_t b) {
    std::size_t to = 0;
    for (std::size_t i = 0; i < x.call.inputs.size(); ++i) {
      const std::size_t n = x.in_shape(i).sequence_elements();
      x.move(i, b, 0, to, n);
      to += n;
    }
  });
}

template <typename X>
void run_shared(X& x, const SplitRows&) {
  x.each(x.out_shape()[0], x.in_shape(0).elements(), [&](std::size_t b) {
    std::size_t from = 0;
    for (std::size_t i = 0; i <= x.call.more_outputs.size(); ++i) {
      const Shape& part = i == 0 ? x.out_shape() : x.call.more_outputs[i - 1].shape;
      for (std::size_t e = 0; e < part.sequence_elements(); ++e) {
        x.put(b, e, x.value(0, b, from + e), i);
      }
      from += part.sequence_elements();
    }
  });
}

// A message lies in the rows of the cache: nothing is moved but where elements are counted.
template <typename X>
void run_shared(X& x, const Send& op) {
  const std::size_t features = x.out_shape()[2];
  const std::size_t first = x.call.value(op.first_row) * features;
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    x.move(0, b, first, 0, x.out_shape()[1] * features);
  }
  send_message(x.call, op, sizeof(number_of(typename X::Number{0})));
}

template <typename X>
void run_shared(X& x, const Receive& op) {
  receive_message(x.call, op);
  const std::size_t message = x.call.inputs.size() - 1;
  const std::size_t features = x.out_shape()[2];
  const std::size_t first = x.call.value(op.first_row) * features;
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    x.move(message, b, 0, first, x.in_shape(message)[1] * features);
  }
}

/// Exchanges numbers as `exchange` does bytes.
template <typename N>
void exchange_numbers(const Call& call, const RankGroup& group, std::size_t member,
                      const std::vector<std::span<const N>>& to,
                      std::vector<std::vector<N>>& from) {
  std::vector<Bytes> sent;
  std::vector<Room> received;
  for (const auto& numbers : to) sent.push_back(std::as_bytes(numbers));
  for (auto& numbers : from) received.push_back(std::as_writable_bytes(std::span(numbers)));
  exchange(call, group, member, sent, received);
}

/// One Collective. Members have parts of the features of each row.
template <typename X>
class CollectiveRun {
  using Number = typename X::Number;
  using N = decltype(number_of(Number{0}));
  using Numbers = std::vector<N>;

 public:
  CollectiveRun(X& x, const Collective& op)
      : x_(x),
        op_(op),
        width_(x.in_shape(0).back()),
        rows_(width_ > 0 ? x.in_shape(0).elements() / width_ : 0) {}

  void run() {
    KVCAST_ASSERT(!op_.of_rows && op_.kind != CollectiveKind::AllToAll);  // sessions refuse it
    if (op_.kind == CollectiveKind::AllReduce) {
      gather(sum(), [&](std::size_t i) { return member_part(width_, op_.group.size, i); });
    } else if (op_.kind == CollectiveKind::ReduceScatter) {
      put({0, part(op_.member).size}, sum());
    } else {
      gather(columns({0, width_}), [&](std::size_t i) { return MemberPart{i * width_, width_}; });
    }
  }

 private:
  MemberPart part(std::size_t member) const { return member_part(width_, op_.group.size, member); }

  /// f(r, sequence, the first of its elements in row r). A vector is one row.
  template <typename F>
  void each_row(const Shape& shape, F f) const {
    const std::size_t sequence = shape.sequence_elements();
    for (std::size_t r = 0; r < rows_; ++r) {
      const std::size_t at = r * shape.back();
      f(r, at / sequence, at % sequence);
    }
  }

  Numbers columns(const MemberPart& p) {
    Numbers numbers(rows_ * p.size);
    each_row(x_.in_shape(0), [&](std::size_t r, std::size_t b, std::size_t i) {
      x_.take(0, b, i + p.first, std::span(numbers).subspan(r * p.size, p.size));
    });
    return numbers;
  }

  /// Of this member's columns, over all members in their order.
  Numbers sum() {
    const std::size_t members = op_.group.size;
    const std::size_t own = rows_ * part(op_.member).size;
    std::vector<Numbers> parts(members);
    std::vector<std::span<const N>> to;
    std::vector<Numbers> from(members);
    for (std::size_t i = 0; i < members; ++i) {
      parts[i] = columns(part(i));
      to.emplace_back(parts[i]);
      if (i != op_.member) from[i].resize(own);
    }
    exchange_numbers<N>(x_.call, op_.group, op_.member, to, from);
    from[op_.member] = std::move(parts[op_.member]);
    Numbers sums(own);
    for (std::size_t i = 0; i < own; ++i) {
      Number sum{from[0][i]};
      for (std::size_t m = 1; m < members; ++m) sum += Number{from[m][i]};
      sums[i] = number_of(sum);
    }
    return sums;
  }

  template <typename PartOf>
  void gather(const Numbers& own, PartOf part_of) {
    const std::size_t members = op_.group.size;
    const std::vector<std::span<const N>> to(members, own);
    std::vector<Numbers> from(members);
    for (std::size_t i = 0; i < members; ++i) {
      if (i != op_.member) from[i].resize(rows_ * part_of(i).size);
    }
    exchange_numbers<N>(x_.call, op_.group, op_.member, to, from);
    for (std::size_t i = 0; i < members; ++i) put(part_of(i), i == op_.member ? own : from[i]);
  }

  /// These columns of the output.
  void put(const MemberPart& p, const Numbers& numbers) {
    each_row(x_.out_shape(), [&](std::size_t r, std::size_t b, std::size_t i) {
      x_.lay(b, i + p.first, std::span(numbers).subspan(r * p.size, p.size));
    });
  }

  X& x_;
  const Collective& op_;
  std::size_t width_;
  std::size_t rows_;  ///< of all sequences
};

template <typename X>
void run_shared(X& x, const Collective& op) {
  CollectiveRun<X>(x, op).run();
}

/// One DispatchTokens.
template <typename X>
class TokenDispatch {
  using Number = typename X::Number;
  using N = decltype(number_of(Number{0}));

 public:
  TokenDispatch(X& x, const DispatchTokens& op)
      : x_(x),
        op_(op),
        moved_(*x.call.moved_tokens),
        tokens_(x.in_shape(0)[1]),
        features_(x.in_shape(0)[2]),
        chosen_(x.in_shape(1).back()) {}

  void run() {
    const std::size_t pairs = x_.in_shape(1).elements();
    own_.experts.resize(pairs);
    own_.weights.resize(pairs);
    const std::size_t of_sequence = tokens_ * chosen_;
    for (std::size_t i = 0; i < pairs; ++i) {
      own_.experts[i] =
          static_cast<float>(number_of(x_.value(1, i / of_sequence, i % of_sequence)));
      own_.weights[i] = number_of(x_.value(2, i / of_sequence, i % of_sequence));
    }
    const std::vector<std::vector<std::byte>> messages = exchange_tokens();
    for (std::size_t member = 0; member < op_.group.size; ++member) {
      if (member == op_.member) {
        put_own();
      } else {
        put_received(member, messages[member]);
      }
    }
    KVCAST_ASSERT(next_ == moved_.pairs);
  }

 private:
  /// Of some tokens: expert ids take four bytes in a message, whatever they are computed in.
  struct Choices {
    std::vector<float> experts;
    std::vector<N> weights;
  };
  std::size_t token_bytes() const {
    return features_ * sizeof(N) + chosen_ * (sizeof(float) + sizeof(N));
  }

  /// What came from each member: features, experts and weights of its tokens.
  std::vector<std::vector<std::byte>> exchange_tokens() {
    const std::size_t members = op_.group.size;
    std::vector<std::vector<std::byte>> received(members);
    if (members == 1) return received;
    std::vector<std::vector<std::byte>> sent(members);
    std::vector<Bytes> to;
    std::vector<Room> from;
    for (std::size_t i = 0; i < members; ++i) {
      if (i != op_.member) {
        for (const std::size_t t : moved_.sent[i]) {
          append(sent[i], x_.call.inputs[0].template numbers<N>() + t * features_, features_);
          append(sent[i], own_.experts.data() + t * chosen_, chosen_);
          append(sent[i], own_.weights.data() + t * chosen_, chosen_);
        }
        received[i].resize(moved_.received[i].size() * token_bytes());
      }
      to.emplace_back(sent[i]);
      from.emplace_back(received[i]);
    }
    exchange(x_.call, op_.group, op_.member, to, from);
    return received;
  }

  template <typename T>
  static void append(std::vector<std::byte>& bytes, const T* numbers, std::size_t n) {
    const Bytes more = std::as_bytes(std::span(numbers, n));
    bytes.insert(bytes.end(), more.begin(), more.end());
  }

  void put_own() {
    for (const std::size_t t : moved_.sent[op_.member]) {
      put_pairs(
          op_.member, t, own_.experts.data() + t * chosen_, own_.weights.data() + t * chosen_,
          [&](std::size_t f) { return x_.gather(0, t / tokens_, t % tokens_ * features_ + f); });
    }
  }

  void put_received(std::size_t member, const std::vector<std::byte>& message) {
    std::vector<N> row(features_);
    Choices choices{std::vector<float>(chosen_), std::vector<N>(chosen_)};
    const std::byte* next = message.data();
    const auto take = [&](auto& numbers) {
      const std::size_t bytes = numbers.size() * sizeof numbers[0];
      std::copy_n(next, bytes, std::as_writable_bytes(std::span(numbers)).data());
      next += bytes;
    };
    for (const std::size_t t : moved_.received[member]) {
      take(row);
      take(choices.experts);
      take(choices.weights);
      put_pairs(member, t, choices.experts.data(), choices.weights.data(), [&](std::size_t f) {
        x_.gather_received(0, 1);
        return Number{row[f]};
      });
    }
  }

  template <typename FeatureOf>
  void put_pairs(std::size_t member, std::size_t token, const float* experts, const N* weights,
                 FeatureOf feature) {
    const std::size_t place = member * x_.in_shape(0)[0] * tokens_ + token;
    for (std::size_t k = 0; k < chosen_; ++k) {
      const auto expert = static_cast<std::size_t>(experts[k]);
      if (!has_expert(op_, op_.member, expert)) continue;
      for (std::size_t f = 0; f < features_; ++f) x_.put(0, next_ * features_ + f, feature(f));
      x_.put(0, next_, x_.constant(static_cast<double>(expert - op_.first_expert)), 1);
      x_.put(0, next_, Number{weights[k]}, 2);
      x_.put(0, next_, x_.constant(static_cast<double>(place)), 3);
      ++next_;
    }
  }

  X& x_;
  const DispatchTokens& op_;
  const MovedTokens& moved_;
  std::size_t tokens_;  ///< of a sequence
  std::size_t features_;
  std::size_t chosen_;
  Choices own_;
  std::size_t next_ = 0;  ///< pair
};

template <typename X>
void run_shared(X& x, const DispatchTokens& op) {
  TokenDispatch<X>(x, op).run();
}

template <typename X>
void run_shared(X& x, const ReturnTokens& op) {
  using Number = typename X::Number;
  using N = decltype(number_of(Number{0}));
  const MovedTokens& moved = *x.call.moved_tokens;
  const std::size_t members = op.group.size;
  const std::size_t features = x.out_shape()[2];
  const std::size_t tokens = x.out_shape()[0] * x.out_shape()[1];
  // Each member's tokens with pairs here, in the order of the pairs.
  std::vector<std::vector<Number>> sums(members);
  for (std::size_t m = 0; m < members; ++m) {
    sums[m].resize((m == op.member ? tokens : moved.received[m].size()) * features);
  }
  std::size_t last = members * tokens;
  std::size_t next = 0;  // after the last token of its member
  for (std::size_t p = 0; p < x.in_shape(0)[1]; ++p) {
    const auto place = static_cast<std::size_t>(number_of(x.value(1, 0, p)));
    const std::size_t m = place / tokens;
    if (place != last) next = last / tokens == m ? next + 1 : 1;
    last = place;
    Number* const sum = sums[m].data() + (m == op.member ? place % tokens : next - 1) * features;
    for (std::size_t f = 0; f < features; ++f) {
      const Number y = x.value(0, 0, p * features + f);
      sum[f] += x.call.inputs.size() > 2 ? x.value(2, 0, p) * y : y;
    }
  }
  std::vector<Number>& own = sums[op.member];
  if (members > 1) {
    std::vector<std::vector<N>> sent(members);
    std::vector<std::span<const N>> to;
    std::vector<std::vector<N>> from(members);
    for (std::size_t m = 0; m < members; ++m) {
      if (m != op.member) {
        for (const Number& sum : sums[m]) sent[m].push_back(number_of(sum));
        from[m].resize(moved.sent[m].size() * features);
      }
      to.emplace_back(sent[m]);
    }
    exchange_numbers<N>(x.call, op.group, op.member, to, from);
    for (std::size_t m = 0; m < members; ++m) {
      for (std::size_t i = 0; i < from[m].size(); ++i) {
        own[moved.sent[m][i / features] * features + i % features] += Number{from[m][i]};
      }
    }
  }
  const std::size_t of_sequence = x.out_shape()[1] * features;
  for (std::size_t i = 0; i < own.size(); ++i) x.put(i / of_sequence, i % of_sequence, own[i]);
}

template <typename X>
void run_shared(X& x, const RepeatHeads& op) {
  const std::size_t tokens = x.out_shape()[1];
  const std::size_t heads = x.out_shape()[2] / op.head_dim;
  x.each(x.out_shape()[0] * tokens, x.out_shape().elements(), [&](std::size_t t) {
    const std::size_t first = t % tokens * heads;  // head of the output
    for (std::size_t h = first; h < first + heads; ++h) {
      x.move(0, t / tokens, h / op.repeats * op.head_dim, h * op.head_dim, op.head_dim);
    }
  });
}

template <typename X>
void run_shared(X& x, const LastToken&) {
  const std::size_t features = x.out_shape()[2];
  if (x.call.step != nullptr) {
    std::size_t next = 0;  // a row of each sequence
    for (const SequenceRows& s : x.call.step->sequences) {
      x.move(0, 0, (s.first_token + s.tokens - 1) * features, next++ * features, features);
    }
    return;
  }
  for (std::size_t b = 0; b < x.out_shape()[0]; ++b) {
    x.move(0, b, (x.in_shape(0)[1] - 1) * features, 0, features);
  }
}

/// The operators that have a run_shared.
template <typename X, typename O>
concept IsShared = requires(X& x, const O& op) {
  run_shared(x, op);
};

}  // namespace kvcast::execute
