/// An embedding table whose rows are read from the checkpoint when a token asks for one.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace kvcast::execute {

class RowTable {
 public:
  using Read = std::function<void(std::size_t row, std::span<float> out)>;
  RowTable(std::size_t rows, Read read) : rows_(rows), read_(std::move(read)) {}

  std::size_t rows() const { return rows_; }
  /// Row `row` as fp32. Thread-safe. Throws Error when the file holds no finite number there.
  void read(std::size_t row, std::span<float> out) const { read_(row, out); }

 private:
  std::size_t rows_;
  Read read_;
};

}  // namespace kvcast::execute
