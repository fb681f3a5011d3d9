#include "model/execute/gradient_kernels.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/execute/expert_rows.h"
#include "model/execute/floats.h"
#include "model/execute/large_product.h"
#include "model/execute/matrix.h"
#include "model/execute/parallel_rows.h"
#include "model/execute/row_gradients.h"
#include "model/execute/row_loops.h"
#include "model/execute/shared_operators.h"
#include "model/execute/state_scan.h"

namespace kvcast::execute {
namespace {

/// Columns that one thread sums over all rows.
constexpr std::size_t sum_columns = 64;
/// Rows whose sum is taken by itself, so that long sums lose less.
constexpr std::size_t sum_rows = 64;

float log_sum_exp(const float* x, std::size_t n) {
  const float peak = largest_of_row(x, n);
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += std::exp(x[i] - peak);
  return peak + static_cast<float>(std::log(sum));
}

/// out[columns] (+)= Σ of `rows` rows; add(r, first, sum, n) adds numbers [first, first + n) of row
/// r. Column by column: no two threads write to one.
template <typename Add>
void sum_over_rows(std::size_t rows, std::size_t columns, bool accumulates, float* out, Add add) {
  const std::size_t pieces = (columns + sum_columns - 1) / sum_columns;
  for_rows(pieces, rows * columns, [&](std::size_t piece) {
    const std::size_t first = piece * sum_columns;
    const std::size_t n = std::min(sum_columns, columns - first);
    float* const total = out + first;
    if (!accumulates) std::fill_n(total, n, 0.0F);
    for (std::size_t begin = 0; begin < rows; begin += sum_rows) {
      float sum[sum_columns] = {};
      for (std::size_t r = begin; r < std::min(rows, begin + sum_rows); ++r) add(r, first, sum, n);
      combine_rows(Function::Add, total, sum, total, n);
    }
  });
}

/// The sum of f(first, n) over runs of the numbers, in their order and in double.
template <typename F>
double sum_of_runs(std::size_t elements, F f) {
  // Made before the threads start: what they throw could not be caught.
  std::vector<float> sums((elements + run_elements - 1) / run_elements);
  for_runs(elements,
           [&](std::size_t first, std::size_t n) { sums[first / run_elements] = f(first, n); });
  double sum = 0;
  for (const float s : sums) sum += s;
  return sum;
}

/// Rows choices[i]/shared of x [..., features], one after another.
Floats gathered_rows(const float* x, std::size_t features, const std::vector<std::size_t>& choices,
                     std::size_t shared) {
  Floats rows = allocate_floats(choices.size() * features);
  for_rows(choices.size(), choices.size() * features, [&](std::size_t i) {
    std::copy_n(x + choices[i] / shared * features, features, rows.get() + i * features);
  });
  return rows;
}

}  // namespace

void run_gradient(const Call& call, const WeightGradient& op) {
  const Operand& out = call.output;
  const std::size_t rows = call.inputs[0].rows();
  const std::size_t block = out.shape[0] / op.num_blocks;
  const std::size_t in = out.shape[1];
  const std::size_t heads_per_block = op.num_heads / op.num_blocks;
  const auto of_head = [&](std::size_t head) {
    return Product{.m = block,
                   .n = in,
                   .k = rows,
                   .a = call.inputs[0].data + head * block,
                   .lda = op.num_heads * block,
                   .b = call.inputs[1].data + head * in,
                   .ldb = op.num_heads * in,
                   .c = out.data + head / heads_per_block * block * in,
                   .ldc = in};
  };
  const bool goes_on = call.inputs.size() > 2;
  if (op.num_heads == 1) {
    return multiply_large(of_head(0), {.a_transposed = true, .accumulates = goes_on});
  }
#pragma omp parallel for schedule(static)
  for (std::size_t b = 0; b < op.num_blocks; ++b) {
    const std::size_t first = b * heads_per_block;
    for (std::size_t h = first; h < first + heads_per_block; ++h) {
      multiply(of_head(h), {.a_transposed = true, .accumulates = goes_on || h > first});
    }
  }
}

void run_gradient(const Call& call, const ExpertInputGradient& op) {
  const Operand& out = call.output;
  const std::size_t chosen = op.forward.num_experts_per_tok;
  const std::size_t in = call.inputs[2].shape[1];
  const std::size_t from = call.inputs[0].shape.back() / chosen;
  const bool own_rows = out.shape.back() != in;
  if (!own_rows) std::fill_n(out.data, out.shape.elements(), 0.0F);
  const auto choices = choices_by_expert(op.forward, call.inputs[1]);
  for (std::size_t e = 0; e < choices.size(); ++e) {
    const std::size_t n = choices[e].size();
    if (n == 0) continue;
    const Floats g = gathered_rows(call.inputs[0].data, from, choices[e], 1);
    const Floats x = allocate_floats(n * in);
    multiply_large({.m = n,
                    .n = in,
                    .k = from,
                    .a = g.get(),
                    .lda = from,
                    .b = call.inputs[2].data + e * from * in,
                    .ldb = in,
                    .c = x.get(),
                    .ldc = in},
                   {});
    // A token chooses an expert once: no two rows are one.
    for_rows(n, n * in, [&](std::size_t i) {
      float* const row = out.data + (own_rows ? choices[e][i] : choices[e][i] / chosen) * in;
      const float* const added = x.get() + i * in;
      if (own_rows) {
        std::copy_n(added, in, row);
      } else {
        combine_rows(Function::Add, row, added, row, in);
      }
    });
  }
}

void run_gradient(const Call& call, const ExpertWeightGradient& op) {
  const std::size_t chosen = op.forward.num_experts_per_tok;
  const std::size_t in = call.output.shape[1];
  const std::size_t rows = call.inputs[0].shape.back() / chosen;
  const bool own_rows = call.inputs[1].shape.back() != in;
  const bool goes_on = call.inputs.size() > 3;
  const auto choices = choices_by_expert(op.forward, call.inputs[2]);
  for (std::size_t e = 0; e < choices.size(); ++e) {
    float* const block = call.output.data + e * rows * in;
    if (choices[e].empty()) {
      if (!goes_on) std::fill_n(block, rows * in, 0.0F);
      continue;
    }
    const Floats g = gathered_rows(call.inputs[0].data, rows, choices[e], 1);
    const Floats x = gathered_rows(call.inputs[1].data, in, choices[e], own_rows ? 1 : chosen);
    multiply_large({.m = rows,
                    .n = in,
                    .k = choices[e].size(),
                    .a = g.get(),
                    .lda = rows,
                    .b = x.get(),
                    .ldb = in,
                    .c = block,
                    .ldc = in},
                   {.a_transposed = true, .accumulates = goes_on});
  }
}

void run_gradient(const Call& call, const SumRepeats& /*op*/) {
  const Operand& x = call.inputs[0];
  const Operand& out = call.output;
  const std::size_t total = x.shape.elements();
  const std::size_t n = out.shape.elements();
  const bool goes_on = call.inputs.size() > 1;
  if (out.shape.rank() > x.shape.rank()) {  // one number of each run
    const std::size_t run = total / n;
    for_rows(n, total, [&](std::size_t i) {
      double sum = goes_on ? out.data[i] : 0;
      for (std::size_t j = i * run; j < (i + 1) * run; ++j) sum += x.data[j];
      out.data[i] = static_cast<float>(sum);
    });
    return;
  }
  // As many last dimensions of x as are not repeated make a row.
  std::size_t row = 1;
  std::size_t d = 0;
  while (d < out.shape.rank() &&
         out.shape[out.shape.rank() - 1 - d] == x.shape[x.shape.rank() - 1 - d]) {
    row *= out.shape[out.shape.rank() - 1 - d++];
  }
  if (row == n) {
    return sum_over_rows(total / n, n, goes_on, out.data,
                         [&](std::size_t r, std::size_t first, float* sum, std::size_t count) {
                           combine_rows(Function::Add, sum, x.data + r * n + first, sum, count);
                         });
  }
  const Aligned aligned(x.shape, out.shape);
  std::vector<double> sums(n);
  for (std::size_t i = 0; goes_on && i < n; ++i) sums[i] = out.data[i];
  for (std::size_t i = 0; i < total; ++i) sums[aligned(i)] += x.data[i];
  std::transform(sums.begin(), sums.end(), out.data,
                 [](double sum) { return static_cast<float>(sum); });
}

void run_gradient(const Call& call, const SumHeads& op) {
  const std::size_t heads = call.output.shape.elements() / op.head_dim;
  for_rows(heads, call.inputs[0].shape.elements(), [&](std::size_t h) {
    const float* const x = call.inputs[0].data + h * op.repeats * op.head_dim;
    float* const sum = call.output.data + h * op.head_dim;
    std::copy_n(x, op.head_dim, sum);
    for (std::size_t i = 1; i < op.repeats; ++i) {
      combine_rows(Function::Add, sum, x + i * op.head_dim, sum, op.head_dim);
    }
  });
}

void run_gradient(const Call& call, const SpreadMean& /*op*/) {
  const std::size_t n = call.output.shape.back();
  for_rows(call.output.rows(), call.output.shape.elements(), [&](std::size_t r) {
    std::fill_n(call.output.data + r * n, n, call.inputs[0].data[r] / static_cast<float>(n));
  });
}

void run_gradient(const Call& call, const TransposedValues& op) {
  const Heads& h = op.heads;
  const std::size_t queries = call.inputs[0].shape[2];
  const std::size_t keys = call.inputs[0].shape[3];
  const std::size_t group = h.num_attention_heads / h.num_key_value_heads;
  const std::size_t query_stride = h.num_attention_heads * h.head_dim;
  const std::size_t key_stride = h.num_key_value_heads * h.head_dim;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::size_t i = 0; i < call.output.shape[0] * h.num_key_value_heads; ++i) {
    const std::size_t b = i / h.num_key_value_heads;
    const std::size_t g = i % h.num_key_value_heads;
    for (std::size_t head = g * group; head < (g + 1) * group; ++head) {
      multiply({.m = keys,
                .n = h.head_dim,
                .k = queries,
                .a = call.inputs[0].data + (b * h.num_attention_heads + head) * queries * keys,
                .lda = keys,
                .b = call.inputs[1].data + b * queries * query_stride + head * h.head_dim,
                .ldb = query_stride,
                .c = call.output.data + b * keys * key_stride + g * h.head_dim,
                .ldc = key_stride},
               {.a_transposed = true, .accumulates = head > g * group});
    }
  }
}

void run_gradient(const Call& call, const ElementwiseGradient& op) {
  if (op.function == Function::Xielu) {
    const float above = softplus(call.inputs[2].data[0]);
    const float below = 0.5F + softplus(call.inputs[3].data[0]);
    return for_runs(call.output.shape.elements(), [&](std::size_t first, std::size_t n) {
      xielu_gradient_row(above, below, call.inputs[0].data + first, call.inputs[1].data + first,
                         call.output.data + first, n);
    });
  }
  for_runs(call.output.shape.elements(), [&](std::size_t first, std::size_t n) {
    gradient_row(op.function, static_cast<float>(op.parameter), call.inputs[0].data + first,
                 call.inputs[1].data + first, call.output.data + first, n);
  });
}

void run_gradient(const Call& call, const XieluWeightGradient& op) {
  const double sum =
      sum_of_runs(call.inputs[0].shape.elements(), [&](std::size_t first, std::size_t n) {
        return xielu_weight_gradient_row(op.of_negative, call.inputs[0].data + first,
                                         call.inputs[1].data + first, n);
      });
  const double slope = 1 / (1 + std::exp(-static_cast<double>(call.inputs[2].data[0])));
  const double before = call.inputs.size() > 3 ? call.inputs[3].data[0] : 0;
  call.output.data[0] = static_cast<float>(before + slope * sum);
}

void run_gradient(const Call& call, const CausalConvWeightGradient& /*op*/) {
  const std::size_t features = call.output.shape[0];
  const std::size_t kernel = call.output.shape[2];
  const std::size_t tokens = call.inputs[0].shape[1];
  const bool goes_on = call.inputs.size() > 2;
  const Floats sums = allocate_floats(features);
  for (std::size_t j = 0; j < kernel; ++j) {
    const std::size_t back = kernel - 1 - j;
    sum_over_rows(call.inputs[0].rows(), features, false, sums.get(),
                  [&](std::size_t r, std::size_t first, float* sum, std::size_t n) {
                    if (r % tokens < back) return;
                    add_normed_row(call.inputs[0].data + r * features + first,
                                   call.inputs[1].data + (r - back) * features + first, 0, 1, sum,
                                   n);
                  });
    for (std::size_t c = 0; c < features; ++c) {
      float& out = call.output.data[c * kernel + j];
      out = goes_on ? out + sums[c] : sums[c];
    }
  }
}

void run_gradient(const Call& call, const GatedActivationGradient& op) {
  const GatedActivation& f = op.forward;
  if (f.cutoff) {
    const std::size_t n = call.output.shape.back();
    return for_rows(call.output.rows(), call.output.shape.elements(), [&](std::size_t r) {
      const Floats gate = allocate_floats(2 * n);
      float* const of_gate = gate.get() + n;
      const float* const x = call.inputs[0].data + r * n;
      above_most_of_row(static_cast<float>(*f.cutoff), x, gate.get(), n);
      gated_gradient_row(f.function, gate.get(), call.inputs[1].data + r * n,
                         call.inputs[2].data + r * n, of_gate, call.more_outputs[0].data + r * n,
                         n);
      above_most_gradient_row(static_cast<float>(*f.cutoff), x, gate.get(), of_gate,
                              call.output.data + r * n, n);
    });
  }
  for_runs(call.output.shape.elements(), [&](std::size_t first, std::size_t n) {
    const float* const gate = call.inputs[0].data + first;
    const float* const up = call.inputs[1].data + first;
    const float* const g = call.inputs[2].data + first;
    float* const of_gate = call.output.data + first;
    float* const of_up = call.more_outputs[0].data + first;
    if (f.limit > 0) {
      clamped_gate_gradient_row(static_cast<float>(f.limit), static_cast<float>(f.alpha), gate, up,
                                g, of_gate, of_up, n);
    } else {
      gated_gradient_row(f.function, gate, up, g, of_gate, of_up, n);
    }
  });
}

void run_gradient(const Call& call, const SoftmaxGradient& /*op*/) {
  const std::size_t n = call.output.shape.back();
  for_rows(call.output.rows(), call.output.shape.elements(), [&](std::size_t r) {
    softmax_gradient_row(call.inputs[0].data + r * n, call.inputs[1].data + r * n,
                         call.output.data + r * n, n);
  });
}

void run_gradient(const Call& call, const RmsNormGradient& op) {
  const std::size_t n = call.output.shape.back() / op.forward.groups;
  const float* const w = call.inputs.size() > 3 ? call.inputs[3].data : nullptr;
  for_rows(call.output.shape.elements() / n, call.output.shape.elements(), [&](std::size_t r) {
    rms_norm_gradient_row(call.inputs[0].data + r * n, call.inputs[1].data + r * n,
                          call.inputs[2].data[r], w, op.forward.unit_offset ? 1.0F : 0.0F,
                          call.output.data + r * n, n);
  });
}

void run_gradient(const Call& call, const LayerNormGradient& op) {
  const std::size_t n = call.output.shape.back() / op.forward.groups;
  for_rows(call.output.shape.elements() / n, call.output.shape.elements(), [&](std::size_t r) {
    const float* const w = call.inputs.size() > 3
                               ? call.inputs[3].data + r * n % call.inputs[3].shape.elements()
                               : nullptr;
    layer_norm_gradient_row(call.inputs[0].data + r * n, call.inputs[1].data + r * n,
                            call.inputs[2].data[2 * r], call.inputs[2].data[2 * r + 1], w,
                            call.output.data + r * n, n);
  });
}

void run_gradient(const Call& call, const NormWeightGradient& op) {
  const std::size_t n = call.inputs[0].shape.back() / op.groups;
  const std::size_t columns = call.output.shape.elements();  // n, or those of all groups
  const float* const saved = call.inputs[2].data;
  sum_over_rows(call.inputs[0].shape.elements() / columns, columns, call.inputs.size() > 3,
                call.output.data,
                [&](std::size_t r, std::size_t first, float* sum, std::size_t count) {
                  while (count > 0) {
                    const std::size_t at = r * columns + first;
                    const std::size_t row = at / n;
                    const std::size_t here = std::min(count, n - at % n);
                    add_normed_row(call.inputs[0].data + at, call.inputs[1].data + at,
                                   op.centers ? saved[2 * row] : 0.0F,
                                   op.centers ? saved[2 * row + 1] : saved[row], sum, here);
                    first += here;
                    sum += here;
                    count -= here;
                  }
                });
}

void run_gradient(const Call& call, const ScatterAdd& op) {
  const Operand& g = call.inputs[0];
  const Operand& out = call.output;
  const std::size_t features = out.shape.back();
  const std::size_t tokens = call.inputs[1].shape.elements();
  if (call.inputs.size() < 3) {
    for_runs(out.shape.elements(),
             [&](std::size_t first, std::size_t n) { std::fill_n(out.data + first, n, 0.0F); });
  }
  // Column by column, tokens in their order: no two threads write to one number.
  const std::size_t pieces = (features + sum_columns - 1) / sum_columns;
  for_rows(pieces, g.shape.elements(), [&](std::size_t piece) {
    const std::size_t first = piece * sum_columns;
    const std::size_t n = std::min(sum_columns, features - first);
    for (std::size_t t = 0; t < tokens; ++t) {
      // Below the first row the difference is beyond the last one.
      std::size_t id = static_cast<std::size_t>(call.inputs[1].data[t]) - op.first_row;
      const bool is_there = id < out.shape.elements() / features;
      if (!is_there && !op.first_for_unknown) continue;
      if (!is_there) id = 0;
      float* const row = out.data + id * features + first;
      combine_rows(Function::Add, row, g.data + t * features + first, row, n);
    }
  });
}

void run_gradient(const Call& call, const LogSumExp& op) {
  const std::size_t n = call.inputs[0].shape.back();
  for_rows(call.output.rows(), call.inputs[0].shape.elements(), [&](std::size_t r) {
    call.output.data[r] = log_sum_exp(call.inputs[0].data + r * n, op.columns);
  });
}

void run_gradient(const Call& call, const CrossEntropy& op) {
  const Operand& out = call.output;
  const std::size_t n = out.shape.back();
  const auto weight = static_cast<float>(op.weight) * call.inputs[2].data[0];
  const auto z = static_cast<float>(op.z);
  // Made before the threads start: what they throw could not be caught.
  std::vector<double> losses(out.rows());
  const bool is_part = call.inputs.size() > 3;
  for_rows(out.rows(), out.shape.elements(), [&](std::size_t r) {
    const float target = call.inputs[1].data[r];
    float* const row = out.data + r * n;
    if (target < 0) {
      std::fill_n(row, n, 0.0F);
      return;
    }
    // Of a part, below its first column the difference is beyond the last one.
    const std::size_t chosen = static_cast<std::size_t>(target) - op.first;
    const float* const x = call.inputs[0].data + r * n;
    if (is_part) {
      const std::size_t parts = call.inputs[3].shape.back();
      const float lse = log_sum_exp(call.inputs[3].data + r * parts, parts);
      const bool is_here = chosen < op.columns;
      if (is_here)
        losses[r] = static_cast<double>(lse) - x[chosen] + static_cast<double>(z) * lse * lse;
      if (row != x) std::copy_n(x, op.columns, row);
      exp_row(lse, row, op.columns);
      scale_row(weight * (1 + 2 * z * lse), row, op.columns);
      std::fill(row + op.columns, row + n, 0.0F);
      if (is_here) row[chosen] -= weight;
      return;
    }
    const float of_target = x[chosen];
    if (row != x) std::copy_n(x, n, row);
    const float peak = largest_of_row(row, n);
    const float sum = exp_row(peak, row, n);
    const float lse = peak + std::log(sum);
    losses[r] = static_cast<double>(lse) - of_target + static_cast<double>(z) * lse * lse;
    scale_row(weight * (1 + 2 * z * lse) / sum, row, n);
    row[chosen] -= weight;
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  call.more_outputs[0].data[0] = static_cast<float>(weight * sum);
}

void run_gradient(const Call& call, const MeanAbsoluteError& op) {
  const Operand& out = call.output;
  const float weight =
      static_cast<float>(op.weight) * call.inputs[2].data[0] / static_cast<float>(out.shape.back());
  const double sum = sum_of_runs(out.shape.elements(), [&](std::size_t first, std::size_t n) {
    return absolute_error_row(call.inputs[0].data + first, call.inputs[1].data + first, weight,
                              out.data + first, n);
  });
  call.more_outputs[0].data[0] = static_cast<float>(weight * sum);
}

void run_gradient(const Call& call, const SumOfSquares& /*op*/) {
  call.output.data[0] = static_cast<float>(
      sum_of_runs(call.inputs[0].shape.elements(), [&](std::size_t first, std::size_t n) {
        return squares_of_row(call.inputs[0].data + first, n);
      }));
}

void run_gradient(const Call& call, const ClipFactor& /*op*/) {
  double sum = 0;
  for (std::size_t i = 1; i < call.inputs.size(); ++i) sum += call.inputs[i].data[0];
  const double norm = std::sqrt(sum);
  const float* const settings = call.inputs[0].data;
  std::copy_n(settings, 3, call.output.data);
  const double clip = settings[3] / (norm + 1e-6);
  // A norm that is no number must not be clipped away.
  call.output.data[3] = static_cast<float>(clip >= 1 ? 1 : clip);
  call.more_outputs[0].data[0] = static_cast<float>(norm);
}

void run_gradient(const Call& call, const AdamW& op) {
  const float* const settings = call.inputs[4].data;
  const AdamWStep step{.rate = settings[0],
                       .kept = 1 - settings[0] * static_cast<float>(op.weight_decay),
                       .clip = settings[3],
                       .beta1 = static_cast<float>(op.beta1),
                       .beta2 = static_cast<float>(op.beta2),
                       .of_mean = settings[1],
                       .of_variance = settings[2],
                       .eps = static_cast<float>(op.eps)};
  // Weights and states are where the inputs were.
  KVCAST_ASSERT(call.more_outputs.size() == 2 && call.output.data == call.inputs[0].data &&
                call.more_outputs[0].data == call.inputs[2].data &&
                call.more_outputs[1].data == call.inputs[3].data);
  for_runs(call.output.shape.elements(), [&](std::size_t first, std::size_t n) {
    adamw_row(step, call.inputs[1].data + first, call.output.data + first,
              call.more_outputs[0].data + first, call.more_outputs[1].data + first, n);
  });
}

}  // namespace kvcast::execute
