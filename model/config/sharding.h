/// How a model is spread over devices, and the part that one of them has.
///
/// Devices are numbered (stage · dp + replica) · tp + slice: those of a tensor-parallel group lie
/// side by side, so that they share a node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/architecture.h"
#include "model/graph/collective.h"
#include "model/graph/graph.h"

namespace kvcast {

struct Parallelism {
  std::uint64_t tp = 1;  ///< tensor parallel: heads, MLPs and vocabulary are split
  std::uint64_t pp = 1;  ///< pipeline: layers are split into stages
  std::uint64_t ep = 1;  ///< expert parallel: the tp·dp devices of a stage hold E/ep experts each
  /// Data parallel: sequences are split. Experts too are copied, unless ep spreads them.
  std::uint64_t dp = 1;
  /// Norms and residuals of prompts work on tokens/tp rows of each device.
  bool sequence_parallel = false;

  std::uint64_t of_stage() const { return tp * dp; }
  std::uint64_t devices() const { return of_stage() * pp; }
  /// Devices that split each expert.
  std::uint64_t expert_tp() const { return ep > 1 ? of_stage() / ep : tp; }
  bool is_one() const { return devices() == 1; }
  bool operator==(const Parallelism&) const = default;
};
/// "tp 8, ep 8"
std::string to_string(const Parallelism& p);
/// From "tp", "pp", "ep" and "dp", whole numbers from 1 on; absent or empty: 1. Experts on more
/// devices than tp and dp make, without a dp: attention is data parallel over as many. Throws
/// Error, naming the flag "--tp", for other words.
Parallelism parse_parallelism(const std::map<std::string, std::string>& words);

/// Throws Error, starting with the flag and naming the numbers that would do, when the model does
/// not divide: heads, MLPs and experts must, and tp divides or is a multiple of key-value heads.
void check_parallelism(const Architecture& a, const Parallelism& p);

/// Whether norms and residuals of the model may work on a part of the tokens.
bool takes_sequence_parallel(const Architecture& a);

/// The layers of each stage: as many in each, the first ones a layer more. Or by `sizes`, one for
/// each stage. Throws Error when they are not the model's.
std::vector<std::size_t> stage_ends(const Architecture& a, std::uint64_t pp,
                                    const std::vector<std::size_t>& sizes = {});

/// One device of several.
struct DevicePlace {
  Parallelism plan;
  std::uint64_t device = 0;
  std::vector<std::size_t> stage_layers = {};  ///< see stage_ends()
  /// Each layer counts what its experts read by itself, as a run must know its own rows. Forecasts
  /// count all layers together.
  bool counts_by_layer = false;
  /// Which rank of a placement (kvr, tsp) these devices are; those of each such group are numbered
  /// behind those of the groups before.
  std::uint64_t rank = 0;
};

/// One device's part of a model.
class Sharding {
 public:
  /// `whole` must outlive it. Throws Error as check_parallelism and stage_ends do.
  Sharding(const Architecture& whole, const DevicePlace& place);

  const Architecture& whole() const { return *whole_; }
  /// The model with the heads, widths and vocabulary of this device, all layers.
  const Architecture& part() const { return part_; }
  const Parallelism& plan() const { return place_.plan; }
  bool counts_by_layer() const { return place_.counts_by_layer; }
  std::uint64_t slice() const { return place_.device % plan().tp; }
  std::uint64_t replica() const { return in_stage() / plan().tp; }
  std::uint64_t stage() const { return place_.device / plan().of_stage(); }
  bool is_first_stage() const { return stage() == 0; }
  bool is_last_stage() const { return stage() + 1 == plan().pp; }
  /// Its layers are first_layer() ... end_layer() - 1.
  std::size_t first_layer() const { return first_layer_; }
  std::size_t end_layer() const { return end_layer_; }

  /// The devices that share a layer's heads.
  RankGroup tensor_group() const;
  /// The same slice of each replica: between them tokens go to experts and back. A replica's other
  /// slices have the same tokens, and their sums of experts are added as those of other products.
  RankGroup replica_group() const;
  /// The same slice of the stage before or after this one.
  std::uint64_t device_of_stage(std::uint64_t stage) const {
    return first_device() + stage * plan().of_stage() + in_stage();
  }
  /// The device in this one's place of another rank's group.
  std::uint64_t device_of_rank(std::uint64_t rank) const {
    return rank * plan().devices() + place_.device;
  }

  /// E/ep experts, from this one on.
  /// Without a plan that spreads experts there are no copies of them.
  std::uint64_t experts_here(const Experts& e) const {
    return plan().ep > 1 ? (e.routing.num_experts + e.copies) / plan().ep : e.routing.num_experts;
  }
  std::uint64_t first_expert(const Experts& e) const {
    return in_stage() / plan().expert_tp() * experts_here(e);
  }

  /// Of the weight "layers.3.query.weight" whose shape here is `shape`; none: all of it.
  std::optional<WeightPart> part_of(const std::string& name, const std::vector<Count>& shape) const;
  /// Products whose inputs are split give sums; of these devices the first alone adds the bias.
  bool adds_bias(const std::string& prefix) const;

 private:
  std::uint64_t first_device() const { return place_.rank * plan().devices(); }
  std::uint64_t in_stage() const { return place_.device % plan().of_stage(); }

  const Architecture* whole_;
  DevicePlace place_;
  std::size_t first_layer_ = 0;
  std::size_t end_layer_ = 0;
  Architecture part_;
};

}  // namespace kvcast
