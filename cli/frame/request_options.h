/// The options that name a model, a device, a method and the sizes of a request; the same flags
/// under every subcommand that takes them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/frame/arguments.h"
#include "cli/frame/parallelism_flags.h"
#include "model/base/error.h"
#include "roofline/estimator.h"

namespace kvcast::cli {

struct Globals;

/// As the user typed them.
struct RequestOptions {
  std::string model;
  std::string hardware;
  bool needs_hardware = true;  ///< false: an empty `hardware` is none
  std::string method = "plain";
  std::string attention = "tiled";  ///< empty: the engine's, or tiled
  std::string elementwise;          ///< empty: the engine's, or as attention
  std::string engine = "ideal";
  std::string dtype;         ///< empty: the type that the model is published in, else bf16
  std::string weight_dtype;  ///< empty: as the model's own file says, or dtype
  std::string activation_dtype;
  std::string cache_dtype;
  std::string arithmetic;  ///< empty: as the operands of products are
  std::string mode = "calibrated";
  std::string logits = "last";
  bool skip_unread_rows = false;
  std::string semantics;  ///< what MLKV models' layers read; empty: the method's or model's own
  std::string batch = "1";
  std::optional<std::string> prompt_len;  ///< default: 1024, or the model's encoder length
  std::optional<std::string> encoder_tokens;
  std::string output_len = "128";
  std::vector<std::string> set;
  ParallelismFlags devices;
  bool sequence_parallel = false;
  std::string stages;         ///< layers of each stage, "20/20/21/19"; empty: equal
  std::string micro_batches;  ///< empty: one for each stage
  std::string platform;       ///< empty: the hardware's node

  bool operator==(const RequestOptions&) const = default;

  /// Without --hardware: this machine's calibrated file (this_machine.h).
  void use_this_machine(const Globals& globals);
  /// All flags.
  void add_to(Command command);
  /// Model, device, kernels, dtype, mode; `required`: whether the model must be given.
  void add_device_flags_to(Command command, bool required = true);
  /// Engine, element types and how MLKV models are read.
  void add_type_flags_to(Command command);
  /// --sequence-parallel and --micro-batches; `overlaps`: also on one stage.
  void add_spread_flags_to(Command command, bool overlaps = true);
  /// What `choose` needs: the device flags, batch and overrides.
  void add_choice_flags_to(Command command);
};

/// parse(text), with the flag named in errors.
template <typename Parse>
auto parse_flag(const char* flag, const std::string& text, Parse parse) {
  try {
    return parse(text);
  } catch (const Error& e) {
    throw Error(flag, e);
  }
}

/// KEY=VALUE from each `--set`.
std::vector<ConfigOverride> parse_overrides(const std::vector<std::string>& set);

/// Turns `--semantics` into an option of the method mlkv, which is added for an MLKV model without
/// it. Throws Error for other models.
void apply_semantics(const std::string& semantics, const Architecture& a,
                     std::vector<MethodSpec>& methods);

/// --dtype, or the model's default.
DType parse_dtype_of(const RequestOptions& o, const Architecture& a);
/// Without `--weight-dtype` the weights are as the model's own config or file says.
Lowering parse_lowering(const RequestOptions& o, const Architecture& a);

/// Throws Error naming the flag for every wrong value.
roofline::Configuration parse_configuration(const RequestOptions& o, const Catalog& catalog);
roofline::DesignPoint parse_sizes(const RequestOptions& o, const Architecture& a);

}  // namespace kvcast::cli
