#include "cli/run/run_requests.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "cli/frame/mpirun_environment.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/serving_output.h"
#include "cli/run/run_job.h"
#include "measure/serving_run.h"
#include "model/base/error.h"
#include "model/execute/machine_probe.h"
#include "reports/plot/serving_log.h"
#include "simulate/serving/model_server.h"
#include "simulate/serving/serving_scenario.h"
#include "simulate/serving/step_times.h"

namespace kvcast::cli {
namespace {

/// Of the cache, where --scheduler does not say num_blocks. Ours: it is touched at the start.
constexpr double default_cache_bytes = 0x1p30;

simulate::SchedulerSettings settings_for(const RunRequestsFlags& flags, const Recording& recording,
                                         const execute::SessionOptions& options) {
  simulate::SchedulerSettings s;
  s.max_model_len = recording.model.max_position_embeddings;
  s.num_blocks = 0;
  const auto of_sequence =
      static_cast<double>(recording.state_bytes.at(recording.symbols.resolve({1, 1, 1})));
  if (of_sequence > 0) {
    const double fit = std::max(1.0, default_cache_bytes / of_sequence);
    s.max_num_seqs = std::min(s.max_num_seqs, static_cast<std::uint64_t>(fit));
    s.prefix_caching = false;  // no block holds states
  }
  if (!flags.scheduler.empty()) simulate::set_scheduler(flags.scheduler, "--scheduler", s);
  if (recording.selection) {
    simulate::keep_prompts_whole(options.methods, flags.scheduler, "--scheduler", s);
  }
  const double of_block = static_cast<double>(recording.kv_cache_bytes_per_token.at({})) *
                          bits_per_element(options.dtype) / bits_per_element(DType::FP32) *
                          static_cast<double>(s.block_size);
  if (s.num_blocks == 0) {
    s.num_blocks =
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(default_cache_bytes / of_block));
  }
  s.check();
  check_machine_memory(fmt::format("--scheduler: {} blocks", s.num_blocks),
                       of_block * static_cast<double>(s.num_blocks));
  return s;
}

}  // namespace

void RunRequestsFlags::add_to(Command c) {
  workload.add_to(c);
  c.add("--scheduler NAME[:KEY=VALUE,...]", scheduler,
        "with --requests: as kvcast simulate serving [vllm-v1]");
  c.add("--slo LIMITS", slo, "with --requests: ttft=S,tpot=S,e2e=S, what a request must keep");
  c.add("--csv", csv, "with --requests: a row for each request");
  c.add("--trace FILE.json", trace, "with --requests: write a Chrome trace").writes();
  c.add("--step-times FILE.csv", steps,
        "with --requests: write what each step took, for kvcast simulate serving --step-times")
      .writes();
  c.add("--no-wait", no_wait, "with --requests: skip the time until the next request arrives");
  c.need({"--scheduler", "--slo", "--csv", "--trace", "--step-times", "--no-wait", "--prompt-lens",
          "--output-lens", "--prefixes", "--num-requests", "--seed"},
         {"--requests", "--arrivals"});
  for (const char* const flag : {"--requests", "--arrivals"}) {
    c.exclude(flag,
              {"--tokens",
               "--prompt",
               "--prompt-file",
               "--encoder-tokens",
               "--features",
               "--audio",
               "--language",
               "--prompt-len",
               "--batch",
               "--output-len",
               "--chunk",
               "--rounds",
               "--count",
               "--logits",
               "--dump-importance",
               "--plot-importance",
               "--expert-tokens",
               "--profile",
               "--hardware",
               "--tp",
               "--pp",
               "--ep",
               "--dp"},
              "one process runs the requests, each as long as it says, in the scheduler's steps");
  }
}

void run_requests(const RunOptions& o, const RunRequestsFlags& flags, const Globals& globals) {
  if (const int ranks = ranks_of_mpirun(); ranks > 1) {
    if (rank_of_mpirun() > 0) return;  // one complains
    throw Error("mpirun", fmt::format("{} processes", ranks), "one, which runs all requests");
  }
  WorkloadFlags workload = flags.workload;
  workload.check(globals);
  const Objective objective = parse_objective(flags.slo, false);
  check_rows_alone(flags.csv, {{"--json", o.json}});
  const int threads = execute::use_threads(o.threads);
  const Checkpoint checkpoint = open_checkpoint(o, globals);
  const execute::SessionOptions options = session_options(o, checkpoint, 1, globals.catalog());
  execute::check_checkpoint(checkpoint, options);
  const auto find_model = [&](const std::string& name) {
    return options.open ? options.open(name).architecture() : Checkpoint(name).architecture();
  };
  const Recording recording =
      record(checkpoint.architecture(), options.methods, execute::session_lowering(options),
             {.find_model = find_model});
  simulate::SchedulerSettings settings = settings_for(flags, recording, options);
  workload.vocab_size = checkpoint.architecture().vocab_size;
  const auto requests = workload.open();
  settings.request_block_tokens = requests->block_tokens();
  execute::StepSession session(checkpoint, options,
                               {settings.num_blocks, settings.block_size, settings.max_num_seqs});
  const auto steps = std::make_shared<measure::ExecutedSteps>(session, settings, !flags.no_wait);
  simulate::ServingSetup setup;
  setup.servers = {settings, steps, 1};
  setup.closed_loop = workload.closed_loop();

  std::optional<reports::RequestRows> rows;
  if (!flags.csv.empty()) rows.emplace(csv_target(flags.csv));
  std::optional<simulate::StepTimesFile> times_file;
  if (!flags.steps.empty()) times_file.emplace(flags.steps);
  reports::ServingLog log;
  std::optional<ProgressBar> bar(std::in_place, globals.quiet);
  const Stopwatch watch;
  std::uint64_t ended = 0;
  simulate::ServingWatch told;
  told.on_step = [&](const simulate::ServedStep& s) {
    if (times_file) times_file->add(s);
    if (!flags.trace.empty()) log.step(s);
  };
  told.on_finished = [&](const simulate::Sequence& s) {
    steps->ended(s);
    if (rows) {
      rows->finished(s);
      rows->flush();
    }
    if (!flags.trace.empty()) log.finished(s);
    bar->draw(++ended, 0, 0, watch.seconds());
  };
  told.on_rejected = [&](const simulate::ServingRequest& r, const std::string& reason) {
    steps->rejected(r);
    if (rows) rows->rejected(r, reason);
    globals.warn(fmt::format("request {} is rejected: {}", r.id, reason));
  };
  const simulate::ServingTimes times = serve(setup, *requests, objective.slo, told);
  bar.reset();  // its line, before the result is printed
  if (rows) rows->flush();
  if (times_file) times_file->commit();
  if (!flags.trace.empty()) log.write_trace(flags.trace);
  if (flags.csv == "-") return;
  if (o.json) {
    ordered_json j{{"model", checkpoint.architecture().name},
                   {"method", to_string(options.methods)},
                   {"dtype", o.dtype},
                   {"weights", options.weights.in_file ? "as-stored" : o.dtype},
                   {"arithmetic", o.arithmetic},
                   {"cache_dtype", name(execute::session_lowering(options).cache)},
                   {"threads", threads},
                   {"scheduler", name(settings.policy)},
                   {"kv_blocks", settings.num_blocks},
                   {"block_size", settings.block_size}};
    j.update(serving_json(times));
    for (const auto& [request, tokens] : steps->made()) {
      j["generated_tokens"][std::to_string(request)] = tokens;
    }
    return print_json(j);
  }
  print_text(fmt::format("{}, {}, {} threads, {}\n", checkpoint.architecture().name,
                         to_string(options.methods), threads, name(settings.policy)) +
             serving_text(times, objective.slo));
}

}  // namespace kvcast::cli
