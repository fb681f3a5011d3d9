/// What methods gain over the plain model, measured and forecast.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "measure/validation.h"

namespace kvcast::measure {

/// How many times as fast as plain a method is, over the rows that have a plain one.
struct MethodSpeedup {
  std::string method;  ///< its parts without their options
  Metric metric = Metric::Ttft;
  double measured = 1;   ///< geometric mean
  double predicted = 1;  ///< likewise
  ErrorSummary errors;   ///< of predicted / measured - 1, row by row
};

/// By method and metric, of all methods but plain. A row's plain one has its model, kernels,
/// dtypes, sizes and metric, and is the only such one on its device or, for prompts that several
/// devices read, the only one on any: one process of a machine beside ranks on it. Rows without are
/// left out.
std::vector<MethodSpeedup> speedups_over_plain(std::span<const ValidationCase> cases);

}  // namespace kvcast::measure
