#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/choose/choose_parts.h"
#include "cli/choose/choose_plan.h"
#include "cli/frame/result.h"
#include "cli/simulate/parallel_options.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "search/device_choice.h"
#include "search/placed_estimator.h"
#include "simulate/platform.h"

namespace kvcast::cli {
namespace {

using search::DeviceCount;

struct DevicesOptions {
  ParallelOptions parallel;
  std::string prompt_len = "16k";
  std::string most_devices = "16";
  std::string least_gain = "0.1";
  bool break_even = false;
  PlanFlags plans;
  bool json = false;
};

roofline::Estimate chain_estimate(roofline::Configuration c, const search::HardwareLink& link,
                                  std::uint64_t prompt_len,
                                  const std::vector<std::uint64_t>& partition) {
  if (partition.size() > 1) {
    c.methods = {{"kvr",
                  {{"p", std::to_string(partition.size())},
                   {"partition", fmt::format("{}", fmt::join(partition, "/"))}}}};
  }
  return search::PlacedEstimator(c, link).at({1, prompt_len, 1});
}

void choose(const DevicesOptions& o, const Globals& globals) {
  const std::uint64_t prompt_len = parse_token_count(o.prompt_len, "--prompt-len");
  const std::size_t most = parse_devices(o.most_devices, "--max-devices");
  if (!o.plans.objective.empty()) {
    return choose_plan(o.plans, o.parallel, o.prompt_len, most, o.json, globals);
  }
  const roofline::Configuration configuration =
      parse_configuration(o.parallel.request, globals.catalog());
  const search::HardwareLink link =
      parse_link(o.parallel.link, configuration.hardware, configuration.mode);
  const double least_gain = parse_flag_number(o.least_gain, "--min-gain", true);
  if (least_gain >= 1) throw Error("--min-gain", "'" + o.least_gain + "'", "a share below 1");
  const search::Runahead runahead = make_runahead(o.parallel, globals.catalog());
  const std::vector<DeviceCount> counts =
      search::choose_devices(runahead, prompt_len, most, least_gain);
  ordered_json chosen;
  double least_bytes = std::numeric_limits<double>::infinity();
  const ordered_json rows = rows_of(counts, [&](const DeviceCount& c) {
    // Longer chains are not recorded: each device but the last has less to do than in shorter ones.
    std::optional<roofline::Estimate> e;
    if (c.devices <= simulate::max_devices) {
      e = chain_estimate(configuration, link, prompt_len, c.found.tokens);
      least_bytes = std::min(least_bytes, e->peak_memory_bytes);
    }
    const bool fits = e ? e->fits : !chosen.is_null();
    if (fits && (c.pays_off || chosen.is_null())) chosen = c.devices;
    ordered_json row{{"devices", c.devices},
                     {"ttft_s", c.found.ttft_s},
                     {"lower_bound_s", *c.found.lower_bound_s},
                     {"even_ttft_s", c.found.even_ttft_s},
                     {"tsp_ttft_s", or_null(c.tsp_ttft_s)},
                     {"ttft_speedup", c.speedup},
                     {"peak_memory_bytes", e ? ordered_json(e->peak_memory_bytes) : nullptr},
                     {"fits", fits},
                     {"pays_off", c.pays_off && fits},
                     {"partition_tokens", c.found.tokens}};
    if (!o.break_even) return row;
    search::BreakEven from;
    if (c.devices > 1) from = search::break_even(runahead, prompt_len, c.devices, least_gain);
    row["break_even_link_bytes_per_s"] = or_null(from.link_bytes_per_s);
    row["break_even_prompt_len"] = or_null(from.prompt_len);
    return row;
  });
  if (chosen.is_null()) {
    globals.warn(fmt::format(
        "no number of devices fits: one has all weights and at the end the whole cache, {} or more "
        "of {}; expected a shorter prompt, a narrower --dtype or --objective fits, which splits "
        "them",
        format_quantity(least_bytes, Dimension::Bytes),
        format_quantity(configuration.hardware.memory_capacity.value, Dimension::Bytes)));
  }
  if (o.json) {
    print_json({{"prompt_len", prompt_len},
                {"link_bytes_per_s", runahead.link().bytes_per_s},
                {"link_latency_s", runahead.link().latency_s},
                {"min_gain", least_gain},
                {"devices", chosen},
                {"rows", rows}});
    return;
  }
  std::vector<Column> columns{
      {"devices", "devices"},
      {"TTFT", "ttft_s", in_seconds},
      {"speed-up", "ttft_speedup", in("{:.2f}")},
      {"of ideal", "",
       [](const ordered_json& row) {
         return fmt::format("{:.0f} %",
                            100 * row["ttft_speedup"].get<double>() / row["devices"].get<double>());
       }},
      {"even parts", "even_ttft_s", in_seconds},
      {"TSP", "tsp_ttft_s", in_seconds},
      {"", "", [](const ordered_json& row) {
         return !row["fits"].get<bool>()      ? "does not fit"
                : row["pays_off"].get<bool>() ? "pays off"
                                              : "";
       }}};
  if (o.break_even) {
    const auto from = [](const char* key, const Words& words) {
      return [=](const ordered_json& row) {
        if (row["devices"] == 1) return std::string();
        return row[key].is_null() ? "none" : words(row[key]);
      };
    };
    columns.push_back(
        {"from a link of", "", from("break_even_link_bytes_per_s", in_bytes_per_second)});
    columns.push_back({"from a prompt of", "", from("break_even_prompt_len", in("{:.0f} tokens"))});
  }
  print_text(table_text(columns, rows));
}

}  // namespace

void add_choose_devices(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "devices",
      "Choose how many devices pay off for the prefill of one prompt, or a plan of "
      "parallelism.\n\nExamples:\n"
      "  kvcast choose devices --model llama-7b --hardware a100-80gb --prompt-len 16k\n"
      "  kvcast choose devices --model llama-7b --hardware a100-80gb --prompt-len 2k "
      "--link-gb-per-s 10\n"
      "  kvcast choose devices --model llama-3.1-70b --hardware h100-sxm --objective tpot "
      "--max-devices 8");
  c.footer(
      "Tries 1, 2, 4, ... devices, each number with its best partition. Doubling pays off as long "
      "as "
      "each step saves at least --min-gain of TTFT.");
  const auto o = std::make_shared<DevicesOptions>();
  o->parallel.add_to(c);
  o->parallel.request.add_spread_flags_to(c);
  c.add("--prompt-len", o->prompt_len);
  c.add("--max-devices P", o->most_devices, "largest number of devices");
  c.add("--min-gain SHARE", o->least_gain, "share of TTFT that a doubling must save");
  c.add("--break-even", o->break_even,
        "also print the slowest link and the shortest prompt for which each doubling pays off "
        "(takes seconds)");
  o->plans.add_to(c);
  c.exclude("--objective", {"--link", "--link-gb-per-s", "--link-latency-s", "--send-order"},
            "plans have the links of --platform");
  c.exclude("--objective", {"--min-gain", "--break-even"},
            "they judge a chain of devices of which each doubling must pay off; plans are ranked");
  c.add("--json", o->json);
  c.callback([o, &globals] {
    o->parallel.request.use_this_machine(globals);
    choose(*o, globals);
  });
}

}  // namespace kvcast::cli
