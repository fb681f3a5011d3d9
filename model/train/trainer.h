/// Trains a model on this machine: steps of next-token prediction on windows of a text.
///
/// A step runs the recorded passes of training (model/record/training_recording.h) on real weights.
/// Everything repeats bit for bit, for any number of threads: also when training is stopped and
/// resumed from a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/execute/executor.h"
#include "model/execute/training_store.h"
#include "model/record/training_recording.h"
#include "model/train/learning_rate.h"
#include "model/train/token_windows.h"

namespace kvcast::train {

struct TrainSettings {
  std::uint64_t batch = 8;  ///< sequences of a step
  std::uint64_t micro_batches = 1;
  LearningRate rate;
  double clip = 1;  ///< norm of the gradient at most; 0: any
  double z_loss = 0;
  double weight_decay = 0.1;
  Recompute recompute = Recompute::None;
  Lowering lowering = {Kernels::Fused, Kernels::Fused, DType::FP32, DType::FP32, DType::FP32};
};

struct StepReport {
  std::uint64_t step = 0;  ///< from 1
  double loss = 0;         ///< mean over the step's tokens, in nats, with the z-loss
  double gradient_norm = 0;
  double learning_rate = 0;
};

class Trainer {
 public:
  /// Reads the weights. Throws Error when the model or the methods do not train, and as
  /// WeightStore does. The checkpoint must outlive it.
  Trainer(const Checkpoint& checkpoint, const std::vector<MethodSpec>& methods,
          const TrainSettings& settings);

  /// Reads the next sequences and moves the weights. Throws Error (Fault::Run) with the step, and
  /// where one is to blame the tensor, when the loss or a gradient is not finite; the trainer is
  /// then of no more use.
  StepReport step(TokenWindows& text);
  /// The mean loss over all windows, without the z-loss.
  double loss_of(const TokenWindows& text);

  std::uint64_t steps_done() const { return steps_done_; }
  const TrainingRecording& recording() const { return recording_; }
  std::uint64_t store_bytes() const { return store_->bytes(); }

  /// Writes a checkpoint folder: the model in its family's own form, and the optimiser's states and
  /// `progress` (its "steps" is set) beside it. The folder is there completely or not at all.
  void save(const std::filesystem::path& folder, const nlohmann::json& config,
            const std::filesystem::path& tokenizer, nlohmann::json progress) const;
  /// Takes the states of a saved folder, whose weights the trainer's checkpoint has. Throws Error
  /// when the file is damaged or of another model.
  void restore(const std::filesystem::path& folder);

 private:
  double run_pass(const TrainingRecording& recording, const execute::Executor& executor,
                  const std::vector<std::span<const TokenId>>& windows, double share);
  /// The first weight whose gradient is not finite.
  std::string gradient_to_blame() const;

  TrainSettings settings_;
  TrainingRecording recording_;
  TrainingRecording evaluation_;  ///< without gradients
  std::unique_ptr<execute::TrainingStore> store_;
  std::optional<execute::Executor> first_;
  std::optional<execute::Executor> next_;
  std::optional<execute::Executor> update_;
  std::optional<execute::Executor> evaluate_;
  execute::Arena arena_;
  execute::CacheStore cache_;
  std::uint64_t steps_done_ = 0;
};

/// What save() wrote beside the states. Throws Error.
nlohmann::json read_progress(const std::filesystem::path& folder);

}  // namespace kvcast::train
