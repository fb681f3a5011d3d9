#include "reports/sweep/sweep_columns.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "model/base/stopwatch.h"
#include "model/io/files/csv_table.h"
#include "model/io/files/number_text.h"
#include "reports/sweep/sweep.h"
#include "simulate/parallel_for.h"

namespace kvcast::reports {
namespace {

/// Between two reports of progress.
constexpr double report_every_s = 0.25;

std::vector<std::string> names_of(std::string_view list) { return parse_words(list, "columns"); }

/// Inputs that are numbers, though a sweep takes them as words.
bool is_number_word(std::string_view name) {
  return name == "tp" || name == "pp" || name == "ep" || name == "dp" || name == "micro_batches";
}

bool is_word_column(std::string_view name) {
  static const std::set<std::string, std::less<>> words = [] {
    std::set<std::string, std::less<>> all{"fits", "bound", "ttft_bound", "tpot_bound", "error"};
    for (const std::string& input : names_of(configuration_columns)) {
      if (!is_number_word(input)) all.insert(input);
    }
    return all;
  }();
  return words.contains(name);
}

/// The index of a word, which is added where it is new.
std::int32_t code_of(const std::string& word, SweepColumn& column,
                     std::unordered_map<std::string, std::int32_t>& known) {
  if (word.empty()) return -1;
  const auto [found, is_new] = known.emplace(word, static_cast<std::int32_t>(column.words.size()));
  if (is_new) column.words.push_back(word);
  return found->second;
}

double number_of(const std::string& text) {
  double number = no_value;
  return parse_number(text, number) ? number : no_value;
}

}  // namespace

SweepColumns::SweepColumns(const SweepGrid& grid, std::size_t rows)
    : num_rows(rows), grid_(&grid), known_(num_inputs) {
  static_assert(num_inputs ==
                1 + std::count(sweep_input_columns.begin(), sweep_input_columns.end(), ','));
  const std::string header = sweep_header();
  for (const std::string& name : names_of(std::string_view(header).substr(0, header.size() - 1))) {
    SweepColumn column{name, !is_word_column(name), {}, {}, {}};
    if (column.is_number) {
      column.numbers.assign(rows, no_value);
    } else {
      column.codes.assign(rows, -1);
    }
    if (name == "fits") column.words = {"false", "true"};
    if (!column.is_number && name.ends_with("bound")) {
      for (std::size_t b = 0; b < roofline::num_bounds; ++b) {
        column.words.emplace_back(roofline::name(static_cast<roofline::Bound>(b)));
      }
    }
    columns.push_back(std::move(column));
  }
}

void SweepColumns::set_number(std::size_t column, std::size_t row, double value) {
  if (std::isfinite(value)) columns[column].numbers[row] = value;
}

void SweepColumns::set_sizes(std::size_t row, std::uint64_t batch, std::uint64_t prompt_len,
                             std::uint64_t output_len) {
  set_number(num_inputs - 3, row, static_cast<double>(batch));
  set_number(num_inputs - 2, row, static_cast<double>(prompt_len));
  set_number(num_inputs - 1, row, static_cast<double>(output_len));
}

void SweepColumns::set_error(std::size_t row, std::string_view reason) {
  SweepColumn& errors = columns.back();
  const std::lock_guard lock(mutex_);
  // Rows of one configuration follow each other and mostly share their reason.
  if (errors.words.empty() || errors.words.back() != reason) errors.words.emplace_back(reason);
  errors.codes[row] = static_cast<std::int32_t>(errors.words.size() - 1);
}

void SweepColumns::set_configuration(std::uint64_t configuration, std::size_t row,
                                     std::size_t rows) {
  const std::vector<std::string> words = grid_->cell_words(configuration);
  const auto first = static_cast<std::ptrdiff_t>(row);
  for (std::size_t i = 0; i < words.size(); ++i) {
    SweepColumn& column = columns[i];
    if (column.is_number) {
      std::fill_n(column.numbers.begin() + first, rows, number_of(words[i]));
      continue;
    }
    const std::int32_t code = [&] {
      const std::lock_guard lock(mutex_);
      return code_of(words[i], column, known_[i]);
    }();
    std::fill_n(column.codes.begin() + first, rows, code);
  }
}

SweepColumns sweep_columns(const SweepGrid& grid, const SweepOptions& o) {
  const PointRange range = o.shard.of(grid.num_points());
  SweepColumns columns(grid, range.last - range.first);
  const BlockList blocks(grid, range);
  std::mutex mutex;
  std::shared_ptr<ConfigurationRows> current;  // of the block started last
  const auto must_stop = [&] { return o.stop != nullptr && o.stop->load(); };
  std::atomic<std::uint64_t> rows_done = 0;
  const Stopwatch watch;
  double last_report_s = 0;
  const auto work = [&](std::size_t index) {
    if (must_stop()) return;
    const PointRange points = blocks[index];
    const std::uint64_t configuration = points.first / grid.num_sizes();
    std::shared_ptr<ConfigurationRows> rows;
    {
      const std::lock_guard lock(mutex);
      if (!current || current->index() != configuration) {
        current = std::make_shared<ConfigurationRows>(grid, configuration);
      }
      rows = current;
    }
    thread_local RowScratch scratch;
    const std::uint64_t origin = configuration * grid.num_sizes();
    rows->fill(points.first - origin, points.last - origin, scratch, columns,
               points.first - range.first);
    rows_done += points.last - points.first;
  };
  simulate::parallel_for(blocks.size(), o.num_threads, work, [&](std::size_t) {
    if (!o.on_progress || watch.seconds() - last_report_s < report_every_s) return;
    last_report_s = watch.seconds();
    o.on_progress({rows_done, columns.num_rows, 0, last_report_s});
  });
  if (must_stop()) return {};
  return columns;
}

SweepColumns parse_columns(std::string_view csv) {
  const CsvTable table = CsvTable::parse(csv, "rows");
  const std::vector<CsvRow> rows = table.rows();
  SweepColumns all;
  all.num_rows = rows.size();
  for (const std::string& name : table.columns()) {
    SweepColumn column{name, !is_word_column(name), {}, {}, {}};
    std::unordered_map<std::string, std::int32_t> known;
    for (const CsvRow& row : rows) {
      const std::string& cell = row.text(name);
      if (column.is_number && !cell.empty() && std::isnan(number_of(cell))) {
        column.is_number = false;
      }
    }
    for (const CsvRow& row : rows) {
      const std::string& cell = row.text(name);
      if (column.is_number) {
        column.numbers.push_back(number_of(cell));
      } else {
        column.codes.push_back(code_of(cell, column, known));
      }
    }
    all.columns.push_back(std::move(column));
  }
  return all;
}

}  // namespace kvcast::reports
