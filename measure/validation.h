/// Compares forecasts with measured rows: relative errors, and which rows have no forecast and why.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "measure/measurements.h"
#include "model/io/weights/catalog.h"
#include "roofline/forecast.h"
#include "roofline/hardware.h"

namespace kvcast::measure {

/// The device to forecast for, where a row names no device or this one.
struct DeviceChoice {
  std::string name;      ///< in the file; empty: that of `hardware`
  std::string hardware;  ///< catalog name or file; empty: each row's own, from the catalog
  /// The same for rows whose prompt several devices read; empty: `hardware`.
  std::string placed_hardware = {};
  /// Of all rows: NAME[:VERSION]; empty: each row's own, if the catalog has it.
  std::string engine = {};
};
/// "HW" or "NAME=HW": rows that name NAME are forecast for the device HW.
DeviceChoice parse_device_choice(std::string_view text);

/// The forecasts of one model, method and kernels on a device, for any sizes.
using ForecastAt = std::function<roofline::Forecast(const roofline::DesignPoint&)>;
using ForecastOn = std::function<ForecastAt(const roofline::Hardware&)>;

/// Of a kernel alone: its seconds are the forecast's ttft_s.
ForecastOn kernel_forecast(const roofline::Kernel& kernel);

/// One measured time and all that its forecast needs.
struct ValidationCase {
  MeasuredRow row;  ///< model, hardware, engine and kernels as kvcast forecasts them
  Metric metric = Metric::Ttft;
  double measured = 0;                         ///< seconds
  double predicted = 0;                        ///< seconds
  double ideal = 0;                            ///< seconds, predicted without an engine
  double ttft_share = 0;                       ///< of the predicted time
  std::shared_ptr<const ForecastOn> forecast;  ///< shared by the cases that differ in sizes alone
  std::shared_ptr<const ForecastOn> ideal_forecast;  ///< null: `forecast` has no engine

  /// predicted / measured - 1
  double relative_error() const { return predicted / measured - 1; }
};

struct UnmatchedRow {
  std::string place;
  std::string id;
  std::string reason;
};

/// By name.
using Devices = std::map<std::string, roofline::Hardware>;

struct Validation {
  std::vector<ValidationCase> cases;
  std::vector<UnmatchedRow> unmatched;
  Devices devices;
};

/// Each weight's type, where most are of `main` and the model's configuration or file says more.
WeightTypes weight_types_of(const Architecture& a, DType main);

/// Finds each row's model and device and forecasts its times. Rows without a forecast are listed as
/// unmatched. Throws Error when a chosen device cannot be read or two have one name.
Validation validate(const Measurements& measurements, const Catalog& catalog,
                    const DeviceChoice& choice);

/// Sets `predicted` of all cases for these devices.
void predict(std::span<ValidationCase> cases, const Devices& devices);

/// "slim+specprefill": a method's parts without their options.
std::string method_names(std::string_view methods);
/// On how many devices a method reads the prompt.
std::uint64_t num_devices(std::string_view methods);

/// The repository, paper or page of a row: the first word of its source, so that all tables of one
/// repository are one source.
std::string source_key(std::string_view source);

/// What was run, metric, predicted and measured seconds, relative_error, place.
nlohmann::ordered_json case_json(const ValidationCase& c);

struct ErrorSummary {
  std::size_t rows = 0;
  double mape = 0;   ///< mean of |relative error|
  double worst = 0;  ///< largest |relative error|
  double bias = 0;   ///< mean relative error: above 0, forecasts are too slow
  double bound = 0;  ///< percentile_90
};
ErrorSummary summarize(std::span<const double> relative_errors);
ErrorSummary summarize(std::span<const ValidationCase> cases);

/// The 90th percentile (nearest rank) of |relative error| of these rows. With fewer than ten that
/// is the worst. What it says of other rows: error_bounds.h.
double percentile_90(std::span<const double> relative_errors);

}  // namespace kvcast::measure
