/// The checkpoints that a model's passes read beside its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/execute/weight_store.h"
#include "model/forward/recorded_pass.h"
#include "model/io/weights/checkpoint.h"
#include "model/methods/placement.h"

namespace kvcast::execute {

/// Checkpoints of the models that methods name, by name.
using OpenedModels = std::map<std::string, Checkpoint>;
/// Null: a checkpoint by its path.
using OpenModel = std::function<Checkpoint(const std::string& name)>;

/// The model of that name, which is opened once.
const Checkpoint& open_model(const std::string& name, const OpenModel& open, OpenedModels& opened);

/// Where all weights are: those of the base, and of helper models, which are opened if they are
/// parts of it or linear maps. Maps that no folder is named for are random numbers of `seed`; those
/// of a random base are anyway. Throws Error for such maps without a seed.
std::vector<ModelWeights> find_weights(const Checkpoint& base,
                                       const std::vector<HelperModel>& helpers,
                                       OpenedModels& opened,
                                       std::optional<std::uint64_t> seed = {});

/// A checkpoint made for a method runs under it, and no other does. `conversion`: the recording's.
/// Throws Error.
void check_converted(const Checkpoint& checkpoint, const std::string& conversion,
                     const std::vector<MethodSpec>& methods);

}  // namespace kvcast::execute
