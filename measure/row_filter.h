/// Chooses among measured rows: "prompt_len<=1024,method=plain", "every=2".
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "measure/validation.h"

namespace kvcast::measure {

/// True for the `index`-th case when it is taken.
using RowFilter = std::function<bool(const ValidationCase& c, std::size_t index)>;

/// Conditions that all must hold. KEY is id, model, hardware, method, attention, weight_dtype,
/// metric (=, !=) or batch, prompt_len, output_len (also <, <=, >, >=); every=N takes the first of
/// each N cases. Throws Error starting with `place`.
RowFilter parse_row_filter(std::string_view text, std::string_view place);

}  // namespace kvcast::measure
