#include "reports/sweep/sweep_plot.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/methods/method.h"
#include "reports/plot/study_plots.h"
#include "reports/sweep/sweep_rows.h"

namespace kvcast::reports {
namespace {

/// More points than a line on a screen can show.
constexpr std::size_t max_points = 500;

struct LinePoint {
  std::uint64_t prompt_len = 0;
  roofline::Estimate estimate;
};

/// Points of one line, at the first output length; none when the configuration is impossible.
std::vector<LinePoint> line_points(const SweepGrid& grid, ConfigurationRows& rows,
                                   std::size_t batch) {
  const std::vector<std::uint64_t>& prompt_lens = grid.spec().prompt_len;
  const std::size_t num_outputs = grid.spec().output_len.size();
  const std::size_t stride = (prompt_lens.size() + max_points - 1) / max_points;
  std::vector<LinePoint> points;
  RowScratch scratch;
  for (std::size_t i = 0; i < prompt_lens.size(); i += stride) {
    const std::uint64_t size = (batch * prompt_lens.size() + i) * num_outputs;
    try {
      rows.evaluate(size, size + 1, scratch);
    } catch (const Error&) {
      return {};
    }
    if (std::isfinite(scratch.estimates[0].ttft_s)) {
      points.push_back({prompt_lens[i], scratch.estimates[0]});
    }
  }
  return points;
}

std::string_view title_of(TtftPart part) {
  switch (part) {
    case TtftPart::Speculator: return "speculator's prefill";
    case TtftPart::LookAhead: return "look-ahead";
    case TtftPart::Score: return "score";
    case TtftPart::Probe: return "probe";
    case TtftPart::Auxiliary: return "auxiliary model";
    case TtftPart::Predictor: return "predictor";
    case TtftPart::Base: return "base model's prefill";
  }
  KVCAST_ASSERT(false);
  return {};
}

/// One bar: "10" of the group "llama-3.1-70b, specprefill".
struct Bar {
  std::string name;
  std::string group;
  roofline::Estimate estimate;
};

/// The method that keeps a share of the prompt; null: none does.
const MethodSpec* keeper(const std::vector<MethodSpec>& methods) {
  const auto found = std::find_if(methods.begin(), methods.end(), [](const MethodSpec& spec) {
    return !text_option(spec, "keep", "").empty();
  });
  return found == methods.end() ? nullptr : &*found;
}

/// Whether another use of the method in the grid has another value of the option, or none.
bool option_differs(const SweepGrid& grid, const MethodSpec& spec, const std::string& key,
                    const std::string& value) {
  for (const std::string& text : grid.spec().method) {
    for (const MethodSpec& other : parse_methods(text)) {
      if (other.name == spec.name && text_option(other, key, "") != value) return true;
    }
  }
  return false;
}

/// "static-prune+kvp:auxiliary=lp-0.25": options only where the grid has others, and not the share
/// that the bar has as its name.
std::string names_of(const SweepGrid& grid, const std::vector<MethodSpec>& methods) {
  const MethodSpec* const shared = keeper(methods);
  std::string names;
  for (const MethodSpec& spec : methods) {
    names += (names.empty() ? "" : "+") + spec.name;
    char before = ':';
    for (const auto& [key, value] : spec.options) {
      if ((key == "keep" && &spec == shared) || !option_differs(grid, spec, key, value)) continue;
      names += before + key + "=" + value;
      before = ',';
    }
  }
  return names;
}

std::vector<Bar> bars_of(const SweepGrid& grid, std::size_t most) {
  std::vector<Bar> bars;
  RowScratch scratch;
  for (std::uint64_t c = 0; c < grid.num_configurations() && bars.size() < most; ++c) {
    ConfigurationRows rows(grid, c);
    try {
      rows.evaluate(0, 1, scratch);
    } catch (const Error& e) {
      if (e.fault() == Fault::Run) throw;
      continue;
    }
    const std::vector<MethodSpec> methods = grid.configuration(c).methods;
    const std::string names = names_of(grid, methods);
    const MethodSpec* const kept = keeper(methods);
    std::string group = grid.label(c);
    const std::string spelled = to_string(methods);
    const std::size_t at = group.rfind(spelled);
    if (at != std::string::npos) group.replace(at, spelled.size(), names);
    bars.push_back(
        {kept == nullptr ? names : fmt::format("{:g}", 100 * fraction_option(*kept, "keep")), group,
         scratch.estimates[0]});
  }
  return bars;
}

}  // namespace

SweepPlot sweep_ttft_plot(const SweepGrid& grid, std::size_t most) {
  const std::vector<std::uint64_t>& batches = grid.spec().batch;
  KVCAST_ASSERT(grid.spec().prompt_len.size() > 1);
  SweepPlot result;
  result.num_possible_lines = grid.num_configurations() * batches.size();
  std::vector<TtftPoint> points;
  for (std::uint64_t c = 0; c < grid.num_configurations(); ++c) {
    ConfigurationRows rows(grid, c);
    for (std::size_t b = 0; b < batches.size() && result.num_lines < most; ++b) {
      std::string label = grid.label(c);
      if (batches.size() > 1) label += fmt::format(", batch {}", batches[b]);
      const std::vector<LinePoint> line = line_points(grid, rows, b);
      if (line.empty()) break;  // impossible at any batch
      for (const LinePoint& p : line) {
        points.push_back({label, p.prompt_len, p.estimate.ttft_s, false});
      }
      ++result.num_lines;
    }
    if (result.num_lines == most) break;
  }
  if (points.empty()) throw Error("the plot: every configuration of the grid is impossible");
  std::string title = "Time to first token";
  if (grid.spec().hardware.size() == 1) title += " on " + grid.spec().hardware[0];
  result.plot = ttft_plot(points, title);
  return result;
}

SweepPlot sweep_memory_plot(const SweepGrid& grid) {
  KVCAST_ASSERT(grid.spec().prompt_len.size() > 1);
  SweepPlot result;
  result.num_possible_lines = grid.num_configurations() * grid.spec().batch.size();
  for (std::uint64_t c = 0; c < grid.num_configurations(); ++c) {
    ConfigurationRows rows(grid, c);
    std::vector<MemoryPoint> points;
    for (const LinePoint& p : line_points(grid, rows, 0)) {
      const roofline::Estimate& e = p.estimate;
      points.push_back({p.prompt_len, e.weight_bytes, e.kv_cache_bytes,
                        e.peak_memory_bytes - e.weight_bytes - e.kv_cache_bytes});
    }
    if (points.empty()) continue;
    const roofline::Configuration configuration = grid.configuration(c);
    const std::string title =
        fmt::format("Memory of {}, batch {}, output {}", configuration.architecture.name,
                    grid.spec().batch[0], grid.spec().output_len[0]);
    result.plot = memory_plot(points, title, configuration.hardware.name,
                              configuration.hardware.memory_capacity.value);
    result.num_lines = 1;
    return result;
  }
  throw Error("the plot: every configuration of the grid is impossible");
}

SweepPlot sweep_parts_plot(const SweepGrid& grid, std::size_t most) {
  SweepPlot result;
  result.num_possible_lines = grid.num_configurations();
  const std::vector<Bar> bars = bars_of(grid, most);
  if (bars.empty()) throw Error("the plot: every configuration of the grid is impossible");
  result.num_lines = bars.size();
  Plot& plot = result.plot;
  plot.title = "Parts of the time to first token";
  if (grid.spec().hardware.size() == 1) plot.title += " on " + grid.spec().hardware[0];
  plot.x = {"Share of the prompt that is kept (%)", "bar"};
  plot.y = {"Share of the time to first token (%)", "share", Scale::Linear, 0.01};
  for (std::size_t part = 0; part < num_ttft_parts; ++part) {
    plot.series.push_back({std::string(title_of(static_cast<TtftPart>(part))),
                           {},
                           Style::StackedBars,
                           static_cast<int>(part)});
  }
  std::string group;
  for (const Bar& bar : bars) {
    if (bar.group != group) {
      if (!group.empty()) plot.x.names.emplace_back();  // a gap
      plot.note += (group.empty() ? "From the left: " : "; ") + bar.group;
      group = bar.group;
    }
    const auto x = static_cast<double>(plot.x.names.size());
    plot.x.names.push_back(bar.name);
    for (std::size_t part = 0; part < num_ttft_parts; ++part) {
      const double share = bar.estimate.ttft_parts_s[part] / bar.estimate.ttft_s;
      plot.series[part].points.push_back({x, share, group + ", " + bar.name});
    }
  }
  std::erase_if(plot.series, [](const Series& s) {
    return std::all_of(s.points.begin(), s.points.end(), [](const Point& p) { return p.y == 0; });
  });
  return result;
}

}  // namespace kvcast::reports
