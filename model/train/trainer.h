/// Trains a model on this machine: steps of next-token prediction on windows of a text.
///
/// A step runs the recorded passes of training (model/record/training_recording.h) on real weights.
/// Everything repeats bit for bit, for any number of threads: also when training is stopped and
/// resumed from a checkpoint. Ranks read a part of each batch each, and add their gradients in the
/// ranks' order: the same for the same number of ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/execute/executor.h"
#include "model/execute/opened_models.h"
#include "model/execute/plain_loops.h"
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
  /// Of KV Prediction's losses: see TrainingOptions.
  double base_loss = 1;
  double auxiliary_loss = 1;
  std::optional<double> consistency_loss = {};  ///< absent: 1 over the base's layers
  std::uint64_t seed = 1;                       ///< of linear maps that no folder is named for
  Recompute recompute = Recompute::None;
  std::uint64_t loss_chunks = 1;  ///< see TrainingOptions
  bool count = false;             ///< steps run in plain loops, see Trainer::counted()
  Lowering lowering = {Kernels::Fused, Kernels::Fused, DType::FP32, DType::FP32, DType::FP32};
};

/// In a checkpoint's folder: KV Prediction's linear maps.
inline constexpr const char* predictor_folder = "predictor";

/// Mean over tokens, in nats.
struct Loss {
  double sum = 0;             ///< of the parts with their weights
  std::vector<double> parts;  ///< without them, as Trainer::loss_parts() names them
};

struct StepReport {
  std::uint64_t step = 0;  ///< from 1
  Loss loss;               ///< with the z-loss
  double gradient_norm = 0;
  double learning_rate = 0;
};

/// Work of all passes so far: by the graphs, and as the plain loops did it.
struct CountedSteps {
  std::uint64_t analytic_flops = 0;
  std::uint64_t analytic_bytes = 0;
  execute::CountedWork counted;
};

class Trainer {
 public:
  /// Reads the weights. `messenger`: of the ranks that train together, one of which this is; null:
  /// one alone. All outlive the trainer. Throws Error when the model or the methods do not train,
  /// and as WeightStore does.
  Trainer(const Checkpoint& base, const std::vector<MethodSpec>& methods,
          const TrainSettings& settings, execute::Messenger* messenger = nullptr);

  /// Reads the next sequences and moves the weights. Throws Error (Fault::Run), on all ranks, when
  /// the loss or a gradient is not finite, with the step and the first operator or the weight whose
  /// numbers are not; the trainer is then of no more use.
  StepReport step(TokenWindows& text);
  /// Over all windows, without the z-loss.
  Loss loss_of(const TokenWindows& text);
  /// Asked after each operator of a pass. Where it says so on any rank, step() and loss_of() throw
  /// Interrupted on all of them, and the weights stay those of the last whole step.
  void stop_when(std::function<bool()> stops) { stops_ = std::move(stops); }

  /// What the loss is the sum of; empty: of one.
  const std::vector<std::string>& loss_parts() const { return loss_parts_; }
  /// The model that is trained: the base, or KV Prediction's auxiliary model.
  const Checkpoint& trained() const;
  std::uint64_t steps_done() const { return steps_done_; }
  /// Nothing unless the settings ask for it. On several ranks this one's.
  const CountedSteps& counted() const { return counted_; }
  const TrainingRecording& recording() const { return recording_; }
  std::uint64_t store_bytes() const { return store_->bytes(); }

  /// Writes a checkpoint folder: the trained model in its family's own form, KV Prediction's linear
  /// maps in the folder `predictor` in it, and beside it the optimiser's states and `progress` (its
  /// "steps" is set). The folder is there completely or not at all.
  void save(const std::filesystem::path& folder, const nlohmann::json& config,
            const std::filesystem::path& tokenizer, nlohmann::json progress) const;
  /// Takes the states of a saved folder, whose weights the trainer's checkpoint has. Throws Error
  /// when the file is damaged or of another model.
  void restore(const std::filesystem::path& folder);

 private:
  /// A recorded pass and what its results are parts of.
  struct RunPass {
    const TrainingRecording& recording;
    const Graph& graph;
    execute::Executor executor;
    struct Part {
      std::size_t index;
      double weight;
    };
    std::vector<Part> results;
  };
  execute::Loops loops() const;
  RunPass run_pass_of(const TrainingRecording& recording, const Graph& graph);
  /// Counts the work, if asked for.
  execute::Output run_of_step(const execute::Executor& executor, const Graph& graph,
                              const Symbols& symbols, const SymbolValues& values,
                              const execute::Inputs& inputs, execute::Messenger* messenger);
  /// `blamed`: if empty, gets the operator that makes the loss not finite.
  void add_losses(const RunPass& pass, const std::vector<std::span<const TokenId>>& windows,
                  double share, Loss& loss, std::string* blamed = nullptr);
  /// The sum of the losses of all ranks' passes, which `run` adds. Throws Interrupted on all ranks.
  void add_ranks(Loss& loss, const std::function<void()>& run) const;
  std::uint64_t rank() const;
  std::uint64_t ranks() const;
  void save_predictor(const std::filesystem::path& folder) const;
  /// The first operator with a result that is not finite: the pass runs again.
  std::string node_to_blame(const RunPass& pass, const SymbolValues& values,
                            const execute::Inputs& inputs);
  /// The first weight whose gradient is not finite.
  std::string gradient_to_blame() const;

  const Checkpoint& base_;
  TrainSettings settings_;
  execute::Messenger* messenger_;
  execute::OpenedModels opened_;
  TrainingRecording recording_;
  TrainingRecording evaluation_;  ///< without gradients
  std::vector<std::string> loss_parts_;
  std::unique_ptr<execute::TrainingStore> store_;
  std::optional<RunPass> first_;
  std::optional<RunPass> next_;
  std::optional<RunPass> evaluate_;
  std::optional<execute::Executor> update_;
  execute::Arena arena_;
  execute::CacheStore cache_;
  std::uint64_t steps_done_ = 0;
  std::function<bool()> stops_;
  CountedSteps counted_;
};

/// What save() wrote beside the states. Throws Error.
nlohmann::json read_progress(const std::filesystem::path& folder);

}  // namespace kvcast::train
