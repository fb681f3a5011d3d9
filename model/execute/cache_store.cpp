#include "model/execute/cache_store.h"

#include <algorithm>

namespace kvcast::execute {

void CacheStore::reserve(const std::string& name, std::size_t batch, std::size_t rows,
                         std::size_t features, bool slides) {
  Slab& slab = slabs_[name];
  slab.slides |= slides;
  KVCAST_ASSERT(slab.data == nullptr);
  slab.batch = batch;
  slab.rows = std::max(slab.rows, rows);
  slab.features = features;
}

void CacheStore::allocate() {
  constexpr std::size_t moves_every = 8;  // of its length that a slab has slid
  for (auto& [name, slab] : slabs_) {
    if (slab.slides) slab.rows += slab.rows / moves_every + 1;
  }
  const std::size_t floats = bytes() / sizeof(float);
  block_ = allocate_floats(floats);
  std::fill_n(block_.get(), floats, 0.0F);
  float* next = block_.get();
  for (auto& [name, slab] : slabs_) {
    slab.data = next;
    next += slab.batch * slab.rows * slab.features * floats_in(dtype_);
  }
}

void CacheStore::slide(const std::string& name, std::size_t rows, std::size_t after) {
  const auto found = slabs_.find(name);
  KVCAST_ASSERT(found != slabs_.end());
  Slab& slab = found->second;
  if (rows < slab.held) slab.first += slab.held - rows;
  if (rows == 0) slab.first = 0;
  slab.held = rows;
  if (slab.first + after <= slab.rows) return;
  const std::size_t row = slab.features * floats_in(dtype_);
  for (std::size_t b = 0; b < slab.batch; ++b) {
    float* const begin = slab.data + b * slab.rows * row;
    std::copy_n(begin + slab.first * row, rows * row, begin);
  }
  slab.first = 0;
}

void CacheStore::hold(const std::string& name, std::size_t rows) {
  const auto found = slabs_.find(name);
  KVCAST_ASSERT(found != slabs_.end());
  found->second.held = rows;
}

void CacheStore::bind(const std::string& name, Operand& operand) const {
  const auto found = slabs_.find(name);
  KVCAST_ASSERT(found != slabs_.end() && found->second.data != nullptr);
  const Slab& slab = found->second;
  KVCAST_ASSERT(operand.shape.rank() == 3 && operand.shape[0] == slab.batch &&
                slab.first + operand.shape[1] <= slab.rows && operand.shape[2] == slab.features);
  operand.data = slab.data + slab.first * slab.features * floats_in(dtype_);
  operand.batch_stride = slab.rows * slab.features;
}

void CacheStore::bind_pool(const std::string& name, std::span<const std::uint32_t> places,
                           Operand& operand) const {
  const auto found = slabs_.find(name);
  KVCAST_ASSERT(found != slabs_.end() && found->second.data != nullptr);
  const Slab& pool = found->second;
  KVCAST_ASSERT(pool.batch == 1 && operand.shape == Shape({1, places.size(), pool.features}));
  operand.data = pool.data;
  operand.places = places.data();
}

std::uint64_t CacheStore::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, slab] : slabs_) {
    sum += slab.batch * slab.rows * slab.features * floats_in(dtype_) * sizeof(float);
  }
  return sum;
}

}  // namespace kvcast::execute
