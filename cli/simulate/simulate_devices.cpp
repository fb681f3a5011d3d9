#include "cli/simulate/simulate_devices.h"

#include <fmt/format.h>

#include "cli/frame/result.h"
#include "cli/simulate/simulate_output.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "reports/plot/gantt_plot.h"
#include "reports/plot/plot.h"
#include "reports/plot/timeline_trace.h"
#include "roofline/interconnect.h"
#include "search/placed_estimator.h"
#include "simulate/collectives.h"
#include "simulate/device_programs.h"
#include "simulate/simulation.h"

namespace kvcast::cli {

void simulate_devices(const RequestOptions& request, const DeviceRunOutput& output,
                      const Globals& globals) {
  roofline::Configuration c = parse_configuration(request, globals.catalog());
  const roofline::DesignPoint point = parse_sizes(request, c.architecture);
  const std::uint64_t devices = roofline::all_devices(c);
  if (devices == 1) {
    throw Error("simulate prefill", "one device",
                "--tp, --pp, --ep or --dp above 1, --method kvr:p=P, or --schedule");
  }
  const search::PlacedEstimator estimator(c);  // of the same links as kvcast estimate
  if (c.interconnect == nullptr) {             // the hardware's own, one from each to the next
    const search::HardwareLink& own = estimator.link();
    c.interconnect = roofline::on_switch(
        fmt::format("{} by {}", c.hardware.name, own.name), devices, own.link.bytes_per_s,
        own.link.latency_s / static_cast<double>(estimator.messages_of_layer()));
  }
  for (const std::string& line : estimator.one_device().warnings(point)) globals.warn(line);
  const search::PlacedEstimate closed_form = estimator.at(point);
  search::Partition partition;
  if (closed_form.prefill) partition = closed_form.prefill->tokens;
  const auto simulation_of = [&](std::uint64_t output_len) {
    return simulate::Simulation(
        simulate::node_platform(c.interconnect->data()),
        simulate::device_programs(c, {point.batch, point.prompt_len, output_len}, partition));
  };
  simulate::RunOptions options;
  simulate::Simulation simulation = simulation_of(1);
  const double ttft_s = simulation.run(options).ttft_s;
  std::optional<simulate::NoiseResult> noise;
  if (output.noise) noise = simulate::run_noise(simulation, options, *output.noise);
  if (point.output_len > 1) simulation = simulation_of(point.output_len);
  options.record = !output.trace.empty() || !output.plot.empty();
  const simulate::RunResult r = simulation.run(options);
  std::optional<double> tpot_s;
  if (point.output_len > 1) {
    tpot_s = (r.makespan_s - ttft_s) / static_cast<double>(point.output_len - 1);
  }
  std::string plan = to_string(c.parallelism);
  if (!request.stages.empty()) plan += ", stages of " + request.stages;
  const std::uint64_t micro_batches = roofline::used_micro_batches(c, point.batch);
  if (micro_batches > 0) plan += fmt::format(", {} micro-batches", micro_batches);
  const std::string methods = to_string(c.methods);
  const std::string title = fmt::format("{} on {} x {}{}{}, prompt {}", c.architecture.name,
                                        devices, c.hardware.name, plan.empty() ? "" : ", " + plan,
                                        methods == "plain" ? "" : ", " + methods, point.prompt_len);
  if (!output.trace.empty()) reports::write_trace(simulation, r, output.trace);
  if (!output.plot.empty()) {
    reports::write_plot(reports::gantt_plot(simulation, r, title), output.plot);
  }
  if (!output.json) {
    const auto beside = [](const char* name, double simulated_s, double closed_form_s) {
      return fmt::format("{} {}, closed form {} ({:+.1f} %)\n", name,
                         format_quantity(simulated_s, Dimension::Seconds),
                         format_quantity(closed_form_s, Dimension::Seconds),
                         100 * (closed_form_s / simulated_s - 1));
    };
    print_text(
        fmt::format("{}, {}\n{}{}{} messages of {} in all\n", title, c.interconnect->name(),
                    beside("TTFT", ttft_s, closed_form.ttft_s),
                    tpot_s ? beside("TPOT", *tpot_s, closed_form.tpot_s) : "", r.messages,
                    format_quantity(static_cast<double>(r.message_bytes), Dimension::Bytes)) +
        (noise ? noise_text(*output.noise, *noise) : std::string()));
    return;
  }
  ordered_json j{{"model", c.architecture.name},
                 {"hardware", c.hardware.name},
                 {"platform", c.interconnect->name()},
                 {"method", methods},
                 {"tp", c.parallelism.tp},
                 {"pp", c.parallelism.pp},
                 {"ep", c.parallelism.ep},
                 {"dp", c.parallelism.dp},
                 {"devices", devices},
                 {"sequence_parallel", c.parallelism.sequence_parallel},
                 {"stages", c.stage_layers},
                 {"micro_batches", micro_batches},
                 {"batch", point.batch},
                 {"prompt_len", point.prompt_len},
                 {"output_len", point.output_len},
                 {"ttft_s", ttft_s},
                 {"makespan_s", r.makespan_s},
                 {"closed_form_s", closed_form.ttft_s},
                 {"finish_s", r.finish_s},
                 {"message_bytes", r.message_bytes},
                 {"messages", r.messages},
                 {"events", r.events}};
  if (!partition.empty()) j["partition_tokens"] = partition;
  if (tpot_s) {
    j["tpot_s"] = *tpot_s;
    j["closed_form_tpot_s"] = closed_form.tpot_s;
  }
  if (noise) j["noise"] = noise_json(*output.noise, *noise);
  print_json(j);
}

}  // namespace kvcast::cli
