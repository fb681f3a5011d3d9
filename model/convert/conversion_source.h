/// Shared by all conversions of a checkpoint: checks the source, compares, writes the result.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/convert/checkpoint_writer.h"
#include "model/io/weights/checkpoint.h"
#include "model/record/recording.h"

namespace kvcast {

/// Called with the number of steps done and of all steps; may be null.
using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;

/// What a conversion changed.
struct ConversionReport {
  Architecture before;
  Architecture after;
  std::uint64_t parameters_before = 0;
  std::uint64_t parameters_after = 0;
  double kv_cache_ratio = 1;  ///< bytes of the self-attention cache, after / before
  std::vector<std::string> copied_files;

  /// Sets the parameters and the cache ratio from the recordings of the two models.
  void compare(const Recording& recorded_before, const Recording& recorded_after);
};

/// The configuration in Hugging Face's form, also for a GGUF file, with the dtype of the weights to
/// write.
nlohmann::json source_config(const Checkpoint& checkpoint, DType dtype);
/// What is left of a config.json for the text model's weights as plain numbers.
nlohmann::json config_of(nlohmann::json config, const Architecture& a, DType dtype);

/// The weights of a model, by their names in the forward pass.
std::map<std::string, TensorInfo> weights_of(const Recording& recording);

/// A weight to write to a file under `name`.
TensorToWrite tensor_to_write(const std::string& name, const TensorInfo& info, DType dtype);

/// Throws Error unless the checkpoint has every weight in its shape, and no others.
void check_source(const Checkpoint& checkpoint, const Recording& recording);

/// Writes the converted checkpoint: the configuration, each tensor, and the tokenizer of the
/// source. `write(i, writer)` writes the numbers of tensors[i].
void write_converted(const Checkpoint& source, const std::filesystem::path& output,
                     const nlohmann::json& config, const std::vector<TensorToWrite>& tensors,
                     const std::function<void(std::size_t, CheckpointWriter&)>& write,
                     const Progress& on_tensor, ConversionReport& report);

}  // namespace kvcast
