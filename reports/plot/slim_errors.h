/// How exact the keys and values are that Slim attention computes, attention by attention.
#pragma once

#include <filesystem>

#include "model/convert/slim_conversion.h"
#include "reports/plot/plot.h"

namespace kvcast::reports {

/// "self" or "cross"
const char* site_name(SlimSite site);

/// A row for each attention, form that its shapes allow, and storage: layer, attention, form,
/// storage, condition (of W_K for kcache, of W_V for vcache), relative_error, chosen ("true" where
/// the attention takes the form), reason, dtype (of the conversion), logit_error (of it, the same
/// in every row). Throws Error.
void write_slim_csv(const SlimReport& report, DType dtype, double logit_error,
                    const std::filesystem::path& path);

/// Errors over the attentions in the storage that the conversion writes, and --max-error.
Plot slim_error_plot(const SlimReport& report, DType dtype, double max_error);

}  // namespace kvcast::reports
