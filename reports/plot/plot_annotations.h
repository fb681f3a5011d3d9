/// Texts beside points, placed so that they cover neither what is drawn nor each other.
#pragma once

#include <string>

#include "reports/plot/plot_layout.h"

namespace kvcast::reports {

/// gnuplot commands that write the annotations. `font_size` in the terminal's unit.
std::string annotation_commands(const Plot& plot, const Layout& layout, double font_size);

}  // namespace kvcast::reports
