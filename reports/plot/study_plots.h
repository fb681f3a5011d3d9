/// The plots that studies share, from their numbers to a Plot.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/base/units.h"
#include "reports/plot/plot.h"
#include "roofline/forecast.h"
#include "roofline/rates.h"

namespace kvcast::reports {

struct TtftPoint {
  std::string label = {};  ///< of the configuration: "llama-7b, a100-80gb, slim"
  std::uint64_t prompt_len = 0;
  double ttft_s = 0;
  bool measured = false;
};

/// TTFT over prompt length, both logarithmic. Each label is a line through its predictions in order
/// of length, and marks of the same colour at its measurements.
Plot ttft_plot(std::span<const TtftPoint> points, std::string title = "Time to first token");

/// The two roofs that large products meet.
struct Roofs {
  std::string label = {};  ///< "speed of light", "calibrated"
  FlopsPerSecond compute;
  BytesPerSecond memory;
};

/// The matrix unit's rate and the memory's; labelled with the mode.
Roofs roofs_of(const roofline::Rates& rates, roofline::Mode mode);

/// Attainable FLOP/s over arithmetic intensity (FLOP/byte, bytes read again included), both
/// logarithmic: roofs as lines, the first solid and the others dashed; operators as marks, a series
/// for each pass. Operators with a noticeable share of their pass's time are labelled; those
/// without FLOPs have no place here.
Plot roofline_plot(std::span<const Roofs> roofs, std::span<const roofline::BreakdownRow> rows,
                   std::string title = "Roofline");

struct MemoryPoint {
  std::uint64_t x = 0;  ///< prompt length, batch, ...
  double weight_bytes = 0;
  double kv_cache_bytes = 0;
  double activation_bytes = 0;
};

struct MemoryPlotOptions {
  std::string title = "Memory";
  std::string x_label = "Prompt length (tokens)";
  std::string x_column = "prompt_len";
  std::string device = {};    ///< "a100-80gb"
  double capacity_bytes = 0;  ///< 0: no line
};

/// Weights, KV cache and activations stacked over x, and the device's capacity as a level.
Plot memory_plot(std::span<const MemoryPoint> points, const MemoryPlotOptions& options = {});

}  // namespace kvcast::reports
