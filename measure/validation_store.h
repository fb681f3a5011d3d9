/// Stored validations: the errors of earlier comparisons with measurements, as bounds for new
/// estimates.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "measure/validation.h"

namespace kvcast::measure {

/// `data/validation/` and, beside a hardware file HW.json, `HW.validation.json`.
inline constexpr std::string_view validation_folder = "validation";
std::filesystem::path validation_beside(const std::filesystem::path& hardware_file);

/// The JSON of a stored validation: each case's inputs, predicted, measured and relative_error, and
/// a fingerprint of each device's factors. `source` names the files that the measurements are
/// from.
std::string validation_document(const Validation& validation, std::string_view source);

/// Changes with every number that forecasts on one such device depend on.
std::string fingerprint(const roofline::Hardware& hardware);
/// Changes with every number of messages between such devices: links and their latencies.
std::string exchange_fingerprint(const roofline::Hardware& hardware);

/// "fp16/bf16", or "fp8 weights, fp32 activations, fp8 cache" where they differ: the dtypes that a
/// stored error is of. fp16 and bf16 are one: equally wide, and each other's rates in hardware.h.
std::string dtypes_text(const Lowering& lowering);

/// Bounds on |predicted / measured - 1|, as error_bound has them, from the stored rows of the same
/// device, method (its parts, whatever their options but the number of devices), attention and
/// dtypes_text, whatever the positions that had logits.
struct ErrorBars {
  std::optional<double> ttft = {};
  std::optional<double> tpot = {};
  std::size_t ttft_rows = 0;
  std::size_t tpot_rows = 0;
  std::string note = {};  ///< empty when both are there; else why not, in one line
};

/// Which links an estimate of several devices is for.
enum class Links { OfHardware, Others };

/// The note of estimates that are not calibrated.
inline constexpr std::string_view speed_of_light_note =
    "error bounds are of calibrated estimates, not of the speed of light";

class ValidationStore {
 public:
  /// Of all devices of the catalog, and of the device that is named by a file.
  ValidationStore(const Catalog& catalog, const std::string& hardware);

  /// A stored file, or all .json of a folder. Throws Error when one is no stored validation.
  void add(const std::filesystem::path& path);

  /// `methods` as parse_methods takes them; of `lowering` the attention and the dtypes. Of methods
  /// on several devices errors over other links than the estimate's say nothing.
  ErrorBars bars(const roofline::Hardware& hardware, std::string_view methods,
                 const Lowering& lowering, Links links = Links::OfHardware) const;

 private:
  struct Group {
    std::string device;
    std::string fingerprint;
    std::string method;
    std::string attention;
    std::string dtypes;
    std::string metric;
    auto operator<=>(const Group&) const = default;
  };
  std::map<Group, std::vector<double>> errors_;
};

}  // namespace kvcast::measure
