/// The program gnuplot, run as a child process.
#pragma once

#include <string>

#include "reports/plot/plot.h"

namespace kvcast::reports {

/// The bytes of the picture that the script draws from the CSV, in a scratch folder of its own.
/// Only the names of `files` are used; nothing is written beside the picture.
/// Throws Error with Fault::Run when gnuplot is not installed or fails.
std::string drawn_picture(const PlotFiles& files, const std::string& csv,
                          const std::string& script);

}  // namespace kvcast::reports
