#include "cli/simulate/simulate_devices.h"

#include <fmt/format.h>

#include "cli/frame/result.h"
#include "cli/simulate/simulate_output.h"
#include "model/base/quantity.h"
#include "reports/plot/gantt_plot.h"
#include "reports/plot/plot.h"
#include "reports/plot/timeline_trace.h"
#include "roofline/interconnect.h"
#include "simulate/collectives.h"
#include "simulate/device_programs.h"
#include "simulate/simulation.h"

namespace kvcast::cli {

void simulate_devices(const RequestOptions& request, const DeviceRunOutput& output,
                      const Globals& globals) {
  const roofline::Configuration c = parse_configuration(request, globals.catalog());
  const roofline::DesignPoint point = parse_sizes(request, c.architecture);
  const roofline::Estimator estimator(c);
  for (const std::string& line : estimator.warnings(point)) globals.warn(line);
  const double closed_form_s = estimator.at(point).ttft_s;
  simulate::Programs programs = simulate::device_programs(c, point);
  const simulate::Simulation simulation(simulate::node_platform(c.interconnect->data()),
                                        std::move(programs));
  simulate::RunOptions options;
  options.send_order = simulate::SendOrder::Async;
  options.record = !output.trace.empty() || !output.plot.empty();
  const simulate::RunResult r = simulation.run(options);
  const std::string title =
      fmt::format("{} on {} x {}, {}, prompt {}", c.architecture.name, c.parallelism.devices(),
                  c.hardware.name, to_string(c.parallelism), point.prompt_len);
  if (!output.trace.empty()) reports::write_trace(simulation, r, output.trace);
  if (!output.plot.empty()) {
    reports::write_plot(reports::gantt_plot(simulation, r, title), output.plot);
  }
  std::optional<simulate::NoiseResult> noise;
  if (output.noise) noise = simulate::run_noise(simulation, options, *output.noise);
  if (!output.json) {
    print_text(
        fmt::format("{}, {}\nTTFT {}, closed form {} ({:+.1f} %)\n{} messages of {} in all\n",
                    title, c.interconnect->name(), format_quantity(r.ttft_s, Dimension::Seconds),
                    format_quantity(closed_form_s, Dimension::Seconds),
                    100 * (closed_form_s / r.ttft_s - 1), r.messages,
                    format_quantity(static_cast<double>(r.message_bytes), Dimension::Bytes)) +
        (noise ? noise_text(*output.noise, *noise) : std::string()));
    return;
  }
  ordered_json j{{"model", c.architecture.name},
                 {"hardware", c.hardware.name},
                 {"platform", c.interconnect->name()},
                 {"tp", c.parallelism.tp},
                 {"pp", c.parallelism.pp},
                 {"ep", c.parallelism.ep},
                 {"dp", c.parallelism.dp},
                 {"devices", c.parallelism.devices()},
                 {"batch", point.batch},
                 {"prompt_len", point.prompt_len},
                 {"ttft_s", r.ttft_s},
                 {"makespan_s", r.makespan_s},
                 {"closed_form_s", closed_form_s},
                 {"finish_s", r.finish_s},
                 {"message_bytes", r.message_bytes},
                 {"messages", r.messages},
                 {"events", r.events}};
  if (noise) j["noise"] = noise_json(*output.noise, *noise);
  print_json(j);
}

}  // namespace kvcast::cli
