#include "cli/simulate/simulate_output.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/frame/command.h"
#include "model/base/quantity.h"

namespace kvcast::cli {
namespace {

using nlohmann::ordered_json;
using simulate::RunResult;

ordered_json processes_json(const SimulatedRun& run, const RunResult& r, ordered_json j) {
  for (const auto& [key, member] : {std::pair{"compute_s", &simulate::RankUsage::compute_s},
                                    std::pair{"waiting_s", &simulate::RankUsage::waiting_s},
                                    std::pair{"transfer_s", &simulate::RankUsage::transfer_s}}) {
    ordered_json list = ordered_json::array();
    for (const simulate::RankUsage& p : r.ranks) list.push_back(p.*member);
    j[key] = list;
  }
  ordered_json links = ordered_json::array();
  for (std::uint32_t l = 0; l < r.link_bytes.size(); ++l) {
    if (r.link_bytes[l] == 0) continue;
    links.push_back({{"link", run.scenario.platform.link_name(l)},
                     {"bytes", r.link_bytes[l]},
                     {"utilisation", r.link_utilisation[l]}});
  }
  j["links"] = links;
  return j;
}

constexpr std::array<std::pair<const char*, double>, 5> quantiles{
    {{"p05", 0.05}, {"p25", 0.25}, {"p50", 0.5}, {"p75", 0.75}, {"p95", 0.95}}};

std::string links_text(const SimulatedRun& run, const RunResult& r) {
  constexpr std::size_t most = 8;
  std::vector<std::uint32_t> order;
  for (std::uint32_t l = 0; l < r.link_bytes.size(); ++l) {
    if (r.link_bytes[l] > 0) order.push_back(l);
  }
  if (order.empty()) return {};
  std::stable_sort(order.begin(), order.end(), [&r](std::uint32_t a, std::uint32_t b) {
    return r.link_utilisation[a] > r.link_utilisation[b];
  });
  Table table({"link", "carried", "used"});
  for (std::size_t i = 0; i < std::min(most, order.size()); ++i) {
    const std::uint32_t l = order[i];
    table.add({run.scenario.platform.link_name(l),
               format_quantity(r.link_bytes[l], Dimension::Bytes),
               fmt::format("{:.1f} %", 100 * r.link_utilisation[l])});
  }
  std::string text = "\n" + table.text();
  if (order.size() > most) {
    text += fmt::format("and {} less used links\n", order.size() - most);
  }
  return text;
}

}  // namespace

std::string title_of(const SimulatedRun& run) {
  const simulate::PrefillWork& work = run.scenario.work;
  if (!run.model) return fmt::format("{} of {}", simulate::name(work.schedule), run.platform);
  const roofline::Configuration& c = run.model->configuration;
  return fmt::format("{} of {} on {} x {}, prompt {}, {}", simulate::name(work.schedule),
                     c.architecture.name, run.scenario.platform.num_devices(), c.hardware.name,
                     run.model->prompt_len, run.platform);
}

ordered_json run_json(const SimulatedRun& run, const RunResult& r,
                      std::optional<double> sensitivity) {
  ordered_json j;
  const simulate::PrefillWork& work = run.scenario.work;
  if (run.model) {
    j["model"] = run.model->configuration.architecture.name;
    j["hardware"] = run.model->configuration.hardware.name;
    j["method"] = to_string(run.model->configuration.methods);
    j["mode"] = roofline::name(run.model->configuration.mode);
    j["prompt_len"] = run.model->prompt_len;
  }
  j["schedule"] = simulate::name(work.schedule);
  j["platform"] = run.platform;
  j["devices"] = run.scenario.platform.num_devices();
  j["send_order"] = simulate::name(work.send_order);
  if (work.schedule == simulate::Schedule::Tsp) j["all_gather"] = simulate::name(work.all_gather);
  j["ttft_s"] = r.ttft_s;
  j["makespan_s"] = r.makespan_s;
  j["finish_s"] = r.finish_s;
  j["partition_tokens"] = work.partition_tokens;
  j["message_bytes"] = r.message_bytes;
  j["messages"] = r.messages;
  j["events"] = r.events;
  if (run.model) {
    j["ttft_one_device_s"] = run.model->bounds.one_device_s;
    j["ttft_speedup"] = run.model->bounds.one_device_s / r.ttft_s;
    j["ttft_no_communication_s"] = run.model->bounds.no_communication_s;
    j["ttft_star_s"] = run.model->bounds.star_s;
    if (const auto& found = run.model->found) {
      j["lower_bound_s"] = nullptr;
      if (found->lower_bound_s) j["lower_bound_s"] = *found->lower_bound_s;
      j["evaluations"] = found->evaluations;
    }
  }
  j["ttft_sensitivity"] = nullptr;
  j["ill_conditioned"] = nullptr;
  if (sensitivity) {
    j["ttft_sensitivity"] = *sensitivity;
    j["ill_conditioned"] = *sensitivity > simulate::ill_conditioned;
  }
  return processes_json(run, r, std::move(j));
}

std::string run_text(const SimulatedRun& run, const RunResult& r) {
  const auto seconds = [](double s) { return format_quantity(s, Dimension::Seconds); };
  const simulate::PrefillWork& work = run.scenario.work;
  Table summary({"", "value", ""});
  const auto beside = [&](double s) {
    return fmt::format("{:.2f}x", run.model->bounds.one_device_s / s);
  };
  summary.add(
      {"TTFT", seconds(r.ttft_s), run.model ? beside(r.ttft_s) + " one device" : std::string()});
  if (r.makespan_s != r.ttft_s) {
    summary.add({"last process", seconds(r.makespan_s), ""});
  }
  if (run.model) {
    const search::PrefillBounds& b = run.model->bounds;
    summary.add({"one device, TTFT(1)", seconds(b.one_device_s), ""});
    summary.add(
        {"no communication, TTFT(p)", seconds(b.no_communication_s), beside(b.no_communication_s)});
    summary.add({"attention alone, TTFT*(p)", seconds(b.star_s), beside(b.star_s)});
    if (const auto& found = run.model->found) {
      if (found->lower_bound_s) {
        summary.add({"any partition, at least", seconds(*found->lower_bound_s),
                     beside(*found->lower_bound_s)});
      }
      summary.add({"partitions tried", std::to_string(found->evaluations), ""});
    }
  }
  summary.add({"messages", std::to_string(r.messages),
               fmt::format("{}, {}",
                           format_quantity(static_cast<double>(r.message_bytes), Dimension::Bytes),
                           simulate::name(work.send_order))});
  Table table({"device", "tokens", "compute", "waiting", "transfer", "finish"});
  for (std::uint32_t i = 0; i < r.ranks.size(); ++i) {
    const simulate::RankUsage& p = r.ranks[i];
    table.add({run.scenario.platform.device_name(i), std::to_string(work.partition_tokens[i]),
               seconds(p.compute_s), seconds(p.waiting_s), seconds(p.transfer_s),
               seconds(r.finish_s[i])});
  }
  const std::string rows = summary.text();
  return title_of(run) + "\n" + rows.substr(rows.find('\n') + 1) + "\n" + table.text() +
         links_text(run, r);
}

ordered_json noise_json(const simulate::NoiseSpec& spec, const simulate::NoiseResult& noise) {
  ordered_json j{{"spec", simulate::to_string(spec)},
                 {"trials", spec.trials},
                 {"ttft_mean_s", noise.mean_s},
                 {"ttft_deviation_s", noise.deviation_s}};
  for (const auto& [name, share] : quantiles) {
    j[fmt::format("ttft_{}_s", name)] = noise.quantile_s(share);
  }
  j["ttft_max_s"] = noise.quantile_s(1);
  return j;
}

std::string noise_text(const simulate::NoiseSpec& spec, const simulate::NoiseResult& noise) {
  std::string text =
      fmt::format("\nwith noise, {}\nTTFT mean {}, deviation {}", simulate::to_string(spec),
                  format_quantity(noise.mean_s, Dimension::Seconds),
                  format_quantity(noise.deviation_s, Dimension::Seconds));
  for (const auto& [name, share] : quantiles) {
    text +=
        fmt::format(", {} {}", name, format_quantity(noise.quantile_s(share), Dimension::Seconds));
  }
  return text + "\n";
}

}  // namespace kvcast::cli
