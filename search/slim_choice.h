/// Which form of Slim attention to take for a request: decode time, cross phase, memory, and the
/// batches and contexts at which it pays off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "roofline/estimator.h"

namespace kvcast::search {

/// A stretch of sizes at which a form decodes faster than plain attention, first and last included;
/// no last: up to the largest size tried.
struct PaysOff {
  std::uint64_t from = 0;
  std::optional<std::uint64_t> to;
  bool operator==(const PaysOff&) const = default;
};

struct SlimCandidate : roofline::Estimate {
  std::string method = {};   ///< "plain", "slim:option=kcache", ...
  double cross_phase_s = 0;  ///< the part of TTFT that fills the cross-attention cache
  /// Encoder-decoder forms with one cache for all layers: true if it stays on chip.
  std::optional<bool> shared_cache_on_chip = {};
  /// Every stretch, ascending; empty if it never pays off, and for plain itself. Of batches at the
  /// request's context, of contexts (prompt tokens; Whisper: output tokens) at its batch.
  std::vector<PaysOff> batches = {};
  std::vector<PaysOff> contexts = {};
  std::string rejected = {};  ///< why it cannot be taken; empty if it can
};

/// Sizes that are tried for where a form pays off.
inline constexpr std::uint64_t most_batches = 4096;
inline constexpr std::uint64_t most_context = 131072;

/// Plain attention and every form, fastest decoding first, then TTFT, then memory; those that do
/// not fit the device and then the rejected ones last. The configuration's methods are not used.
/// Throws Error as Estimator does.
std::vector<SlimCandidate> choose_slim(const roofline::Configuration& configuration,
                                       const roofline::DesignPoint& point);

}  // namespace kvcast::search
