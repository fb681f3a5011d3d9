#include "model/execute/cache_store.h"

#include <algorithm>

namespace kvcast::execute {

void CacheStore::reserve(const std::string& name, std::size_t batch, std::size_t rows,
                         std::size_t features) {
  Slab& slab = slabs_[name];
  KVCAST_ASSERT(slab.data == nullptr);
  slab.batch = batch;
  slab.rows = std::max(slab.rows, rows);
  slab.features = features;
}

void CacheStore::allocate() {
  const std::size_t floats = bytes() / sizeof(float);
  block_ = allocate_floats(floats);
  std::fill_n(block_.get(), floats, 0.0F);
  float* next = block_.get();
  for (auto& [name, slab] : slabs_) {
    slab.data = next;
    next += slab.batch * slab.rows * slab.features * floats_in(dtype_);
  }
}

void CacheStore::bind(const std::string& name, Operand& operand) const {
  const auto found = slabs_.find(name);
  KVCAST_ASSERT(found != slabs_.end() && found->second.data != nullptr);
  const Slab& slab = found->second;
  KVCAST_ASSERT(operand.shape.rank() == 3 && operand.shape[0] == slab.batch &&
                operand.shape[1] <= slab.rows && operand.shape[2] == slab.features);
  operand.data = slab.data;
  operand.batch_stride = slab.rows * slab.features;
}

std::uint64_t CacheStore::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, slab] : slabs_) {
    sum += slab.batch * slab.rows * slab.features * floats_in(dtype_) * sizeof(float);
  }
  return sum;
}

}  // namespace kvcast::execute
