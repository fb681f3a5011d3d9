/// The gnuplot script that draws a plot's picture from its CSV.
#pragma once

#include <filesystem>
#include <string>

#include "reports/plot/plot.h"

namespace kvcast::reports {

enum class Format { Svg, Png };

/// Of a picture, by its name. Throws Error unless that ends in .svg or .png.
Format format_of(const std::filesystem::path& picture);

/// Throws Error when there is no point that the axes can show.
std::string script_of(const Plot& plot, const PlotFiles& files);

}  // namespace kvcast::reports
