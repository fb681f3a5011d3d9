#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/choose/choose_parts.h"
#include "cli/choose/ranking.h"
#include "cli/estimate/serving_axes.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/this_machine.h"
#include "model/base/error.h"
#include "model/base/pareto_front.h"
#include "model/base/quantity.h"
#include "model/base/stopwatch.h"
#include "search/server_group.h"
#include "search/serving_rate.h"

namespace kvcast::cli {
namespace {

struct ChooseServingOptions {
  std::map<std::string, std::vector<std::string>> axes;  ///< texts of the flags, by JSON key
  ServingAxes serving;
  std::string max_devices = "8";
  double rate = 0;
  std::string plot;
  RowsOutput output;
};

constexpr const char* listed_flags[][2] = {{"--model LIST", ""},
                                           {"--hardware LIST", ""},
                                           {"--engine LIST", "software that runs the model"},
                                           {"--method LIST", "methods separated by ';'"},
                                           {"--dtype LIST", ""},
                                           {"--weight-dtype LIST", ""},
                                           {"--activation-dtype LIST", ""},
                                           {"--cache-dtype LIST", ""},
                                           {"--tp LIST", "devices of a server"},
                                           {"--pp LIST", ""},
                                           {"--ep LIST", ""},
                                           {"--dp LIST", ""},
                                           {"--platform LIST", ""}};

std::string key_of(std::string flag) {
  flag = flag.substr(2, flag.find(' ') - 2);
  std::replace(flag.begin(), flag.end(), '-', '_');
  return flag;
}

reports::SweepSpec spec_of(const ChooseServingOptions& o, const Globals& globals) {
  reports::SweepSpec spec;
  for (const auto& [key, values, fallback] : reports::word_axes) {
    const auto texts = o.axes.find(key);
    if (texts == o.axes.end() || texts->second.empty()) continue;
    const std::string flag = reports::flag_of(key);
    const char* separator = reports::has_options(key) ? ";" : ",";
    spec.*values =
        reports::words_of_axis(key)(fmt::format("{}", fmt::join(texts->second, separator)), flag);
  }
  if (spec.hardware.empty()) spec.hardware = {or_this_machine({}, globals)};
  return spec;
}

/// One kind of server and the highest rate at which it keeps the objective.
ordered_json server_row(const reports::ServingSweep& sweep, std::uint64_t configuration,
                        const std::string& scheduler, const Objective& objective) {
  const reports::SweepGrid& grid = sweep.grid;
  ordered_json row{{"server", grid.label(configuration)}};
  try {
    const roofline::Configuration c = grid.configuration(configuration);
    const auto make = [&] { return search::make_server(c, scheduler, "--scheduler"); };
    const simulate::ModelServer one = make();
    const std::uint64_t devices = one.devices;
    row["scheduler"] =
        scheduler.empty() ? std::string(name(one.servers.settings.policy)) : scheduler;
    row["server"] = fmt::format(
        "{}{}{}, {}, {}", grid.spec().model.size() > 1 ? c.architecture.name + ", " : "",
        c.hardware.name, c.parallelism.is_one() ? "" : ", " + to_string(c.parallelism),
        to_string(c.methods), row["scheduler"].get<std::string>());
    row["devices"] = devices;
    const search::RateFound found =
        search::find_max_rate({.attainment = objective.attainment}, [&](double rate) {
          simulate::ServingSetup setup;
          setup.servers = make().servers;
          const auto requests = sweep.open(rate);
          setup.servers.settings.request_block_tokens = requests->block_tokens();
          return serve(setup, *requests, objective.slo);
        });
    row["max_rate"] = found.rate;
    if (found.rate == 0) {
      const std::string rejection = found.tried.front().times.rejection();
      row["reason"] = "no rate meets the objective" + (rejection.empty() ? "" : "; " + rejection);
      return row;
    }
    if (!found.is_limit) {
      row["reason"] = "all rates meet the objective: too few requests, or no limit";
      return row;
    }
    row["max_rate_per_device"] = found.rate / static_cast<double>(devices);
    const simulate::ServingTimes& times = found.at_limit()->times;
    row["output_token_throughput_per_device"] =
        times.output_token_throughput / static_cast<double>(devices);
    row["rejected"] = times.rejected;
    row["ttft_mean_s"] = times.ttft_s.mean;
    row["ttft_p99_s"] = times.ttft_s.p99;
    if (times.tpot_s.values > 0) row["tpot_mean_s"] = times.tpot_s.mean;
    row["e2e_mean_s"] = times.e2e_s.mean;
    row["steady"] = found.at_limit()->is_steady();
  } catch (const Error& e) {
    row["reason"] = e.what();
  }
  return row;
}

/// Servers for the rate that is wanted, and what is wrong with those that do not fit the budget.
void add_servers(double rate, std::uint64_t most_devices, ordered_json& row) {
  if (row.contains("reason")) return;
  const std::uint64_t devices = row["devices"];
  std::uint64_t servers = 1;
  if (rate > 0) {
    servers = static_cast<std::uint64_t>(std::ceil(rate / row["max_rate"].get<double>()));
  }
  row["servers"] = servers;
  row["all_devices"] = servers * devices;
  if (servers * devices > most_devices) {
    row["reason"] =
        fmt::format("{} devices, above --max-devices {}", servers * devices, most_devices);
  }
}

/// On the front unless another one takes as many requests a device and answers no later.
void mark_front(ordered_json& rows) {
  std::vector<ordered_json*> able;
  std::vector<std::vector<double>> costs;
  for (ordered_json& row : rows) {
    if (row.contains("reason")) continue;
    able.push_back(&row);
    costs.push_back({-row["max_rate_per_device"].get<double>(), row["e2e_mean_s"].get<double>()});
  }
  const std::vector<std::optional<std::size_t>> by = beaten_by(costs);
  for (std::size_t i = 0; i < able.size(); ++i) {
    ordered_json& row = *able[i];
    row["on_front"] = !by[i];
    row["note"] =
        by[i] ? "nowhere better than " + (*able[*by[i]])["server"].get<std::string>() : "";
  }
}

void choose(const ChooseServingOptions& o, const Globals& globals) {
  o.output.check();
  if (o.axes.at("model").empty())
    throw Error(
        "--model is required: names (kvcast model list), config.json files or folders with one");
  const Objective objective = parse_objective(o.serving.slo, true);
  if (objective.slo.is_empty()) {
    throw Error("--slo is required: ttft=S, tpot=S or e2e=S, what a request must keep");
  }
  const reports::SweepGrid grid(spec_of(o, globals), globals.catalog());
  const reports::ServingSweep sweep = o.serving.over(grid, globals, true);
  sweep.open(1);  // what is wrong with it is found before the first server
  const std::uint64_t most_devices = parse_token_count(o.max_devices, "--max-devices");
  if (!o.plot.empty()) reports::plot_files(o.plot);
  Ranking ranking;
  ranking.head = {{"objective", o.serving.slo},
                  {"attainment", objective.attainment},
                  {"workload", sweep.workload},
                  {"max_devices", most_devices},
                  {"rate", o.rate > 0 ? ordered_json(o.rate) : ordered_json(nullptr)}};
  const Stopwatch watch;
  ProgressBar bar(globals.quiet);
  const std::uint64_t all = grid.num_configurations() * sweep.schedulers.size();
  for (std::uint64_t c = 0; c < grid.num_configurations(); ++c) {
    for (const std::string& scheduler : sweep.schedulers) {
      ranking.rows.push_back(server_row(sweep, c, scheduler, objective));
      add_servers(o.rate, most_devices, ranking.rows.back());
      bar.draw(ranking.rows.size(), 0, all, watch.seconds());
    }
  }
  const auto unsteady =
      std::count_if(ranking.rows.begin(), ranking.rows.end(),
                    [](const ordered_json& row) { return !row.value("steady", true); });
  if (unsteady > 0) {
    globals.warn(fmt::format(
        "at the rates found for {} of {} servers the requests are too few for a queue that grows "
        "to show; expected more (--num-requests)",
        unsteady, all));
  }
  mark_front(ranking.rows);
  const auto rank = [](const ordered_json& row) {
    return std::pair(row.contains("reason"), -row.value("max_rate_per_device", 0.0));
  };
  std::stable_sort(ranking.rows.begin(), ranking.rows.end(),
                   [&](const ordered_json& a, const ordered_json& b) { return rank(a) < rank(b); });
  ranking.table = {{"server", "server"},
                   {"devices", "devices"},
                   {"requests/s", "max_rate", in("{:.4g}")},
                   {"a device", "max_rate_per_device", in("{:.4g}")},
                   {"TTFT", "ttft_mean_s", in_seconds},
                   {"TPOT", "tpot_mean_s", in_seconds},
                   {"end to end", "e2e_mean_s", in_seconds},
                   {"front", "on_front", if_true("yes")}};
  if (o.rate > 0) ranking.table.push_back({"servers", "servers"});
  ranking.csv =
      columns_of({"server", "scheduler", "devices", "max_rate", "max_rate_per_device",
                  "output_token_throughput_per_device", "ttft_mean_s", "ttft_p99_s", "tpot_mean_s",
                  "e2e_mean_s", "steady", "servers", "all_devices", "on_front", "note"});
  ranking.none = "no server meets the objective within the budget";
  ranking.rejected = [](const ordered_json& row) { return row["server"].get<std::string>(); };
  if (!o.plot.empty()) {
    reports::write_plot(front_plot(ranking.rows, "servers at their highest rate, " + sweep.workload,
                                   {.label = "mean end-to-end time (s)",
                                    .column = "e2e_mean_s",
                                    .scale = reports::Scale::Log10},
                                   {.label = "requests a second and device",
                                    .column = "max_rate_per_device",
                                    .scale = reports::Scale::Log10},
                                   "server"),
                        o.plot);
  }
  print_ranking(ranking, o.output);
}

}  // namespace

void add_choose_serving(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "serving",
      "Rank servers by the requests a second that a device takes while an objective holds.\n\n"
      "Examples:\n"
      "  kvcast choose serving --model llama-3.1-8b --hardware h100-sxm,l40s --engine vllm "
      "--tp 1,2 --prompt-lens 1000 --output-lens 200 --arrivals poisson:rate=1 "
      "--slo ttft=1,tpot=0.05 --rate 40 --max-devices 16");
  const auto o = std::make_shared<ChooseServingOptions>();
  for (const auto& [flag, help] : listed_flags) {
    c.add(flag, o->axes[key_of(flag)], help).allow_extra_args(false).group("Axes");
  }
  c.add("--scheduler LIST", o->serving.schedulers, "schedulers separated by ';'")
      .allow_extra_args(false)
      .group("Axes");
  o->serving.workload.add_to(c);
  c.add("--slo LIMITS", o->serving.slo, "ttft=S,tpot=S,e2e=S,attainment=F");
  c.add("--rate R", o->rate, "requests a second that all servers together must take")
      .between(simulate::least_rate, search::RateSearch{}.most_rate);
  c.add("--max-devices N", o->max_devices, "the budget");
  c.add("--plot", o->plot, "draw requests a second and device over the end-to-end time");
  o->output.add_to(c);
  c.callback([o, &globals] { choose(*o, globals); });
}

}  // namespace kvcast::cli
