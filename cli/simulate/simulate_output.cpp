#include "cli/simulate/simulate_output.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/frame/result.h"
#include "model/base/order_statistics.h"

namespace kvcast::cli {
namespace {

using simulate::RunResult;

ordered_json links_json(const SimulatedRun& run, const RunResult& r) {
  ordered_json links = ordered_json::array();
  for (std::uint32_t l = 0; l < r.link_bytes.size(); ++l) {
    if (r.link_bytes[l] == 0) continue;
    links.push_back({{"link", run.scenario.platform.link_name(l)},
                     {"bytes", r.link_bytes[l]},
                     {"utilisation", r.link_utilisation[l]}});
  }
  return links;
}

constexpr std::array<std::pair<const char*, double>, 5> quantiles{
    {{"p05", 0.05}, {"p25", 0.25}, {"p50", 0.5}, {"p75", 0.75}, {"p95", 0.95}}};

std::string links_text(ordered_json links) {
  constexpr std::size_t most = 8;
  if (links.empty()) return {};
  std::stable_sort(links.begin(), links.end(), [](const ordered_json& a, const ordered_json& b) {
    return a["utilisation"] > b["utilisation"];
  });
  std::string others;
  if (links.size() > most) {
    others = fmt::format("and {} less used links\n", links.size() - most);
    links.erase(links.begin() + most, links.end());
  }
  return "\n" +
         table_text({{"link", "link"},
                     {"carried", "bytes", in_bytes},
                     {"used", "utilisation", in("{:.1f} %", 100)}},
                    links) +
         others;
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
    j["weight_dtype"] = run.model->configuration.lowering.weights.text;
    j["cache_dtype"] = name(run.model->configuration.lowering.cache);
    j["prompt_len"] = run.model->prompt_len;
  }
  j["schedule"] = simulate::name(work.schedule);
  j["platform"] = run.platform;
  j["devices"] = run.scenario.platform.num_devices();
  j["send_order"] = simulate::name(run.scenario.options.send_order);
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
      j["lower_bound_s"] = or_null(found->lower_bound_s);
      j["evaluations"] = found->evaluations;
    }
  }
  j["ttft_sensitivity"] = or_null(sensitivity);
  j["ill_conditioned"] =
      sensitivity ? ordered_json(*sensitivity > simulate::ill_conditioned) : ordered_json(nullptr);
  for (const auto& [key, member] : {std::pair{"compute_s", &simulate::RankUsage::compute_s},
                                    std::pair{"waiting_s", &simulate::RankUsage::waiting_s},
                                    std::pair{"transfer_s", &simulate::RankUsage::transfer_s}}) {
    j[key] = rows_of(r.ranks, [member = member](const auto& usage) { return usage.*member; });
  }
  j["links"] = links_json(run, r);
  return j;
}

std::string run_text(const SimulatedRun& run, const RunResult& r) {
  const simulate::PrefillWork& work = run.scenario.work;
  Table summary({"", "value", ""});
  const auto beside = [&](double s) {
    return fmt::format("{:.2f}x", run.model->bounds.one_device_s / s);
  };
  summary.add(
      {"TTFT", in_seconds(r.ttft_s), run.model ? beside(r.ttft_s) + " one device" : std::string()});
  if (r.makespan_s != r.ttft_s) {
    summary.add({"last process", in_seconds(r.makespan_s), ""});
  }
  if (run.model) {
    const search::PrefillBounds& b = run.model->bounds;
    summary.add({"one device, TTFT(1)", in_seconds(b.one_device_s), ""});
    summary.add({"no communication, TTFT(p)", in_seconds(b.no_communication_s),
                 beside(b.no_communication_s)});
    summary.add({"attention alone, TTFT*(p)", in_seconds(b.star_s), beside(b.star_s)});
    if (const auto& found = run.model->found) {
      if (found->lower_bound_s) {
        summary.add({"any partition, at least", in_seconds(*found->lower_bound_s),
                     beside(*found->lower_bound_s)});
      }
      summary.add({"partitions tried", std::to_string(found->evaluations), ""});
    }
  }
  summary.add({"messages", std::to_string(r.messages),
               fmt::format("{}, {}", in_bytes(r.message_bytes),
                           simulate::name(run.scenario.options.send_order))});
  Table table({"device", "tokens", "compute", "waiting", "transfer", "finish"});
  for (std::uint32_t i = 0; i < r.ranks.size(); ++i) {
    const simulate::RankUsage& p = r.ranks[i];
    table.add({run.scenario.platform.device_name(i), std::to_string(work.partition_tokens[i]),
               in_seconds(p.compute_s), in_seconds(p.waiting_s), in_seconds(p.transfer_s),
               in_seconds(r.finish_s[i])});
  }
  const std::string rows = summary.text();
  return title_of(run) + "\n" + rows.substr(rows.find('\n') + 1) + "\n" + table.text() +
         links_text(links_json(run, r));
}

ordered_json noise_json(const simulate::NoiseSpec& spec, const simulate::NoiseResult& noise) {
  ordered_json j{{"spec", simulate::to_string(spec)},
                 {"trials", spec.trials},
                 {"ttft_mean_s", noise.mean_s},
                 {"ttft_deviation_s", noise.deviation_s}};
  for (const auto& [name, share] : quantiles) {
    j[fmt::format("ttft_{}_s", name)] = quantile(noise.ttft_s, share);
  }
  j["ttft_max_s"] = quantile(noise.ttft_s, 1);
  return j;
}

std::string noise_text(const simulate::NoiseSpec& spec, const simulate::NoiseResult& noise) {
  std::string text =
      fmt::format("\nwith noise, {}\nTTFT mean {}, deviation {}", simulate::to_string(spec),
                  in_seconds(noise.mean_s), in_seconds(noise.deviation_s));
  for (const auto& [name, share] : quantiles) {
    text += fmt::format(", {} {}", name, in_seconds(quantile(noise.ttft_s, share)));
  }
  return text + "\n";
}

}  // namespace kvcast::cli
