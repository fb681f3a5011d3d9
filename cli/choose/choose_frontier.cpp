#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/choose/choose_parts.h"
#include "cli/choose/ranking.h"
#include "cli/estimate/sweep_axes.h"
#include "cli/frame/progress_bar.h"
#include "model/base/error.h"
#include "model/base/pareto_front.h"
#include "model/base/quantity.h"
#include "model/io/files/number_text.h"
#include "reports/plot/plot.h"
#include "reports/sweep/sweep.h"
#include "reports/sweep/sweep_columns.h"
#include "search/plan_choice.h"

namespace kvcast::cli {
namespace {

using reports::SweepColumn;
using reports::SweepColumns;
using reports::SweepGrid;

/// Ours: an answer has a row for each point.
constexpr std::uint64_t most_points = 100'000;
constexpr const char* throughput = "tokens_per_s_per_device";

struct FrontierOptions {
  SweepAxes axes;
  std::string goals = "ttft_s,peak_memory_bytes";
  std::string limits;
  std::string plot;
  RowsOutput output;
};

/// A number of each point that should be small, or large.
struct Goal {
  std::string name;
  bool is_large = false;  ///< more is better
  double cost(double value) const { return is_large ? -value : value; }
};

/// A column of a sweep's results or the throughput. Throws Error for other words.
Goal parse_goal(const std::string& name, const SweepColumns& columns, const char* flag) {
  std::vector<std::string> known{throughput};
  for (std::size_t i = SweepColumns::num_inputs; i < columns.columns.size(); ++i) {
    const SweepColumn& c = columns.columns[i];
    if (c.is_number && !c.name.ends_with("error_bound")) known.push_back(c.name);
  }
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw Error(flag, unknown_name("result", name, known));
  }
  return {name, name == throughput || name.ends_with("speedup")};
}

struct Limit {
  Goal goal;
  double value = 0;
};

double parse_limit(const Goal& goal, const std::string& text) {
  const std::string place = "--limits: " + goal.name;
  double value = 0;
  if (parse_number(text, value)) {
    if (value > 0 && is_computable(value)) return value;
    throw Error(place, text, std::string(computable_range));
  }
  if (goal.name.ends_with("_s")) return parse_quantity(text, Dimension::Seconds, place);
  if (goal.name.find("bytes") != std::string::npos) {
    return parse_quantity(text, Dimension::Bytes, place);
  }
  throw Error(place, "'" + text + "'", "a number above 0");
}

std::vector<Limit> parse_limits(const std::string& text, const SweepColumns& columns) {
  std::vector<Limit> limits;
  if (text.empty()) return limits;
  for (const std::string& word : reports::parse_words(text, "--limits")) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) {
      throw Error("--limits", "'" + word + "'", "RESULT=VALUE, such as ttft_s=2");
    }
    Limit limit{parse_goal(word.substr(0, equals), columns, "--limits")};
    limit.value = parse_limit(limit.goal, word.substr(equals + 1));
    limits.push_back(std::move(limit));
  }
  return limits;
}

std::vector<Goal> parse_goals(const std::string& text, const SweepColumns& columns) {
  std::vector<Goal> goals;
  for (const std::string& word : reports::parse_words(text, "--goals")) {
    goals.push_back(parse_goal(word, columns, "--goals"));
  }
  if (goals.size() < 2) throw Error("--goals", text, "at least two results to trade");
  return goals;
}

Words words_of(const std::string& name) {
  if (name.ends_with("_s")) return in_seconds;
  if (name.find("bytes") != std::string::npos) return in_bytes;
  return in("{:.4g}");
}

/// Each number and word of a point that the sweep has.
ordered_json row_of(const SweepGrid& grid, const SweepColumns& columns, std::uint64_t point) {
  const reports::SweepSpec& spec = grid.spec();
  std::string label = grid.label(point / grid.num_sizes());
  ordered_json row{{"choice", ""}};
  for (const SweepColumn& c : columns.columns) {
    if (c.is_number) {
      if (!std::isnan(c.numbers[point])) row[c.name] = c.numbers[point];
    } else if (c.codes[point] >= 0) {
      row[c.name] = c.words[static_cast<std::size_t>(c.codes[point])];
    }
  }
  const auto add_size = [&](const std::vector<std::uint64_t>& axis, const char* key,
                            const char* word) {
    if (axis.size() > 1) label += fmt::format(", {} {}", word, row[key].get<std::uint64_t>());
  };
  add_size(spec.batch, "batch", "batch");
  add_size(spec.prompt_len, "prompt_len", "prompt");
  add_size(spec.output_len, "output_len", "output");
  row["choice"] = label;
  if (row.contains("fits")) row["fits"] = row["fits"] == "true";
  if (!row.contains("ttft_s")) return row;
  const double devices = row.value("devices", 1.0);
  if (devices == 1) {  // a sweep leaves these cells empty
    row["communication_s"] = row["tpot_communication_s"] = 0;
    row["weight_bytes_per_device"] = row["weight_bytes"];
    row["kv_cache_bytes_per_device"] = row["kv_cache_bytes"];
  }
  const roofline::DesignPoint sizes{row["batch"], row["prompt_len"], row["output_len"]};
  row[throughput] = search::tokens_per_s(sizes, row["ttft_s"], row.value("tpot_s", 0.0)) / devices;
  return row;
}

/// Why a point cannot be chosen, if it cannot.
std::optional<std::string> reason_against(const ordered_json& row, const std::vector<Goal>& goals,
                                          const std::vector<Limit>& limits) {
  if (row.contains("error")) return row["error"].get<std::string>();
  if (!row.value("fits", true)) {
    return fmt::format("does not fit: {} a device", in_bytes(row["peak_memory_bytes"]));
  }
  for (const Limit& l : limits) {
    if (!row.contains(l.goal.name)) return "has no " + l.goal.name;
    const double value = row[l.goal.name];
    if (l.goal.cost(value) <= l.goal.cost(l.value)) continue;
    const Words words = words_of(l.goal.name);
    return fmt::format("{} {}, {} the limit of {}", l.goal.name, words(value),
                       l.goal.is_large ? "below" : "above", words(l.value));
  }
  for (const Goal& g : goals) {
    if (!row.contains(g.name)) return "has no " + g.name;
  }
  return {};
}

void choose(const FrontierOptions& o, const Globals& globals) {
  o.output.check();
  const SweepGrid grid(o.axes.parse(globals), globals.catalog());
  if (grid.num_points() > most_points) {
    throw Error("choose frontier", std::to_string(grid.num_points()) + " points",
                fmt::format("at most {}; kvcast sweep writes more", most_points));
  }
  const SweepColumns no_rows(grid, 0);
  const std::vector<Goal> goals = parse_goals(o.goals, no_rows);
  const std::vector<Limit> limits = parse_limits(o.limits, no_rows);
  if (!o.plot.empty()) reports::plot_files(o.plot);
  reports::check_any_possible(grid);
  ProgressBar bar(globals.quiet);
  reports::SweepOptions options;
  options.on_progress = [&bar](const reports::SweepProgress& p) {
    bar.draw(p.rows, p.rows_resumed, p.total_rows, p.elapsed_s);
  };
  const SweepColumns columns = reports::sweep_columns(grid, options);

  // Requests of other lengths are other questions: each has a front of its own.
  std::map<std::pair<double, double>, std::vector<ordered_json>> able;
  std::vector<ordered_json> rejected;
  for (std::uint64_t point = 0; point < columns.num_rows; ++point) {
    ordered_json row = row_of(grid, columns, point);
    if (std::optional<std::string> reason = reason_against(row, goals, limits)) {
      row["reason"] = *std::move(reason);
      rejected.push_back(std::move(row));
    } else {
      able[{row["prompt_len"], row["output_len"]}].push_back(std::move(row));
    }
  }
  Ranking ranking;
  ranking.none = "no choice fits and meets the limits";
  ranking.head = {{"goals", o.goals}, {"limits", o.limits}, {"points", columns.num_rows}};
  std::vector<ordered_json> beaten;
  for (auto& [lengths, rows] : able) {
    std::vector<std::vector<double>> costs;
    for (const ordered_json& row : rows) {
      std::vector<double>& cost = costs.emplace_back();
      for (const Goal& g : goals) cost.push_back(g.cost(row[g.name]));
    }
    const std::vector<std::optional<std::size_t>> by = beaten_by(costs);
    std::vector<std::size_t> front;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i]["on_front"] = !by[i];
      if (!by[i]) {
        front.push_back(i);
        continue;
      }
      rows[i]["reason"] = "nowhere better than " + rows[*by[i]]["choice"].get<std::string>();
      beaten.push_back(rows[i]);
    }
    std::stable_sort(front.begin(), front.end(),
                     [&](std::size_t a, std::size_t b) { return costs[a] < costs[b]; });
    for (const std::size_t i : front) ranking.rows.push_back(std::move(rows[i]));
  }
  for (std::vector<ordered_json>* const rows : {&beaten, &rejected}) {
    for (ordered_json& row : *rows) ranking.rows.push_back(std::move(row));
  }

  ranking.table = {{"choice", "choice"}};
  std::vector<std::string> shown;
  const auto show = [&](const std::string& name) {
    if (std::find(shown.begin(), shown.end(), name) != shown.end()) return;
    shown.push_back(name);
    ranking.table.push_back({name, name, words_of(name)});
  };
  for (const Goal& g : goals) show(g.name);
  for (const Limit& l : limits) show(l.goal.name);
  std::vector<std::string> keys{"choice"};
  for (const SweepColumn& c : columns.columns) {
    if (c.name != "error") keys.push_back(c.name);
  }
  keys.emplace_back(throughput);
  ranking.csv = columns_of(keys);
  ranking.rejected = [](const ordered_json& row) { return row["choice"].get<std::string>(); };
  if (!o.plot.empty()) {
    const auto axis = [](const Goal& g) {
      return reports::Axis{.label = g.name, .column = g.name, .scale = reports::Scale::Log10};
    };
    reports::write_plot(front_plot(ranking.rows, "choices that nothing else beats", axis(goals[0]),
                                   axis(goals[1]), "choice"),
                        o.plot);
  }
  print_ranking(ranking, o.output);
}

}  // namespace

void add_choose_frontier(Command choose_command, const Globals& globals) {
  Command c = choose_command.add_subcommand(
      "frontier",
      "Find the choices of a sweep that nothing else beats: models, devices, engines, methods, "
      "dtypes, batches.\n\nExamples:\n"
      "  kvcast choose frontier --model llama-3.1-8b --hardware a100-80gb --prompt-len 16k "
      "--method "
      "'plain;streaming:sinks=4,window=1024;specprefill:keep=0.1,speculator=llama-3.2-1b' "
      "--cache-dtype bf16,fp8\n"
      "  kvcast choose frontier --model llama-3.1-70b --hardware h100-sxm --engine vllm --tp 2,4,8 "
      "--batch 1..64:x2 --goals tpot_s,tokens_per_s_per_device --limits ttft_s=2");
  const auto o = std::make_shared<FrontierOptions>();
  o->axes.add_to(c);
  c.add("--goals LIST", o->goals,
        "results to trade, two or more, columns of kvcast sweep or tokens_per_s_per_device: "
        "speed-ups "
        "and tokens a second should be large, all others small");
  c.add("--limits LIST", o->limits,
        "RESULT=VALUE: what a choice must keep, as ttft_s=2,peak_memory_bytes='40 GB'");
  c.add("--plot", o->plot, "draw the second goal over the first, the frontier marked");
  o->output.add_to(c);
  c.callback([o, &globals] { choose(*o, globals); });
}

}  // namespace kvcast::cli
