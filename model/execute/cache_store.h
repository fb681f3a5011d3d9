/// The KV cache of a running request.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "model/execute/cache_rows.h"
#include "model/execute/floats.h"
#include "model/execute/operand.h"

namespace kvcast::execute {

/// One growing tensor [batch, rows, features] for each name, each sequence with room for the rows
/// reserved.
class CacheStore {
 public:
  /// Of FP32 or FP64 numbers; with a narrow type (cache_rows.h) tensors of that type, too.
  explicit CacheStore(DType dtype = DType::FP32) : dtype_(dtype) {}
  /// Asks for room; of several requests for one tensor the largest counts. One that `slides` lets
  /// go of its first rows and gets room to do so without moving the others each time.
  /// `dtype` is the tensor's own. In INT8 `group` features share a scale.
  void reserve(const std::string& name, std::size_t batch, std::size_t rows, std::size_t features,
               bool slides = false, DType dtype = DType::FP32, std::size_t group = 0);
  /// Makes the room, once, before the first pass, and touches it, so that no pass waits for pages.
  void allocate();
  /// Before a pass that reads `rows` rows of a tensor that slides and leaves `after`: keeps its
  /// last rows.
  void slide(const std::string& name, std::size_t rows, std::size_t after);
  /// After a pass that left so many rows.
  void hold(const std::string& name, std::size_t rows);
  /// Sets data and batch_stride. The room must be there and large enough.
  void bind(const std::string& name, Operand& operand) const;
  /// The same of a tensor with one sequence, whose rows are a pool: row i of the operand is in the
  /// pool's row places[i]. The places must outlive the operand.
  void bind_pool(const std::string& name, std::span<const std::uint32_t> places,
                 Operand& operand) const;
  /// Sets rows [first, first + rows) of a tensor with one sequence to 0.
  void clear(const std::string& name, std::size_t first, std::size_t rows);
  std::uint64_t bytes() const;

 private:
  struct Slab {
    std::byte* data = nullptr;
    CacheForm form = {};  ///< in a narrow type, else FP32
    std::size_t batch = 0;
    std::size_t rows = 0;
    std::size_t features = 0;
    bool slides = false;
    std::size_t first = 0;  ///< row where the held ones begin
    std::size_t held = 0;
  };
  std::size_t row_bytes(const Slab& slab) const;
  Slab& slab_of(const std::string& name);

  DType dtype_;
  Floats block_;  ///< all slabs, side by side
  std::map<std::string, Slab, std::less<>> slabs_;
};

}  // namespace kvcast::execute
