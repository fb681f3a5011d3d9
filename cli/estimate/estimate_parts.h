/// What the estimates of inference and of training print alike.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "roofline/estimator.h"

namespace kvcast::cli {

/// ", bf16 as published", where the request leaves the dtype to the model.
std::string default_dtype_text(const RequestOptions& request, const Architecture& a);

/// "eager" or "tiled"
std::string_view kernels_name(Kernels kernels);
/// Whole counts print as integers.
ordered_json count_json(double value);
ordered_json factor_json(const roofline::UsedFactor& factor);
/// The kinds of source that the estimate rests on, each once.
std::vector<std::string> rests_on(const std::vector<roofline::UsedFactor>& factors);
/// One row of --breakdown, and its table.
ordered_json operator_json(const roofline::BreakdownRow& row);
extern const std::vector<Column> operator_columns;

}  // namespace kvcast::cli
