#include "model/execute/cache_store.h"

#include <algorithm>

namespace kvcast::execute {

void CacheStore::reserve(const std::string& name, std::size_t batch, std::size_t rows,
                         std::size_t features, bool slides, DType dtype, std::size_t group) {
  Slab& slab = slabs_[name];
  slab.slides |= slides;
  KVCAST_ASSERT(slab.data == nullptr);
  slab.batch = batch;
  slab.rows = std::max(slab.rows, rows);
  slab.features = features;
  if (is_narrow_cache(dtype_) && dtype == dtype_) {
    slab.form = {dtype, features, group > 0 ? group : features};
  }
}

std::size_t CacheStore::row_bytes(const Slab& slab) const {
  if (slab.form.dtype != DType::FP32) return slab.form.row_bytes();
  return slab.features * floats_in(dtype_) * sizeof(float);
}

void CacheStore::allocate() {
  constexpr std::size_t moves_every = 8;  // of its length that a slab has slid
  for (auto& [name, slab] : slabs_) {
    if (slab.slides) slab.rows += slab.rows / moves_every + 1;
  }
  const std::size_t floats = (bytes() + sizeof(float) - 1) / sizeof(float);
  block_ = allocate_floats(floats);
  std::fill_n(block_.get(), floats, 0.0F);
  auto* next = reinterpret_cast<std::byte*>(block_.get());
  for (auto& [name, slab] : slabs_) {
    slab.data = next;
    next += slab.batch * slab.rows * row_bytes(slab);
  }
}

void CacheStore::slide(const std::string& name, std::size_t rows, std::size_t after) {
  Slab& slab = slab_of(name);
  if (rows < slab.held) slab.first += slab.held - rows;
  if (rows == 0) slab.first = 0;
  slab.held = rows;
  if (slab.first + after <= slab.rows) return;
  const std::size_t row = row_bytes(slab);
  for (std::size_t b = 0; b < slab.batch; ++b) {
    std::byte* const begin = slab.data + b * slab.rows * row;
    std::copy_n(begin + slab.first * row, rows * row, begin);
  }
  slab.first = 0;
}

void CacheStore::hold(const std::string& name, std::size_t rows) { slab_of(name).held = rows; }

void CacheStore::bind(const std::string& name, Operand& operand) const {
  const auto found = slabs_.find(name);
  KVCAST_ASSERT(found != slabs_.end() && found->second.data != nullptr);
  const Slab& slab = found->second;
  KVCAST_ASSERT(operand.shape.rank() == 3 && operand.shape[0] == slab.batch &&
                slab.first + operand.shape[1] <= slab.rows && operand.shape[2] == slab.features);
  operand.data = reinterpret_cast<float*>(slab.data + slab.first * row_bytes(slab));
  operand.form = slab.form.dtype != DType::FP32 ? &slab.form : nullptr;
  operand.batch_stride = slab.rows * slab.features;
}

void CacheStore::bind_pool(const std::string& name, std::span<const std::uint32_t> places,
                           Operand& operand) const {
  const auto found = slabs_.find(name);
  KVCAST_ASSERT(found != slabs_.end() && found->second.data != nullptr);
  const Slab& pool = found->second;
  KVCAST_ASSERT(pool.batch == 1 && operand.shape == Shape({1, places.size(), pool.features}));
  operand.data = reinterpret_cast<float*>(pool.data);
  operand.form = pool.form.dtype != DType::FP32 ? &pool.form : nullptr;
  operand.places = places.data();
}

CacheStore::Slab& CacheStore::slab_of(const std::string& name) {
  const auto found = slabs_.find(name);
  KVCAST_ASSERT(found != slabs_.end());
  return found->second;
}

void CacheStore::clear(const std::string& name, std::size_t first, std::size_t rows) {
  const Slab& slab = slab_of(name);
  KVCAST_ASSERT(slab.batch == 1 && first + rows <= slab.rows);
  const std::size_t row = row_bytes(slab);
  std::fill_n(slab.data + first * row, rows * row, std::byte{});
}

std::uint64_t CacheStore::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, slab] : slabs_) {
    sum += slab.batch * slab.rows * row_bytes(slab);
  }
  return sum;
}

}  // namespace kvcast::execute
