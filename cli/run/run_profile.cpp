#include "cli/run/run_profile.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/frame/command.h"
#include "model/execute/machine_probe.h"
#include "roofline/step_cost.h"

namespace kvcast::cli {
namespace {

using roofline::Hardware;
using roofline::Sourced;

Sourced measured(double value, const char* how) {
  return {value, roofline::Source::Measured, how, ""};
}

/// Adds what the recorded operators of a pass should take at these sizes.
void predict(std::map<std::string, ProfileRow>& rows, const std::vector<roofline::OpGroup>& groups,
             const roofline::Rates& rates, const std::vector<std::uint64_t>& values) {
  for (const roofline::OpGroup& group : groups) {
    const roofline::OpTime time = roofline::time_of(group, rates, values);
    const auto count = static_cast<double>(group.count);
    ProfileRow& row = rows[group.op];
    row.count += group.count;
    row.flops += count * static_cast<double>(time.flops.count);
    row.bytes += count * static_cast<double>(time.bytes.count);
    row.predicted_s += count * time.total.value;
  }
}

void append(std::vector<ProfileRow>& all, std::map<std::string, ProfileRow> rows,
            const std::string& pass, const Graph& graph, const std::vector<double>& seconds) {
  for (std::size_t n = 0; n < seconds.size(); ++n) {
    const Op& op = graph.nodes()[n].op;
    ProfileRow& row = rows[std::string(name(op))];
    row.measured_s += seconds[n];
    row.message = is_message(op);
    if (row.message) ++row.count;  // a rank sends and receives in one pass only
  }
  std::vector<ProfileRow> sorted;
  for (auto& [op, row] : rows) {
    row.pass = pass;
    row.op = op;
    if (row.count > 0) sorted.push_back(std::move(row));
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const ProfileRow& a, const ProfileRow& b) { return a.measured_s > b.measured_s; });
  all.insert(all.end(), sorted.begin(), sorted.end());
}

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

std::vector<ProfileRow> profile_rows(const execute::Session& session,
                                     const execute::SessionOptions& options,
                                     const execute::Generation& run, std::uint64_t batch,
                                     std::uint64_t prompt_len, std::uint64_t first_kv_len,
                                     const Hardware& hardware) {
  const Lowering lowering = execute::session_lowering(options);
  const roofline::Rates rates =
      roofline::make_rates(hardware, lowering, roofline::Mode::Calibrated);
  const Recording& recording = session.recording();
  const auto symbols = [&](std::uint64_t length, std::uint64_t kv_len) {
    return recording.symbols.resolve({batch, length, kv_len}, run.found);
  };
  std::vector<ProfileRow> all;
  for (std::size_t i = 0; i < recording.helpers().size(); ++i) {
    const RecordedPass& pass = recording.helpers()[i];
    std::map<std::string, ProfileRow> rows;
    const auto groups = roofline::fold(pass.graph, lowering);
    const std::uint64_t first = pass.first_kv_len.at(symbols(prompt_len, prompt_len));
    for (std::uint64_t step = 0; step < run.helper_steps[i]; ++step) {
      predict(rows, groups, rates, symbols(prompt_len, first + step));
    }
    append(all, std::move(rows), pass.name, pass.graph, run.profile.helpers_s[i]);
  }
  std::map<std::string, ProfileRow> prefill;
  const auto prefill_groups = roofline::fold(recording.prefill(), lowering);
  const std::uint64_t begin = options.share ? options.share->first() : 0;
  const std::uint64_t end = options.share ? options.share->end() : prompt_len;
  const std::uint64_t chunk = options.chunk > 0 ? options.chunk : end - begin;
  for (std::uint64_t first = begin; first < end; first += chunk) {
    const std::uint64_t n = std::min(chunk, end - first);
    predict(prefill, prefill_groups, rates, symbols(n, first + n));
  }
  append(all, std::move(prefill), "prefill", recording.prefill(), run.profile.prefill_s);

  std::map<std::string, ProfileRow> decode;
  const auto decode_groups = roofline::fold(recording.decode(), lowering);
  for (std::uint64_t step = 0; step < run.decode_steps; ++step) {
    predict(decode, decode_groups, rates, symbols(prompt_len, first_kv_len + step));
  }
  append(all, std::move(decode), "decode", recording.decode(), run.profile.decode_s);
  return all;
}

nlohmann::ordered_json profile_json(const std::vector<ProfileRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ProfileRow& r : rows) {
    list.push_back({{"pass", r.pass},
                    {"operator", r.op},
                    {"count", r.count},
                    {"flops", r.flops},
                    {"bytes", r.bytes},
                    {"measured_s", r.measured_s},
                    {"predicted_s", r.predicted_s}});
  }
  return list;
}

std::string profile_text(const std::vector<ProfileRow>& rows) {
  Table table(
      {"pass", "operator", "count", "ms", "roofline ms", "measured/roofline", "GFLOP/s", "GB/s"});
  for (const std::string pass : {"prefill", "decode"}) {
    double measured = 0;
    double predicted = 0;
    bool waits = false;
    for (const ProfileRow& r : rows) {
      if (r.pass != pass) continue;
      waits |= r.message;
      if (!r.message) {
        measured += r.measured_s;
        predicted += r.predicted_s;
      }
      const auto rate = [&](double amount) {
        return r.measured_s > 0 ? fmt::format("{:.1f}", amount / r.measured_s / 1e9) : "";
      };
      const std::string ratio =
          r.predicted_s > 0 ? fmt::format("{:.2f}", r.measured_s / r.predicted_s) : "";
      table.add({pass, r.op, std::to_string(r.count), fmt::format("{:.3f}", r.measured_s * 1e3),
                 fmt::format("{:.3f}", r.predicted_s * 1e3), ratio, rate(r.flops), rate(r.bytes)});
    }
    if (predicted > 0) {
      table.add({pass, waits ? "all but messages" : "all", "",
                 fmt::format("{:.3f}", measured * 1e3), fmt::format("{:.3f}", predicted * 1e3),
                 fmt::format("{:.2f}", measured / predicted), "", ""});
    }
  }
  return table.text();
}

}  // namespace kvcast::cli
