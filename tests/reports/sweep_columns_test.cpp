#include "reports/sweep/sweep_columns.h"

#include <atomic>
#include <cmath>
#include <string>

#include <doctest/doctest.h>

#include "model/io/files/csv_table.h"
#include "model/io/weights/catalog.h"
#include "reports/sweep/sweep.h"
#include "reports/sweep/sweep_rows.h"

namespace kvcast::reports {
namespace {

/// Two methods, devices that cannot share 32 heads, and counts that overflow: rows of every kind.
SweepGrid grid_with_errors() {
  SweepSpec s;
  s.model = {"llama-7b", "pythia-1.4b"};
  s.hardware = {"h200"};
  s.method = {"plain", "random-prune:keep=0.5"};
  s.tp = {"1", "7", "2"};
  s.batch = {1, 1'000'000'000'000};
  s.prompt_len = {5, 700};
  return SweepGrid(s, Catalog(KVCAST_SOURCE_DIR "/data"));
}

std::string csv_of(const SweepGrid& grid, PointRange range) {
  std::string text = sweep_header();
  RowScratch scratch;
  for (std::uint64_t point = range.first; point < range.last; ++point) {
    const std::uint64_t size = point % grid.num_sizes();
    ConfigurationRows(grid, point / grid.num_sizes()).append(size, size + 1, scratch, text);
  }
  return text;
}

/// The cell as the CSV would have it, numbers apart.
void check_cell(const SweepColumn& column, std::size_t row, const CsvRow& expected) {
  INFO(column.name << " of row " << row);
  const std::string& cell = expected.text(column.name);
  if (column.is_number) {
    const double number = column.numbers.at(row);
    CHECK((cell.empty() ? std::isnan(number) : number == expected.number(column.name)));
    return;
  }
  const std::int32_t code = column.codes.at(row);
  CHECK((code < 0 ? "" : column.words.at(static_cast<std::size_t>(code))) == cell);
}

void check_columns(const SweepColumns& columns, const std::string& csv) {
  const CsvTable table = CsvTable::parse(csv, "rows");
  REQUIRE(columns.columns.size() == table.columns().size());
  REQUIRE(columns.num_rows == table.size());
  for (std::size_t c = 0; c < columns.columns.size(); ++c) {
    REQUIRE(columns.columns[c].name == table.columns()[c]);
    for (std::size_t row = 0; row < table.size(); ++row) {
      check_cell(columns.columns[c], row, table[row]);
    }
  }
}

TEST_CASE("sweep columns: every cell is that of the CSV, with reasons and parts of a grid") {
  const SweepGrid grid = grid_with_errors();
  for (const unsigned threads : {1u, 3u}) {
    for (const Shard shard : {Shard{1, 1}, Shard{2, 3}}) {
      SweepOptions options;
      options.num_threads = threads;
      options.shard = shard;
      check_columns(sweep_columns(grid, options), csv_of(grid, shard.of(grid.num_points())));
    }
  }
}

TEST_CASE("sweep columns: a CSV is parsed into the same columns") {
  const SweepGrid grid = grid_with_errors();
  const std::string csv = csv_of(grid, {0, grid.num_points()});
  const SweepColumns parsed = parse_columns(csv);
  check_columns(parsed, csv);
  const SweepColumns direct = sweep_columns(grid, {});
  for (std::size_t c = 0; c < parsed.columns.size(); ++c) {
    CHECK_MESSAGE(parsed.columns[c].is_number == direct.columns[c].is_number,
                  parsed.columns[c].name);
  }
}

TEST_CASE("sweep columns: a sweep that is stopped has none") {
  const std::atomic<bool> stop{true};
  SweepOptions options;
  options.stop = &stop;
  CHECK(sweep_columns(grid_with_errors(), options).columns.empty());
}

}  // namespace
}  // namespace kvcast::reports
