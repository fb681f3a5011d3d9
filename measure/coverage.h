/// How often error bounds hold: each source's rows against bounds from the other sources alone.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "measure/error_bounds.h"
#include "measure/validation.h"

namespace kvcast::measure {

/// A measured time and the bound that it did not take part in.
struct CoverageRow {
  ValidationCase of;
  Regime regime = Regime::Prefill;
  BoundOrReason bound;

  /// Whether there is a bound and it held.
  bool is_inside() const;
};
/// Times of requests, in their order.
std::vector<CoverageRow> leave_sources_out(const Validation& validation, const Catalog& catalog);

struct Coverage {
  std::size_t rows = 0;
  std::size_t bounded = 0;  ///< rows with a bound for nine in ten
  std::size_t inside = 0;
  double median_bound = 0;  ///< of those

  double share() const { return static_cast<double>(inside) / static_cast<double>(bounded); }
};
Coverage coverage_of(std::span<const CoverageRow> rows);

}  // namespace kvcast::measure
