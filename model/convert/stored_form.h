/// The tensors of a Hugging Face checkpoint that is written in its family's own form: weights of
/// the forward pass fused, transposed, or taken apart, as transformers stores them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/convert/checkpoint_writer.h"
#include "model/convert/conversion_source.h"
#include "model/convert/dense_matrix.h"
#include "model/record/recording.h"

namespace kvcast {

/// A tensor of the file and what it is made of.
struct StoredForm {
  struct Part {
    std::string weight;               ///< of the forward pass, "layers.3.query.weight"
    std::vector<std::uint64_t> rows;  ///< of the tensor's; empty: all, in order
  };
  TensorToWrite tensor;
  std::vector<Part> parts;
  std::optional<std::uint64_t> first_row = {};  ///< of the weight, where this is one of its pieces
  std::uint64_t blocks = 0;                     ///< [blocks, rows, in]; 0: [rows, in]
  bool transposed = false;                      ///< each block
  double offset = 0;                            ///< is not stored
};

/// Rows [first, first + count) of a weight of the forward pass.
using WeightRows =
    std::function<DenseMatrix(const std::string& weight, std::size_t first, std::size_t count)>;

/// The tensors that hold all weights of a recorded model.
std::vector<StoredForm> stored_forms(const Architecture& a, const Recording& recording,
                                     DType dtype);

/// Writes a tensor's numbers, a block at a time.
void write_stored(const StoredForm& form, const WeightRows& rows_of, CheckpointWriter& writer);

/// Writes report.after, recorded, with these rows as its weights. Throws Error where `config`, read
/// again, would say other layers.
void write_in_own_form(const Checkpoint& source, const std::filesystem::path& output,
                       const nlohmann::json& config, const Recording& recording, DType dtype,
                       const WeightRows& rows_of, const Progress& on_tensor,
                       ConversionReport& report);

}  // namespace kvcast
