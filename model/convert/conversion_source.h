/// What conversions read of the checkpoint that they start from, and say of what they changed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/io/tensors/safetensors.h"
#include "model/io/weights/checkpoint.h"
#include "model/record/recording.h"

namespace kvcast {

/// What a conversion changed.
struct ConversionReport {
  Architecture before;
  Architecture after;
  std::uint64_t parameters_before = 0;
  std::uint64_t parameters_after = 0;
  double kv_cache_ratio = 1;  ///< bytes of the decoder's own cache, after / before
  std::vector<std::string> copied_files;

  /// The parameters and the cache, from the recordings of the two models.
  void compare(const Recording& recorded_before, const Recording& recorded_after);
};

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
