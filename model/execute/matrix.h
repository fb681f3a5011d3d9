/// Weight matrices in the layout that products want, and the products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "model/base/dtype.h"
#include "model/execute/arena.h"
#include "model/execute/block_product.h"
#include "model/execute/narrow_product.h"

namespace kvcast::execute {

/// A weight [out, in], kept in panels of some outputs side by side, [out/panel][in][panel], as wide
/// as the tiles of multiply_block; or in strips of the type that a file stores it in. Numbers are
/// added up in an order that depends on the sizes alone: the results are the same on any number of
/// threads.
class Matrix {
 public:
  /// `fill(first_row, rows)` gets `rows.size() / in` consecutive rows of the weight, row-major; it
  /// is called for every row once, from several threads.
  using Fill = std::function<void(std::size_t first_row, std::span<float> rows)>;
  /// The numbers lie in `store`, which must outlive the matrix.
  Matrix(std::size_t out, std::size_t in, const Fill& fill, FloatStore& store,
         Arithmetic arithmetic = Arithmetic::FP32);
  /// The same with rows of the blocks of `dtype`, which has_strips().
  using FillStored =
      std::function<void(std::size_t first_row, std::size_t rows, std::span<std::byte> blocks)>;
  Matrix(std::size_t out, std::size_t in, DType dtype, const FillStored& fill, FloatStore& store,
         Arithmetic arithmetic = Arithmetic::FP32);

  std::uint64_t bytes() const;
  /// Of products of more than one row; one row meets bf16 weights unrounded, in FP32. INT8 is FP32
  /// where the stored numbers are not whole ones with scales.
  Arithmetic arithmetic() const { return arithmetic_; }

  /// y[rows, out] = x[rows, in]·Wᵀ (+ bias[out], unless null).
  void multiply(const float* x, std::size_t rows, float* y, const float* bias) const;
  /// The same where row r of x is its `in` numbers from r·step on: rows may overlap, as the windows
  /// of a convolution do.
  void multiply_windows(const float* x, std::size_t step, std::size_t rows, float* y,
                        const float* bias) const;

 private:
  struct Rows;
  std::size_t group_size() const;
  std::size_t group_of_inputs() const;
  template <typename Pack>
  void pack_groups(Pack pack_group) const;
  const float* panels(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                      std::size_t& panel_rows, float* room) const;
  NarrowPanel narrow_panel(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                           float* room) const;
  void multiply_stored(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                       const Rows& rows, float* sums) const;
  void multiply_part(std::size_t group_index, std::size_t first_in, std::size_t count_in,
                     const Rows& rows, std::size_t first_row, std::size_t count,
                     std::size_t together, float* room, float* sums) const;
  void stream(const Rows& rows, float* y, const float* bias) const;
  void multiply_tiles(const Rows& rows, float* y, const float* bias) const;
  void write_group(std::size_t group_index, const float* sums, std::size_t parts,
                   std::size_t parts_step, std::size_t rows, float* y, const float* bias) const;

  std::size_t out_;
  std::size_t in_;
  DType dtype_ = DType::FP32;  ///< of strips, or FP32: panels
  Arithmetic arithmetic_;
  float* data_;
};

/// How the operands of a Product lie, and whether it is added to C.
struct ProductForm {
  bool a_transposed = false;  ///< A is [k, m]
  bool b_transposed = false;  ///< B is [n, k]
  bool accumulates = false;
};
/// The product for operands of any size, in oneDNN where the build has it. Called inside a parallel
/// region it runs on the calling thread.
void multiply(const Product& product, const ProductForm& form);

}  // namespace kvcast::execute
