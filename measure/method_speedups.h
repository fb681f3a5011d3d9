/// What methods gain over the plain model, measured and forecast.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "measure/validation.h"

namespace kvcast::measure {

/// A method's speed-up over plain, over the rows that have a plain row beside them.
struct MethodSpeedup {
  std::string method;  ///< its parts without their options
  Metric metric = Metric::Ttft;
  double measured = 1;   ///< geometric mean
  double predicted = 1;  ///< likewise
  ErrorSummary errors;   ///< of predicted / measured - 1, row by row
};

/// By method and metric, for all methods but plain. A row's plain row has the same model, kernels,
/// dtypes, sizes and metric, and is the only such row on the same device. A prompt that several
/// devices read may have its only plain row on another one: one process of the same machine. Rows
/// without a plain row are left out.
std::vector<MethodSpeedup> speedups_over_plain(std::span<const ValidationCase> cases);

}  // namespace kvcast::measure
