/// A step of training: passes of micro-batches, forward and back, and the optimiser's update.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/kv_predictor.h"
#include "model/gradient/gradient.h"
#include "model/record/recording.h"

namespace kvcast {

struct TrainingOptions {
  Recompute recompute = Recompute::None;
  /// Of the weights' gradients; absent: that of the weights.
  std::optional<DType> gradients = {};
  /// Of the optimiser's moments, and of a copy of weights that are narrower.
  DType states = DType::FP32;
  AdamW optimizer = {.weight_decay = 0.1};  ///< vectors (biases, norms) do not decay
  double z_loss = 0;
  /// Of embeddings, of what a layer's branches give (before a norm behind it), and of eager
  /// attention's probabilities; a tiled attention draws its own without memory, and has none here.
  double dropout = 0;
  /// Parts of each sequence whose logits live one after another: the head's product and the loss of
  /// a part are followed by their way back. Nothing is computed twice.
  std::uint64_t loss_chunks = 1;
  /// Of KV Prediction's three losses: the base's cross-entropy, the auxiliary's, and the sum over
  /// layers of the mean absolute errors of keys and values. The paper's last one is 1 over the
  /// layers, the released configurations' 1.
  double base_loss = 1;
  double auxiliary_loss = 1;
  double consistency_loss = 1;
  /// Of each micro-batch's gradient; the group sums it. Size 1: one device.
  RankGroup replicas = {};
  std::uint64_t replica = 0;  ///< this device's place among them
  /// Devices that split heads and widths (tp, sequence_parallel) or layers (pp), and this one's
  /// place among them: stage · tp + slice. Each clips by the norm of all gradients; the exchange of
  /// that number is not recorded.
  Parallelism split = {};
  std::uint64_t place = 0;
  std::vector<std::size_t> stage_layers = {};  ///< see stage_ends()
  /// The devices of the first stage and the last, where a tied embedding's gradient is a sum.
  RankGroup ends = {};
  FindModel find_model = {};  ///< of models that methods name
  /// Null: all; of KV Prediction the auxiliary and the predictor.
  std::function<bool(const std::string& weight)> trains = nullptr;
};

/// Throws Error for a chance that is not from 0 to below 1.
void check_dropout(double probability, const std::string& place);
/// Throws Error for parts without a token.
void check_loss_chunks(std::uint64_t chunks, std::uint64_t seq_len);

/// Symbols: `batch` sequences of a micro-batch, `prompt_len` tokens of each. What is of the whole
/// model is left 0 in later stages of a pipeline.
struct TrainingRecording {
  Architecture model;  ///< in the shape that the methods gave it
  std::vector<HelperModel> helper_models;
  std::string
      conversion;  ///< see MethodEffects: what a checkpoint must have become; empty: nothing
  std::optional<PredictorConfig> predictor;  ///< KV Prediction's linear maps
  Symbols symbols;
  TrainingPass first;  ///< of the step: gradients start at 0
  TrainingPass next;   ///< the others, whose gradients are added
  /// The sums over devices, the gradient's norm, its result, and AdamW on every trained weight.
  Graph update;
  std::uint64_t parameters = 0;          ///< of the whole model
  std::uint64_t trained_parameters = 0;  ///< likewise
  std::uint64_t active_parameters = 0;   ///< likewise, those that serve one token
  /// Of the tokens' embedding, in which nothing is multiplied; 0 where the head shares it.
  std::uint64_t embedding_parameters = 0;
  /// FLOPs of a micro-batch's products, those with weights and those of attention, in which
  /// utilisation is counted: those that run on a device, and the whole model's, each once.
  Count hardware_flops;
  Count model_flops;
  // Of all weights and of what is trained, on a device:
  Count weight_bytes;
  Count gradient_bytes;
  Count optimizer_bytes;
};

/// Names of inputs beside the forward pass's own: token ids [batch, tokens], below 0: none; and one
/// over the number of targets of a step.
inline constexpr std::string_view targets_name = "targets";
inline constexpr std::string_view target_share_name = "target_share";
/// The update's input: ClipFactor's settings [4].
inline constexpr std::string_view optimizer_name = "optimizer";

/// Next-token prediction on whole sequences. Throws Error for methods without training, for models
/// with an operator without an adjoint, and for encoder-decoder models.
TrainingRecording record_training(const Architecture& configured,
                                  const std::vector<MethodSpec>& methods, const Lowering& lowering,
                                  const TrainingOptions& options = {});

/// Bytes of activations at the given sizes: the most that live at once, and those that live between
/// the forward pass and the way back. An operator's result takes the place of an operand that
/// nothing reads after it, where kernels work `in_place`. Those of eager frameworks do not, and the
/// way back begins beside two more tensors as wide as the loss's: PyTorch's nll_loss and
/// log_softmax each have a gradient.
struct ActivationBytes {
  std::uint64_t peak = 0;
  std::uint64_t saved = 0;
  /// The most that live at once with the weights' gradients that are made by then.
  std::uint64_t peak_with_gradients = 0;
};
ActivationBytes activation_bytes(const TrainingPass& pass, std::span<const std::uint64_t> symbols,
                                 bool in_place = true);

}  // namespace kvcast
