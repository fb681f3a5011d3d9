/// A model with its weights: a Hugging Face folder (config.json and safetensors) or a GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/architecture.h"
#include "model/graph/graph.h"
#include "model/io/tensors/stored_tensor.h"
#include "model/io/weights/weight_map.h"

namespace kvcast {

struct GgufFile;

/// Reads a weight of the forward pass row by row, however the file stores it.
class WeightReader {
 public:
  /// `tensors` is one, or as many as the source has pieces.
  WeightReader(std::vector<StoredTensor> tensors, WeightSource source);
  /// Random numbers instead of a stored tensor, the same for the same seed; those of a vector are
  /// near `center`.
  WeightReader(std::vector<std::uint64_t> shape, std::uint64_t seed, float center);
  /// The rows of the weight that begin at row `first`, as fp32; a row is everything after the
  /// first dimension, out.size() a multiple of it. Thread-safe. Throws Error on numbers that are
  /// not finite.
  void read_rows(std::size_t first, std::span<float> out) const;
  /// From here on the weight is a part of what the tensors hold; rows beyond them are 0.
  void take_part(const TensorInfo& weight);
  /// The same as fp64: stored FP64 exactly, all else, random numbers too, the fp32 values.
  void read_rows(std::size_t first, std::span<double> out) const;
  /// The type of the weight's rows where they lie in the file as they are; none where they are
  /// made of what it holds.
  std::optional<DType> stored_dtype() const;
  /// Rows as the file holds them, of a weight with a stored_dtype(). Thread-safe. Throws Error as
  /// read_rows does.
  void read_stored(std::size_t first, std::size_t rows, std::span<std::byte> out) const;
  /// Lets go of the files' pages in memory; nothing to do for random numbers.
  void forget() const;

  const StoredTensor& tensor() const { return tensors_.front(); }
  /// The weight's own shape.
  std::vector<std::uint64_t> shape() const;

 private:
  template <typename N>
  void read_numbers(std::size_t first, std::span<N> out) const;
  template <typename N>
  void read_part(std::size_t first, std::span<N> out) const;

  /// The row of the whole weight that row `row` of the part is; stored_rows or more: none.
  std::uint64_t row_of_whole(std::size_t row) const;
  /// Row `row` of what the source's rows are taken from.
  template <typename N>
  void read_row(std::uint64_t row, std::span<N> out) const;
  /// Rows from `first` on that are columns of a stored matrix.
  template <typename N>
  void read_columns(std::size_t first, std::span<N> out) const;

  std::vector<StoredTensor> tensors_;
  WeightSource source_;
  std::uint64_t seed_ = 0;
  float center_ = 0;
  /// What is read of the tensors' rows; none: all.
  struct RowPart {
    std::uint64_t stored_rows;
    std::uint64_t stored_block;  ///< rows
    std::uint64_t first_block;
    std::uint64_t block;       ///< rows here
    std::uint64_t first_row;   ///< of each stored block
    std::uint64_t stored_row;  ///< numbers
    std::uint64_t row;         ///< numbers here
    std::uint64_t first_number;
  };
  std::optional<RowPart> part_;
};

class Checkpoint {
 public:
  /// Reads headers and configuration, no weights. Throws Error: no such file, no checkpoint there,
  /// a broken header or configuration.
  explicit Checkpoint(const std::filesystem::path& path);
  /// A model with random weights, to measure what its shape costs and to train it: norms are near
  /// 1, biases near 0, and products with its matrices are about as large as their input.
  Checkpoint(Architecture architecture, std::uint64_t seed);

  /// Tensors that are no model: the linear maps of KV Prediction. Their names are `prefix` and the
  /// weight's name; the architecture stays empty.
  static Checkpoint of_tensors(const std::filesystem::path& folder, std::string_view prefix);
  /// The same model with some of its layers: layer i is layer kept[i] of this one. Throws Error as
  /// prune_layers does.
  Checkpoint pruned(std::span<const std::size_t> kept) const;

  const Architecture& architecture() const { return architecture_; }
  const std::filesystem::path& path() const { return path_; }
  bool is_random() const { return seed_.has_value(); }
  /// The GGUF file, for its metadata; null for a folder.
  const GgufFile* gguf() const { return gguf_.get(); }

  /// Throws Error naming the file and the tensor unless the weight is there in this shape; of a
  /// part in the whole one's.
  void check(const TensorInfo& weight) const;
  /// `weights` are all weights of the model, each checked before. Throws Error naming a stored
  /// tensor that none of them uses, in whole or in part, unless it is a known buffer.
  void check_nothing_left(const std::vector<std::string>& weights) const;
  /// Whether it has the weight, in a file.
  bool holds(const std::string& weight) const;
  /// Throws Error naming the file and the tensors looked for when the weight is missing.
  WeightReader reader(const std::string& weight) const;
  /// The same, or random numbers in the weight's shape; of a part those of the whole weight.
  WeightReader reader(const TensorInfo& weight) const;
  /// From here on only some rows are read.
  void expect_look_ups() const;

 private:
  Checkpoint() = default;
  void take(std::vector<StoredTensor> stored);
  void untie_own_head();
  WeightSource source_of(const std::string& weight) const;
  HasTensor has_tensor() const;
  /// The tensors of the first name that the file has; empty when absent.
  std::vector<const StoredTensor*> find(const WeightSource& source) const;

  std::filesystem::path path_;
  std::shared_ptr<const GgufFile> gguf_;
  Architecture architecture_;
  std::optional<std::uint64_t> seed_;         ///< of random weights
  std::optional<std::string> tensor_prefix_;  ///< of of_tensors()
  std::optional<Architecture> whole_;         ///< what the files hold, if more than the model
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

}  // namespace kvcast
