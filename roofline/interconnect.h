/// What collectives and messages between devices take, from a platform file (data/platforms).
///
/// `bytes` of a collective is the whole buffer: what all-reduce sums, what all-gather gives to each
/// rank, what reduce-scatter takes from each rank, and what a rank of an all-to-all sends, its own
/// part included. So the bus bandwidth of nccl-tests is bytes / seconds times (p - 1) / p, and
/// twice that for all-reduce.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/graph/collective.h"
#include "model/io/weights/catalog.h"
#include "roofline/rates.h"

namespace kvcast::roofline {

/// "all_reduce", "reduce_scatter", "all_gather", "all_to_all". Throws Error with the nearest name.
CollectiveKind parse_operation(std::string_view word);

/// Seconds by bytes: never falls, linear between four points an octave, constant below 1 byte and
/// at the last segment's rate beyond 2^40 bytes. A default one is 0 everywhere.
class CollectiveCurve {
 public:
  CollectiveCurve() = default;
  /// Where `seconds` falls, the shorter time of more bytes counts: noise only adds to a measured
  /// time, and a library may send more than it must.
  explicit CollectiveCurve(const std::function<double(double)>& seconds);

  /// Takes so much longer at all sizes; a default one does not.
  void wait(Seconds more) {
    for (double& s : seconds_) s += more.value;
  }

  double at(double bytes) const {
    if (seconds_.empty()) return 0;
    if (!(bytes >= 1)) return seconds_.front();
    const auto bits = std::bit_cast<std::uint64_t>(bytes);
    const std::uint64_t i = (bits >> quarter_bits) - first_quarter;
    if (i + 1 >= seconds_.size()) return beyond(bytes);
    const double share = static_cast<double>(bits & ((std::uint64_t{1} << quarter_bits) - 1)) *
                         (1.0 / static_cast<double>(std::uint64_t{1} << quarter_bits));
    return seconds_[i] + share * (seconds_[i + 1] - seconds_[i]);
  }

 private:
  // The upper bits of a double count quarters of octaves.
  static constexpr unsigned quarter_bits = 50;
  static constexpr std::uint64_t first_quarter = std::uint64_t{1023} << 2;

  double beyond(double bytes) const;

  std::vector<double> seconds_;  ///< at (1 + q/4)·2^e bytes
};

/// p ranks, S bytes. Steps follow each other; the volume is what a link carries in one direction.
enum class CollectiveAlgorithm {
  None,      ///< one rank
  Ring,      ///< p - 1 steps, S(p - 1)/p; all-reduce twice that
  Tree,      ///< halving and doubling: as the ring in log2(p) steps, for powers of two
  OneShot,   ///< all-reduce: each reads all of all; 1 step, S(p - 1)
  TwoShot,   ///< all-reduce: direct reduce-scatter and all-gather; 2 steps, 2S(p - 1)/p
  InSwitch,  ///< all-reduce: the switch sums and spreads (NVLS); 2 steps, S(1 + 1/p)
  Direct,    ///< all-to-all: to all others at once; 1 step, S(p - 1)/p
};
std::string_view name(CollectiveAlgorithm algorithm);

double steps(CollectiveAlgorithm algorithm, CollectiveKind kind, std::uint64_t ranks);
/// Over the buffer's bytes.
double volume(CollectiveAlgorithm algorithm, CollectiveKind kind, std::uint64_t ranks);

/// A library's algorithm on a node: start + steps·step + volume·bytes/rate, the least over
/// protocols (NCCL has three: low latency, 128 bytes a line, simple).
struct AlgorithmCost {
  struct Protocol {
    double step_s = 0;
    double bytes_per_s = 0;
  };
  struct Limit {
    std::uint64_t devices = 0;  ///< up to so many
    std::uint64_t bytes = 0;    ///< below this size
  };
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::Ring;
  double start_s = 0;
  std::vector<Protocol> protocols;
  /// The first with as many devices holds; without one the library leaves it to NCCL. Empty: no
  /// limit.
  std::vector<Limit> limits = {};
  bool whole_node = false;  ///< only where all devices of a node take part

  bool takes(std::uint64_t ranks, double bytes) const;
  double seconds(CollectiveKind kind, std::uint64_t ranks, double bytes) const;
};

/// Measured (bytes, seconds), ascending in bytes.
using CollectiveTable = std::vector<std::pair<double, double>>;

/// The parts of a platform file that costs need.
struct InterconnectData {
  std::string name;
  std::uint64_t devices_per_node = 1;
  std::uint64_t nodes = 1;
  // A device's link inside the node, one direction; a path through the switch has two.
  double link_bytes_per_s = 0;
  double link_latency_s = 0;
  /// PCIe: devices below one switch, which share its link upwards; 0: one switch that never blocks.
  std::uint64_t pcie_group = 0;
  /// Without peer-to-peer copies: what all devices of a node together send through the host's
  /// memory; infinite: with such copies.
  double host_bytes_per_s = std::numeric_limits<double>::infinity();
  // A device's adapter between nodes; `payload` is what messages reach of its line rate.
  double network_bytes_per_s = 0;
  double network_payload_bytes_per_s = 0;
  double network_latency_s = 0;
  std::map<std::string, std::vector<AlgorithmCost>> libraries;
  std::map<std::tuple<std::string, CollectiveKind, std::uint64_t>, CollectiveTable> tables;
};

/// How a collective is done, for those who simulate it.
struct CollectivePlan {
  CollectiveKind kind = CollectiveKind::AllReduce;
  double bytes = 0;
  std::uint64_t members = 1;  ///< of each node
  std::uint64_t nodes = 1;    ///< with members in the group
  CollectiveAlgorithm inside = CollectiveAlgorithm::None;
  CollectiveAlgorithm between = CollectiveAlgorithm::None;
  /// Parts of the buffer that follow each other through the stages of several nodes.
  std::uint64_t chunks = 1;
  bool measured = false;  ///< the table of this group size
  double seconds = 0;
};

class Interconnect {
 public:
  /// Throws Error for an empty node, rates that are not above 0 and negative latencies.
  explicit Interconnect(InterconnectData data);

  std::uint64_t devices() const { return data_.devices_per_node * data_.nodes; }
  std::uint64_t devices_per_node() const { return data_.devices_per_node; }
  const std::string& name() const { return data_.name; }
  const InterconnectData& data() const { return data_; }
  /// "nccl" for "" and for engines' own kernels that the platform has no table of. Throws Error.
  const std::string& checked_library(const std::string& library) const;

  /// What a collective takes on the group, whose rank r is device r. `library`: "" or "nccl", or an
  /// engine's own kernels ("vllm", "trtllm"), which leave to NCCL what they do not take. Mode
  /// speed-of-light: the least volume over the links' peaks, no latency. Throws Error: an unknown
  /// library, a group that is no part of the platform.
  CollectiveCurve curve(CollectiveKind kind, const RankGroup& group, const std::string& library,
                        Mode mode) const;
  /// A message between two devices.
  CollectiveCurve point_to_point(std::uint64_t from, std::uint64_t to, Mode mode) const;
  /// Calibrated; errors as curve().
  CollectivePlan plan(CollectiveKind kind, const RankGroup& group, const std::string& library,
                      double bytes) const;

 private:
  struct Spread {
    std::uint64_t members = 1;  ///< on each node
    std::uint64_t nodes = 1;
    // Of groups with unequal parts as they stand.
    std::uint64_t most_members = 1;
    std::uint64_t true_nodes = 1;
  };
  struct Cost {
    CollectiveAlgorithm algorithm = CollectiveAlgorithm::None;
    double seconds = 0;
    bool measured = false;
  };
  Spread spread(const RankGroup& group) const;
  /// What a link carries in one direction, over the buffer's bytes, at least.
  double on_link(CollectiveKind kind, Spread s) const;
  double least(CollectiveKind kind, Spread s, double bytes) const;
  Cost form(CollectiveKind kind, std::uint64_t ranks, const std::string& library,
            double bytes) const;
  Cost inside(CollectiveKind kind, std::uint64_t ranks, const std::string& library,
              double bytes) const;
  Cost between(CollectiveKind kind, std::uint64_t nodes, double bytes) const;
  double start_s(CollectiveAlgorithm algorithm) const;
  CollectivePlan plan_of(CollectiveKind kind, Spread s, const std::string& library,
                         double bytes) const;
  CollectivePlan across_nodes(CollectiveKind kind, Spread s, double bytes) const;

  InterconnectData data_;
};

/// `text`: a name in data/platforms or a file. Throws Error, naming the file and the place in it:
/// unknown keys, quantities without a unit, what Interconnect refuses, a platform that is described
/// link by link.
Interconnect load_interconnect(const Catalog& catalog, const std::string& text);

/// So many devices on a switch that never blocks, each with a link of this rate; `latency_s`: from
/// one device to another. Throws Error as Interconnect.
std::shared_ptr<const Interconnect> on_switch(std::string name, std::uint64_t devices,
                                              double bytes_per_s, double latency_s);

/// As load_interconnect, or without a text the node that the hardware is sold in: the platform of
/// one node whose file names it. Or so many devices on_switch by a link that was measured, as
/// `mpirun kvcast calibrate` writes it into the hardware's file. Throws Error also where there is
/// neither.
std::shared_ptr<const Interconnect> find_interconnect(const Catalog& catalog,
                                                      const std::string& text,
                                                      const Hardware& hardware,
                                                      std::uint64_t devices);

/// A platform file's document, merged with the one of its folder that it extends.
nlohmann::json platform_document(const std::filesystem::path& path);

/// The parts of a platform file that it needs. `tables`: data/platforms/collectives.csv; empty: no
/// measured tables.
InterconnectData read_interconnect(const nlohmann::json& document, const std::string& place,
                                   const std::filesystem::path& tables);

}  // namespace kvcast::roofline
