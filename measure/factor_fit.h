/// Fits factors of a device to measured rows by least squares.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "measure/validation.h"
#include "roofline/hardware.h"

namespace kvcast::measure {

struct FittedFactor {
  std::string name;       ///< "matrix_rate.fp16", "memory_bandwidth", "operator_latency"
  double before = 0;      ///< the hardware file's, or what estimates use in its place
  double after = 0;       ///< a share of the peak, or seconds
  bool at_limit = false;  ///< the best fit would be above the peak
};

struct FactorFit {
  std::vector<FittedFactor> factors;
  roofline::Hardware hardware;  ///< with the fitted factors
  ErrorSummary before;          ///< of the chosen rows
  ErrorSummary after;
};

/// The names that `--fit` takes.
std::vector<std::string> factor_names();

/// Minimises the sum of log(predicted / measured) squared over the cases, all of one device, by
/// Levenberg and Marquardt's method on the logarithms of the factors; a factor stays at or below 1.
/// A rate named without a dtype ("matrix_rate") is fitted for each dtype that the cases multiply
/// in.
/// Throws Error: an unknown factor, cases of several devices, fewer cases than factors, a factor
/// that no case depends on.
FactorFit fit_factors(std::vector<ValidationCase> cases, const Devices& devices,
                      std::span<const std::string> names);

/// `file` with the fitted factors in it, as a hardware file of this name; `rows` says what they
/// were fitted to. Throws Error when the file cannot be read.
std::string fitted_hardware_json(const std::filesystem::path& file, const FactorFit& fit,
                                 std::string_view name, std::string_view rows);

}  // namespace kvcast::measure
