#include "cli/run/run_profile.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/frame/result.h"
#include "model/execute/machine_probe.h"
#include "roofline/step_cost.h"

namespace kvcast::cli {
namespace {

using roofline::Hardware;
using roofline::Sourced;

Sourced measured(double value, const char* how) {
  return {value, roofline::Source::Measured, how, ""};
}

struct ProfileRow {
  std::uint64_t count = 0;  ///< operators run
  double flops = 0;
  double bytes = 0;
  double measured_s = 0;
  double predicted_s = 0;
};

/// Rows of all passes.
class Profile {
 public:
  Profile(const Hardware& hardware, const Lowering& lowering)
      : lowering_(lowering),
        rates_(roofline::make_rates(hardware, lowering, roofline::Mode::Calibrated)) {}

  /// A pass that ran once at each of these sizes; `seconds` of its nodes, of all runs.
  void add(const std::string& pass, const Graph& graph, const std::vector<SymbolValues>& sizes,
           const std::vector<double>& seconds) {
    std::map<std::string, ProfileRow> by_op;
    const auto groups = roofline::fold(graph, lowering_);
    for (const SymbolValues& values : sizes) {
      for (const roofline::OpGroup& group : groups) {
        ProfileRow& row = by_op[group.op];
        const auto count = static_cast<double>(group.count);
        row.count += group.count;
        row.flops += count * static_cast<double>(group.work.flops.at(values));
        row.bytes += count * static_cast<double>(group.work.bytes().at(values));
        if (group.collective) continue;  // of messages there is no forecast
        row.predicted_s += count * roofline::time_of(group, rates_, values).total.value;
      }
    }
    for (std::size_t n = 0; n < seconds.size(); ++n) {
      const Op& op = graph.nodes()[n].op;
      ProfileRow& row = by_op[std::string(name(op))];
      row.measured_s += seconds[n];
      if (is_message(op)) ++row.count;  // a rank sends and receives in one pass only
    }
    std::vector<std::pair<std::string, ProfileRow>> sorted(by_op.begin(), by_op.end());
    std::erase_if(sorted, [](const auto& entry) { return entry.second.count == 0; });
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return a.second.measured_s > b.second.measured_s;
    });
    for (const auto& [op, row] : sorted) {
      rows.push_back({{"pass", pass},
                      {"operator", op},
                      {"count", row.count},
                      {"flops", row.flops},
                      {"bytes", row.bytes},
                      {"measured_s", row.measured_s},
                      {"predicted_s", row.predicted_s}});
    }
  }

  ordered_json rows = ordered_json::array();

 private:
  Lowering lowering_;
  roofline::Rates rates_;
};

}  // namespace

Hardware measured_machine() {
  Hardware hw;
  hw.name = "this-machine";
  hw.description = "this machine, as measured before the run";
  hw.kind = "cpu";
  const double flops = execute::measure_fma_rate();
  hw.peak_flops_per_second[DType::FP32] = measured(flops, "multiply-adds in registers");
  hw.vector_flops_per_second = measured(flops, "multiply-adds in registers");
  hw.memory_bandwidth = measured(execute::measure_read_bandwidth(), "reading 256 MiB");
  return hw;
}

ordered_json profile_json(const execute::Session& session, const execute::SessionOptions& options,
                          const execute::Generation& run, std::uint64_t batch,
                          std::uint64_t prompt_len, const Hardware& hardware) {
  const Recording& recording = session.recording();
  const auto symbols = [&](std::uint64_t length, std::uint64_t kv_len) {
    return recording.symbols.resolve({batch, length, kv_len}, run.found);
  };
  const auto steps = [&](std::uint64_t first_kv_len, std::uint64_t count) {
    std::vector<SymbolValues> sizes;
    for (std::uint64_t i = 0; i < count; ++i)
      sizes.push_back(symbols(prompt_len, first_kv_len + i));
    return sizes;
  };
  const SymbolValues at_prompt = symbols(prompt_len, prompt_len);
  Profile profile(hardware, execute::session_lowering(options));
  for (std::size_t i = 0; i < recording.helpers().size(); ++i) {
    const RecordedPass& pass = recording.helpers()[i];
    profile.add(pass.name, pass.graph, steps(pass.first_kv_len.at(at_prompt), run.helper_steps[i]),
                run.profile.helpers_s[i]);
  }
  const std::uint64_t begin = options.share ? options.share->first() : 0;
  const std::uint64_t end = options.share ? options.share->end() : prompt_len;
  const std::uint64_t chunk = options.chunk > 0 ? options.chunk : end - begin;
  std::vector<SymbolValues> chunks;
  for (std::uint64_t first = begin; first < end; first += chunk) {
    const std::uint64_t n = std::min(chunk, end - first);
    chunks.push_back(symbols(n, first + n));
  }
  profile.add("prefill", recording.prefill(), chunks, run.profile.prefill_s);
  profile.add("decode", recording.decode(),
              steps(1 + recording.prompt_slots.at(at_prompt), run.decode_steps),
              run.profile.decode_s);
  return profile.rows;
}

ordered_json packed_json(const execute::WeightStore& weights) {
  ordered_json rows = ordered_json::array();
  for (const auto& [dtype, packed] : weights.packed()) {
    rows.push_back(
        {{"dtype", name(dtype)}, {"matrices", packed.matrices}, {"bytes", packed.bytes}});
  }
  return rows;
}

std::string packed_text(const ordered_json& packed) {
  std::vector<std::string> parts;
  for (const ordered_json& row : packed) {
    const auto matrices = row["matrices"].get<std::uint64_t>();
    parts.push_back(fmt::format("{}{} in {} ({:.3g} MB)", matrices,
                                parts.empty() ? (matrices == 1 ? " matrix" : " matrices") : "",
                                row["dtype"].get<std::string>(), row["bytes"].get<double>() / 1e6));
  }
  return fmt::format("packed for products: {}\n", fmt::join(parts, ", "));
}

std::string count_text(std::uint64_t analytic_flops, std::uint64_t analytic_bytes,
                       const execute::CountedWork& counted) {
  Table table({"", "analytic", "counted"});
  table.add({"FLOPs", std::to_string(analytic_flops), std::to_string(counted.flops)});
  table.add({"bytes", std::to_string(analytic_bytes), std::to_string(counted.bytes())});
  return table.text();
}

std::string profile_text(const ordered_json& rows) {
  ordered_json shown = ordered_json::array();
  for (const std::string pass : {"prefill", "decode"}) {
    ordered_json all{{"pass", pass}, {"operator", "all"}};
    double measured = 0;
    double predicted = 0;
    for (ordered_json row : rows) {
      if (row["pass"] != pass) continue;
      const double seconds = row["measured_s"];
      if (row["predicted_s"] == 0) {
        all["operator"] = "all but messages";
        row.erase("predicted_s");
      } else {
        measured += seconds;
        predicted += row["predicted_s"].get<double>();
        row["ratio"] = seconds / row["predicted_s"].get<double>();
      }
      if (seconds > 0 && row.contains("predicted_s")) {
        row["flops_per_s"] = row["flops"].get<double>() / seconds;
        row["bytes_per_s"] = row["bytes"].get<double>() / seconds;
      }
      shown.push_back(row);
    }
    if (predicted == 0) continue;
    all.update(
        {{"measured_s", measured}, {"predicted_s", predicted}, {"ratio", measured / predicted}});
    shown.push_back(all);
  }
  return table_text({{"pass", "pass"},
                     {"operator", "operator"},
                     {"count", "count"},
                     {"ms", "measured_s", in("{:.3f}", 1e3)},
                     {"roofline ms", "predicted_s", in("{:.3f}", 1e3)},
                     {"measured/roofline", "ratio", in("{:.2f}")},
                     {"GFLOP/s", "flops_per_s", in("{:.1f}", 1e-9)},
                     {"GB/s", "bytes_per_s", in("{:.1f}", 1e-9)}},
                    shown);
}

}  // namespace kvcast::cli
