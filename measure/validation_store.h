/// Stored validations: the errors of earlier comparisons with measurements, as bounds for new
/// estimates.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "measure/error_bounds.h"
#include "measure/validation.h"
#include "model/base/json_file.h"

namespace kvcast::measure {

/// `data/validation/` and, beside a hardware file HW.json, `HW.validation.json`.
inline constexpr std::string_view validation_folder = "validation";
std::filesystem::path validation_beside(const std::filesystem::path& hardware_file);

/// The JSON of a stored validation: each case's inputs, predicted, measured and relative_error, its
/// time when forecast without an engine, its source_key, and a fingerprint of each device's
/// factors. `source` names the files that the measurements are from; `kept` are rows of an earlier
/// document that stay, behind at least one case.
std::string validation_document(const Validation& validation, std::string_view source,
                                std::span<const nlohmann::ordered_json> kept = {});

/// Changes with every number that forecasts on one such device depend on.
std::string fingerprint(const roofline::Hardware& hardware);
/// Changes with every number of messages between such devices: links and their latencies.
std::string exchange_fingerprint(const roofline::Hardware& hardware);

/// "fp16/bf16", or "fp8 weights, fp32 activations, fp8 cache" where they differ: the dtypes that a
/// stored error is of. fp16 and bf16 are one: equally wide, and each other's rates in hardware.h.
std::string dtypes_text(const Lowering& lowering);

/// What stored errors say of one estimate.
struct ErrorBars {
  std::optional<ErrorBound> ttft = {};
  std::optional<ErrorBound> tpot = {};
  std::string note = {};  ///< empty when both are there; else why not, in one line
};

/// Which links an estimate of several devices is for.
enum class Links { OfHardware, Others };

/// The note of estimates that are not calibrated.
inline constexpr std::string_view speed_of_light_note =
    "error bounds are of calibrated estimates, not of the speed of light";

/// What an estimate is of, as far as stored errors depend on it.
struct Estimated {
  const roofline::Hardware& hardware;
  std::string engine = roofline::Engine{}.name;
  std::string methods = "plain";  ///< as parse_methods takes them
  Lowering lowering = {};         ///< the attention and the dtypes count
  /// Of methods on several devices errors over other links than the estimate's say nothing.
  Links links = Links::OfHardware;
};

Estimated estimated(const ValidationCase& c, const Devices& devices);

/// Errors count for other devices too, of the same architecture or kind, if the catalog's device
/// still has the factors that they were measured with; those of a device that a file describes are
/// of that device alone. A time of a whole request counts as TTFT or as TPOT, whichever takes most
/// of it.
class ValidationStore {
 public:
  /// Of all devices of the catalog, and of those in `hardware` that are named by a file.
  ValidationStore(const Catalog& catalog, const std::vector<std::string>& hardware);
  /// Of these rows alone.
  ValidationStore(const Catalog& catalog, const Validation& validation);

  /// A stored file, or all .json of a folder. Throws Error when one is no stored validation.
  void add(const std::filesystem::path& path);

  /// Rows of the source `without`, by its source_key, do not count.
  BoundOrReason bound(const Estimated& estimate, Regime regime,
                      const std::optional<std::string>& without = {});
  ErrorBars bars(const Estimated& estimate, const roofline::DesignPoint& size);
  /// Errors of all requests of the device as it is described now, of forecasts for the rows'
  /// engines; empty: it was never compared with a measurement.
  std::vector<double> errors_of(const roofline::Hardware& hardware) const;

 private:
  /// A device of the catalog, with its fingerprint: hundreds of rows are of one device.
  struct CatalogDevice {
    roofline::Hardware hardware;
    std::string fingerprint;
  };

  Setup setup_of(const Estimated& estimate);
  void add_row(const JsonObject& row, const JsonObject& devices,
               const std::optional<JsonObject>& exchanges);
  /// The catalog's device; null if it has none of that name.
  const CatalogDevice* find_device(const std::string& name);

  Catalog catalog_;
  std::vector<std::string> names_;  ///< the catalog's devices
  std::map<std::string, CatalogDevice> devices_;
  std::vector<ErrorRow> rows_;
};

/// The regime that a case counts for; nothing for times of single kernels.
std::optional<Regime> regime_of(Metric metric, const roofline::DesignPoint& size,
                                double ttft_share);

}  // namespace kvcast::measure
