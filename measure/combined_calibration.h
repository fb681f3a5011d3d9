/// Combines calibrations of one machine at different times into one hardware file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "measure/calibration.h"
#include "roofline/hardware.h"

namespace kvcast::measure {

struct CombinedCalibration {
  roofline::Hardware hardware;
  /// By the file's keys, "factors.matrix_rate.fp32", a round for each calibration; what is a share
  /// of a peak in the file is a rate here.
  std::vector<Measurement> numbers;
};

/// The entry `calibration` of a hardware file; an empty object where there is none. Throws Error as
/// read_hardware does.
nlohmann::json calibration_of(const std::filesystem::path& file);

/// Medians of the calibrations' rates and latencies. Shares are not combined as shares: each is of
/// its own calibration's peak. Throws Error (what, found, expected) where they are fewer than two
/// or not of one machine: another description, memory, links, or numbers that only some have.
CombinedCalibration combine_calibrations(const std::vector<std::filesystem::path>& files);

/// The file, with the first calibration's date, threads and ranks, the names and dates of what it
/// combines and each number's lowest and highest.
std::string to_json(const CombinedCalibration& c, const std::string& name,
                    const std::vector<std::filesystem::path>& files);

}  // namespace kvcast::measure
