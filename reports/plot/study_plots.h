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
  std::string label = {};  ///< names the configuration: "llama-7b, a100-80gb, slim"
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
  std::uint64_t prompt_len = 0;
  double weight_bytes = 0;
  double kv_cache_bytes = 0;
  double activation_bytes = 0;
};

/// Weights, KV cache and activations stacked over the prompt length, and the device's capacity as a
/// level.
Plot memory_plot(std::span<const MemoryPoint> points, std::string title, const std::string& device,
                 double capacity_bytes);

/// A number of ours beside the one that it is compared with.
struct Comparison {
  std::string series = {};  ///< "slim, ttft"
  double reference = 0;
  double ours = 0;
  double relative_error = 0;
  std::string name = {};  ///< names the point in the CSV
};

/// Ours over the reference, both logarithmic, and the line where they are equal.
Plot comparison_plot(std::string title, Axis x, Axis y, std::span<const Comparison> comparisons);
/// Relative errors over the reference, and the level of none. `y_label`: "ours / published - 1".
Plot comparison_error_plot(std::string title, Axis x, std::string y_label,
                           std::span<const Comparison> comparisons);

}  // namespace kvcast::reports
