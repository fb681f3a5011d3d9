#include "measure/coverage.h"

#include <algorithm>
#include <cmath>

#include "measure/validation_store.h"

namespace kvcast::measure {

bool CoverageRow::is_inside() const {
  return bound.bound && std::abs(std::log(of.predicted / of.measured)) <=
                            std::log1p(bound.bound->error) * (1 + 1e-12);
}

std::vector<CoverageRow> leave_sources_out(const Validation& v, const Catalog& catalog) {
  ValidationStore store(catalog, v);
  std::vector<CoverageRow> rows;
  for (const ValidationCase& c : v.cases) {
    const std::optional<Regime> regime = regime_of(c.metric, c.row.size, c.ttft_share);
    if (!regime) continue;
    rows.push_back(
        {c, *regime, store.bound(estimated(c, v.devices), *regime, source_key(c.row.source))});
  }
  return rows;
}

Coverage coverage_of(std::span<const CoverageRow> rows) {
  Coverage c;
  c.rows = rows.size();
  std::vector<double> bounds;
  for (const CoverageRow& row : rows) {
    if (!row.bound.bound || !row.bound.bound->is_nine_in_ten) continue;
    bounds.push_back(row.bound.bound->error);
    if (row.is_inside()) ++c.inside;
  }
  c.bounded = bounds.size();
  if (bounds.empty()) return c;
  std::sort(bounds.begin(), bounds.end());
  c.median_bound = bounds[(bounds.size() - 1) / 2];
  return c;
}

}  // namespace kvcast::measure
