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
  /// As measured with rows of several lengths, ascending; a longer row takes longer. `value` is for
  /// operators without a known length. Empty: `value` holds for all lengths.
  std::vector<FactorAt> by_length = {};
};

struct Link {
  Sourced bandwidth;  ///< bytes per second, one direction
  Sourced latency;    ///< seconds
};

/// One device. Factors are achieved / peak, measured on real kernels. A factor that was not
/// measured is absent; estimates warn about it.
struct Hardware {
  std::string name;
  std::string description;
  std::string kind;                                ///< "gpu", "cpu" or "tpu"
  std::string architecture;                        ///< "ampere"; devices of one err alike
  std::map<DType, Sourced> peak_flops_per_second;  ///< of the matrix unit, dense
  Sourced vector_flops_per_second;                 ///< element-wise fp32
  Sourced memory_bandwidth;                        ///< bytes per second
  Sourced memory_capacity;                         ///< bytes
  Sourced on_chip_memory_capacity;                 ///< bytes; the last level
  /// Bytes per second of what fits there; estimates do without if it was not measured.
  std::optional<Sourced> on_chip_memory_bandwidth;
  /// Bytes per second of what another unit of the device has just read.
  std::optional<Sourced> on_chip_read_bandwidth;
  /// Of fp16 products that add up in fp16, where these are faster.
  std::optional<Sourced> fp16_accumulation_flops_per_second;
  std::map<std::string, Link> links;
  Sourced operator_latency;       ///< seconds the device needs for the smallest kernel
  Sourced host_operator_latency;  ///< seconds the host needs to issue one, in an eager framework
  // Absent latencies are those of all operators.
  std::optional<Sourced> elementwise_latency;  ///< of eager element-wise kernels
  std::optional<Sourced> product_latency;      ///< of products with weights
  /// Of products in fewer than 16 bits, with the kernel that quantises the activations.
  std::optional<Sourced> quantized_product_latency;
  std::optional<Sourced> expert_product_latency;    ///< of grouped products of experts
  std::optional<Sourced> tiled_attention_latency;   ///< of tiled attention with many queries
  std::optional<Sourced> decode_attention_latency;  ///< of tiled attention with one query
  std::optional<Sourced> host_message_latency;      ///< of the host for one send or receive
  std::optional<Sourced> host_exchange_latency;     ///< of the host for a layer's exchange

  std::map<DType, Sourced> matrix_rate;          ///< RateClass::Matrix
  std::map<DType, Sourced> batched_matrix_rate;  ///< RateClass::BatchedMatrix
  /// RateClass::TiledAttention; by length: the keys that causal attention without a window sees.
  std::map<DType, Sourced> tiled_attention_rate;
  std::map<DType, Sourced> decode_attention_rate;  ///< RateClass::DecodeAttention
  std::optional<Sourced> memory_bandwidth_factor;  ///< streaming reads and writes
  /// Reads and writes of products of several rows with weights, which a library reorders first.
  /// Products of one row stream the weights.
  std::optional<Sourced> product_bandwidth;
  /// The same where weights have fewer bits than the activations that they are multiplied with.
  std::optional<Sourced> quantized_product_bandwidth;
  /// Reads of weights that are stored in a type narrower than the activations and unpacked on the
  /// way, by that type; and where products are in int8. By length: of rows.
  std::map<DType, Sourced> weight_bandwidth;
  std::map<DType, Sourced> int8_weight_bandwidth;
  // Of grouped products, by the rows of one expert; those of products if absent.
  std::map<DType, Sourced> expert_rate;
  std::optional<Sourced> expert_bandwidth;
  // The same where weights have fewer than 8 bits and are unpacked.
  std::map<DType, Sourced> quantized_expert_rate;
  std::optional<Sourced> quantized_expert_bandwidth;
  // The same in Marlin's kernels (Engine::marlin_experts).
  std::map<DType, Sourced> marlin_expert_rate;
  std::optional<Sourced> marlin_expert_bandwidth;
  /// Sums of the rows that a token's experts return, with what it takes to gather and write rows.
  std::optional<Sourced> expert_combine_bandwidth;
  std::optional<Sourced> elementwise_bandwidth;       ///< eager element-wise kernels
  std::optional<Sourced> softmax_bandwidth;           ///< eager softmax; by length: of its rows
  std::optional<Sourced> decode_attention_bandwidth;  ///< tiled attention with one query
  /// Tiled attention with many queries, which reorders what it reads before it multiplies.
  std::optional<Sourced> tiled_attention_bandwidth;
  /// The share of an operator's memory time that its arithmetic hides; all of it if absent.
  std::optional<Sourced> overlap;
  // The same of products with weights, and of tiled attention with many queries; `overlap` if
  // absent.
  std::optional<Sourced> product_overlap;
  std::optional<Sourced> tiled_attention_overlap;
  std::optional<Sourced> link_rate;  ///< payload over a link's bandwidth
  /// Devices that compute the same and then wait for each other: the mean time that they need over
  /// the slowest one's; 1 if absent. At length 1: of decode steps, in which ranks of one machine
  /// also share its memory. Measured on calibration's ranks, and assumed for any number of them.
  std::optional<Sourced> lockstep;

  /// The dtype in which a product of `dtype` operands runs: itself, or the next wider one that the
  /// device has; fp16 and bf16 stand for each other. Throws Error when there is none.
  DType supported(DType dtype) const;
  /// The dtype of activations where a request names none: what a checkpoint's products read them in
  /// (Architecture::stored_operands), if the device multiplies in it, or else `dtype`.
  DType activations_of(std::optional<DType> stored_operands, DType dtype) const;
};

/// The device while its clock is this share, above 0, of what it was when it was measured:
/// arithmetic, what is read on the chip, and latencies. Memory and links keep theirs.
Hardware at_clock(Hardware hardware, double share);

/// The version of a file's `calibration` entry that kvcast writes; files without one have 1. From 3
/// on products have rates by rows.
inline constexpr std::uint64_t calibration_version = 3;

/// Reads a hardware file (format: data/hardware/README.md). A file may extend another one of its
/// folder, which gives the entries that it lacks. Throws Error for unknown keys, values without a
/// unit, zero or negative values, factors above 1, lengths out of order, unknown sources, and
/// calibrations of a newer version.
Hardware read_hardware(const std::filesystem::path& path);

/// The JSON text of a hardware file, merged with the file that it extends. Throws Error as
/// read_hardware.
std::string hardware_document(const std::filesystem::path& path);

/// By catalog name or path. Throws Error with the nearest name.
Hardware load_hardware(const Catalog& catalog, const std::string& name_or_path);

}  // namespace kvcast::roofline
