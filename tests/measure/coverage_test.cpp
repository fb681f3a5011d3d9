#include "measure/coverage.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/near.h"

namespace kvcast::measure {
namespace {

/// Forecasts of TTFT by four repositories, `rows` each: those of the first three are 5 % too slow,
/// those of the last one by `last`.
Validation validation(std::size_t rows, double last) {
  static const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  std::string table = "id,model,hardware,source,batch,prompt_len,output_len,ttft_s\n";
  for (const char* source : {"org/a", "org/b", "org/c", "org/d"}) {
    for (std::size_t i = 0; i < rows; ++i) {
      table += source + std::to_string(i) + std::string(",pythia-160m,a100-80gb,") + source +
               ": table " + std::to_string(i) + "," + std::to_string(i + 1) + ",1024,1,1\n";
    }
  }
  Validation v = validate(parse_measurements(table, "m"), catalog, {});
  REQUIRE(v.cases.size() == 4 * rows);
  for (std::size_t i = 0; i < v.cases.size(); ++i) {
    ValidationCase& c = v.cases[i];
    c.measured = c.predicted / (1 + (i < 3 * rows ? 0.05 : last));
  }
  return v;
}

std::vector<CoverageRow> left_out(std::size_t rows, double last) {
  return leave_sources_out(validation(rows, last), Catalog(KVCAST_SOURCE_DIR "/data"));
}

TEST_CASE("coverage: a source is its repository, whatever the table") {
  CHECK(source_key("org/a @ 12ab: docs/t.md, T") == "org/a");
  CHECK(source_key("org/a: docs/t.md") == "org/a");
  CHECK(source_key("arXiv:2405.05329 Table 3") == "arXiv:2405.05329");
  CHECK(source_key("https://x.org/b, Latency") == "https://x.org/b");
  CHECK(source_key("") == "");
}

// Three rows of each other source make nine: the bound of org/d's rows is 5 %. The nine rows for
// org/a to org/c are six of 5 % and three of 20 %, whose ninth is 20 %.
TEST_CASE("coverage: bounds of a row come from the other sources alone") {
  const std::vector<CoverageRow> rows = left_out(3, 0.2);
  REQUIRE(rows.size() == 12);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    REQUIRE(rows[i].bound.bound);
    CHECK(rows[i].bound.bound->rows == 9);
    CHECK(rows[i].bound.bound->sources == 3);
    CHECK(rows[i].bound.bound->error == near(i < 9 ? 0.2 : 0.05));
    CHECK(rows[i].is_inside() == (i < 9));
  }
  const Coverage c = coverage_of(rows);
  CHECK(c.rows == 12);
  CHECK(c.bounded == 12);
  CHECK(c.inside == 9);
  CHECK(c.share() == near(0.75));
  CHECK(c.median_bound == near(0.2));
}

TEST_CASE("coverage: a forecast of half the time is as far off as one of twice the time") {
  CHECK(left_out(3, -0.5)[0].bound.bound->error == near(1));
  CHECK(left_out(3, 1)[0].bound.bound->error == near(1));
}

// Six other rows, on the same device with the same kernels: their worst is a bound for 6 in 7.
TEST_CASE("coverage: bounds for less than nine in ten are not counted") {
  const std::vector<CoverageRow> rows = left_out(2, 0.2);
  REQUIRE(rows[0].bound.bound);
  CHECK_FALSE(rows[0].bound.bound->is_nine_in_ten);
  const Coverage c = coverage_of(rows);
  CHECK(c.rows == 8);
  CHECK(c.bounded == 0);
}

}  // namespace
}  // namespace kvcast::measure
