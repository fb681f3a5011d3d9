#include "cli/simulate/serving_command.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "cli/frame/progress_bar.h"
#include "cli/frame/request_options.h"
#include "cli/frame/serving_output.h"
#include "cli/frame/workload_flags.h"
#include "cli/simulate/parallel_options.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/base/stopwatch.h"
#include "model/record/rank_recording.h"
#include "reports/plot/serving_log.h"
#include "search/server_group.h"
#include "search/serving_rate.h"
#include "simulate/serving/serving_scenario.h"
#include "simulate/serving/step_times.h"

namespace kvcast::cli {
namespace {

struct ServingOptions {
  std::string scenario;
  RequestOptions request;
  LinkFlags link;
  WorkloadFlags workload;
  std::string scheduler;
  std::string replicas = "1";
  std::string router = "round-robin";
  std::string decoders;
  std::string decode_scheduler;
  double link_gb_per_s = 0;
  double link_latency_s = 0;
  std::string slo;
  bool find_max_rate = false;
  double first_rate = 1;
  std::string step_times;
  std::string trace;
  std::string plot;
  std::string csv;
  bool json = false;
};

/// Flags that a scenario file replaces.
const std::vector<std::string> server_flags{"--model",
                                            "--hardware",
                                            "--method",
                                            "--engine",
                                            "--dtype",
                                            "--weight-dtype",
                                            "--activation-dtype",
                                            "--cache-dtype",
                                            "--scheduler",
                                            "--replicas",
                                            "--router",
                                            "--decode-servers",
                                            "--tp",
                                            "--pp",
                                            "--ep",
                                            "--dp",
                                            "--platform",
                                            "--link",
                                            "--link-gb-per-s",
                                            "--link-latency-s",
                                            "--attention",
                                            "--set",
                                            "--mode"};

/// Servers, and what an answer says of them.
struct Setup {
  simulate::ServingSetup serving;
  std::optional<simulate::ServerMemory> memory;
  std::string title;
  ordered_json facts;
};

/// The model's cache of a prompt goes from server to server, of all their devices; helpers' stay.
simulate::CacheLink cache_link(const ServingOptions& o, const roofline::Configuration& c) {
  const Recording whole =
      record(c.architecture, c.methods, c.lowering, {.find_model = c.find_model});
  const auto bytes_per_token = static_cast<double>(whole.kv_cache_bytes_per_token.at({}));
  if (o.link_gb_per_s == 0) {
    throw Error("--decode-servers needs --kv-link-gb-per-s, the link that the caches go over");
  }
  if (!(o.link_latency_s >= 0)) {
    throw Error("--kv-link-latency-s", fmt::format("{:g}", o.link_latency_s), "at least 0");
  }
  return {o.link_latency_s, bytes_per_token / (o.link_gb_per_s * 1e9)};
}

Setup from_scenario(const ServingOptions& o) {
  simulate::ServingScenario scenario = simulate::read_serving_scenario(o.scenario);
  Setup setup;
  setup.title = fmt::format("{} of {}", name(scenario.settings.policy), o.scenario);
  setup.facts = {{"scheduler", name(scenario.settings.policy)},
                 {"kv_blocks", scenario.settings.num_blocks},
                 {"block_size", scenario.settings.block_size}};
  setup.serving.servers = {std::move(scenario.settings), std::move(scenario.cost), 1};
  return setup;
}

Setup from_model(const ServingOptions& o, const Globals& globals) {
  if (o.request.model.empty()) throw Error("--model is required, or --scenario FILE");
  const roofline::Configuration c = parse_configuration(o.request, globals.catalog());
  simulate::ModelServer server =
      search::make_server(c, o.scheduler, "--scheduler", {}, parse_placement_link(o.link, c));
  Setup setup;
  setup.memory = server.memory;
  const simulate::SchedulerSettings& s = server.servers.settings;
  setup.title = fmt::format("{} on {}{}, {}, {}", c.architecture.name,
                            server.devices == 1 ? "" : std::to_string(server.devices) + " x ",
                            c.hardware.name, to_string(c.methods), name(s.policy));
  const std::uint64_t replicas = parse_token_count(o.replicas, "--replicas");
  // 0 is none, and refused beside flags of decode servers.
  const bool uses = !o.decode_scheduler.empty() || o.link_gb_per_s > 0 || o.link_latency_s > 0;
  const bool none = o.decoders.empty() || (o.decoders == "0" && !uses);
  const std::uint64_t decoders = none ? 0 : parse_token_count(o.decoders, "--decode-servers");
  setup.facts = {{"model", c.architecture.name},
                 {"hardware", c.hardware.name},
                 {"engine", c.engine.name},
                 {"method", to_string(c.methods)},
                 {"weight_dtype", c.lowering.weights.text},
                 {"activation_dtype", name(c.lowering.operand_dtype())},
                 {"cache_dtype", name(c.lowering.cache)},
                 {"scheduler", name(s.policy)},
                 {"devices", server.devices * replicas},
                 {"kv_blocks", s.num_blocks},
                 {"block_size", s.block_size},
                 {"max_num_seqs", s.max_num_seqs},
                 {"max_num_batched_tokens", s.max_num_batched_tokens},
                 {"schedules_ahead", s.schedules_ahead},
                 {"weight_bytes", server.memory.weight_bytes},
                 {"activation_bytes", server.memory.activation_bytes},
                 {"kv_cache_bytes", server.memory.block_bytes * static_cast<double>(s.num_blocks)}};
  setup.serving.router = parse_flag("--router", o.router, simulate::parse_router);
  if (decoders > 0) {
    const auto check_policy = [](const char* where, simulate::Policy policy) {
      if (policy == simulate::Policy::VllmV1) return;
      throw Error(where, "scheduler " + std::string(name(policy)),
                  "vllm-v1, which takes over caches that other servers have made");
    };
    check_policy("--decode-servers", s.policy);
    const std::string& text = o.decode_scheduler.empty() ? o.scheduler : o.decode_scheduler;
    roofline::Configuration decodes = c;
    decodes.methods = without_placement(c.methods);
    simulate::ModelServer decoder =
        simulate::make_model_server(decodes, text, "--decode-scheduler");
    check_policy("--decode-scheduler", decoder.servers.settings.policy);
    setup.serving.link = cache_link(o, decodes);
    decoder.servers.count *= decoders;
    setup.facts["devices"] = server.devices * replicas + decoder.devices * decoders;
    setup.serving.decoders = std::move(decoder.servers);
  }
  server.servers.count *= replicas;
  setup.serving.servers = std::move(server.servers);
  return setup;
}

Setup make_setup(const ServingOptions& o, const Globals& globals) {
  Setup setup = o.scenario.empty() ? from_model(o, globals) : from_scenario(o);
  setup.serving.closed_loop = o.workload.closed_loop();
  if (!o.step_times.empty()) {
    setup.serving.servers.clock = std::make_shared<simulate::ReplayedSteps>(o.step_times);
  }
  return setup;
}

void use_blocks(simulate::ServingSetup& setup, std::uint64_t block_tokens) {
  setup.servers.settings.request_block_tokens = block_tokens;
  if (setup.decoders) setup.decoders->settings.request_block_tokens = block_tokens;
}

void find_max_rate(const ServingOptions& o, const Objective& objective, const Globals& globals) {
  if (objective.slo.is_empty()) {
    throw Error("--find-max-rate needs --slo ttft=..,tpot=.. or e2e=.., the objective to meet");
  }
  o.workload.open(o.first_rate);  // what is wrong with it is found before the first rate
  const Setup facts = make_setup(o, globals);
  search::RateSearch search;
  search.attainment = objective.attainment;
  search.first_rate = o.first_rate;
  std::optional<ProgressBar> bar(std::in_place, globals.quiet);
  const Stopwatch watch;
  std::mutex one_draws;  // rates are tried side by side
  std::uint64_t rates = 0;
  const search::RateFound found = search::find_max_rate(search, [&](double rate) {
    Setup setup = make_setup(o, globals);
    const auto requests = o.workload.open(rate);
    use_blocks(setup.serving, requests->block_tokens());
    const simulate::ServingTimes times = serve(setup.serving, *requests, objective.slo);
    const std::lock_guard lock(one_draws);
    ++rates;
    bar->draw(rates, 0, 0, watch.seconds(), fmt::format("rates tried: {}", rates));
    return times;
  });
  bar.reset();
  const simulate::ServingTimes& slowest = found.tried.front().times;
  if (slowest.rejected > 0) globals.warn(slowest.rejection());
  if (!found.is_limit) {
    globals.warn(fmt::format(
        "no limit found: all rates up to {:.4g} requests a second keep the objective; expected "
        "tighter limits (--slo) or more requests",
        found.rate));
  }
  const search::ServedRate* const limit = found.at_limit();
  const bool is_steady = limit == nullptr || limit->is_steady();
  if (found.is_limit && !is_steady) {
    globals.warn(fmt::format(
        "{} requests are too few: at {:.4g} a second they arrive within {:.3g} s, the last ends "
        "after {:.3g} s, and a queue that grows does not show; expected more (--num-requests)",
        limit->times.requests, limit->rate, limit->times.last_arrival_s, limit->times.duration_s));
  }
  ordered_json j = facts.facts;
  j["max_rate"] = found.rate;
  j["max_rate_per_device"] = found.rate / j.value("devices", 1.0);
  j["steady"] = is_steady;
  j["attainment"] = objective.attainment;
  j["rates"] = rows_of(found.tried, [](const search::ServedRate& t) {
    ordered_json row{{"rate", t.rate}, {"holds", t.holds}};
    row.update(serving_json(t.times));
    return row;
  });
  if (!o.plot.empty()) {
    reports::Plot plot;
    plot.title = facts.title;
    plot.x = {.label = "requests a second", .column = "rate", .scale = reports::Scale::Log10};
    plot.y = {.label = "seconds", .column = "seconds", .scale = reports::Scale::Log10};
    reports::Series mean{"mean TTFT"};
    reports::Series tail{"p99 TTFT", {}, reports::Style::Dashed};
    reports::Series tpot{"mean TPOT"};
    for (const search::ServedRate& t : found.tried) {
      if (t.times.finished == 0) continue;
      mean.points.push_back({t.rate, t.times.ttft_s.mean});
      tail.points.push_back({t.rate, t.times.ttft_s.p99});
      if (t.times.tpot_s.values > 0) tpot.points.push_back({t.rate, t.times.tpot_s.mean});
    }
    plot.series = {std::move(mean), std::move(tail), std::move(tpot)};
    if (objective.slo.ttft_s) plot.levels.push_back({"TTFT's limit", *objective.slo.ttft_s});
    if (objective.slo.tpot_s) plot.levels.push_back({"TPOT's limit", *objective.slo.tpot_s});
    reports::write_plot(plot, o.plot);
  }
  const std::vector<Column> columns{{"rate", "rate", in("{:.4g}")},
                                    {"holds", "holds", if_true("yes")},
                                    {"keep the objective", "slo_attainment", in_percent},
                                    {"mean TTFT", "/ttft_s/mean", in_seconds},
                                    {"p99 TTFT", "/ttft_s/p99", in_seconds},
                                    {"mean TPOT", "/tpot_s/mean", in_seconds},
                                    {"tokens/s", "output_token_throughput", in("{:.0f}")}};
  if (!o.csv.empty()) write_rows_csv(csv_target(o.csv), columns, j["rates"]);
  if (o.csv == "-") return;
  if (o.json) return print_json(j);
  const std::string answer =
      found.rate > 0 ? fmt::format("{:.4g} requests a second", found.rate)
      : slowest.rejected == slowest.requests
          ? std::string("no rate meets the objective, as all requests are rejected")
          : std::string("no rate meets the objective, not even one request at a time");
  print_text(fmt::format("{}\n{}: at least {:g} % of {} requests keep the objective\n\n{}",
                         facts.title, answer, 100 * objective.attainment, slowest.requests,
                         table_text(columns, j["rates"])));
}

void run_serving(const ServingOptions& o, const Globals& globals) {
  o.workload.check(globals, o.find_max_rate);
  check_rows_alone(o.csv, {{"--json", o.json}});
  const Objective objective = parse_objective(o.slo, o.find_max_rate);
  if (!o.plot.empty()) reports::plot_files(o.plot);  // refuses a wrong name before anything runs
  if (o.find_max_rate) return find_max_rate(o, objective, globals);
  Setup setup = make_setup(o, globals);
  const auto requests = o.workload.open();
  use_blocks(setup.serving, requests->block_tokens());
  std::optional<reports::RequestRows> rows;
  if (!o.csv.empty()) rows.emplace(csv_target(o.csv));
  reports::ServingLog log;
  const bool logs = !o.trace.empty() || !o.plot.empty();
  // Where nobody looks, warnings wait: a line of the trace may yet be wrong.
  std::optional<ProgressBar> bar;
  if (ProgressBar::is_shown(globals.quiet)) bar.emplace(globals.quiet);
  const Stopwatch stopwatch;
  std::uint64_t ended = 0;
  simulate::ServingWatch watch;
  if (logs) watch.on_step = [&](const simulate::ServedStep& s) { log.step(s); };
  watch.on_finished = [&](const simulate::Sequence& s) {
    if (rows) rows->finished(s);
    if (logs) log.finished(s);
    if (bar) bar->draw(++ended, 0, 0, stopwatch.seconds());
  };
  constexpr std::uint64_t most_told = 3;
  std::uint64_t told = 0;
  watch.on_rejected = [&](const simulate::ServingRequest& r, const std::string& reason) {
    if (rows) rows->rejected(r, reason);
    if (told++ < most_told) globals.warn(fmt::format("request {} is rejected: {}", r.id, reason));
  };
  const simulate::ServingTimes times = serve(setup.serving, *requests, objective.slo, watch);
  bar.reset();
  if (told > most_told) globals.warn(fmt::format("{} more are rejected", told - most_told));
  if (rows) rows->flush();
  if (!o.trace.empty()) log.write_trace(o.trace);
  if (!o.plot.empty()) {
    reports::write_plot(log.occupancy_plot(setup.title), o.plot);
    reports::write_plot(log.latency_plot(setup.title), reports::picture_beside(o.plot, "-latency"));
  }
  if (o.csv == "-") return;
  if (o.json) {
    ordered_json j = setup.facts;
    j.update(serving_json(times));
    return print_json(j);
  }
  std::string text = setup.title + "\n";
  if (setup.memory) {
    const auto bytes = [](double b) { return format_quantity(b, Dimension::Bytes); };
    const simulate::SchedulerSettings& s = setup.serving.servers.settings;
    text +=
        fmt::format("{} of weights, {} of activations, a cache of {} in {} blocks of {} tokens\n",
                    bytes(setup.memory->weight_bytes), bytes(setup.memory->activation_bytes),
                    bytes(setup.memory->block_bytes * static_cast<double>(s.num_blocks)),
                    s.num_blocks, s.block_size);
  }
  print_text(text + serving_text(times, objective.slo));
}

}  // namespace

void add_simulate_serving(Command command, const Globals& globals) {
  Command c = command.add_subcommand(
      "serving",
      "Simulate a queue of requests in front of servers, step by step.\n\nExamples:\n"
      "  kvcast simulate serving --model llama-3.1-8b --hardware h100-sxm --engine vllm "
      "--arrivals poisson:rate=8 --prompt-lens lognormal:mean=1000,p50=700 --output-lens 200 "
      "--slo ttft=1,tpot=0.05\n"
      "  kvcast simulate serving --model llama-3.1-8b --hardware h100-sxm --engine vllm "
      "--requests trace.jsonl --find-max-rate --slo ttft=2,tpot=0.1\n"
      "  kvcast simulate serving --scenario scenario.json --requests trace.csv --json");
  const auto o = std::make_shared<ServingOptions>();
  o->request.attention.clear();
  RequestOptions& request = o->request;
  c.add("--scenario FILE.json", o->scenario,
        "a scheduler with explicit costs of its steps instead of a model");
  o->workload.add_to(c);
  request.add_device_flags_to(c, false);
  c.add("--method", request.method);
  c.add("--engine", request.engine);
  c.add("--weight-dtype", request.weight_dtype);
  c.add("--activation-dtype", request.activation_dtype);
  c.add("--cache-dtype", request.cache_dtype);
  request.devices.add_to(c);
  c.add("--platform", request.platform);
  o->link.add_to(c);
  c.add("--set", request.set);
  c.add("--scheduler NAME[:KEY=VALUE,...]", o->scheduler,
        "vllm-v1, vllm-v0, sarathi, orca, static, trtllm-guaranteed, trtllm-utilization, sglang "
        "or sglang-lpm, with max_num_seqs, max_num_batched_tokens, num_blocks, block_size, ...; "
        "default: the engine's");
  c.add("--replicas N", o->replicas, "servers that share the requests");
  c.add("--router HOW", o->router, "round-robin, least-loaded or prefix-aware");
  c.add("--decode-servers N", o->decoders,
        "servers that decode; --replicas then read the prompts and send their caches");
  c.add("--decode-scheduler NAME[:KEY=VALUE,...]", o->decode_scheduler, "default: as --scheduler");
  c.add("--kv-link-gb-per-s GB/S", o->link_gb_per_s,
        "bandwidth from each prompt server to the decoders, in 1e9 bytes/s")
      .positive();
  c.add("--kv-link-latency-s SECONDS", o->link_latency_s, "of each transfer of a cache");
  c.add("--slo LIMITS", o->slo,
        "ttft=S,tpot=S,e2e=S: what a request must keep; attainment=F: by how many, for "
        "--find-max-rate [0.9]");
  c.add("--find-max-rate", o->find_max_rate,
        "search for the highest rate at which the objective holds");
  c.add("--first-rate R", o->first_rate, "requests a second where that search begins")
      .between(simulate::least_rate, simulate::most_rate);
  c.add("--step-times FILE.csv", o->step_times,
        "steps take what they took in kvcast run --requests --step-times; the schedule must be the "
        "same");
  c.add("--csv", o->csv, "a row for each request, or for each rate of --find-max-rate");
  c.add("--json", o->json);
  c.add("--trace FILE.json", o->trace, "write a Chrome trace, for ui.perfetto.dev").writes();
  c.add("--plot", o->plot,
        "draw queue and cache over time, and beside it the spread of latencies; with "
        "--find-max-rate latencies over the rate")
      .draws([](const std::filesystem::path& picture) {
        return std::vector{picture, reports::picture_beside(picture, "-latency")};
      });
  c.exclude("--scenario", server_flags, "the scenario file describes the server");
  c.exclude("--step-times", {"--pp", "--ep", "--dp"}, "the steps that ran had one stage");
  c.need({"--router"}, {"--replicas"});
  c.need({"--decode-scheduler", "--kv-link-gb-per-s", "--kv-link-latency-s"}, {"--decode-servers"});
  c.need({"--first-rate"}, {"--find-max-rate"});
  c.exclude("--find-max-rate", {"--trace"}, "a trace is of one rate");
  c.callback([o, &globals] {
    if (o->scenario.empty() && !o->request.model.empty()) o->request.use_this_machine(globals);
    run_serving(*o, globals);
  });
}

}  // namespace kvcast::cli
