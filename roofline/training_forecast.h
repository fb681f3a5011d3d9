/// A step of training on devices that each hold a replica, or split its heads and widths, or its
/// layers: its time, FLOPs and memory.
///
/// Micro-batches of a step follow each other; then gradients are summed over the replicas and the
/// optimiser moves the weights. Sums run beside the way back (those and the gathers of sharded
/// weights beside both ways), and slow it; where only states are sharded, nothing runs beside the
/// gathers of the weights that the optimiser moved. Sharded gradients are summed after
/// each micro-batch, and sharded weights gathered anew for each way of it, as in PyTorch's FSDP.
/// Stages of a pipeline pass micro-batches on as pipeline_schedule.h says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/record/training_recording.h"
#include "roofline/estimator.h"

namespace kvcast::roofline {

/// What the replicas do not hold each by itself.
/// Source: Rajbhandari et al. 2020 (arXiv:1910.02054), stages 1 to 3.
enum class ShardedStates { None, Optimizer, Gradients, Weights };
/// "0" to "3". Throws Error.
ShardedStates parse_zero(std::string_view stage);

struct TrainingPoint {
  std::uint64_t batch = 1;  ///< sequences of a step, of all replicas
  std::uint64_t seq_len = 1;
  std::uint64_t micro_batches = 1;  ///< into which a replica's sequences are cut
};

/// FLOPs and bytes are sums over all devices; memory is that of one, the one that needs most. Times
/// are those of the device with most work, and sum to the step's.
struct TrainingForecast {
  double step_s = 0;
  double forward_s = 0;
  double backward_s = 0;       ///< with what is computed again
  double update_s = 0;         ///< of the optimiser
  double communication_s = 0;  ///< what messages add to the step; not in the three before
  double bubble_s = 0;         ///< of a pipeline: waiting for other stages
  double tokens_per_s = 0;
  /// Of products alone (training_recording.h): each once forward and once for each gradient, and
  /// all that run.
  double model_flops = 0;
  double hardware_flops = 0;
  double flops = 0;  ///< of all operators
  double bytes = 0;
  double mfu = 0;  ///< model_flops over what the devices' peak would do in the step
  double hfu = 0;  ///< the same of hardware_flops
  double weight_bytes = 0;
  double gradient_bytes = 0;
  double optimizer_bytes = 0;
  double saved_activation_bytes = 0;  ///< between forward passes and their way back, at most
  double activation_bytes = 0;        ///< the most that live at once
  double peak_memory_bytes = 0;
  bool fits = false;
  Bound bound = Bound::Compute;
};

/// Model FLOPs of a token as others count them, for P parameters that serve a token, L layers, D
/// numbers of a layer's query heads, T tokens.
struct FlopsConventions {
  double palm = 0;      ///< 6P + 12·L·D·T: Chowdhery et al. 2022 (arXiv:2204.02311), appendix B
  double llm_c = 0;     ///< 6P + 6·L·D·T: causal attention's half, karpathy/llm.c
  double megatron = 0;  ///< 6(P - input embedding) + 6·L·D·T: NVIDIA-NeMo/Megatron-Bridge
};

class TrainingForecaster {
 public:
  /// `virtual_stages`: parts of the layers that each stage has, at least 1 (pipeline_schedule.h).
  /// Throws Error when the methods or the devices do not train.
  TrainingForecaster(const Configuration& configuration, const TrainingOptions& options,
                     ShardedStates sharded = ShardedStates::None, std::uint64_t virtual_stages = 1);

  /// Of a device of the first stage.
  const TrainingRecording& recording() const { return parts_.front().recording; }
  const Rates& rates() const { return rates_; }
  std::uint64_t virtual_stages() const { return virtual_stages_; }
  DType gradient_dtype() const { return gradient_dtype_; }  ///< of weights
  /// Where nothing else is said: 1; in a pipeline as many as a replica has sequences, with virtual
  /// stages the multiple of the stages below.
  std::uint64_t default_micro_batches(std::uint64_t batch) const;
  TrainingForecast at(const TrainingPoint& point) const;
  FlopsConventions conventions(std::uint64_t seq_len) const;
  /// Operators of a step: "forward", "backward" and "update"; in a pipeline of each stage.
  std::vector<BreakdownRow> breakdown(const TrainingPoint& point) const;

 private:
  struct Pass {
    std::vector<OpGroup> forward;
    std::vector<OpGroup> backward;
    std::vector<OpGroup> attention;  ///< its gradients, which have a rate of their own
    StepCost step;                   ///< of the first two, in these parts
    StepCost attention_step;
  };
  /// The layers from one message of a pipeline to the next; without one all.
  struct Part {
    TrainingRecording recording;
    Pass first;
    Pass next;
    std::vector<OpGroup> update;  ///< with the norm, without the sums over devices
    double update_s = 0;
    double update_waiting_s = 0;  ///< of it, for the host
    // Of sums and gathers, whatever hides them:
    double of_step_s = 0;
    double of_pass_s = 0;  ///< of a micro-batch
    double alone_s = 0;    ///< of a step, with nothing beside them
    Count sent_bytes;      ///< to the next part
  };
  /// The micro-batches of the replica with most sequences, and their sizes. Small ones come first,
  /// as the trainer cuts a batch.
  struct Passes {
    SymbolValues large;
    SymbolValues small;
    std::uint64_t num_large;
    std::uint64_t num_small;

    const SymbolValues& first() const { return num_small > 0 ? small : large; }
    std::uint64_t more_small() const { return num_small > 0 ? num_small - 1 : 0; }
    std::uint64_t more_large() const { return num_small > 0 ? num_large : num_large - 1; }
  };
  struct PassTime;
  struct PartTime;
  RankGroup on_devices(RankGroup group) const;
  Pass compile(const TrainingPass& pass) const;
  void make_parts(const Configuration& c, TrainingOptions options);
  /// Each replica updates the part whose states it has.
  double update_share() const;
  void add_communication(const Configuration& c, Part& part) const;
  Passes passes(const Part& part, const TrainingPoint& point) const;
  PassTime pass_time(const Pass& pass, const SymbolValues& values) const;
  PartTime part_time(const Part& part, const TrainingPoint& point) const;
  /// What messages add that have so much work beside them.
  double added(double messages_s, double work_s) const;
  /// Sets the step's time, its parts and what bounds it. `times`: of each of parts_.
  void add_times(TrainingForecast& f, const std::vector<PartTime>& times,
                 std::uint64_t micro_batches) const;
  void add_memory(TrainingForecast& f, const TrainingPoint& point) const;

  std::uint64_t layers_ = 0;
  std::uint64_t attention_width_ = 0;  ///< of the query heads of all layers
  Lowering lowering_;
  Rates rates_;
  Rates gradient_rates_;              ///< of tiled attention's gradients
  double peak_flops_per_second_ = 0;  ///< of a device, by its datasheet
  std::uint64_t tp_ = 1;
  std::uint64_t replicas_ = 1;
  std::uint64_t stages_ = 1;
  std::uint64_t devices_ = 1;
  std::uint64_t virtual_stages_ = 1;
  std::uint64_t loss_chunks_ = 1;
  ShardedStates sharded_;
  DType gradient_dtype_ = DType::FP32;
  Mode mode_;
  std::vector<Part> parts_;            ///< that differ
  std::vector<std::size_t> row_;       ///< the model's parts in order, by their place in parts_
  std::vector<CollectiveCurve> hops_;  ///< of a pipeline, from each stage to the next
  /// Of a stage's devices, where all have what is sent.
  std::optional<CollectiveCurve> gather_;
};

}  // namespace kvcast::roofline
