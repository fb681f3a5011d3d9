#include "cli/simulate/collective_command.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "reports/plot/plot.h"
#include "reports/sweep/sweep_spec.h"
#include "roofline/interconnect.h"
#include "simulate/collectives.h"
#include "simulate/simulation.h"

namespace kvcast::cli {
namespace {

struct CollectiveOptions {
  std::string operation;
  std::string devices;
  std::string bytes = "1 KiB,64 KiB,1 MiB,16 MiB,256 MiB";
  std::string platform;
  std::string library;
  std::string plot;
  bool simulated = false;
  RowsOutput output;
};

/// "ring", or "ring inside, tree between" the nodes.
std::string in_words(const roofline::CollectivePlan& plan) {
  const std::string inside(name(plan.inside));
  if (plan.nodes == 1) return inside;
  if (plan.members == 1 || plan.kind == CollectiveKind::AllToAll) {
    return fmt::format("{} between nodes", name(plan.between));
  }
  return fmt::format("{} inside, {} between, {} {}", inside, name(plan.between), plan.chunks,
                     plan.chunks == 1 ? "part" : "parts");
}

double simulated_s(const roofline::Interconnect& interconnect, CollectiveKind kind,
                   const RankGroup& group, const std::string& library, std::uint64_t bytes) {
  simulate::Programs programs;
  programs.ranks.resize(interconnect.devices());
  simulate::append_collective(interconnect, kind, group, library, bytes, programs);
  const simulate::Simulation simulation(simulate::node_platform(interconnect.data()),
                                        std::move(programs));
  return simulation.run({.send_order = simulate::SendOrder::Async}).makespan_s;
}

reports::Plot plot_of(const CollectiveOptions& o, const ordered_json& rows) {
  reports::Plot plot;
  plot.title = fmt::format("{} of {} devices, {}", o.operation, o.devices, o.platform);
  plot.x = {.label = "bytes", .column = "bytes", .scale = reports::Scale::Log10};
  plot.y = {.label = "time (us)", .column = "time_s", .scale = reports::Scale::Log10, .unit = 1e-6};
  for (const auto& [key, label, style] :
       {std::tuple{"time_s", "closed form", reports::Style::Line},
        {"speed_of_light_s", "speed of light", reports::Style::Dashed},
        {"simulated_s", "simulated", reports::Style::Marks}}) {
    reports::Series series{.label = label, .style = style};
    for (const ordered_json& row : rows) {
      if (!row.contains(key)) continue;
      series.points.push_back({row["bytes"].get<double>(), row[key].get<double>()});
    }
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  return plot;
}

void run(const CollectiveOptions& o, const Globals& globals) {
  o.output.check();
  if (!o.plot.empty()) reports::plot_files(o.plot);
  const CollectiveKind kind = parse_flag("--operation", o.operation, roofline::parse_operation);
  const roofline::Interconnect interconnect =
      roofline::load_interconnect(globals.catalog(), o.platform);
  const RankGroup group{parse_token_count(o.devices, "--devices")};
  if (group.size > interconnect.devices()) {
    throw Error("--devices", o.devices,
                fmt::format("at most the {} of {}", interconnect.devices(), o.platform));
  }
  const roofline::CollectiveCurve curve =
      interconnect.curve(kind, group, o.library, roofline::Mode::Calibrated);
  const roofline::CollectiveCurve least =
      interconnect.curve(kind, group, o.library, roofline::Mode::SpeedOfLight);
  const auto p = static_cast<double>(group.size);
  const double bus_share = (kind == CollectiveKind::AllReduce ? 2 : 1) * (p - 1) / p;
  ordered_json rows = ordered_json::array();
  for (const std::string& word : reports::parse_words(o.bytes, "--bytes")) {
    const auto bytes =
        static_cast<std::uint64_t>(parse_quantity(word, Dimension::Bytes, "--bytes"));
    const auto size = static_cast<double>(bytes);
    const double seconds = curve.at(size);
    const roofline::CollectivePlan plan = interconnect.plan(kind, group, o.library, size);
    ordered_json row{{"bytes", bytes},
                     {"time_s", seconds},
                     {"speed_of_light_s", least.at(size)},
                     {"algorithm", in_words(plan)},
                     {"measured", plan.measured},
                     {"bus_bytes_per_s", seconds > 0 ? bus_share * size / seconds : 0}};
    if (o.simulated) {
      row["simulated_s"] = simulated_s(interconnect, kind, group, o.library, bytes);
    }
    rows.push_back(std::move(row));
  }
  std::vector<std::string> keys{"bytes",     "time_s",   "speed_of_light_s",
                                "algorithm", "measured", "bus_bytes_per_s"};
  std::vector<Column> columns{{"bytes", "bytes", in_bytes},
                              {"time", "time_s", in_seconds},
                              {"speed of light", "speed_of_light_s", in_seconds},
                              {"bus bandwidth", "bus_bytes_per_s", in_bytes_per_second},
                              {"algorithm", "algorithm"},
                              {"from", "measured", [](const ordered_json& measured) -> std::string {
                                 return measured.get<bool>() ? "table" : "fit";
                               }}};
  if (o.simulated) {
    keys.emplace_back("simulated_s");
    columns.insert(columns.begin() + 2, {"simulated", "simulated_s", in_seconds});
  }
  if (!o.plot.empty()) reports::write_plot(plot_of(o, rows), o.plot);
  if (!o.output.csv.empty()) write_rows_csv(o.output.csv, columns_of(keys), rows);
  if (o.output.csv_is_stdout()) return;
  const ordered_json document{{"operation", o.operation},
                              {"devices", group.size},
                              {"platform", interconnect.name()},
                              {"library", o.library.empty() ? "nccl" : o.library},
                              {"rows", rows}};
  print_result(
      o.output.json, document,
      fmt::format("{} of {} devices on {}\n", o.operation, group.size, interconnect.name()) +
          table_text(columns, rows));
}

}  // namespace

void add_simulate_collective(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "collective",
      "The time of one collective among devices: measured, fitted, and message by "
      "message.\n\nExamples:\n"
      "  kvcast simulate collective --operation all_reduce --devices 8 --platform hgx-h100\n"
      "  kvcast simulate collective --operation all_to_all --devices 16 --platform hgx-h100-2 "
      "--bytes \"1 MiB,64 MiB\" --simulated");
  const auto o = std::make_shared<CollectiveOptions>();
  c.add("--operation OPERATION", o->operation,
        "all_reduce, reduce_scatter, all_gather or all_to_all")
      .required();
  c.add("--devices", o->devices, "ranks 0 to P - 1 take part, rank i on device i").required();
  c.add("--platform PLATFORM", o->platform,
        "nodes and what joins them: a name from data/platforms or a JSON file")
      .required();
  c.add("--bytes LIST", o->bytes,
        "sizes of the whole buffer: what is summed or gathered, or what a rank of an all-to-all "
        "sends");
  c.add("--library NAME", o->library, "nccl (the default), vllm or trtllm");
  c.add("--simulated", o->simulated, "also simulate its messages on idle links");
  o->output.add_to(c);
  c.add("--plot", o->plot, "draw time over bytes");
  c.callback([o, &globals] { run(*o, globals); });
}

}  // namespace kvcast::cli
