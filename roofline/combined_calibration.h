/// One hardware file from several calibrations of a machine at different times.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "roofline/hardware.h"

namespace kvcast::roofline {

/// A number of the combined file, in base units; what depends on a peak is its rate here.
struct CombinedNumber {
  std::string name;  ///< "factors.matrix_rate.fp32"
  std::vector<double> values;
  double median = 0;
};

struct CombinedCalibration {
  Hardware hardware;
  std::vector<CombinedNumber> numbers;
};

/// Medians of the calibrations: of rates and latencies, not of shares of peaks, which differ from
/// one to the next. Throws Error (what, found, expected) where they are fewer than two or not of
/// one machine: another description, memory, links, or numbers that only some have.
CombinedCalibration combine_calibrations(const std::vector<std::filesystem::path>& files);

/// The file, with the first calibration's date, threads and ranks, the names of what it combines and
/// each number's lowest and highest.
std::string to_json(const CombinedCalibration& c, const std::string& name,
                    const std::vector<std::filesystem::path>& files);

}  // namespace kvcast::roofline
