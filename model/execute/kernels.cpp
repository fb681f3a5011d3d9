#include "model/execute/kernels.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "model/execute/block_product.h"
#include "model/execute/exchange.h"
#include "model/execute/matrix.h"
#include "model/execute/parallel_rows.h"
#include "model/execute/positions.h"
#include "model/execute/row_loops.h"
#include "model/execute/row_table.h"
#include "model/execute/token_kernels.h"

namespace kvcast::execute {
namespace {

/// Rows up to which a head's block of a weight is multiplied where it lies.
constexpr std::size_t few_rows = 64;

struct FastKernels {
  Call call;
  const Operand& out = call.output;

  const Operand& in(std::size_t i) const { return call.inputs[i]; }
  std::size_t features() const { return out.shape.back(); }

  void operator()(const Embedding&) const {
    // On one thread: reading a row may throw, and few rows are read.
    for (std::size_t t = 0; t < out.rows(); ++t) {
      const auto id = static_cast<std::size_t>(in(1).data[t]);
      in(0).table->read(id, {out.data + t * features(), features()});
    }
  }

  void operator()(const Linear&) const {
    const float* bias = call.inputs.size() > 2 ? in(2).data : nullptr;
    in(1).matrix->multiply(in(0).data, out.rows(), out.data, bias);
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
        multiply(product, !op.transposed);
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
      const std::size_t half = op.unrotate->inverse_frequencies.size();
      const RopeAngleTable<float> angles(*op.unrotate, 0, keys, true);
      for_rows(wanted.size(), wanted.size() * row, [&](std::size_t j) {
        if (!wanted[j]) return;
        float* to = turned.get() + j * row;
        std::copy_n(in(1).sequence(j / keys) + j % keys * row, row, to);
        rotate_heads(to, op.rope_heads, row / op.rope_heads, angles.cosines(j % keys),
                     angles.sines(j % keys), half);
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

  void operator()(const LargestProbability& op) const {
    const std::size_t heads = in(0).shape[1];
    const std::size_t queries = in(0).shape[2];
    const std::size_t keys = in(0).shape[3];
    const std::size_t half = op.pool / 2;
    for_rows(out.shape[0] * keys, in(0).shape.elements(), [&](std::size_t r) {
      const std::size_t j = r % keys;
      const std::size_t first = j < half ? 0 : j - half;
      const std::size_t end = std::min(keys, j + half + 1);
      for (std::size_t i = 0; i < queries; ++i) {
        float largest = call.inputs.size() > 1 ? in(1).data[r * queries + i] : 0;
        for (std::size_t h = 0; h < heads; ++h) {
          const float* row = in(0).data + ((r / keys * heads + h) * queries + i) * keys;
          float p = row[j];
          if (op.pool > 0) {
            p = std::accumulate(row + first, row + end, 0.0F) / static_cast<float>(op.pool);
          }
          largest = std::max(largest, p);
        }
        out.data[r * queries + i] = largest;
      }
    });
  }

  void operator()(const KeepTokens&) const {
    const std::size_t heads = in(0).shape[1];
    const std::size_t tokens = in(0).shape[3];
    const std::size_t kept = out.shape[1];
    for (std::size_t b = 0; b < out.shape[0]; ++b) {
      std::vector<float> sums(tokens, 0.0F);
      for (std::size_t h = 0; h < heads; ++h) {
        add_scaled_row(1, in(0).data + (b * heads + h) * tokens, sums.data(), tokens);
      }
      const std::vector<std::size_t> indices = kept_tokens<float>(sums, kept);
      std::copy(indices.begin(), indices.end(), out.data + b * kept);
    }
  }

  void operator()(const GatherRows&) const {
    const std::size_t tokens = in(0).shape[1];
    const std::size_t kept = out.shape[1];
    const std::size_t features_of_row = out.shape.rank() > 2 ? out.shape[2] : 1;
    for_rows(out.shape[0] * kept, out.shape.elements(), [&](std::size_t i) {
      const std::size_t row = i / kept * tokens + static_cast<std::size_t>(in(1).data[i]);
      std::copy_n(in(0).data + row * features_of_row, features_of_row,
                  out.data + i * features_of_row);
    });
  }

  void operator()(const DropTokens&) const { drop_tokens(call); }
  void operator()(const MissingTokens&) const { missing_tokens(call); }
  void operator()(const TokenRows&) const { token_rows(call); }
  void operator()(const TokenStates&) const { token_states(call); }
  void operator()(const StoreStates&) const { store_states(call); }
  void operator()(const TokenMask&) const { token_mask(call); }

  void operator()(const Softmax&) const {
    const std::size_t n = features();
    for_rows(out.rows(), out.shape.elements(), [&](std::size_t r) {
      float* row = out.data + r * n;
      if (row != in(0).data + r * n) std::copy_n(in(0).data + r * n, n, row);
      scale_row(1 / exp_row(largest_of_row(row, n), row, n), row, n);
    });
  }

  void operator()(const Elementwise& op) const {
    if (call.inputs.size() > 1) return combine(op.function);
    const auto parameter = static_cast<float>(op.parameter);
    for_runs(out.shape.elements(), [&](std::size_t first, std::size_t n) {
      map_row(op.function, parameter, in(0).data + first, out.data + first, n);
    });
  }

  void operator()(const GatedActivation& op) const {
    for_runs(out.shape.elements(), [&](std::size_t first, std::size_t n) {
      gated_row(op.function, in(0).data + first, in(1).data + first, out.data + first, n);
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
      rms_norm_row(in(0).data + r * n, in(1).data, op.unit_offset ? 1.0F : 0.0F,
                   static_cast<float>(op.eps), out.data + r * n, n);
    });
  }

  void operator()(const LayerNorm& op) const {
    const std::size_t n = features();
    const float* w = call.inputs.size() > 1 ? in(1).data : nullptr;
    const float* b = call.inputs.size() > 2 ? in(2).data : nullptr;
    for_rows(out.rows(), out.shape.elements(), [&](std::size_t r) {
      layer_norm_row(in(0).data + r * n, w, b, static_cast<float>(op.eps), out.data + r * n, n);
    });
  }

  void operator()(const Rope& op) const {
    const std::size_t tokens = out.shape[1];
    const std::size_t half = op.table->inverse_frequencies.size();
    const Turns turns(*this, op, 1, tokens);
    const std::size_t positions = turns.given.empty() ? tokens : out.rows();
    for_rows(out.rows(), out.shape.elements(), [&](std::size_t r) {
      const std::size_t row = turns.row(r % positions);
      const float* x = in(0).sequence(r / tokens) + r % tokens * features();
      float* y = out.data + r * features();
      if (x != y) std::copy_n(x, features(), y);
      rotate_heads(y, op.num_heads, op.head_dim, turns.angles->cosines(row),
                   turns.angles->sines(row), half);
    });
  }

  void operator()(const RopeAngles& op) const {
    const std::size_t half = op.table->inverse_frequencies.size();
    const Turns turns(*this, op, 0, out.rows());
    for_rows(out.rows(), out.shape.elements(), [&](std::size_t t) {
      float* row = out.data + t * features();
      const std::size_t from = turns.row(t);
      const float* values = op.sine ? turns.angles->sines(from) : turns.angles->cosines(from);
      std::copy_n(values, half, row);
      std::copy_n(values, half, row + half);
      std::fill(row + 2 * half, row + features(), op.sine ? 0.0F : 1.0F);
    });
  }

  void operator()(const RotateHalf& op) const {
    const std::size_t head_dim = features() / op.num_heads;
    const std::size_t half = op.rotary_dims / 2;
    for_rows(out.rows() * op.num_heads, out.shape.elements(), [&](std::size_t r) {
      const float* x = in(0).data + r * head_dim;
      float* y = out.data + r * head_dim;
      map_row(Function::Scale, -1, x + half, y, half);
      std::copy_n(x, half, y + half);
      std::fill(y + 2 * half, y + head_dim, 0.0F);
    });
  }

  void operator()(const CacheAppend&) const {
    // The output is the cache, its earlier rows are there.
    const std::size_t past = in(0).shape[1];
    const std::size_t n = in(1).shape[1] * features();
    for_rows(out.shape[0], out.shape[0] * n, [&](std::size_t b) {
      std::copy_n(in(1).data + b * n, n, out.sequence(b) + past * features());
    });
  }

  void operator()(const CacheEvict& op) const {
    const std::size_t moved = call.value(op.moved) * features();
    if (moved == 0) return;
    const std::size_t gap = call.value(op.dropped) * features();
    for_rows(out.shape[0], out.shape[0] * moved, [&](std::size_t b) {
      float* to = out.sequence(b) + op.kept_first * features();
      std::copy_n(to + gap, moved, to);
    });
  }

  void operator()(const JoinRows&) const {
    const std::size_t past = in(0).shape[1] * features();
    const std::size_t rows = in(1).shape[1] * features();
    for_rows(out.shape[0], out.shape.elements(), [&](std::size_t b) {
      std::copy_n(in(0).sequence(b), past, out.sequence(b));
      std::copy_n(in(1).sequence(b), rows, out.sequence(b) + past);
    });
  }

  void operator()(const Send& op) const { send_message(call, op); }
  void operator()(const Receive& op) const { receive_message(call, op); }

  void operator()(const RepeatHeads& op) const {
    const std::size_t tokens = out.shape[1];
    const std::size_t num_heads = in(0).shape.back() / op.head_dim;
    for_rows(out.rows(), out.shape.elements(), [&](std::size_t r) {
      const float* x = in(0).sequence(r / tokens) + r % tokens * in(0).shape.back();
      float* y = out.data + r * features();
      for (std::size_t h = 0; h < num_heads * op.repeats; ++h) {
        std::copy_n(x + h / op.repeats * op.head_dim, op.head_dim, y + h * op.head_dim);
      }
    });
  }

  void operator()(const LastToken&) const {
    const std::size_t tokens = in(0).shape[1];
    for (std::size_t b = 0; b < out.shape[0]; ++b) {
      std::copy_n(in(0).data + (b * tokens + tokens - 1) * features(), features(),
                  out.data + b * features());
    }
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

  void operator()(const RelativePositionBias& op) const {
    const std::size_t heads = out.shape[0];
    const std::size_t queries = out.shape[1];
    const std::size_t keys = out.shape[2];
    const std::size_t first = call.value(op.first_position);
    for_rows(queries, out.shape.elements(), [&](std::size_t i) {
      for (std::size_t j = 0; j < keys; ++j) {
        const float* row = in(0).data + relative_bucket(op, first + i, j) * heads;
        for (std::size_t h = 0; h < heads; ++h) out.data[(h * queries + i) * keys + j] = row[h];
      }
    });
  }

  void operator()(const AlibiBias& op) const {
    const std::size_t heads = out.shape[0];
    const std::size_t keys = out.shape[2];
    for (std::size_t h = 0; h < heads; ++h) {
      const float slope = alibi_slope(h, heads);
      for (std::size_t j = 0; j < keys; ++j) {
        out.data[h * keys + j] = alibi_bias(slope, j) * static_cast<float>(op.scale);
      }
    }
  }

  void operator()(const CausalMask& op) const {
    const std::size_t keys = out.shape[1];
    const std::size_t past = call.value(op.mask.past);
    for_rows(out.shape[0], out.shape.elements(), [&](std::size_t i) {
      const KeyRange visible = visible_range(op.mask, past + i, keys);
      float* row = out.data + i * keys;
      std::fill_n(row, keys, masked_score);
      std::fill(row + visible.first, row + visible.end, 0.0F);
    });
  }

 private:
  /// The angles that an operator's tokens turn by: a prompt's, whose layers all turn by the same,
  /// are those of its table.
  struct Turns {
    std::span<const float> given;  ///< positions, if the node has that input
    std::size_t first = 0;         ///< else they follow this one
    std::optional<RopeAngleTable<float>> own;
    const RopeAngleTable<float>* angles = nullptr;

    template <typename RopeOp>
    Turns(const FastKernels& kernels, const RopeOp& op, std::size_t input, std::size_t tokens) {
      if (kernels.call.inputs.size() > input) {
        given = {kernels.in(input).data, kernels.in(input).shape.elements()};
      } else {
        first = kernels.call.value(op.first_position);
      }
      if (tokens > 1 && !op.inverse) {
        const float last = given.empty() ? 0 : *std::max_element(given.begin(), given.end());
        const std::size_t positions =
            given.empty() ? first + tokens : static_cast<std::size_t>(last) + 1;
        angles = &rope_angles(op.table, positions);
      } else if (given.empty()) {
        angles = &own.emplace(*op.table, first, tokens, op.inverse);
      } else {
        angles = &own.emplace(*op.table, given, op.inverse);
      }
    }
    Turns(const Turns&) = delete;  // `angles` may be its own
    Turns& operator=(const Turns&) = delete;
    std::size_t row(std::size_t t) const {
      if (own) return t;
      return given.empty() ? first + t : static_cast<std::size_t>(given[t]);
    }
  };

  /// x ∘ y with y's dimensions aligned to x's last ones and repeated.
  void combine(Function function) const {
    const Operand& x = in(0);
    const Operand& y = in(1);
    const std::size_t total = x.shape.elements();
    if (y.shape.elements() == total) {
      for_runs(total, [&](std::size_t first, std::size_t n) {
        combine_rows(function, x.data + first, y.data + first, out.data + first, n);
      });
      return;
    }
    if (y.shape.rank() > x.shape.rank()) {
      const std::size_t run = total / y.shape.elements();
      for_rows(y.shape.elements(), total, [&](std::size_t r) {
        combine_scalar(function, x.data + r * run, y.data[r], out.data + r * run, run);
      });
      return;
    }
    if (y.shape.back() == 1) {
      const std::size_t n = x.shape.back();
      for_rows(total / n, total, [&](std::size_t r) {
        combine_scalar(function, x.data + r * n, y.data[y_row(r, n)], out.data + r * n, n);
      });
      return;
    }
    const std::size_t n = y.shape.back();
    for_rows(total / n, total, [&](std::size_t r) {
      combine_rows(function, x.data + r * n, y.data + y_row(r, n) * n, out.data + r * n, n);
    });
  }

  /// The row of input 1 that goes with the r-th run of n elements of input 0.
  std::size_t y_row(std::size_t r, std::size_t n) const {
    const Shape& x = in(0).shape;
    const Shape& y = in(1).shape;
    std::size_t index = r / (x.back() / n);
    std::size_t row = 0;
    std::size_t stride = 1;
    for (std::size_t d = 1; d < x.rank() && d < y.rank(); ++d) {
      const std::size_t dim = x[x.rank() - 1 - d];
      const std::size_t y_dim = y[y.rank() - 1 - d];
      row += index % dim % y_dim * stride;
      index /= dim;
      stride *= y_dim;
    }
    return row;
  }
};

/// Operators whose kernels take sequences that lie apart, as a cache's do.
bool reads_sequences_apart(const Op& op) {
  return std::holds_alternative<Rope>(op) || std::holds_alternative<RepeatHeads>(op) ||
         std::holds_alternative<AttentionScores>(op) ||
         std::holds_alternative<AttentionValues>(op) || std::holds_alternative<SparseValues>(op) ||
         std::holds_alternative<TiledAttention>(op) || std::holds_alternative<CacheAppend>(op) ||
         std::holds_alternative<CacheEvict>(op) || std::holds_alternative<JoinRows>(op) ||
         is_message(op) || std::holds_alternative<MissingTokens>(op) ||
         std::holds_alternative<TokenRows>(op) || std::holds_alternative<TokenStates>(op) ||
         std::holds_alternative<StoreStates>(op);
}

}  // namespace

void run_fast(const Call& call) {
  const auto scattered = [](const Operand& x) { return x.data != nullptr && !x.contiguous(); };
  if (reads_sequences_apart(call.node.op) ||
      std::none_of(call.inputs.begin(), call.inputs.end(), scattered)) {
    return std::visit(FastKernels{call}, call.node.op);
  }
  // Cache rows that a step-by-step kernel reads, as after torch.cat: in one piece.
  std::vector<Operand> inputs(call.inputs.begin(), call.inputs.end());
  std::vector<Floats> copies;
  for (Operand& x : inputs) {
    if (!scattered(x)) continue;
    const std::size_t n = x.shape.elements() / x.shape[0];
    const Floats& copy = copies.emplace_back(allocate_floats(x.shape.elements()));
    for (std::size_t b = 0; b < x.shape[0]; ++b) {
      std::copy_n(x.sequence(b), n, copy.get() + b * n);
    }
    x.data = copy.get();
    x.batch_stride = n;
  }
  std::visit(FastKernels{{call.node, inputs, call.output, call.symbols}}, call.node.op);
}

bool works_in_place(const Op& op) {
  return std::holds_alternative<Elementwise>(op) || std::holds_alternative<GatedActivation>(op) ||
         std::holds_alternative<Softmax>(op) || std::holds_alternative<Rope>(op);
}

}  // namespace kvcast::execute
