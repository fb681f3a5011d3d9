#include "reports/reproduce/reproduced_plots.h"

#include <doctest/doctest.h>

#include "tests/near.h"

namespace kvcast::reports {
namespace {

ReproducedRow row(std::string cell, double published, double ours, bool exact) {
  ReproducedRow r;
  r.cell = std::move(cell);
  r.ours = ours;
  r.relative_error = published == 0 ? 0 : ours / published - 1;
  r.exact = exact;
  return r;
}

struct Example {
  PublishedTable one{"table-one", "paper", "One", TableKind::Exact, nullptr};
  PublishedTable two{"table-two", "paper", "Two", TableKind::Measured, nullptr};
  std::vector<ReproducedRow> exact{row("a", 2, 2, true), row("b", 10, 30, true),
                                   row("zero", 0, 0, true), row("e", 3, 3, true)};
  std::vector<ReproducedRow> measured{row("c", 4, 5, false), row("d", 8, 6, false)};
  std::vector<ReproducedTable> tables() {
    exact[1].erratum = "E1: a zero too few";
    exact[1].corrected = true;
    exact[3].erratum = "E2: another reading misses it";
    return {{&one, exact}, {&two, measured}};
  }
};

}  // namespace

TEST_CASE("reproduced plots: cells lie at their published number and ours, misprints apart") {
  Example example;
  const Plot plot = published_scatter_plot("A paper", example.tables());
  CHECK(plot.title == "A paper: published numbers and ours");
  REQUIRE(plot.series.size() == 4);
  CHECK(plot.series[0].label == "equal");
  REQUIRE(plot.series[0].points.size() == 2);
  CHECK(plot.series[0].points[0].x == 2);
  CHECK(plot.series[0].points[1].y == near(10));
  CHECK(plot.series[1].label == "exact cells");
  REQUIRE(plot.series[1].points.size() == 2);  // zero has no place
  CHECK(plot.series[1].points[0].name == "table-one: a");
  CHECK(plot.series[1].points[1].name == "table-one: e");
  CHECK(plot.series[2].label == "misprinted cells");
  CHECK(plot.series[2].points.at(0).x == near(10));
  CHECK(plot.series[2].points.at(0).y == 30);
  CHECK(plot.series[3].label == "table-two, measured");
  CHECK(plot.series[3].points.size() == 2);
}

TEST_CASE("reproduced plots: errors are of measured cells only") {
  Example example;
  const Plot plot = published_error_plot("A paper", example.tables());
  REQUIRE(plot.series.size() == 1);
  CHECK(plot.series[0].points.at(0).x == near(4));
  CHECK(plot.series[0].points.at(0).y == near(0.25));
  CHECK(plot.series[0].points.at(1).y == near(-0.25));
  const std::vector<ReproducedTable> exact_only{{&example.one, example.exact}};
  CHECK(published_error_plot("A paper", exact_only).series.empty());
}

}  // namespace kvcast::reports
