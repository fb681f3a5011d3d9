#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/estimate/serving_axes.h"
#include "cli/estimate/sweep_axes.h"
#include "cli/estimate/training_axes.h"
#include "cli/frame/capture.h"
#include "cli/frame/command.h"
#include "cli/frame/interrupt_guard.h"
#include "cli/frame/mpirun_environment.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/request_options.h"
#include "measure/measure_matrix.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/execute/mpi_messenger.h"
#include "model/families/config_reader.h"
#include "reports/plot/plot.h"
#include "reports/sweep/sweep.h"
#include "reports/sweep/sweep_columns.h"
#include "reports/sweep/sweep_plot.h"

namespace kvcast::cli {
namespace {

using execute::Messenger;
using nlohmann::ordered_json;
using reports::SweepGrid;
using reports::SweepResult;
using reports::SweepSpec;

struct SweepCommand {
  SweepAxes axes;
  std::string csv;
  std::string plot;
  std::string plot_kind = "ttft";
  std::string shard = "1/1";
  std::uint64_t threads = 0;  ///< 0: one for each core that this process may use
  bool restart = false;
  bool dry_run = false;
  bool json = false;
  ServingAxes serving;
  TrainingAxes training;
};

constexpr const char* sweep_description =
    "Forecast a grid of requests, as CSV.\n\n"
    "Examples:\n"
    "  kvcast sweep --model llama-7b,pythia-1.4b --hardware a100-80gb --prompt-len 1k..16k:x2\n"
    "  kvcast sweep -m llama-3.1-8b --hardware h100-sxm,h200 --batch 1..64:x2 --csv sweep.csv\n"
    "  kvcast sweep --serving -m llama-3.1-8b --hardware h100-sxm --engine vllm --prompt-lens 1000 "
    "--output-lens 100 --arrivals poisson:rate=1 --rate 1..32:x2 --scheduler vllm-v1,vllm-v0\n"
    "  kvcast sweep --train -m llama-7b --hardware a100-80gb --dtype bf16 --batch 1..16:x2 "
    "--recompute none,full";

constexpr const char* footer =
    "A LIST is a,b,c; a RANGE is a list of numbers (k is 1024) and of ranges: 1k..128k:x2 (times\n"
    "2), 1k..16k:1k (steps of 1k), 1..10. Flags may be repeated. --spec holds the same axes as\n"
    "JSON: {\"model\": [\"llama-7b\"], \"prompt_len\": \"1k..128k:x2\", \"set\": "
    "{\"num_key_value_heads\": [1, 8]}};\n"
    "a flag replaces the axis of the file.\n"
    "Rows follow the order of the axes above; the last axis varies fastest. An impossible\n"
    "combination has empty results and a reason in the column error.\n"
    "An unfinished file is named FILE.partial; the same command resumes it. Every shard has a\n"
    "header line; to join shards:\n"
    "  cat s1.csv <(tail -n +2 s2.csv) <(tail -n +2 s3.csv)\n"
    "Under mpirun all ranks work on one file.\n";

unsigned num_cores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0) {
    return static_cast<unsigned>(CPU_COUNT(&cores));
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

unsigned num_threads(const SweepCommand& o, const Messenger* ranks) {
  if (o.threads > 0) return static_cast<unsigned>(o.threads);
  const unsigned sharing = ranks == nullptr ? 1u : static_cast<unsigned>(ranks_on_this_machine());
  return std::max(1u, num_cores() / sharing);
}

/// Its first `most` lines or bars.
reports::SweepPlot plot_of(const SweepCommand& o, const SweepGrid& grid, std::size_t most) {
  if (o.plot_kind == "parts") return reports::sweep_parts_plot(grid, most);
  if (o.plot_kind == "memory") return reports::sweep_memory_plot(grid);
  return reports::sweep_ttft_plot(grid, most);
}

struct Request {
  reports::Shard shard;
  SweepGrid grid;
};

Request parse_request(const SweepCommand& o, const Globals& globals) {
  if (o.json && o.csv.empty() && !o.dry_run) {
    throw Error("--json: cannot be combined with rows on standard output; expected --csv FILE");
  }
  SweepSpec spec = o.axes.parse(globals);
  o.training.set_sizes(spec);
  Request request{reports::parse_shard(o.shard, "--shard"), SweepGrid(spec, globals.catalog())};
  const std::vector<std::string> kinds{"ttft", "memory", "parts"};
  if (std::find(kinds.begin(), kinds.end(), o.plot_kind) == kinds.end()) {
    throw Error("--plot-kind", unknown_name("kind", o.plot_kind, kinds));
  }
  // All of this is found now and not after the sweep.
  // Rows of training are possible where a request may not be.
  if (!o.dry_run && !o.training.train) reports::check_any_possible(request.grid);
  if (o.plot.empty()) return request;
  if (o.serving.serving || o.training.train) return request;
  if (o.plot_kind != "parts" && request.grid.spec().prompt_len.size() < 2) {
    throw Error("--plot", "one prompt length", "several, such as --prompt-len 1k..16k:x2");
  }
  if (o.dry_run) return request;
  plot_of(o, request.grid, 1);
  return request;
}

/// Under mpirun all ranks come to the same end: of a wrong request rank 0 throws the error, and the
/// others, which have nothing to add, return nothing.
std::optional<Request> parse_request(const SweepCommand& o, const Globals& globals,
                                     Messenger* ranks) {
  if (ranks == nullptr) return parse_request(o, globals);
  std::optional<Request> request;
  std::string problem;
  try {
    request = parse_request(o, globals);
  } catch (const std::exception& e) {
    problem = e.what();
  }
  problem = first_error(*ranks, problem, request ? request->grid.fingerprint() : "");
  if (problem.empty()) return request;
  if (ranks->rank() == 0) throw Error(problem);
  return std::nullopt;
}

/// `all`: points of the whole sweep.
void print_dry_run(const SweepCommand& o, const Request& request, std::uint64_t all) {
  const SweepGrid& grid = request.grid;
  const reports::PointRange range = request.shard.of(all);
  const std::uint64_t points = range.last - range.first;
  if (o.json) {
    print_json(
        {{"points", points}, {"grid_points", all}, {"configurations", grid.num_configurations()}});
    return;
  }
  std::string line = fmt::format("{} points", points);
  if (request.shard.count > 1) line += fmt::format(" of {} in shard {}", all, o.shard);
  line +=
      fmt::format(" ({} configurations x {} sizes", grid.num_configurations(), grid.num_sizes());
  if (all != grid.num_points()) {
    line += fmt::format(" x {} {}", all / grid.num_points(),
                        o.serving.serving ? "schedulers and rates" : "ways to train");
  }
  print_text(line + ")\n");
}

void print_result(const SweepCommand& o, const Globals& globals, const SweepResult& r) {
  if (r.rows_with_rejected > 0) {
    globals.warn(
        fmt::format("{} rows leave out requests that are rejected, see the column rejected",
                    r.rows_with_rejected));
  }
  const auto evaluated = static_cast<double>(r.rows_written - r.rows_resumed);
  const double rate = r.elapsed_s > 0 ? evaluated / r.elapsed_s : 0;
  if (o.json) {
    print_json({{"points", r.num_points},
                {"rows_written", r.rows_written},
                {"rows_resumed", r.rows_resumed},
                {"errors", r.num_errors},
                {"elapsed_s", r.elapsed_s},
                {"points_per_second", rate},
                {"csv", o.csv},
                {"plot", o.plot}});
    return;
  }
  std::string line = fmt::format("{} rows in {:.2f} s ({} points/s)", r.rows_written, r.elapsed_s,
                                 format_count(rate));
  if (r.rows_resumed > 0) line += fmt::format(", {} of them from an earlier run", r.rows_resumed);
  if (r.num_errors > 0) {
    line += fmt::format("; {} are impossible, see the column error", r.num_errors);
  }
  if (!o.csv.empty()) line += "; " + o.csv;
  globals.say(line);
}

/// One line for each model whose longest request or sequence is beyond its context.
void warn_of_contexts(const Globals& globals, const SweepGrid& grid, bool trains) {
  const auto longest = [](const std::vector<std::uint64_t>& lens) {
    return lens.empty() ? std::uint64_t{1} : *std::max_element(lens.begin(), lens.end());
  };
  const roofline::DesignPoint point{1, longest(grid.spec().prompt_len),
                                    trains ? 0 : longest(grid.spec().output_len)};
  // Models are the slowest axis.
  const std::uint64_t stride = grid.num_configurations() / grid.spec().model.size();
  for (std::uint64_t c = 0; c < grid.num_configurations(); c += stride) {
    try {
      const Architecture a = grid.configuration(c).architecture;
      for (const std::string& line : config_warnings(a)) globals.warn(line);
      for (const std::string& line : roofline::context_warnings(a, point)) globals.warn(line);
    } catch (const Error&) {
      // A model that its `set` entries make impossible has its reason in the column error.
    }
  }
}

/// One line where replicas do not have as many sequences each.
void warn_of_replicas(const Globals& globals, const reports::SweepSpec& spec) {
  std::string first;
  std::uint64_t others = 0;
  for (const std::string& dp : spec.dp) {
    for (const std::uint64_t batch : measure::or_default(spec.batch, {1})) {
      const std::string line =
          roofline::replica_warning(batch, parse_token_count(dp, spec.place_of("dp")));
      if (line.empty()) continue;
      if (first.empty()) {
        first = line;
      } else {
        ++others;
      }
    }
  }
  if (first.empty()) return;
  globals.warn(first + (others > 0 ? fmt::format(" (and {} more)", others) : ""));
}

/// How many configurations have estimates without a bound, and why the first has one.
void say_missing_bounds(const Globals& globals, const SweepGrid& grid) {
  std::uint64_t missing = 0;
  std::string note;
  for (std::uint64_t c = 0; c < grid.num_configurations(); ++c) {
    for (const measure::Regime regime : grid.regimes()) {
      const std::string& why = grid.error_bounds(c)[static_cast<std::size_t>(regime)].reason;
      if (why.empty()) continue;
      if (missing++ == 0) note = why;
      break;
    }
  }
  if (missing == 0) return;
  const std::string others = missing == 1 ? "" : fmt::format(" (and {} others)", missing - 1);
  globals.say("note: " + note + others);
}

void draw(const SweepCommand& o, const Globals& globals, const SweepGrid& grid,
          const std::optional<reports::ServingSweep>& serving,
          const std::optional<reports::TrainingSweep>& training) {
  if (o.plot.empty()) return;
  if (training) return reports::write_plot(reports::training_sweep_plot(*training, o.csv), o.plot);
  if (serving) return reports::write_plot(reports::serving_sweep_plot(*serving, o.csv), o.plot);
  const bool memory = o.plot_kind == "memory";
  const bool parts = o.plot_kind == "parts";
  const reports::SweepPlot drawn = plot_of(o, grid, parts ? reports::max_bars : reports::max_lines);
  reports::write_plot(drawn.plot, o.plot);
  std::string line =
      parts ? o.plot + ": the parts of TTFT"
            : fmt::format("{}: {} over prompt length", o.plot, memory ? "memory" : "TTFT");
  if (drawn.num_lines < drawn.num_possible_lines) {
    line += fmt::format(", {} of {} configurations{}", drawn.num_lines, drawn.num_possible_lines,
                        parts ? "" : " and batches");
  }
  globals.say(line);
}

/// Rows that a program which runs this command inside itself takes.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("rows", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw Error("rows: no memory file", Fault::Run);
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::string text() const {
    std::string all;
    char buffer[1 << 16];
    for (ssize_t n = 0;
         (n = ::pread(descriptor_, buffer, sizeof buffer, static_cast<off_t>(all.size()))) > 0;) {
      all.append(buffer, static_cast<std::size_t>(n));
    }
    return all;
  }

 private:
  int descriptor_;
};

/// Throws Error where the rows are more than this machine's memory holds.
void check_memory(const reports::PointRange& points) {
  const double bytes =
      static_cast<double>(points.last - points.first) * reports::SweepColumns::bytes_per_row;
  const double memory =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (bytes < memory) return;
  throw Error("rows", fmt::format("{:.0f} GB of them", bytes / 1e9),
              fmt::format("less than the memory's {:.0f} GB, or --csv FILE", memory / 1e9));
}

/// Throws Interrupted when Ctrl-C or SIGTERM ended it.
void sweep(const SweepCommand& o, const Globals& globals, Messenger* ranks) {
  const std::optional<Request> request = parse_request(o, globals, ranks);
  if (!request) return;
  const bool speaks = ranks == nullptr || ranks->rank() == 0;
  reports::SweepOptions options;
  std::optional<reports::ServingSweep> serving;
  if (o.serving.serving) {
    if (ranks != nullptr) throw Error("--serving", "mpirun", "--shard I/N for each process");
    serving.emplace(o.serving.over(request->grid, globals));
    if (!o.plot.empty() && (o.csv.empty() || serving->rates.size() < 2)) {
      throw Error(
          "--plot with --serving needs --csv FILE and several rates, such as "
          "--rate 1..64:x2");
    }
  }
  std::optional<reports::TrainingSweep> training;
  if (o.training.train) {
    if (serving) throw Error("--train: cannot be combined with --serving");
    if (ranks != nullptr) throw Error("--train", "mpirun", "--shard I/N for each process");
    training.emplace(o.training.over(request->grid));
    if (!o.plot.empty() && (o.csv.empty() || request->grid.spec().prompt_len.size() < 2)) {
      throw Error(
          "--plot with --train needs --csv FILE and several lengths, such as "
          "--seq-len 1k..16k:x2");
    }
    if (!o.dry_run) reports::check_any_possible(*training);
  }
  if (o.dry_run) {
    const std::uint64_t points = serving    ? serving->num_points()
                                 : training ? training->num_points()
                                            : request->grid.num_points();
    if (speaks) print_dry_run(o, *request, points);
    return;
  }
  if (speaks) {
    warn_of_contexts(globals, request->grid, training.has_value());
    if (!serving && !training) {
      warn_of_replicas(globals, request->grid.spec());
      say_missing_bounds(globals, request->grid);
    }
  }
  options.shard = request->shard;
  options.csv = o.csv;
  options.descriptor = STDOUT_FILENO;
  options.descriptor_name = "standard output";
  options.num_threads = num_threads(o, ranks);
  options.restart = o.restart;
  options.stop = &InterruptGuard::interrupted;
  Capture* capture = o.csv.empty() ? Capture::current() : nullptr;
  std::optional<MemoryFile> rows;  // captured
  if (capture != nullptr) check_memory(options.shard.of(request->grid.num_points()));
  if (capture != nullptr && (serving || training)) options.descriptor = rows.emplace().descriptor();
  SweepResult result;
  {
    const InterruptGuard guard;
    ProgressBar bar(globals.quiet || !speaks);
    options.on_progress = [&bar](const reports::SweepProgress& p) {
      bar.draw(p.rows, p.rows_resumed, p.total_rows, p.elapsed_s);
    };
    if (capture != nullptr && !rows) {
      capture->table = reports::sweep_columns(request->grid, options);
      if (InterruptGuard::interrupted) throw Interrupted{};
      return draw(o, globals, request->grid, serving, training);
    }
    result = serving    ? reports::run_serving_sweep(*serving, options)
             : training ? reports::run_training_sweep(*training, options)
                        : reports::run_sweep(request->grid, options, ranks);
  }
  if (!speaks) return;
  if (!result.stopped) {
    if (rows) capture->table = reports::parse_columns(rows->text());
    draw(o, globals, request->grid, serving, training);
    print_result(o, globals, result);
    return;
  }
  std::string line =
      fmt::format("interrupted after {} of {} rows", result.rows_written, result.num_points);
  if (!result.partial.empty()) {
    line += "; they are in " + result.partial + ", and the same command goes on from there";
  }
  throw Interrupted{line};
}

/// A rank waits as long as another one computes.
constexpr double rank_limit_s = 1e9;

void run(SweepCommand o, const Globals& globals) {
  if (o.csv == "-") o.csv.clear();
  {
    std::unique_ptr<execute::MpiMessenger> ranks;
    if (launched_by_mpirun()) {
      if (!execute::MpiMessenger::is_built_in()) {
        if (rank_of_mpirun() > 0) return;  // the first one says it
        throw Error(
            "this kvcast was built without MPI; expected a build that finds Open MPI, or --shard "
            "I/N in place of mpirun",
            Fault::Run);
      }
      ranks = execute::MpiMessenger::start(rank_limit_s);
    }
    try {
      sweep(o, globals, ranks.get());
    } catch (...) {
      if (ranks) ranks->end();  // all ranks come to the same end
      throw;
    }
  }
}

}  // namespace

void add_sweep(Command app, const Globals& globals) {
  Command command = app.add_subcommand("sweep", sweep_description);
  command.footer(footer);
  const auto o = std::make_shared<SweepCommand>();
  o->axes.add_to(command, true);
  o->serving.add_to(command);
  o->training.add_to(command);
  command.add("--csv", o->csv, "file to write; default, or -: stdout");
  command.add("--plot", o->plot,
              "draw over the prompt length (parts: over the methods); .svg or .png");
  command.add("--plot-kind KIND", o->plot_kind,
              "ttft: one line per configuration; memory: weights, KV cache and activations of the "
              "first configuration; parts: one bar per configuration, with each part's share of "
              "TTFT");
  command.need({"--plot-kind"}, {"--plot"});
  command.exclude("--plot-kind", {"--train"}, "a sweep of training draws tokens a second");
  command.exclude("--plot-kind", {"--serving"}, "a sweep of servers draws their goodput");
  command.add("--shard I/N", o->shard, "only the I-th of N contiguous parts of the grid");
  command.add("--threads", o->threads, "number of threads; default: all cores").range(1, 1024);
  command.add("--restart", o->restart);
  command.add("--dry-run", o->dry_run, "print the number of points and stop");
  command.add("--json", o->json, "print a summary of the sweep as JSON; needs --csv FILE");
  command.callback([o, &globals] { run(*o, globals); });
}

}  // namespace kvcast::cli
