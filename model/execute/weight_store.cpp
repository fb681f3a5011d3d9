#include "model/execute/weight_store.h"

#include <algorithm>

namespace kvcast::execute {
namespace {

/// How the nodes of some graphs use a weight.
struct Use {
  const TensorInfo* info = nullptr;
  bool matrix = false;  ///< the second operand of a product
  bool table = false;   ///< rows are looked up
};

std::map<std::string, Use> uses_of(const std::vector<const Graph*>& graphs) {
  std::map<std::string, Use> uses;
  for (const Graph* graph : graphs) {
    for (const Node& node : graph->nodes()) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const TensorInfo& info = graph->tensor(node.inputs[i]);
        if (info.storage != Storage::Weights || info.producer) continue;
        Use& use = uses[info.name];
        use.info = &info;
        const bool product =
            std::holds_alternative<Linear>(node.op) || std::holds_alternative<Conv1d>(node.op);
        use.matrix |= product && i == 1;
        use.table |= std::holds_alternative<Embedding>(node.op) && i == 0;
      }
    }
  }
  return uses;
}

}  // namespace

WeightStore::WeightStore(const Checkpoint& checkpoint, const std::vector<const Graph*>& graphs,
                         WeightForm form) {
  const auto uses = uses_of(graphs);
  // All shapes are checked before the first byte is converted.
  std::vector<std::string> names;
  for (const auto& [name, use] : uses) {
    checkpoint.check(*use.info);
    names.push_back(name);
  }
  checkpoint.check_nothing_left(names);
  for (const auto& [name, use] : uses) load(checkpoint, *use.info, use.matrix, use.table, form);
}

void WeightStore::load(const Checkpoint& checkpoint, const TensorInfo& info, bool matrix,
                       bool table, WeightForm form) {
  Weight& weight = weights_[info.name];
  const std::size_t rows = info.shape.front().constant();
  const std::size_t elements = info.elements().constant();
  const std::size_t row = elements / rows;
  const auto source = checkpoint.reader(info);
  if (form == WeightForm::Plain || (!matrix && !table)) {
    weight.data = store_.take(elements);
    source.read_rows(0, {weight.data, elements});
    bytes_ += elements * sizeof(float);
  }
  if (form == WeightForm::Packed && matrix) {
    weight.matrix = std::make_unique<Matrix>(
        rows, row, [&](std::size_t first, std::span<float> out) { source.read_rows(first, out); },
        store_);
    bytes_ += weight.matrix->bytes();
  }
  if (form == WeightForm::Packed && table) {
    weight.table = std::make_unique<RowTable>(
        rows, [source](std::size_t r, std::span<float> out) { source.read_rows(r, out); });
  } else {
    source.forget();
  }
}

void WeightStore::bind(const TensorInfo& weight, Operand& operand) const {
  const auto found = weights_.find(weight.name);
  KVCAST_ASSERT(found != weights_.end());
  operand.data = found->second.data;
  operand.matrix = found->second.matrix.get();
  operand.table = found->second.table.get();
}

}  // namespace kvcast::execute
