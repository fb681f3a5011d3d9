/// Writes a checkpoint folder, config.json and model.safetensors: all of it, or nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/base/dtype.h"
#include "model/io/tensors/safetensors.h"

namespace kvcast {

class CheckpointWriter {
 public:
  /// Begins the folder; what is written lies elsewhere until commit(). Throws Error: something is
  /// there that is no empty folder, the folder above it does not exist or cannot be written, an
  /// element type other than fp32, two tensors of one name.
  CheckpointWriter(std::filesystem::path folder, const nlohmann::json& config,
                   std::vector<TensorToWrite> tensors);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Without a commit nothing is left.
  ~CheckpointWriter();

  /// The next numbers of the tensors, in their order, rounded to the element type. Throws Error
  /// (Fault::Run) when the disk cannot take them, or when they overflow the type.
  void write(std::span<const double> numbers);
  /// The tokenizer's files of this folder come along. Returns their names.
  std::vector<std::string> copy_tokenizer(const std::filesystem::path& from);
  /// The folder appears under its name, in one step. All tensors must be written.
  void commit();

 private:
  void make_temporary();
  [[noreturn]] void fail(int error_number) const;
  void write_bytes(const void* bytes, std::size_t count);

  std::filesystem::path folder_;
  std::filesystem::path temporary_;  ///< beside it; empty: not made yet
  std::filesystem::path tokenizer_;  ///< folder that files are copied from
  std::vector<std::string> copied_;
  std::string config_;
  std::vector<TensorToWrite> tensors_;
  std::size_t tensor_ = 0;     ///< that the next numbers belong to
  std::uint64_t element_ = 0;  ///< of it
  int descriptor_ = -1;
  bool unnamed_ = false;  ///< the weights lie in a file without a name
};

}  // namespace kvcast
