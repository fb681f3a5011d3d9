/// Estimates of one configuration (model, methods, kernels, device) at any request size, with
/// speed-ups over the plain method.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "roofline/forecast.h"
#include "roofline/hardware.h"

namespace kvcast::roofline {

struct Configuration {
  Architecture architecture;
  std::vector<MethodSpec> methods;  ///< empty: plain
  Lowering lowering;
  Logits logits = Logits::Last;
  Hardware hardware;
  Mode mode = Mode::Calibrated;
  FindModel find_model = {};  ///< of models that methods name
  Engine engine = {};         ///< what its kernels are is in `lowering`
};

/// What a forecast needs of the model under its methods.
struct Recordings {
  Recording whole;
  std::optional<Recording> chunk;  ///< where the engine reads such prompts in several steps

  const Recording* chunk_or_null() const { return chunk ? &*chunk : nullptr; }
};
/// Throws Error when the methods do not fit the model.
Recordings record_for(const Configuration& configuration);

/// A forecast and what the method gains over `plain`; ratios above 1 are better than plain, except
/// `kv_cache_ratio`, the share of plain's cache that is left.
struct Estimate : Forecast {
  double ttft_speedup = 1;
  double tpot_speedup = 1;
  double kv_cache_ratio = 1;
};

/// One line for each way in which a request is longer than what the model was built for.
std::vector<std::string> context_warnings(const Architecture& a, const DesignPoint& point,
                                          std::uint64_t contexts = 1);

class Estimator {
 public:
  /// Records and compiles; milliseconds. Throws Error when the methods do not fit the model or the
  /// device cannot run the dtypes.
  explicit Estimator(const Configuration& configuration);

  const Recording& recording() const { return recordings_.whole; }
  const Rates& rates() const { return forecaster_.rates(); }
  /// Throws Error when a count does not fit 64 bits.
  Estimate at(const DesignPoint& point) const;
  /// `rows` has as many entries as `points`.
  void sweep(std::span<const DesignPoint> points, std::span<Estimate> rows) const;
  std::vector<BreakdownRow> breakdown(const DesignPoint& point) const {
    return forecaster_.breakdown(point);
  }
  /// One line for each way in which the point leaves what the model was built for.
  std::vector<std::string> warnings(const DesignPoint& point) const;

 private:
  Architecture architecture_;
  Recordings recordings_;
  Forecaster forecaster_;
  std::unique_ptr<Forecaster> plain_;  ///< null: the configuration is plain itself
};

}  // namespace kvcast::roofline
