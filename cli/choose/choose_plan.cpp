#include "cli/choose/choose_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/choose/ranking.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "reports/plot/plot.h"
#include "roofline/interconnect.h"
#include "search/plan_choice.h"

namespace kvcast::cli {
namespace {

std::optional<double> limit(const std::string& text, const char* flag) {
  if (text.empty()) return {};
  return parse_quantity(text, Dimension::Seconds, flag);
}

/// What `kvcast estimate` forecasts a plan with, beside the model, the hardware, the engine, the
/// types and the sizes. `platform`: empty where none has a name.
std::string flags_of(const search::Plan& p, const roofline::Configuration& c,
                     const std::string& platform) {
  std::string flags;
  const auto add = [&](std::string_view flag, const auto& value) {
    flags += fmt::format("{}--{} {}", flags.empty() ? "" : " ", flag, value);
  };
  const auto add_devices = [&](std::string_view flag, std::uint64_t devices) {
    if (devices > 1) add(flag, devices);
  };
  add_devices("tp", p.parallelism.tp);
  add_devices("pp", p.parallelism.pp);
  add_devices("ep", p.parallelism.ep);
  add_devices("dp", p.parallelism.dp);
  if (p.parallelism.sequence_parallel) flags += " --sequence-parallel";
  if (search::takes_micro_batches(p)) add_devices("micro-batches", c.micro_batches);
  if (p.devices() > 1 && !platform.empty()) add("platform", platform);
  const std::vector<MethodSpec> methods = search::methods_of(p, c.methods);
  if (!methods.empty()) add("method", to_string(methods));
  return flags;
}

ordered_json plan_json(const search::Plan& p, const std::string& flags) {
  ordered_json j{{"plan", search::to_string(p)},
                 {"devices", p.devices()},
                 {"tp", p.parallelism.tp},
                 {"pp", p.parallelism.pp},
                 {"ep", p.parallelism.ep},
                 {"dp", p.parallelism.dp},
                 {"kvr", p.runahead},
                 {"sequence_parallel", p.parallelism.sequence_parallel}};
  if (p.tokens_per_s > 0) {
    const roofline::Estimate& e = p.estimate;
    j["ttft_s"] = e.ttft_s;
    j["tpot_s"] = e.tpot_s;
    j["tokens_per_s_per_device"] = p.tokens_per_s_per_device();
    j["communication_s"] = e.communication_s;
    j["weight_bytes_per_device"] = e.weight_bytes_per_device;
    j["peak_memory_bytes"] = e.peak_memory_bytes;
  }
  j["on_front"] = p.on_front;
  j["flags"] = flags;
  j["note"] = p.reason;
  return j;
}

}  // namespace

void PlanFlags::add_to(Command c) {
  const char* group = "Plans";
  c.add("--objective GOAL", objective,
        "rank tensor, pipeline, expert and data parallel plans, and kvr: ttft, tpot, throughput (a "
        "device) or fits (the fewest devices)")
      .group(group);
  c.add("--max-ttft TIME", most_ttft, "with --objective: plans above it are rejected").group(group);
  c.add("--max-tpot TIME", most_tpot, "with --objective: plans above it are rejected").group(group);
  c.add("--batch", batch);
  c.add("--output-len", output_len);
  c.add("--engine", engine);
  c.add("--platform", platform);
  c.add("--plot", plot, "with --objective: draw throughput over TPOT, the front marked");
  c.add("--csv", csv);
  c.need({"--max-ttft", "--max-tpot", "--batch", "--output-len", "--engine", "--platform", "--plot",
          "--csv", "--sequence-parallel", "--micro-batches"},
         {"--objective"});
}

void choose_plan(const PlanFlags& flags, const ParallelOptions& parallel,
                 const std::string& prompt_len, std::uint64_t most_devices, bool json,
                 const Globals& globals) {
  const Catalog catalog = globals.catalog();
  RowsOutput output{json, flags.csv};
  output.check();
  RequestOptions options = parallel.request;
  options.engine = flags.engine;
  search::PlanRequest request;
  request.configuration = parse_configuration(options, catalog);
  const roofline::Configuration& c = request.configuration;
  request.configuration.interconnect =
      roofline::find_interconnect(catalog, flags.platform, c.hardware, most_devices);
  request.point = {parse_token_count(flags.batch, "--batch"),
                   parse_token_count(prompt_len, "--prompt-len"),
                   parse_token_count(flags.output_len, "--output-len")};
  request.most_devices = most_devices;
  request.goal = parse_flag("--objective", flags.objective, search::parse_plan_goal);
  request.most_ttft_s = limit(flags.most_ttft, "--max-ttft");
  request.most_tpot_s = limit(flags.most_tpot, "--max-tpot");
  search::Plans plans = search::choose_plan(request);
  const std::uint64_t batch = request.point.batch;
  if (std::any_of(plans.fit.begin(), plans.fit.end(),
                  [batch](const search::Plan& p) { return batch % p.parallelism.dp > 0; })) {
    globals.warn(fmt::format(
        "{} sequences do not divide evenly among the replicas of some plans: each replica is taken "
        "to have as many as the fullest",
        batch));
  }

  Ranking ranking;
  ranking.head = {{"model", c.architecture.name},
                  {"hardware", c.hardware.name},
                  {"platform", c.interconnect->name()},
                  {"engine", c.engine.name},
                  {"objective", flags.objective},
                  {"batch", request.point.batch},
                  {"prompt_len", request.point.prompt_len},
                  {"output_len", request.point.output_len},
                  {"max_devices", most_devices},
                  {"sequence_parallel", c.parallelism.sequence_parallel},
                  {"micro_batches", c.micro_batches}};
  const std::vector<std::string> platforms = catalog.names("platforms");
  std::string platform = flags.platform;
  if (platform.empty() &&
      std::find(platforms.begin(), platforms.end(), c.interconnect->name()) != platforms.end()) {
    platform = c.interconnect->name();
  }
  const auto row_of = [&](const search::Plan& p) { return plan_json(p, flags_of(p, c, platform)); };
  ranking.rows = rows_of(plans.fit, row_of);
  for (const search::Plan& p : plans.rejected) {
    ordered_json row = row_of(p);
    row.erase("on_front");
    row["reason"] = p.reason;
    ranking.rows.push_back(row);
  }
  ranking.table = {{"plan", "plan"},
                   {"devices", "devices"},
                   {"TTFT", "ttft_s", in_seconds},
                   {"TPOT", "tpot_s", in_seconds},
                   {"tokens/s, a device", "tokens_per_s_per_device", in("{:.1f}")},
                   {"memory, a device", "peak_memory_bytes", in_bytes},
                   {"", "on_front", if_true("on the front")},
                   {"", "note"}};
  ranking.csv = columns_of({"plan", "devices", "tp", "pp", "ep", "dp", "kvr", "ttft_s", "tpot_s",
                            "tokens_per_s_per_device", "communication_s", "weight_bytes_per_device",
                            "peak_memory_bytes", "on_front", "note", "flags"});
  ranking.rejected = [](const ordered_json& row) { return row["plan"].get<std::string>(); };
  if (!plans.fit.empty() && plans.fit.front().devices() > 1) {
    ranking.note =
        "rank 1 is kvcast estimate with\n  " + ranking.rows[0]["flags"].get<std::string>() + "\n";
  }
  if (!flags.plot.empty()) {
    reports::write_plot(
        front_plot(ranking.rows,
                   fmt::format("{} on {}", c.architecture.name, c.interconnect->name()),
                   {"TPOT (ms)", "tpot_s", reports::Scale::Log10, 1e-3},
                   {"tokens a second and device", "tokens_per_s_per_device", reports::Scale::Log10},
                   "plan"),
        flags.plot);
  }
  print_ranking(ranking, output);
}

}  // namespace kvcast::cli
