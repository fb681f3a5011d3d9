#include "model/execute/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "model/execute/block_product.h"
#include "model/execute/expert_rows.h"
#include "model/execute/gradient_kernels.h"
#include "model/execute/large_product.h"
#include "model/execute/matrix.h"
#include "model/execute/parallel_rows.h"
#include "model/execute/positions.h"
#include "model/execute/row_loops.h"
#include "model/execute/shared_operators.h"
#include "model/execute/state_scan.h"
#include "model/io/weights/checkpoint.h"

namespace kvcast::execute {
namespace {

/// Rows up to which a head's block of a weight is multiplied where it lies.
constexpr std::size_t few_rows = 64;

struct FastKernels {
  Call call;
  const Operand& out = call.output;

  const Operand& in(std::size_t i) const { return call.inputs[i]; }
  std::size_t features() const { return out.shape.back(); }

  // What shared_operators.h reaches elements by.
  using Number = float;
  static float constant(double x) { return static_cast<float>(x); }
  const Shape& in_shape(std::size_t i) const { return in(i).shape; }
  const Shape& out_shape() const { return out.shape; }
  float value(std::size_t input, std::size_t b, std::size_t i) const {
    return in(input).sequence(b)[i];
  }
  float gather(std::size_t input, std::size_t b, std::size_t i) const { return value(input, b, i); }
  void gather_received(std::size_t /*input*/, std::size_t /*elements*/) const {}
  void put(std::size_t b, std::size_t i, float x) const { out.sequence(b)[i] = x; }
  void put(std::size_t b, std::size_t i, float x, std::size_t output) const {
    *(output == 0 ? out : call.more_outputs[output - 1]).element(b, i) = x;
  }
  void move(std::size_t input, std::size_t b, std::size_t from, std::size_t to,
            std::size_t n) const {
    const float* source = in(input).element(b, from);
    float* target = out.element(b, to);
    if (source != target) std::copy_n(source, n, target);
  }
  void take(std::size_t input, std::size_t b, std::size_t i, std::span<float> numbers) const {
    std::copy_n(in(input).element(b, i), numbers.size(), numbers.data());
  }
  void lay(std::size_t b, std::size_t i, std::span<const float> numbers) const {
    std::copy_n(numbers.data(), numbers.size(), out.element(b, i));
  }
  template <typename F>
  void each(std::size_t rows, std::size_t elements, F f) const {
    for_rows(rows, elements, f);
  }
  template <typename O>
  void operator()(const O& op) const {
    if constexpr (has_gradient_kernel<O>) {
      run_gradient(call, op);
    } else {
      run_shared(*this, op);
    }
  }

  void operator()(const Embedding& op) const {
    // On one thread: reading a row may throw, and few rows are read.
    for (std::size_t t = 0; t < out.rows(); ++t) {
      auto id = static_cast<std::size_t>(in(1).data[t]);
      const std::span row(out.data + t * features(), features());
      if (op.is_part && !holds_row(op, in(0).shape[0], id)) {
        std::fill(row.begin(), row.end(), 0.0F);
        continue;
      }
      id -= op.first_row;
      if (op.first_for_unknown && id >= in(0).shape[0]) id = 0;
      if (in(0).table != nullptr) {
        in(0).table->read_rows(id, row);
      } else {
        std::copy_n(in(0).data + id * features(), features(), row.begin());
      }
    }
  }

  void operator()(const Linear& op) const {
    const float* bias = call.inputs.size() > 2 ? in(2).data : nullptr;
    if (in(1).matrix != nullptr) {
      KVCAST_ASSERT(!op.transposed);
      return in(1).matrix->multiply(in(0).data, out.rows(), out.data, bias);
    }
    multiply_rows(in(0).data, in(0).shape.back(), in(1).data, out.rows(), features(), out.data,
                  bias, op.transposed);
  }

  /// y[rows, n] = x[rows, k]·wᵀ + bias, w [n, k] or, transposed, [k, n].
  static void multiply_rows(const float* x, std::size_t k, const float* w, std::size_t rows,
                            std::size_t n, float* y, const float* bias, bool transposed = false) {
    multiply_large({.m = rows,
                    .n = n,
                    .k = k,
                    .a = x,
                    .lda = k,
                    .b = w,
                    .ldb = transposed ? n : k,
                    .c = y,
                    .ldc = n},
                   {.b_transposed = !transposed});
    if (bias == nullptr) return;
    for_rows(rows, rows * n,
             [&](std::size_t r) { combine_rows(Function::Add, y + r * n, bias, y + r * n, n); });
  }

  void operator()(const HeadLinear& op) const {
    const std::size_t block = in(1).shape[0] / op.num_blocks;
    const std::size_t width = in(1).shape[1];
    const std::size_t from = op.transposed ? block : width;  // features of one head
    const std::size_t to = op.transposed ? width : block;
    const std::size_t heads_per_block = op.num_heads / op.num_blocks;
    // Few rows go by the weight, which is read once; a product would pack it.
    const bool streams = out.rows() <= few_rows && to % vector_width == 0;
#pragma omp parallel for schedule(static)
    for (std::size_t h = 0; h < op.num_heads; ++h) {
      const Product product{.m = out.rows(),
                            .n = to,
                            .k = from,
                            .a = in(0).data + h * from,
                            .lda = op.num_heads * from,
                            .b = in(1).data + h / heads_per_block * block * width,
                            .ldb = width,
                            .c = out.data + h * to,
                            .ldc = op.num_heads * to};
      if (!streams) {
        multiply(product, {.b_transposed = !op.transposed});
      } else if (op.transposed) {
        multiply_block(product);
      } else {
        multiply_block_transposed(product);
      }
    }
  }

  void operator()(const AttentionScores& op) const { attention_scores(call, op.heads); }
  void operator()(const AttentionValues& op) const { attention_values(call, op.heads); }
  void operator()(const SparseValues& op) const {
    const Heads& h = op.heads;
    const std::size_t queries = in(0).shape[2];
    const std::size_t keys = in(0).shape[3];
    const std::size_t row = in(1).shape[2];
    const auto threshold = static_cast<float>(op.threshold);
    std::vector<bool> kept(in(0).shape.elements());
    std::vector<bool> wanted(out.shape[0] * keys, false);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      kept[i] = in(0).data[i] >= threshold;
      if (kept[i]) wanted[i / (h.num_attention_heads * queries * keys) * keys + i % keys] = true;
    }
    const Floats turned = allocate_floats(op.unrotate ? in(1).shape.elements() : 0);
    if (op.unrotate) {
      const RopeAngleTable<float>& angles = rope_angles<float>(op.unrotate, keys, true);
      for_rows(wanted.size(), wanted.size() * row, [&](std::size_t j) {
        if (!wanted[j]) return;
        float* to = turned.get() + j * row;
        std::copy_n(in(1).sequence(j / keys) + j % keys * row, row, to);
        rotate_heads(to, op.rope_heads, row / op.rope_heads, angles.cosines(j % keys),
                     angles.sines(j % keys), *op.unrotate);
      });
    }
    const std::size_t heads_per_value = h.num_attention_heads / h.num_key_value_heads;
    for_rows(kept.size() / keys, kept.size() * h.head_dim, [&](std::size_t i) {
      const std::size_t b = i / queries / h.num_attention_heads;
      const std::size_t head = i / queries % h.num_attention_heads;
      const float* rows = op.unrotate ? turned.get() + b * keys * row : in(1).sequence(b);
      float* sum =
          out.data + ((b * queries + i % queries) * h.num_attention_heads + head) * h.head_dim;
      std::fill_n(sum, h.head_dim, 0.0F);
      for (std::size_t j = 0; j < keys; ++j) {
        if (!kept[i * keys + j]) continue;
        add_scaled_row(in(0).data[i * keys + j],
                       rows + j * row + head / heads_per_value * h.head_dim, sum, h.head_dim);
      }
    });
    note_skipped(call, op, kept, wanted);
  }
  void operator()(const TiledAttention& op) const { tiled_attention(call, op); }

  void operator()(const Softmax&) const {
    const std::size_t n = features();
    for_rows(out.rows(), out.shape.elements(), [&](std::size_t r) {
      float* row = out.data + r * n;
      if (row != in(0).data + r * n) std::copy_n(in(0).data + r * n, n, row);
      float peak = largest_of_row(row, n);
      float sum = 0;
      if (call.inputs.size() > 1) {
        const float sink = in(1).data[r / out.shape[2] % out.shape[1]];
        peak = std::max(peak, sink);
        sum = std::exp(sink - peak);
      }
      scale_row(1 / (sum + exp_row(peak, row, n)), row, n);
    });
  }

  void operator()(const Elementwise& op) const {
    if (op.function == Function::Xielu) {
      const float above = softplus(in(1).data[0]);
      const float below = 0.5F + softplus(in(2).data[0]);
      return for_runs(out.shape.elements(), [&](std::size_t first, std::size_t n) {
        xielu_row(above, below, in(0).data + first, out.data + first, n);
      });
    }
    if (call.inputs.size() > 1) return combine(op.function);
    const auto parameter = static_cast<float>(op.parameter);
    for_runs(out.shape.elements(), [&](std::size_t first, std::size_t n) {
      map_row(op.function, parameter, in(0).data + first, out.data + first, n);
    });
  }

  void operator()(const GatedActivation& op) const {
    if (op.cutoff) {
      const std::size_t n = features();
      for_rows(out.rows(), out.shape.elements(), [&](std::size_t r) {
        const Floats gate = allocate_floats(n);
        above_most_of_row(static_cast<float>(*op.cutoff), in(0).data + r * n, gate.get(), n);
        gated_row(op.function, gate.get(), in(1).data + r * n, out.data + r * n, n);
      });
      return;
    }
    for_runs(out.shape.elements(), [&](std::size_t first, std::size_t n) {
      const float* gate = in(0).data + first;
      const float* up = in(1).data + first;
      if (op.limit > 0) {
        clamped_gate_row(static_cast<float>(op.limit), static_cast<float>(op.alpha), gate, up,
                         out.data + first, n);
      } else {
        gated_row(op.function, gate, up, out.data + first, n);
      }
    });
  }

  void operator()(const RowMean&) const {
    const std::size_t n = in(0).shape.back();
    for_rows(in(0).rows(), in(0).shape.elements(),
             [&](std::size_t r) { out.data[r] = mean_of_row(in(0).data + r * n, n); });
  }

  void operator()(const RmsNorm& op) const {
    const std::size_t n = features() / op.groups;
    for_rows(out.rows() * op.groups, out.shape.elements(), [&](std::size_t r) {
      const float* w = call.inputs.size() > 1 ? in(1).data : nullptr;
      const float root = rms_norm_row(in(0).data + r * n, w, op.unit_offset ? 1.0F : 0.0F,
                                      static_cast<float>(op.eps), out.data + r * n, n);
      if (!call.more_outputs.empty()) call.more_outputs[0].data[r] = root;
    });
  }

  void operator()(const LayerNorm& op) const {
    const std::size_t n = features() / op.groups;
    for_rows(out.rows() * op.groups, out.shape.elements(), [&](std::size_t r) {
      const auto part = [&](std::size_t input) -> const float* {
        if (call.inputs.size() <= input) return nullptr;
        return in(input).data + r * n % in(input).shape.elements();
      };
      const auto [mean, root] = layer_norm_row(in(0).data + r * n, part(1), part(2),
                                               static_cast<float>(op.eps), out.data + r * n, n);
      if (call.more_outputs.empty()) return;
      call.more_outputs[0].data[2 * r] = mean;
      call.more_outputs[0].data[2 * r + 1] = root;
    });
  }

  void operator()(const Rope& op) const {
    const std::size_t tokens = out.shape[1];
    const TokenAngles<float> angles = token_angles<float>(*this, op, 1, tokens);
    for_rows(out.rows(), out.shape.elements(), [&](std::size_t r) {
      const float* x = in(0).element(r / tokens, r % tokens * features());
      float* y = out.data + r * features();
      if (x != y) std::copy_n(x, features(), y);
      rotate_heads(y, op.num_heads, op.head_dim, angles.cosines(r), angles.sines(r), *op.table);
    });
  }

  void operator()(const RopeAngles& op) const {
    const std::size_t half = op.table->inverse_frequencies.size();
    const TokenAngles<float> angles = token_angles<float>(*this, op, 0, out.rows());
    for_rows(out.rows(), out.shape.elements(), [&](std::size_t t) {
      float* row = out.data + t * features();
      const float* values = op.sine ? angles.sines(t) : angles.cosines(t);
      for (std::size_t j = 0; j < half; ++j) {
        const RopeTable::Pair pair = op.table->pair(j);
        row[pair.first] = row[pair.second] = values[j];
      }
      std::fill(row + 2 * half, row + features(), op.sine ? 0.0F : 1.0F);
    });
  }

  void operator()(const RotateHalf& op) const {
    const std::size_t head_dim = features() / op.num_heads;
    const std::size_t half = op.rotary_dims / 2;
    for_rows(out.rows() * op.num_heads, out.shape.elements(), [&](std::size_t r) {
      const float* x = in(0).data + r * head_dim;
      float* y = out.data + r * head_dim;
      if (op.interleaved) {
        for (std::size_t j = 0; j < 2 * half; j += 2) {
          y[j] = -x[j + 1];
          y[j + 1] = x[j];
        }
      } else {
        map_row(Function::Scale, -1, x + half, y, half);
        std::copy_n(x, half, y + half);
      }
      std::fill(y + 2 * half, y + head_dim, 0.0F);
    });
  }

  void operator()(const ExpertLinear& op) const {
    const std::size_t in_features = in(2).shape[1];
    const std::size_t chosen = op.num_experts_per_tok;
    const std::size_t out_features = features() / chosen;
    const bool own_rows = in(0).shape.back() != in_features;
    const auto rows = choices_by_expert(op, in(1));  // of the output
    std::size_t most = 0;
    for (const auto& of_expert : rows) most = std::max(most, of_expert.size());
    const Floats x = allocate_floats(most * in_features);
    const Floats y = allocate_floats(most * out_features);
    for (std::size_t e = 0; e < rows.size(); ++e) {
      const std::size_t n = rows[e].size();
      if (n == 0) continue;
      for_rows(n, n * in_features, [&](std::size_t i) {
        const std::size_t row = own_rows ? rows[e][i] : rows[e][i] / chosen;
        std::copy_n(in(0).data + row * in_features, in_features, x.get() + i * in_features);
      });
      const float* bias = call.inputs.size() > 3 ? in(3).data + e * out_features : nullptr;
      if (in(2).matrix != nullptr) {
        in(2).matrix[e].multiply(x.get(), n, y.get(), bias);
      } else {
        multiply_rows(x.get(), in_features, in(2).data + e * out_features * in_features, n,
                      out_features, y.get(), bias);
      }
      for_rows(n, n * out_features, [&](std::size_t i) {
        std::copy_n(y.get() + i * out_features, out_features, out.data + rows[e][i] * out_features);
      });
    }
  }

  void operator()(const CombineExperts& op) const {
    const std::size_t n = features();
    const std::size_t chosen = op.num_experts_per_tok;
    for_rows(out.rows(), in(0).shape.elements(), [&](std::size_t r) {
      std::fill_n(out.data + r * n, n, 0.0F);
      for (std::size_t k = r * chosen; k < (r + 1) * chosen; ++k) {
        const float weight = call.inputs.size() > 1 ? in(1).data[k] : 1.0F;
        add_scaled_row(weight, in(0).data + k * n, out.data + r * n, n);
      }
    });
  }

  void operator()(const Conv1d& op) const {
    // Behind a padding of kernel/2 frames, the frames under an output frame's taps lie side by
    // side.
    const std::size_t padding = op.kernel / 2 * in(0).shape[2];
    const std::size_t length = in(0).shape[1] * in(0).shape[2];
    const Floats padded_frames = allocate_floats(length + 2 * padding);
    std::fill_n(padded_frames.get(), padding, 0.0F);
    std::fill_n(padded_frames.get() + padding + length, padding, 0.0F);
    const float* bias = call.inputs.size() > 2 ? in(2).data : nullptr;
    for (std::size_t b = 0; b < out.shape[0]; ++b) {
      std::copy_n(in(0).sequence(b), length, padded_frames.get() + padding);
      in(1).matrix->multiply_windows(padded_frames.get(), op.stride * in(0).shape[2], out.shape[1],
                                     out.sequence(b), bias);
    }
  }

  void operator()(const AlibiBias& op) const {
    const std::size_t heads = out.shape[0];
    const std::size_t keys = out.shape[2];
    for (std::size_t h = 0; h < heads; ++h) {
      const float slope = alibi_slope(op.first_head + h, op.num_heads);
      for (std::size_t j = 0; j < keys; ++j) {
        out.data[h * keys + j] = alibi_bias(slope, j) * static_cast<float>(op.scale);
      }
    }
  }

 private:
  /// x ∘ y in runs of x whose elements go with one element of y, or with as many side by side.
  void combine(Function function) const {
    const Operand& x = in(0);
    const Operand& y = in(1);
    const std::size_t total = x.shape.elements();
    if (total == 0) return;  // no token of any expert here
    if (y.shape.elements() == total) {
      for_runs(total, [&](std::size_t first, std::size_t n) {
        combine_rows(function, x.data + first, y.data + first, out.data + first, n);
      });
      return;
    }
    const bool outer = y.shape.rank() > x.shape.rank();
    const bool one = outer || y.shape.back() == 1;
    const std::size_t n = outer ? total / y.shape.elements() : (one ? x : y).shape.back();
    const Aligned aligned(x.shape, y.shape);
    for_rows(total / n, total, [&](std::size_t r) {
      const float* z = y.data + aligned(r * n);
      if (one) {
        combine_scalar(function, x.data + r * n, *z, out.data + r * n, n);
      } else {
        combine_rows(function, x.data + r * n, z, out.data + r * n, n);
      }
    });
  }
};

/// Operators whose kernels take paged caches.
template <typename O>
constexpr bool reads_pages = std::is_same_v<O, CacheAppend> || std::is_same_v<O, CacheEvict> ||
                             std::is_same_v<O, Rope> || std::is_same_v<O, TiledAttention>;

/// Operators whose kernels take sequences that lie apart, as a cache's do.
template <typename O>
constexpr bool reads_sequences_apart =
    IsShared<const FastKernels, O> || std::is_same_v<O, Rope> ||
    std::is_same_v<O, AttentionScores> || std::is_same_v<O, AttentionValues> ||
    std::is_same_v<O, SparseValues> || std::is_same_v<O, TiledAttention>;

/// Appends to a cache in a narrow type, or moves its rows.
void run_narrow(const Call& call, const CacheAppend&) {
  const Operand& x = call.inputs[1];
  const std::size_t features = x.shape.back();
  const auto append = [&](std::size_t token, std::size_t b, std::size_t row) {
    narrow_row(*call.output.form, x.data + token * features, call.output.narrow_row(b, row));
  };
  if (call.step != nullptr) {
    for (const SequenceRows& s : call.step->sequences) {
      for (std::size_t i = 0; i < s.tokens; ++i) {
        append(s.first_token + i, 0, s.first_row() + s.cached + i);
      }
    }
    return;
  }
  const std::size_t n = x.shape[1];
  for_rows(x.shape[0] * n, x.shape.elements(),
           [&](std::size_t t) { append(t, t / n, call.inputs[0].shape[1] + t % n); });
}
void run_narrow(const Call& call, const CacheEvict& op) {
  const Operand& from = call.inputs[0];
  const std::size_t row = call.output.form->row_bytes();
  if (call.step != nullptr) {
    for (const SequenceRows& s : call.step->sequences) {
      for (std::size_t i = op.kept_first; s.dropped > 0 && i < s.rows() - s.dropped; ++i) {
        std::memcpy(call.output.narrow_row(0, s.first_kept + i),
                    from.narrow_row(0, s.first_row() + i + s.dropped), row);
      }
    }
    return;
  }
  for (std::size_t b = 0; b < from.shape[0]; ++b) {
    std::memmove(from.narrow_row(b, op.kept_first),
                 from.narrow_row(b, op.kept_first + call.value(op.dropped)),
                 call.value(op.moved) * row);
  }
}
void run_narrow(const Call& call, const Send& op) { send_message(call, op, sizeof(float)); }
void run_narrow(const Call& call, const Receive& op) { receive_message(call, op); }

/// Operators that take a cache in a narrow type as it is; others get it in fp32.
template <typename O>
constexpr bool writes_narrow = std::is_same_v<O, CacheAppend> || std::is_same_v<O, CacheEvict> ||
                               std::is_same_v<O, Send> || std::is_same_v<O, Receive>;

bool reads_narrow(const Op& op) {
  const auto* const attention = std::get_if<TiledAttention>(&op);
  return attention != nullptr && attention->kept == 0;
}

}  // namespace

void run_fast(const Call& call) {
  if (call.output.form != nullptr) {
    return std::visit(
        [&]<typename O>(const O& op) {
          if constexpr (writes_narrow<O>) {
            run_narrow(call, op);
          } else {
            KVCAST_ASSERT(false);  // sessions refuse it
          }
        },
        call.node.op);
  }
  const auto takes = [&]<typename O>(const O&) {
    return call.step != nullptr ? reads_pages<O> : reads_sequences_apart<O>;
  };
  const bool takes_narrow = reads_narrow(call.node.op);
  const bool takes_apart = std::visit(takes, call.node.op);
  const auto scattered = [&](const Operand& x) {
    if (x.form != nullptr) return !takes_narrow;
    return !takes_apart && x.data != nullptr && !x.contiguous();
  };
  if (std::none_of(call.inputs.begin(), call.inputs.end(), scattered)) {
    return std::visit(FastKernels{call}, call.node.op);
  }
  // Cache rows that a step-by-step kernel reads, as after torch.cat: in one piece.
  std::vector<Operand> inputs(call.inputs.begin(), call.inputs.end());
  std::vector<Floats> copies;
  for (Operand& x : inputs) {
    if (!scattered(x)) continue;
    const std::size_t n = x.shape.sequence_elements();
    const Floats& copy = copies.emplace_back(allocate_floats(x.shape.elements()));
    if (x.form != nullptr) {
      const std::size_t rows = x.shape[1];
      for_rows(x.shape[0] * rows, x.shape.elements(), [&](std::size_t i) {
        widen_row(*x.form, x.narrow_row(i / rows, i % rows), 0, x.shape[2],
                  copy.get() + i * x.shape[2]);
      });
      x.form = nullptr;
      x.data = copy.get();
      x.batch_stride = n;
      x.places = nullptr;
      continue;
    }
    // What lies side by side: a row of a paged cache, or a sequence.
    const std::size_t run = x.places != nullptr ? x.shape.back() : n;
    for (std::size_t i = 0; i < x.shape.elements(); i += run) {
      std::copy_n(x.element(i / n, i % n), run, copy.get() + i);
    }
    x.data = copy.get();
    x.batch_stride = n;
    x.places = nullptr;
  }
  Call gathered = call;
  gathered.inputs = inputs;
  std::visit(FastKernels{gathered}, call.node.op);
}

}  // namespace kvcast::execute
