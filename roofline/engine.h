/// Engines: software that runs a model. Which operators are one kernel, which attention runs, what
/// the host adds. Data: data/engines/NAME.json (format: data/engines/README.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/base/units.h"
#include "model/forward/recorder.h"
#include "model/io/weights/catalog.h"

namespace kvcast::roofline {

/// One value of an engine file with its provenance.
struct EngineValue {
  std::string key;
  std::string value;   ///< JSON
  std::string source;  ///< "code", "documentation", "measured", "fitted" or "assumed"
  std::string reference;
  std::string note;
};

/// Of the host, on top of what the device computes, which waits meanwhile.
struct HostTimes {
  Seconds request;   ///< once, before the first token: server, queue, tokeniser
  Seconds token;     ///< for each token of the prompts
  Seconds step;      ///< of each prefill or decode step
  Seconds sequence;  ///< for each sequence of a step

  /// Before the first step, where prompts have so many tokens in all.
  double before_s(double tokens) const { return request.value + tokens * token.value; }
};

/// Passes that are replayed as CUDA graphs: the host issues them at once, without gaps.
enum class Graphs { None, Decode, All };

struct Engine {
  std::string name = "ideal";
  std::string version = {};
  std::string description = {};
  std::vector<std::string> aliases = {};   ///< other names of it in tables of measurements
  std::vector<std::string> versions = {};  ///< from which its values differ, oldest first
  // Of Lowering; absent: as the user says.
  std::optional<Kernels> attention = {};
  std::optional<Kernels> elementwise = {};
  bool skip_unread_rows = false;
  std::vector<Launch> launches = {};
  bool reads_groups_again = false;
  std::vector<std::uint64_t> groups_read_once = {};
  bool wide_activations = false;  ///< fp32 between kernels: Lowering::operands
  bool dequantizes_weights = false;
  bool accumulates_in_fp16 = false;
  /// In training, of the gradients of weights in bf16; absent: as these.
  std::optional<DType> bf16_gradients = {};
  /// The rate of its attention kernel for prompts on Hopper devices, over that of these devices,
  /// which is FlashAttention-3's.
  double hopper_attention = 1;
  /// The same on all devices, over FlashAttention-2's.
  double attention_rate = 1;
  /// Activations are quantised in the kernels that make them.
  bool fuses_quantization = false;
  /// Experts with weights in these types multiply in Marlin's kernels.
  std::vector<DType> marlin_experts = {};
  /// Prompt tokens in one step, or as many as the model has positions if these are more; and
  /// whether longer prompts are cut. 0: all in one.
  std::uint64_t prefill_tokens = 0;
  bool prefill_at_least_context = false;
  bool cuts_prompts = false;
  Graphs graphs = Graphs::None;
  /// Outside graphs: the host's time for a launch (absent: the hardware's, where element-wise
  /// kernels are eager), and what a launch costs the device beyond one inside a graph.
  std::optional<Seconds> host_launch = {};
  Seconds launch_gap = {};
  HostTimes host = {};
  std::string collectives = {};  ///< whose kernels they are, see Interconnect::curve
  /// Of each collective, beyond what those measure that do nothing else: devices reach it apart.
  Seconds collective_wait = {};
  std::vector<EngineValue> values = {};  ///< all of the file, for this version

  /// Steps of its own, which a prefill that several devices share does not have.
  bool has_own_steps() const {
    return prefill_tokens > 0 || !launches.empty() || host.request.value > 0 ||
           host.token.value > 0 || host.step.value > 0 || host.sequence.value > 0;
  }
  bool is_ideal() const { return name == "ideal"; }
};

/// `text`: "NAME" or "NAME:VERSION"; NAME is in the catalog, or a file. A version takes the entries
/// of the newest one that is not above it, a month ("2024-06") of the newest that was out; without
/// either, of the newest. Throws Error.
Engine load_engine(const Catalog& catalog, const std::string& text);
Engine read_engine(const std::filesystem::path& path, const std::string& version = "");

/// Versions as numbers: "0.6.3.post1" -> 0 6 3, "b4748" -> 4748; empty if it starts with none.
std::vector<std::uint64_t> version_numbers(std::string_view text);

/// Sets what the engine says of kernels. `attention`, `elementwise`: not those the user chose.
void apply(const Engine& engine, bool attention, bool elementwise, Lowering& lowering);

}  // namespace kvcast::roofline
