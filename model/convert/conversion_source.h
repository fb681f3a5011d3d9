/// What all conversions of a checkpoint share: checking the source, comparing, writing the result.
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

/// Called with the steps done and all steps; may be null.
using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;

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

/// Writes the converted checkpoint: the configuration, each tensor, and the tokenizer that lies
/// beside the source. `write(i, writer)` writes the numbers of tensors[i].
void write_converted(const Checkpoint& source, const std::filesystem::path& output,
                     const nlohmann::json& config, const std::vector<TensorToWrite>& tensors,
                     const std::function<void(std::size_t, CheckpointWriter&)>& write,
                     const Progress& on_tensor, ConversionReport& report);

}  // namespace kvcast
