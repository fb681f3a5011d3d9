/// The rates a device reaches on each kind of operator, and where each comes from.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/base/units.h"
#include "model/forward/recorder.h"
#include "roofline/engine.h"
#include "roofline/hardware.h"
#include "roofline/rate_curve.h"

namespace kvcast::roofline {

class Interconnect;

enum class Mode {
  SpeedOfLight,  ///< datasheet peaks, no latency: what no implementation can beat
  Calibrated,    ///< peaks times measured factors, and latencies
};
std::string_view name(Mode mode);
/// Throws Error with the nearest name.
Mode parse_mode(std::string_view word);

/// Which bandwidth an operator's bytes move at.
enum class BandwidthClass {
  Memory,            ///< long reads and writes: caches, fused kernels, and products of one row
  Product,           ///< products with weights as wide as activations, of several rows
  Elementwise,       ///< eager element-wise kernels
  Softmax,           ///< eager softmax
  Decode,            ///< the cache in tiled attention with one query
  Attention,         ///< tiled attention with many queries
  QuantizedProduct,  ///< products with weights narrower than the activations
  Experts,           ///< grouped products with the weights of experts
  QuantizedExperts,  ///< the same with weights below 8 bits, which are unpacked
  CombineExperts,    ///< sums of the rows that experts return
};
inline constexpr std::size_t num_bandwidth_classes = 10;

/// One factor of an estimate, for its provenance.
struct UsedFactor {
  std::string name;    ///< "matrix_rate fp16", "memory_bandwidth", ...
  double peak = 0;     ///< FLOP/s, bytes/s or, for latencies, seconds
  double factor = 1;   ///< achieved / peak
  std::string source;  ///< "datasheet", "measured", "fitted"
  std::string reference;
  std::vector<FactorAt> by_length = {};  ///< used instead where the length is known
  bool of_experts = false;               ///< used by models with experts alone
};

/// How fast a kind of grouped product multiplies; RateCurve: by the rows of one expert.
struct ExpertRate {
  FlopsPerSecond flops_per_second;
  RateCurve by_rows;
};

struct Rates {
  std::array<FlopsPerSecond, num_rate_classes> flops_per_second;
  std::array<BytesPerSecond, num_bandwidth_classes> bytes_per_second;
  /// Both at an operator's length (OpCost::length), relative to the rate without a length.
  std::array<RateCurve, num_rate_classes> flops_by_length;
  std::array<RateCurve, num_bandwidth_classes> bytes_by_length;
  /// Where operands are below 16 bits: of products whose weights have another type than most, and
  /// so multiply in that.
  std::map<DType, FlopsPerSecond> other_products;
  /// Of weights by their stored type, where it was measured (OpCost::stored_weights).
  struct WeightBandwidth {
    BytesPerSecond bytes_per_second;
    RateCurve by_rows;
  };
  std::map<DType, WeightBandwidth> weight_bandwidth;
  // Of grouped products instead of RateClass::Matrix; absent: the same.
  std::optional<ExpertRate> experts;
  std::optional<ExpertRate> quantized_experts;
  /// Experts that a uniform choice would read, over those that are read, by the rows of one of the
  /// former.
  RateCurve uneven_loads;
  /// The part of an operator's memory time that its arithmetic waits for, and its constant cost.
  std::array<double, num_bandwidth_classes> exposed{};
  std::array<Seconds, num_bandwidth_classes> latency;
  Seconds host_operator_latency;  ///< zero where the host does not issue operators one by one
  // Of the engine.
  Seconds launch_gap;
  Graphs graphs = Graphs::None;
  HostTimes host;
  std::uint64_t prefill_tokens = 0;
  bool prefill_at_least_context = false;
  bool cuts_prompts = false;
  double on_chip_bytes = 0;  ///< below it a repeated operand is read from memory once
  /// For intermediate results that fit there; without it they move at their class's rate.
  std::optional<BytesPerSecond> on_chip_bytes_per_second;
  /// For what is read again there; 0: it costs nothing.
  double on_chip_read_bytes_per_second = 0;
  double memory_capacity_bytes = 0;
  /// Of several devices, see Interconnect::curve; null: there is one.
  struct Collectives {
    std::shared_ptr<const Interconnect> interconnect;
    std::string library;
    Mode mode = Mode::Calibrated;
    Seconds wait = {};  ///< Engine::collective_wait
  };
  Collectives collectives;
  std::optional<Sourced> lockstep = {};  ///< of devices that wait for others in every layer
  std::vector<UsedFactor> factors;
  /// One line for each factor that was not measured for this device and dtype.
  std::vector<std::string> missing_factors;
};

/// Throws Error when the device cannot multiply the dtypes of `lowering`.
Rates make_rates(const Hardware& hw, const Lowering& lowering, Mode mode,
                 const Engine& engine = {});

/// Of a device that waits for others in every layer: in passes all but latencies and messages takes
/// as much longer as Hardware::lockstep says, if it was measured.
void wait_for_others(const Hardware& hw, Rates& rates);

/// Those of a pass of the engine: outside a graph, launches have gaps; in one, the host issues all
/// of them at once. Called once on what make_rates() gives.
Rates in_pass(Rates rates, bool decodes);

}  // namespace kvcast::roofline
