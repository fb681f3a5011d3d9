/// Hardware descriptions: peaks, capacities, latencies and measured factors, each with its source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/dtype.h"
#include "model/graph/work.h"
#include "model/io/weights/catalog.h"

namespace kvcast::roofline {

/// Where a number comes from.
enum class Source { Datasheet, Measured, Fitted };
std::string_view name(Source source);

/// A factor as it was measured with rows of one length.
struct FactorAt {
  std::uint64_t length = 0;
  double value = 0;
  bool operator==(const FactorAt&) const = default;
};

/// A number in base units with its provenance.
struct Sourced {
  double value = 0;
  Source source = Source::Datasheet;
  std::string reference;  ///< document and page, repository and path, who and when
  std::string note;
  /// Where it was measured with rows of several lengths, in their order, each row slower than a
  /// shorter one; `value` stands for all where a length is not known. Empty: one for all.
  std::vector<FactorAt> by_length = {};
};

struct Link {
  Sourced bandwidth;  ///< bytes per second, one direction
  Sourced latency;    ///< seconds
};

/// One device. Factors are achieved / peak, measured on real kernels; a factor that nobody measured
/// is absent, and an estimate says so.
struct Hardware {
  std::string name;
  std::string description;
  std::string kind;                                ///< "gpu", "cpu" or "tpu"
  std::map<DType, Sourced> peak_flops_per_second;  ///< of the matrix unit, dense
  Sourced vector_flops_per_second;                 ///< element-wise fp32
  Sourced memory_bandwidth;                        ///< bytes per second
  Sourced memory_capacity;                         ///< bytes
  Sourced on_chip_memory_capacity;                 ///< bytes; the last level
  /// Bytes per second of what fits there; none: nobody measured it, and estimates do without.
  std::optional<Sourced> on_chip_memory_bandwidth;
  std::map<std::string, Link> links;
  Sourced operator_latency;       ///< seconds the device needs for the smallest kernel
  Sourced host_operator_latency;  ///< seconds the host needs to issue one, in an eager framework
  std::optional<Sourced> elementwise_latency;   ///< of eager element-wise kernels; none: as others
  std::optional<Sourced> product_latency;       ///< of products with weights; none: as others
  std::optional<Sourced> host_message_latency;  ///< likewise one send or receive
  std::optional<Sourced>
      host_exchange_latency;  ///< likewise a layer's exchange, beside its messages

  std::map<DType, Sourced> matrix_rate;          ///< RateClass::Matrix
  std::map<DType, Sourced> batched_matrix_rate;  ///< RateClass::BatchedMatrix
  /// RateClass::TiledAttention; by length: the keys that causal attention without a window sees.
  std::map<DType, Sourced> tiled_attention_rate;
  std::map<DType, Sourced> decode_attention_rate;  ///< RateClass::DecodeAttention
  std::optional<Sourced> memory_bandwidth_factor;  ///< streaming reads and writes
  /// Products of several rows with weights, all that they read and write: a library brings it into
  /// order first. Those of one row stream the weights.
  std::optional<Sourced> product_bandwidth;
  std::optional<Sourced> elementwise_bandwidth;       ///< eager element-wise kernels
  std::optional<Sourced> softmax_bandwidth;           ///< eager softmax; by length: of its rows
  std::optional<Sourced> decode_attention_bandwidth;  ///< tiled attention with one query
  /// The same with many: what it reads is brought into order before it is multiplied.
  std::optional<Sourced> tiled_attention_bandwidth;
  /// The share of an operator's memory time that its arithmetic hides; none: all of it.
  std::optional<Sourced> overlap;
  std::optional<Sourced> link_rate;  ///< payload over a link's bandwidth
  /// Of devices that compute the same and then all wait for each other, the mean of their times
  /// over the slowest's; none: they are equally fast. As measured on calibration's ranks, and taken
  /// to hold for any number of them.
  std::optional<Sourced> lockstep;

  /// The dtype in which a product of `dtype` operands runs: itself, or the next wider one that the
  /// device has; fp16 and bf16 stand for each other. Throws Error when there is none.
  DType supported(DType dtype) const;
};

/// Of what `calibration` says and of what its numbers mean, as kvcast writes it; 1 in files that do
/// not say it.
inline constexpr std::uint64_t calibration_version = 2;

/// Reads a hardware file (format: data/hardware/README.md); what is not said in one that extends
/// another of its folder is read from that. Throws Error for unknown keys, values without a unit,
/// zero or negative values, factors above 1 or by lengths in disorder, unknown sources, and
/// calibrations of a version to come.
Hardware read_hardware(const std::filesystem::path& path);

/// The JSON text of a hardware file, with what it extends in it. Throws Error as read_hardware.
std::string hardware_document(const std::filesystem::path& path);

/// By catalog name or path. Throws Error with the nearest name.
Hardware load_hardware(const Catalog& catalog, const std::string& name_or_path);

}  // namespace kvcast::roofline
