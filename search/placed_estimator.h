/// Estimates of every configuration, those with a placement (kvr, tsp) through the simulator.
///
/// Devices stand in a ring, each with a link of its own to the next, or on the configuration's
/// platform, and send their messages one at a time (fifo). The last of them makes the first token
/// and goes on decoding alone, with the whole cache, so that a decode step and the cache are those
/// of one device. FLOPs and bytes of the prefill are summed over the devices; messages are not
/// among these bytes. Where a method chooses the prompt's tokens, every device runs its helper
/// passes, and they share the kept tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "roofline/estimator.h"
#include "search/chain_links.h"
#include "search/partition_search.h"
#include "simulate/simulation.h"

namespace kvcast::search {

/// Ranks for which a partition is searched: that takes fractions of a second; 24 took more than 8.
inline constexpr std::uint64_t most_searched_ranks = 16;

/// How several devices read one prompt.
struct PlacedPrefill {
  Partition tokens;                       ///< of each device
  std::optional<PartitionFound> found{};  ///< where the partition was searched
  double helpers_s = 0;                   ///< the passes that each device runs before
  simulate::RunResult run;                ///< begins after them
  double without_links_s = 0;             ///< TTFT if messages took no time
};

struct PlacedEstimate : roofline::Estimate {
  std::optional<PlacedPrefill> prefill;  ///< where several devices read the prompt
};

/// Whether a placement's partition is to be searched for the devices: kvr:p=P,partition=search.
bool searches_partition(const std::vector<MethodSpec>& methods);

class PlacedEstimator {
 public:
  /// `link`: from each device to the next; default: the ways of the configuration's platform, or
  /// without one the hardware's link (hardware_link). Throws Error as roofline::Estimator and
  /// record_rank do, for more devices than the simulator takes or a search, and where there is no
  /// link.
  explicit PlacedEstimator(const roofline::Configuration& configuration,
                           const std::optional<HardwareLink>& link = {});

  /// The same configuration without its placement.
  const roofline::Estimator& one_device() const { return one_device_; }
  /// Whether several devices read the prompt; false too for a placement on one.
  bool is_placed() const { return times_ != nullptr; }
  /// Where several do: of a platform the narrowest way from one to the next.
  const HardwareLink& link() const { return link_; }
  /// Where several do: the most messages that a layer leaves in. Over the hardware's own link a
  /// layer's take one latency together.
  std::size_t messages_of_layer() const { return times_->most_messages(); }

  /// With several devices, peak memory is that of the device that needs most, and TTFT is bound by
  /// links when messages make up more than half of it. Throws Error when a count does not fit 64
  /// bits, and when the prompt does not fit the partition. `kvr` with partition=search takes the
  /// one that search_partition finds.
  PlacedEstimate at(const roofline::DesignPoint& point) const;
  /// `rows` has as many entries as `points`. Throws Error likewise.
  void sweep(std::span<const roofline::DesignPoint> points,
             std::span<roofline::Estimate> rows) const;

 private:
  /// A device's prefill, at its tokens (symbol prompt_len) and the keys it reads (kv_len).
  struct DevicePass {
    Symbols symbols;
    Count flops;
    Count bytes;
    std::vector<Count> activation_peaks;
  };
  /// Of a batch's times, by rank.
  simulate::RunResult run(const simulate::LayerTimes& times, const Partition& tokens) const;
  /// `one_device`: its estimate of the point.
  PlacedPrefill prefill(const roofline::DesignPoint& point,
                        const roofline::Estimate& one_device) const;
  /// Makes one device's estimate that of several.
  roofline::Estimate spread(roofline::Estimate e, const roofline::DesignPoint& point,
                            const PlacedPrefill& prefill) const;
  /// Throws Error when the prompt does not fit the partition of a placement on one device.
  void check_partition(const roofline::DesignPoint& point) const;
  void add_devices(const roofline::DesignPoint& point, const Partition& tokens,
                   roofline::Estimate& e) const;

  roofline::Estimator one_device_;
  std::optional<Placement> placement_;
  bool searches_ = false;
  simulate::Schedule schedule_ = simulate::Schedule::Kvr;
  HardwareLink link_;
  std::optional<ChainLink> inner_link_;  ///< inside nodes, where link_ is the one between them
  std::optional<simulate::Platform> platform_;  ///< none: a ring of link_
  double messages_ = 1;  ///< that a layer leaves in; over the hardware's own link counted as one
  bool shares_links_ = false;  ///< devices of a rank may share a link of the platform
  std::unique_ptr<simulate::LayerTimes> times_;  ///< null: one device
  DevicePass middle_;                            ///< of all devices but the last
  DevicePass last_;
  std::vector<Count> decode_peaks_;
  Count base_flops_;  ///< of one device's prefill after its helper passes
  Count base_bytes_;
  std::vector<std::vector<Count>> helper_peaks_;  ///< by helper pass
};

}  // namespace kvcast::search
