/// The weights of a model in training, their gradients, and the states of its optimiser.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/execute/arena.h"
#include "model/execute/tensor_store.h"
#include "model/execute/weight_store.h"

namespace kvcast::execute {

/// All tensors are rows of numbers, which passes read and change.
class TrainingStore final : public TensorStore {
 public:
  /// All that the graphs have of such tensors: those of a step's passes and of its update. Weights
  /// are read from `models` as numbers of `dtype`, FP32 or FP64; the others are 0. Throws Error as
  /// WeightStore does.
  TrainingStore(const std::vector<ModelWeights>& models, const std::vector<const Graph*>& graphs,
                DType dtype = DType::FP32);

  void bind(const TensorInfo& tensor, Operand& operand) const override;

  struct Tensor {
    TensorInfo info;  ///< without a producer
    float* data;      ///< also for fp64, as in Operand
    std::size_t elements;
    template <typename N>
    std::span<N> numbers() const {
      return {reinterpret_cast<N*>(data), elements};
    }
  };
  /// By storage and name; an optimiser's states are "mean." and "variance." with a weight's name.
  const std::map<std::pair<Storage, std::string>, Tensor>& tensors() const { return tensors_; }
  /// One of them, which must be there; N is float or double, as the store's dtype.
  template <typename N = float>
  std::span<N> numbers(Storage storage, std::string_view name) const {
    return tensors_.at({storage, std::string(name)}).template numbers<N>();
  }
  DType dtype() const { return dtype_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  DType dtype_;
  FloatStore store_;
  std::map<std::pair<Storage, std::string>, Tensor> tensors_;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvcast::execute
