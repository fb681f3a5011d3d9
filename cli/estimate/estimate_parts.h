/// What the estimates of inference and of training print alike.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "measure/error_bounds.h"
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
/// "+-14 %"; empty without a bound.
std::string bound_text(const std::optional<measure::ErrorBound>& bound);
/// The keys TIME_error_bound, TIME_error_rows and TIME_error_population.
void add_bound(ordered_json& j, std::string_view time,
               const std::optional<measure::ErrorBound>& bound);
/// One row of --breakdown, and the table of them.
ordered_json operator_json(const roofline::BreakdownRow& row);
std::string operators_text(const ordered_json& rows);

}  // namespace kvcast::cli
