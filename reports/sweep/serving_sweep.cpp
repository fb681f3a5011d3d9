#include "reports/sweep/serving_sweep.h"

#include <algorithm>
#include <atomic>
#include <initializer_list>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/base/error.h"
#include "model/io/files/csv_table.h"
#include "reports/sweep/row_sweep.h"
#include "search/server_group.h"

namespace kvcast::reports {
namespace {

constexpr std::string_view serving_columns =
    "requests,finished,rejected,duration_s,request_throughput,output_token_throughput,"
    "ttft_mean_s,ttft_p50_s,ttft_p90_s,ttft_p99_s,tpot_mean_s,tpot_p50_s,tpot_p99_s,itl_p99_s,"
    "e2e_mean_s,e2e_p50_s,e2e_p99_s,goodput_requests_per_s,slo_attainment,preemptions,"
    "prefix_hit_rate,peak_kv_blocks,kv_blocks,peak_running,steps,devices,error";

struct ServingPlace {
  std::uint64_t configuration = 0;
  const std::string& scheduler;
  double rate = 0;
};
ServingPlace place_of(const ServingSweep& s, std::uint64_t point) {
  const std::uint64_t rates = s.rates.size();
  const std::uint64_t schedulers = s.schedulers.size();
  return {point / rates / schedulers, s.schedulers[point / rates % schedulers],
          s.rates[point % rates]};
}

std::string rate_cell(double rate) { return rate > 0 ? fmt::format("{}", rate) : ""; }

std::string latency_cells(const simulate::Latency& l,
                          std::initializer_list<double simulate::Latency::*> members) {
  std::string cells;
  for (const auto member : members) cells += l.values > 0 ? fmt::format(",{}", l.*member) : ",";
  return cells;
}

/// Counts one more of the rows whose server has rejected some requests.
std::string row_of(const ServingSweep& s, std::uint64_t point,
                   std::atomic<std::uint64_t>& with_rejected) {
  const ServingPlace at = place_of(s, point);
  std::string row = s.grid.cells(at.configuration);
  std::string scheduler = at.scheduler;
  try {
    const roofline::Configuration c = s.grid.configuration(at.configuration);
    simulate::ModelServer server = search::make_server(c, at.scheduler, "--scheduler");
    if (scheduler.empty()) scheduler = name(server.servers.settings.policy);
    const auto requests = s.open(at.rate);
    server.servers.settings.request_block_tokens = requests->block_tokens();
    const std::uint64_t devices = server.devices;
    const std::uint64_t blocks = server.servers.settings.num_blocks;
    simulate::ServingSetup setup;
    setup.servers = std::move(server.servers);
    const simulate::ServingTimes t = serve(setup, *requests, s.slo);
    if (t.finished == 0) throw Error(t.rejection());
    if (t.rejected > 0) ++with_rejected;
    using L = simulate::Latency;
    row += fmt::format(
        ",{},{},{},{},{},{},{},{}{}{}{}{},{},{},{},{},{},{},{},{},{},", csv_cell(scheduler),
        rate_cell(at.rate), t.requests, t.finished, t.rejected, t.duration_s, t.request_throughput,
        t.output_token_throughput, latency_cells(t.ttft_s, {&L::mean, &L::p50, &L::p90, &L::p99}),
        latency_cells(t.tpot_s, {&L::mean, &L::p50, &L::p99}), latency_cells(t.itl_s, {&L::p99}),
        latency_cells(t.e2e_s, {&L::mean, &L::p50, &L::p99}), t.goodput_requests_per_s,
        t.slo_attainment, t.counts.preemptions, t.prefix_hit_rate(), t.peak_kv_blocks, blocks,
        t.counts.peak_running, t.steps, devices);
  } catch (const Error& e) {
    const auto results = std::count(serving_columns.begin(), serving_columns.end(), ',');
    row += fmt::format(",{},{},{}{}", csv_cell(scheduler), rate_cell(at.rate),
                       std::string(static_cast<std::size_t>(results), ','), csv_cell(e.what()));
  }
  return row;
}

}  // namespace

SweepResult run_serving_sweep(const ServingSweep& s, const SweepOptions& o) {
  std::atomic<std::uint64_t> with_rejected = 0;
  SweepResult result = run_row_sweep(
      {fmt::format("{},scheduler,rate,{}\n", configuration_columns, serving_columns),
       fmt::format("{} serving {} {} {}", s.grid.fingerprint(), fmt::join(s.schedulers, ";"),
                   fmt::join(s.rates, ","), s.workload),
       s.num_points(), [&](std::uint64_t point) { return row_of(s, point, with_rejected); }},
      o);
  result.rows_with_rejected = with_rejected;
  return result;
}

Plot serving_sweep_plot(const ServingSweep& s, const std::filesystem::path& csv) {
  const CsvTable table = CsvTable::read(csv);
  Plot plot;
  plot.title = "mean time to first token, " + s.workload;
  plot.x = {.label = "requests a second", .column = "rate", .scale = Scale::Log10};
  plot.y = {.label = "mean TTFT (s)", .column = "ttft_mean_s", .scale = Scale::Log10};
  for (std::uint64_t point = 0; point < table.size(); ++point) {
    const ServingPlace at = place_of(s, point);
    const CsvRow row = table[point];
    if (row.text("ttft_mean_s").empty() || at.rate == 0) continue;
    std::string label = s.grid.label(at.configuration);
    if (s.schedulers.size() > 1) label += ", " + at.scheduler;
    series_of(plot.series, label, Style::Line)
        .points.push_back({at.rate, row.number("ttft_mean_s")});
  }
  return plot;
}

}  // namespace kvcast::reports
