/// What conversions read of the checkpoint that they start from.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/recording.h"
#include "model/weights/checkpoint.h"
#include "model/weights/safetensors.h"

namespace kvcast {

/// The configuration in Hugging Face's form, a GGUF file's as well, with the element type of the
/// weights to be written.
nlohmann::json source_config(const Checkpoint& checkpoint, DType dtype);

/// The weights of a model by their name in the forward pass.
std::map<std::string, TensorInfo> weights_of(const Recording& recording);

/// A weight's place in a file, under `name`.
TensorToWrite tensor_to_write(const std::string& name, const TensorInfo& info, DType dtype);

/// Throws Error unless every weight is there in its shape, and nothing besides.
void check_source(const Checkpoint& checkpoint, const Recording& recording);

}  // namespace kvcast
