/// Writes a checkpoint folder (config, weights, tokenizer), completely or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/base/dtype.h"
#include "model/io/tensors/safetensors.h"

namespace kvcast {

class CheckpointWriter {
 public:
  /// Writes to a temporary place until commit(). Throws Error if `folder` exists and is not an
  /// empty folder, if it is named as a GGUF file, if its parent does not exist or cannot be
  /// written, for an element type that cannot be written, and for two tensors of one name.
  CheckpointWriter(std::filesystem::path folder, const nlohmann::json& config,
                   std::vector<TensorToWrite> tensors);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Without a commit, removes everything written.
  ~CheckpointWriter();

  /// Appends numbers to the tensors, in order, rounded to the element type. Throws Error
  /// (Fault::Run) if the disk is full or a number overflows the type.
  void write(std::span<const double> numbers);
  /// Copies the tokenizer's files from a folder. Returns their names.
  std::vector<std::string> copy_tokenizer(const std::filesystem::path& from);
  /// Moves the folder to its name in one step. All tensors must be written. `beside` writes further
  /// files into the folder that it is given.
  void commit(const std::function<void(const std::filesystem::path& here)>& beside = nullptr);

 private:
  void make_temporary();
  [[noreturn]] void fail(int error_number) const;
  void write_bytes(const void* bytes, std::size_t count);

  std::filesystem::path folder_;
  std::filesystem::path temporary_;  ///< next to folder_; empty: not made yet
  std::filesystem::path tokenizer_;  ///< folder to copy tokenizer files from
  std::vector<std::string> copied_;
  std::string config_;
  std::vector<TensorToWrite> tensors_;
  std::size_t tensor_ = 0;     ///< index of the tensor that the next numbers belong to
  std::uint64_t element_ = 0;  ///< index of the next number in that tensor
  int descriptor_ = -1;
  bool unnamed_ = false;  ///< the weights are in a file without a name
};

}  // namespace kvcast
