/// A sweep's rows as columns: the cells of its CSV without text, for programs that compute on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcast::reports {

class SweepGrid;
struct SweepOptions;

/// One column. Words are few and rows many: a row has the index of its word.
struct SweepColumn {
  std::string name;
  bool is_number = true;
  std::vector<double> numbers;      ///< NaN where the cell of the CSV is empty
  std::vector<std::int32_t> codes;  ///< in `words`; -1 where the cell of the CSV is empty
  std::vector<std::string> words;
};

/// The columns of sweep_header(), filled by several threads at once, each with rows of its own.
class SweepColumns {
 public:
  /// Of sweep_input_columns: the words of a configuration, then the sizes.
  static constexpr std::size_t num_inputs = 21;
  /// 33 columns of numbers and 17 of words.
  static constexpr double bytes_per_row = 33 * sizeof(double) + 17 * sizeof(std::int32_t);

  SweepColumns() = default;
  SweepColumns(const SweepGrid& grid, std::size_t num_rows);
  SweepColumns(SweepColumns&& other) noexcept : SweepColumns() { *this = std::move(other); }
  SweepColumns& operator=(SweepColumns&& other) noexcept {
    columns = std::move(other.columns);
    num_rows = other.num_rows;
    return *this;
  }

  void set_number(std::size_t column, std::size_t row, double value);
  void set_word(std::size_t column, std::size_t row, std::int32_t code) {
    columns[column].codes[row] = code;
  }
  void set_sizes(std::size_t row, std::uint64_t batch, std::uint64_t prompt_len,
                 std::uint64_t output_len);
  void set_error(std::size_t row, std::string_view reason);
  /// The words of rows `row` to `row + rows` (excluded).
  void set_configuration(std::uint64_t configuration, std::size_t row, std::size_t rows);

  std::vector<SweepColumn> columns;
  std::size_t num_rows = 0;

 private:
  const SweepGrid* grid_ = nullptr;
  std::mutex mutex_;  ///< of what several rows share: words
  std::vector<std::unordered_map<std::string, std::int32_t>> known_;  ///< words of inputs
};

/// Evaluates the options' part of a grid on their threads. Rows are in the order of run_sweep's.
/// `csv` and `restart` have no meaning here. Empty when the options' `stop` ended it.
SweepColumns sweep_columns(const SweepGrid& grid, const SweepOptions& options);

/// The columns of a CSV: numbers where every cell is one or empty, but for those of words.
SweepColumns parse_columns(std::string_view csv);

}  // namespace kvcast::reports
