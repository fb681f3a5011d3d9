/// Estimates of one configuration (model, methods, kernels, devices) at any request size, with
/// speed-ups over the plain method.
///
/// Devices that split each layer (tp) or its experts (ep) do the same at the same time, and wait
/// for each other's messages; so one of them is forecast. Replicas (dp) share the sequences. Stages
/// of a pipeline (pp) hand micro-batches on:
///   TTFT = when the last one has left the last stage, each stage taking them one by one; time per
///   token = the longer of a micro-batch's way and the slowest stage's time for all.
/// Without a pipeline micro-batches overlap, the messages of one with the work of the others:
///   time = the longer of all work and all messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "roofline/forecast.h"
#include "roofline/hardware.h"

namespace kvcast::roofline {

/// Sequences or micro-batches of each of `by` parts, the largest.
constexpr std::uint64_t divided_up(std::uint64_t n, std::uint64_t by) {
  return n / by + (n % by > 0 ? 1 : 0);
}

/// Sequences in `parts` micro-batches, fewer where there are fewer sequences, as even as can be:
/// first the large ones, then those that are smaller by one.
struct MicroBatches {
  MicroBatches(std::uint64_t sequences, std::uint64_t parts)
      : number(std::min(sequences, parts)),
        large(divided_up(sequences, number)),
        num_small(number * large - sequences) {}
  std::uint64_t number;
  std::uint64_t large;
  std::uint64_t num_small;

  std::uint64_t num_large() const { return number - num_small; }
  std::uint64_t small() const { return num_small > 0 ? large - 1 : large; }
};

struct Configuration {
  Architecture architecture;
  std::vector<MethodSpec> methods;  ///< empty: plain
  Lowering lowering;
  Logits logits = Logits::Last;
  Hardware hardware;
  Mode mode = Mode::Calibrated;
  FindModel find_model = {};  ///< of models that methods name
  Engine engine = {};         ///< what its kernels are is in `lowering`
  /// Several devices, `hardware` each, joined by `interconnect`.
  Parallelism parallelism = {};
  std::vector<std::size_t> stage_layers = {};  ///< see stage_ends(); empty: equal stages
  std::uint64_t micro_batches = 0;             ///< of a batch; 0: one for each stage
  std::shared_ptr<const Interconnect> interconnect = nullptr;
};

/// Devices of its groups, as many as a placement has ranks.
std::uint64_t all_devices(const Configuration& configuration);
/// Throws Error when they are more than the configuration's platform has.
void check_platform(const Configuration& configuration);

/// What joins its devices: the named platform, or the node of its hardware. Null for one device,
/// and for a placement's ranks of one device each without a name, whose link is the hardware's.
/// Throws Error as roofline::find_interconnect.
std::shared_ptr<const Interconnect> interconnect_of(const Configuration& configuration,
                                                    const Catalog& catalog,
                                                    const std::string& platform);

/// Micro-batches that a batch is cut into: at most one for each sequence of a replica.
std::uint64_t used_micro_batches(const Configuration& configuration, std::uint64_t batch);

/// Rates of its devices. Throws Error when the platform has fewer of them.
Rates rates_of(const Configuration& configuration);

/// What the first `nodes` of a pass hand on to the next stage of a pipeline.
Count bytes_to_next_stage(const Graph& graph,
                          std::size_t nodes = std::numeric_limits<std::size_t>::max());
/// Seconds of that; after the last stage comes the first. Throws Error without a platform.
CollectiveCurve hop_to_next_stage(const Configuration& configuration, std::uint64_t stage);

/// What a forecast needs of the model under its methods.
struct Recordings {
  Recording whole;
  std::optional<Recording> chunk;  ///< where the engine reads such prompts in several steps

  const Recording* chunk_or_null() const { return chunk ? &*chunk : nullptr; }
};
/// Of one device; without a place of one that has all of the model. Throws Error when the methods
/// do not fit the model or the place.
Recordings record_for(const Configuration& configuration,
                      const std::optional<DevicePlace>& place = {});

/// A forecast and what the method gains over `plain`; ratios above 1 are better than plain, except
/// `kv_cache_ratio`, the share of plain's cache that is left.
///
/// With several devices FLOPs, bytes, weights and cache are sums over all of them, what they hold
/// several times included; peak memory is that of the device that needs most.
struct Estimate : Forecast {
  std::uint64_t devices = 1;
  double weight_bytes_per_device = 0;    ///< of the device with most
  double kv_cache_bytes_per_device = 0;  ///< the same
  /// Of a pipeline: the share of its stages' time in which they have nothing to do.
  double prefill_bubble = 0;
  double decode_bubble = 0;
  double ttft_speedup = 1;
  double tpot_speedup = 1;
  double kv_cache_ratio = 1;
};

/// One line for each way in which a request is longer than what the model was built for.
std::vector<std::string> context_warnings(const Architecture& a, const DesignPoint& point,
                                          std::uint64_t contexts = 1);

/// Of a batch that replicas do not share evenly; else empty.
std::string replica_warning(std::uint64_t batch, std::uint64_t dp);

class Estimator {
 public:
  /// Records and compiles; milliseconds. Throws Error when the methods do not fit the model or the
  /// device cannot run the dtypes.
  explicit Estimator(const Configuration& configuration);

  /// Of one device that has all of the model.
  const Recording& recording() const { return whole_ ? *whole_ : stages_[0].recordings.whole; }
  /// Of a device of the first stage.
  const Recording& device_recording() const { return stages_[0].recordings.whole; }
  const Parallelism& parallelism() const { return parallelism_; }
  const Rates& rates() const { return stages_[0].forecaster.rates(); }
  /// Throws Error when a count does not fit 64 bits.
  Estimate at(const DesignPoint& point) const;
  /// `rows` has as many entries as `points`.
  void sweep(std::span<const DesignPoint> points, std::span<Estimate> rows) const;
  /// Of one device; in a pipeline, of one of each stage, which the names of passes say.
  std::vector<BreakdownRow> breakdown(const DesignPoint& point) const;
  /// One line for each way in which the point leaves what the model was built for.
  std::vector<std::string> warnings(const DesignPoint& point) const;

 private:
  /// The devices of a pipeline's stage, which do the same at the same time. Without stages: all.
  struct Stage {
    Recordings recordings;
    Forecaster forecaster;
    std::optional<CollectiveCurve> hop = {};  ///< to the next stage; none: the last one
    Count hop_bytes = {};                     ///< of a step of the prompt

    /// `exact`: counts are checked and exact, as Forecaster::at gives them.
    std::vector<Forecast> at(std::span<const DesignPoint> points, bool exact) const;
  };
  using Stages = std::vector<Stage>;
  Stages make_stages(const Configuration& c) const;
  void forecast(const Stages& stages, std::span<const DesignPoint> points, bool exact,
                std::span<Estimate> rows) const;
  /// Whole batches -> the same in micro-batches that overlap, where a batch has several.
  void overlap(const Stage& stage, std::span<const DesignPoint> points,
               std::span<Forecast> whole) const;
  void pipelined(const Stages& stages, std::span<const DesignPoint> points, bool exact,
                 std::span<Estimate> rows) const;

  Architecture architecture_;
  Parallelism parallelism_;
  std::uint64_t micro_batches_ = 0;
  std::optional<Recording> whole_;  ///< of several devices
  Stages stages_;
  Stages plain_;  ///< empty: the configuration is plain itself
};

}  // namespace kvcast::roofline
