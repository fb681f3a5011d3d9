/// A checkpoint's weights in the form that the kernels read.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/execute/matrix.h"
#include "model/execute/operand.h"
#include "model/execute/tensor_store.h"
#include "model/io/weights/checkpoint.h"

namespace kvcast::execute {

enum class WeightForm {
  Packed,  ///< matrices packed for products, embedding rows read from the file when needed
  Plain,   ///< everything as rows of numbers, for the counting loops
};

/// Where the weights lie whose names begin with `prefix`, and with no longer prefix of another
/// model. The checkpoint knows them without it.
struct ModelWeights {
  std::string prefix;
  const Checkpoint* checkpoint = nullptr;
  /// Of several devices' graphs: those of the first one use all tensors, in part or in whole; what
  /// others leave over is not looked for.
  bool may_leave = false;
};

/// Throws Error naming file and tensor when a weight of the graphs is missing or of another shape,
/// or when a tensor is left over with no use for it. Reads headers only.
void check_weights(const std::vector<ModelWeights>& models,
                   const std::vector<const Graph*>& graphs);

/// Of a weight, wherever its checkpoint has it.
WeightReader reader_of(const std::vector<ModelWeights>& models, const TensorInfo& weight);

/// The types in which a session can keep the checkpoint's weights: matrices in the file's where
/// products read it, everything else in FP32.
WeightTypes stored_weight_types(const Checkpoint& checkpoint);

struct WeightUse;  // weight_store.cpp

class WeightStore final : public TensorStore {
 public:
  /// Reads every weight of the graphs as numbers of `dtype`: FP32, or in the plain form FP64. In
  /// the packed form a matrix stays as its file stores it if the graphs have it in that type.
  /// Packed matrices multiply in `arithmetic`. Throws Error as check_weights does, for numbers that
  /// are not finite, and when INT8 finds no matrix that can.
  WeightStore(const std::vector<ModelWeights>& models, const std::vector<const Graph*>& graphs,
              WeightForm form, DType dtype = DType::FP32, Arithmetic arithmetic = Arithmetic::FP32);

  void bind(const TensorInfo& weight, Operand& operand) const override;
  /// Bytes held in memory.
  std::uint64_t bytes() const { return bytes_; }
  /// The matrices among them, which are packed for products, by the type that they are kept in.
  struct Packed {
    std::uint64_t matrices = 0;
    std::uint64_t bytes = 0;
  };
  const std::map<DType, Packed>& packed() const { return packed_; }

 private:
  struct Weight {
    float* data = nullptr;  ///< vectors, what is read row by row, everything in the plain form
    std::vector<Matrix> matrices;  ///< one, or one for each expert
    std::optional<WeightReader> table;
  };
  void load(Weight& weight, const WeightReader& source, const WeightUse& use, WeightForm form);

  DType dtype_;
  Arithmetic arithmetic_;
  FloatStore store_;
  std::map<std::string, Weight, std::less<>> weights_;
  std::uint64_t bytes_ = 0;
  std::map<DType, Packed> packed_;
};

}  // namespace kvcast::execute
