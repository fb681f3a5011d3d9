#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/frame/command.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/request_options.h"
#include "cli/simulate/collective_command.h"
#include "cli/simulate/parallel_options.h"
#include "cli/simulate/partition_choice.h"
#include "cli/simulate/serving_command.h"
#include "cli/simulate/simulate_devices.h"
#include "cli/simulate/simulate_output.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/base/stopwatch.h"
#include "reports/plot/gantt_plot.h"
#include "reports/plot/plot.h"
#include "reports/plot/timeline_trace.h"
#include "search/chain_links.h"
#include "simulate/graph_programs.h"
#include "simulate/layer_times.h"
#include "simulate/noise.h"
#include "simulate/platform_json.h"
#include "simulate/scenario.h"
#include "simulate/topologies.h"

namespace kvcast::cli {
namespace {

using nlohmann::ordered_json;
using simulate::RunResult;
using simulate::Scenario;
using simulate::Simulation;

struct SimulateOptions {
  std::string scenario;
  RequestOptions request;
  std::string schedule;
  std::string devices;
  PartitionFlags partition;
  std::string topology;
  std::string platform;
  LinkFlags link;
  std::string send_order;
  std::string all_gather;
  std::string noise;
  std::string trace;
  std::string plot;
  bool operators = false;
  std::string of_chain;  ///< the first given flag of a chain
  bool json = false;
};

/// A run of so many messages takes about a second.
constexpr std::uint64_t most_repeated_messages = 1'000'000;

/// Flags that a scenario file replaces or that have no effect on it.
const std::vector<std::string> model_flags{
    "--model",        "--hardware",         "--method",      "--schedule",      "--devices",
    "--partition",    "--prompt-len",       "--attention",   "--dtype",         "--mode",
    "--set",          "--topology",         "--link",        "--link-gb-per-s", "--link-latency-s",
    "--platform",     "--operators",        "--batch",       "--engine",        "--elementwise",
    "--weight-dtype", "--activation-dtype", "--cache-dtype", "--arithmetic",    "--semantics"};
const std::vector<std::string> spread_flags{
    "--tp",        "--pp", "--ep", "--dp", "--sequence-parallel", "--stages", "--micro-batches",
    "--output-len"};
/// Flags of a chain of ranks.
constexpr std::array chain_flags{"--devices",    "--partition",     "--search-objective",
                                 "--force",      "--extrapolate",   "--topology",
                                 "--link",       "--link-gb-per-s", "--link-latency-s",
                                 "--send-order", "--all-gather",    "--operators"};

struct ParsedPlatform {
  simulate::Platform platform;
  std::string in_words;
};

ParsedPlatform parse_platform(const SimulateOptions& o, const Catalog& catalog,
                              const roofline::Hardware& hardware, roofline::Mode mode) {
  std::optional<std::uint64_t> devices;
  if (!o.devices.empty()) devices = parse_token_count(o.devices, "--devices");
  if (!o.platform.empty()) {
    for (const auto& [flag, value] :
         {std::pair{"--topology", &o.topology}, std::pair{"--link", &o.link.name},
          std::pair{"--link-gb-per-s", &o.link.gb_per_s},
          std::pair{"--link-latency-s", &o.link.latency_s}}) {
      if (!value->empty()) {
        throw Error(
            fmt::format("--platform: cannot be combined with {}; the platform describes "
                        "all links",
                        flag));
      }
    }
    simulate::Platform platform =
        simulate::read_platform(catalog.find("platforms", "platform", o.platform));
    if (devices && *devices != platform.num_devices()) {
      throw Error("--devices", std::to_string(*devices),
                  fmt::format("the {} of {}", platform.num_devices(), o.platform));
    }
    return {std::move(platform), o.platform};
  }
  if (!devices) throw Error("--devices is required, or --platform FILE");
  if (*devices > simulate::max_devices) {
    throw Error("--devices", o.devices, fmt::format("1 to {}", simulate::max_devices));
  }
  const simulate::Topology topology = parse_flag(
      "--topology", o.topology.empty() ? "switch" : o.topology, simulate::parse_topology);
  search::ChainLink link = parse_link(o.link, hardware, mode).link;
  const auto number = static_cast<std::uint32_t>(*devices);
  // The hardware's latency is that of a message, whatever it goes over.
  if (o.link.latency_s.empty()) link.latency_s /= links_between(topology, number);
  return {make_platform(topology, number, link.bytes_per_s, link.latency_s),
          fmt::format("{}, {} and {} a link", simulate::to_string(topology),
                      format_quantity(link.bytes_per_s, Dimension::BytesPerSecond),
                      format_quantity(link.latency_s, Dimension::Seconds))};
}

/// --all-gather and --send-order, where they are given.
void set_orders(const SimulateOptions& o, simulate::PrefillWork& work,
                simulate::RunOptions& options) {
  if (!o.all_gather.empty()) {
    work.all_gather = parse_flag("--all-gather", o.all_gather, simulate::parse_all_gather);
    if (work.schedule != simulate::Schedule::Tsp) {
      throw Error("--all-gather", "schedule kvr, which gathers nothing", "schedule tsp");
    }
  }
  if (!o.send_order.empty()) {
    options.send_order = parse_flag("--send-order", o.send_order, simulate::parse_send_order);
  }
}

SimulatedRun explicit_run(const SimulateOptions& o) {
  SimulatedRun run{simulate::read_scenario(o.scenario), {}, o.scenario, {}};
  set_orders(o, run.scenario.work, run.scenario.options);
  run.programs = simulate::prefill_programs(run.scenario.work);
  return run;
}

/// The first flag that asks for devices that are no chain; empty: none.
std::string flag_of_spread(const RequestOptions& o) {
  const Parallelism p = o.devices.parallelism();
  for (const auto& [flag, given] : {std::pair{"--tp", p.tp > 1},
                                    {"--pp", p.pp > 1},
                                    {"--ep", p.ep > 1},
                                    {"--dp", p.dp > 1},
                                    {"--sequence-parallel", o.sequence_parallel},
                                    {"--stages", !o.stages.empty()},
                                    {"--micro-batches", !o.micro_batches.empty()},
                                    {"--output-len", o.output_len != "1"}}) {
    if (given) return flag;
  }
  return {};
}

SimulatedRun model_run(const SimulateOptions& o, const std::optional<simulate::NoiseSpec>& noise,
                       const Globals& globals) {
  for (const auto& [flag, value] :
       {std::pair{"--model", &o.request.model}, std::pair{"--schedule", &o.schedule}}) {
    if (value->empty()) throw Error(std::string(flag) + " is required, or --scenario FILE");
  }
  if (const std::string flag = flag_of_spread(o.request); !flag.empty()) {
    throw Error("--schedule " + o.schedule, flag,
                "one of the two, or --method " + o.schedule + ":p=P in place of --schedule");
  }
  SimulatedModel model;
  model.configuration = parse_configuration(o.request, globals.catalog());
  const roofline::Configuration& c = model.configuration;
  const auto refuse = [&](const std::string& got, const std::string& method) {
    throw Error("--schedule " + o.schedule, got, "--method " + method + " in place of --schedule");
  };
  if (find_placement(c.methods)) refuse("method " + to_string(c.methods), to_string(c.methods));
  const bool has_helpers =
      !record(c.architecture, c.methods, c.lowering, {.find_model = c.find_model})
           .helpers()
           .empty();
  if (has_helpers) {
    const std::string methods = to_string(c.methods);
    refuse(methods + ", whose helper reads the prompt first",
           methods + "+" + o.schedule + ":p=" + (o.devices.empty() ? "P" : o.devices));
  }
  simulate::PrefillWork work;
  simulate::RunOptions options;
  work.schedule = parse_flag("--schedule", o.schedule, simulate::parse_schedule);
  auto [platform, platform_words] = parse_platform(o, globals.catalog(), c.hardware, c.mode);
  const roofline::DesignPoint sizes = parse_sizes(o.request, c.architecture);
  model.prompt_len = sizes.prompt_len;
  for (const std::string& line :
       roofline::context_warnings(c.architecture, {1, sizes.prompt_len, 1})) {
    globals.warn(line);
  }
  set_orders(o, work, options);
  if (!o.all_gather.empty() && o.operators) {
    throw Error("--all-gather: cannot be combined with --operators, which always uses the ring");
  }
  const roofline::Rates rates = roofline::in_pass(roofline::rates_of(c), false);
  if (c.engine.has_own_steps()) {
    throw Error("--schedule " + o.schedule, "the engine " + c.engine.name, "ideal or pytorch");
  }
  if (o.operators && sizes.batch > 1) {
    throw Error("--operators", fmt::format("a batch of {}", sizes.batch), "--batch 1");
  }
  const simulate::LayerTimes times =
      simulate::LayerTimes(c.architecture, c.methods, c.lowering, rates).for_batch(sizes.batch);
  const PartitionTask task{.times = times,
                           .exchange_cost = search::exchange_cost(c.hardware, c.mode),
                           .schedule = work.schedule,
                           .all_gather = work.all_gather,
                           .send_order = options.send_order,
                           .platform = platform,
                           .prompt_len = model.prompt_len,
                           .noise = noise};
  PartitionFlags flags = o.partition;
  flags.model = o.request.model;
  flags.hardware = o.request.hardware;
  ChosenPartition partition = choose_partition(flags, task);
  work = task.work(partition.tokens);
  model.found = std::move(partition.found);
  model.bounds = search::prefill_bounds(times, work.schedule, partition.tokens, task.exchange_cost);
  simulate::Programs programs =
      o.operators
          ? simulate::recorded_programs(c.architecture, c.methods, work.schedule, partition.tokens,
                                        c.lowering, rates, task.exchange_cost)
          : simulate::prefill_programs(work);
  return {Scenario{std::move(work), std::move(platform), std::move(options)}, std::move(programs),
          std::move(platform_words), std::move(model)};
}

void run_prefill(const SimulateOptions& o, const Globals& globals) {
  std::optional<simulate::NoiseSpec> spec;
  if (!o.noise.empty()) spec = parse_flag("--noise", o.noise, simulate::parse_noise);
  if (!o.plot.empty()) reports::plot_files(o.plot);  // refuses a wrong name before anything runs
  const bool spread =
      !flag_of_spread(o.request).empty() || find_placement(parse_methods(o.request.method));
  if (o.scenario.empty() && o.schedule.empty() && spread) {
    if (!o.of_chain.empty()) throw Error(o.of_chain, "no --schedule", "--schedule kvr or tsp");
    RequestOptions request = o.request;
    request.platform = o.platform;
    return simulate_devices(request, {spec, o.trace, o.plot, o.json}, globals);
  }
  SimulatedRun run = o.scenario.empty() ? model_run(o, spec, globals) : explicit_run(o);
  const Simulation simulation(run.scenario.platform, std::move(run.programs));
  simulate::RunOptions options = run.scenario.options;
  options.record = !o.trace.empty() || !o.plot.empty();
  const RunResult r = simulation.run(options);
  std::optional<double> sensitivity;
  if (r.messages <= most_repeated_messages) {
    sensitivity = simulate::ttft_sensitivity(simulation, options, r.ttft_s);
  } else {
    globals.say(fmt::format(
        "{} messages: too many for the three more runs that measure the sensitivity", r.messages));
  }
  if (sensitivity && *sensitivity > simulate::ill_conditioned) {
    globals.warn(fmt::format(
        "ill-conditioned: a relative change of 1e-9 in the inputs changes the TTFT by a "
        "relative {:.2g}; trust no more digits",
        *sensitivity));
  }
  if (!o.trace.empty()) reports::write_trace(simulation, r, o.trace);
  if (!o.plot.empty()) {
    reports::write_plot(reports::gantt_plot(simulation, r, title_of(run)), o.plot);
  }
  std::optional<simulate::NoiseResult> noise;
  if (spec) {
    ProgressBar bar(globals.quiet);
    const Stopwatch watch;
    noise = simulate::run_noise(simulation, run.scenario.options, *spec, [&](std::uint64_t done) {
      bar.draw(done, 0, spec->trials, watch.seconds());
    });
  }
  if (o.json) {
    ordered_json j = run_json(run, r, sensitivity);
    if (noise) j["noise"] = noise_json(*spec, *noise);
    print_json(j);
    return;
  }
  print_text(run_text(run, r) + (noise ? noise_text(*spec, *noise) : std::string()));
}

void add_prefill(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "prefill",
      "Simulate the prefill of one prompt on several devices, message by message.\n\nExamples:\n"
      "  kvcast simulate prefill --model llama-7b --hardware a100-80gb --schedule kvr --devices 4 "
      "--prompt-len 8k --link-gb-per-s 300 --link-latency-s 1e-5\n"
      "  kvcast simulate prefill --scenario scenario.json --json");
  const auto o = std::make_shared<SimulateOptions>();
  RequestOptions& request = o->request;
  c.add("--scenario FILE.json", o->scenario,
        "read compute times and messages from a file instead of a model");
  request.attention.clear();
  request.add_device_flags_to(c, false);
  request.add_type_flags_to(c);
  c.add("--method", request.method);
  c.add("--schedule SCHEDULE", o->schedule,
        "kvr (KV-Runahead) or tsp (tensor and sequence parallel)");
  c.add("--devices", o->devices);
  request.devices.add_to(c);
  c.add("--stages", request.stages);
  request.add_spread_flags_to(c, false);
  c.add("--batch", request.batch);
  c.add("--partition HOW", o->partition.how,
        "tokens of each rank: even, search, table:FILE of kvcast partition table, or "
        "A,B,C");
  c.add("--search-objective WHICH", o->partition.search_objective,
        "for --partition search: recurrence (default, as kvcast partition search) or simulator "
        "(includes shared links; with --noise, the mean)");
  c.add("--extrapolate", o->partition.extrapolate,
        "for --partition table:FILE: outside the table, use the nearest entry");
  c.add("--force", o->partition.force,
        "for --partition table:FILE: accept a table for another model or device");
  c.add("--prompt-len", request.prompt_len, "prompt tokens [1024]");
  request.output_len = "1";
  c.add("--output-len", request.output_len,
        "without --schedule: tokens to generate; those after the first are played too");
  c.add("--set", request.set);
  c.add("--topology KIND", o->topology,
        "switch (the default), ring, chain, crossbar, pcie[:group=N], "
        "fat-tree[:group=N,oversubscription=F]")
      .has_keys();
  c.add("--link", o->link.name);
  c.add("--link-gb-per-s", o->link.gb_per_s,
        "bandwidth per direction, in 1e9 bytes/s; default: the hardware's link");
  c.add("--link-latency-s", o->link.latency_s,
        "latency of one link; a path through a switch has two, through three of them four; "
        "default: the hardware's, which is a path's");
  c.add("--platform PLATFORM", o->platform,
        "devices, switches and links instead of --topology: a name from data/platforms or a JSON "
        "file");
  c.add("--send-order", o->send_order);
  c.add("--all-gather KIND", o->all_gather,
        "all-gather algorithm of tsp: ring (the default), recursive-doubling or direct");
  c.add("--operators", o->operators,
        "simulate every operator, with one message each for keys and values, instead of two parts "
        "per layer");
  c.add("--noise SPEC", o->noise,
        "repeat with random background traffic, slower links or slower devices: flows=N,bytes=B"
        "[,rate=R][,jitter=F][,stragglers=N,slowdown=F][,seed=S][,trials=T]")
      .has_keys();
  c.add("--json", o->json);
  c.add("--trace FILE.json", o->trace, "write a Chrome trace, for ui.perfetto.dev").writes();
  c.add("--plot", o->plot, "draw the timeline: computing, waiting and sending");
  for (const auto& flags : {model_flags, spread_flags}) {
    c.exclude("--scenario", flags, "the scenario file describes the whole run");
  }
  c.callback([o, c, &globals] {
    for (const char* flag : chain_flags) {
      if (o->of_chain.empty() && c.flag(flag).is_given()) o->of_chain = flag;
    }
    if (o->scenario.empty() && !o->request.model.empty()) o->request.use_this_machine(globals);
    run_prefill(*o, globals);
  });
}

}  // namespace

void add_simulate(Command app, const Globals& globals) {
  Command command = app.add_subcommand(
      "simulate",
      "Discrete-event simulation of devices that share a network.\n\nExamples:\n"
      "  kvcast simulate prefill --model llama-7b --hardware a100-80gb --schedule kvr --devices 4 "
      "--prompt-len 8k --link-gb-per-s 300 --link-latency-s 1e-5\n"
      "  kvcast simulate prefill --help");
  command.require_subcommand(1);
  add_prefill(command, globals);
  add_simulate_collective(command, globals);
  add_simulate_serving(command, globals);
}

}  // namespace kvcast::cli
