#include "model/execute/training_store.h"

#include <algorithm>

namespace kvcast::execute {

TrainingStore::TrainingStore(const std::vector<ModelWeights>& models,
                             const std::vector<const Graph*>& graphs, DType dtype)
    : dtype_(dtype) {
  KVCAST_ASSERT(dtype == DType::FP32 || dtype == DType::FP64);
  // All shapes are checked before the first byte is converted.
  check_weights(models, graphs);
  for (const Graph* graph : graphs) {
    for (const TensorInfo& t : graph->tensors()) {
      if (!is_stored(t) || tensors_.contains({t.storage, t.name})) continue;
      TensorInfo info = t;
      info.producer = {};
      const std::size_t elements = t.elements().constant();
      const std::size_t floats = elements * floats_in(dtype);
      float* const data = store_.take(floats);
      bytes_ += floats * sizeof(float);
      with_numbers(dtype, data, [&](auto* numbers) {
        const std::span all(numbers, elements);
        if (t.storage != Storage::Weights) return std::fill(all.begin(), all.end(), 0);
        const WeightReader source = reader_of(models, info);
        source.read_rows(0, all);
        source.forget();
      });
      tensors_.emplace(std::pair{t.storage, t.name}, Tensor{std::move(info), data, elements});
    }
  }
}

void TrainingStore::bind(const TensorInfo& tensor, Operand& operand) const {
  const auto found = tensors_.find({tensor.storage, tensor.name});
  KVCAST_ASSERT(found != tensors_.end());
  operand.data = found->second.data;
}

}  // namespace kvcast::execute
