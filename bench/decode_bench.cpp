// Decode steps of methods over long, made-up caches: each operator's time beside the machine's
// rates, and each method's speed-up over plain, the methods in turns.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/guarded.h"
#include "bench/turns.h"
#include "model/execute/machine_probe.h"
#include "model/execute/pass_timer.h"
#include "model/graph/work.h"
#include "model/io/weights/catalog.h"
#include "roofline/step_cost.h"

namespace kvcast::execute {
namespace {

struct Options {
  std::string model = "pythia-410m";
  std::vector<std::string> methods{"plain"};
  std::vector<std::string> set;
  std::uint64_t batch = 1;
  std::uint64_t prompt_len = 1024;
  std::uint64_t kv_len = 1025;
  std::uint64_t tokens = 0;
  std::string hardware;  ///< a calibrated file of this machine: what was forecast beside it
  int repeats = 5;
  int threads = 0;
};

void report(const Graph& graph, const std::vector<std::uint64_t>& values,
            const std::vector<PassSeconds>& runs) {
  struct Row {
    double seconds = 0, flops = 0, bytes = 0;
    int count = 0;
  };
  std::map<std::string, Row> rows;
  double total = 0;
  for (std::size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    const Work w = work(graph, node);
    std::string key(name(node.op));
    if (rate_class(node.op) == RateClass::Matrix) {
      const auto& t = graph.tensor(node.inputs[1]);
      key += fmt::format(" {}x{}", t.shape[0].at(values), t.shape[1].at(values));
    }
    Row& row = rows[key];
    std::vector<double> s;
    for (const PassSeconds& run : runs) s.push_back(run.nodes[n]);
    row.seconds += median(s);
    row.flops += static_cast<double>(w.flops.at(values));
    row.bytes += static_cast<double>(w.bytes().at(values));
    ++row.count;
    total += median(s);
  }
  for (const auto& [key, row] : rows) {
    std::printf("  %-32s %4d %9.3f ms %8.1f us each %8.2f GFLOP/s %8.2f GB/s\n", key.c_str(),
                row.count, row.seconds * 1e3, row.seconds / row.count * 1e6,
                row.flops / row.seconds / 1e9, row.bytes / row.seconds / 1e9);
  }
  std::vector<double> wall;
  for (const PassSeconds& run : runs) wall.push_back(run.total);
  std::printf("  nodes %.3f ms, wall %.3f ms\n", total * 1e3, median(wall) * 1e3);
}

/// What the roofline says that the pass takes.
double forecast_s(const roofline::Hardware& hardware, const SessionOptions& options,
                  const Graph& graph, const SymbolValues& values) {
  const Lowering lowering = session_lowering(options);
  const roofline::Rates rates =
      roofline::make_rates(hardware, lowering, roofline::Mode::Calibrated);
  double sum = 0;
  for (const roofline::OpGroup& group : roofline::fold(graph, lowering)) {
    sum += static_cast<double>(group.count) * roofline::time_of(group, rates, values).total.value;
  }
  return sum;
}

/// The methods' decode steps in turns, the median of three at a time.
void compare(const Options& o, const roofline::Hardware& hardware, const Architecture& a) {
  std::vector<std::unique_ptr<PassTimer>> timers;
  std::vector<Turn> turns;
  const Checkpoint checkpoint(a, 1);
  const PassSizes sizes{o.batch, o.prompt_len, o.kv_len};
  for (const std::string& method : o.methods) {
    const SessionOptions options{.methods = parse_methods(method)};
    timers.push_back(std::make_unique<PassTimer>(checkpoint, options));
    const PassTimer& timer = *timers.back();
    const Recording& r = timer.recording();
    turns.push_back({method,
                     forecast_s(hardware, options, r.decode(),
                                r.symbols.resolve({o.batch, o.prompt_len, o.kv_len})),
                     [&timer, sizes] {
                       std::vector<double> totals;
                       for (const PassSeconds& run : timer.decode(sizes, 3)) {
                         totals.push_back(run.total);
                       }
                       return median(totals);
                     }});
  }
  take_turns(turns, o.repeats);
  print_speedups(turns, [&](const std::string& method) {
    return fmt::format("{},{},{},{}", o.model, method, o.batch, o.kv_len);
  });
}

void run(const Options& o) {
  const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  std::vector<ConfigOverride> overrides;
  for (const std::string& s : o.set) {
    overrides.push_back({s.substr(0, s.find('=')), s.substr(s.find('=') + 1)});
  }
  const Architecture architecture = load_model(catalog, o.model, overrides);
  std::optional<roofline::Hardware> hardware;
  if (!o.hardware.empty()) hardware = roofline::load_hardware(catalog, o.hardware);
  const int threads = use_threads(o.threads);
  std::printf("%d threads, FMA %.1f GFLOP/s, read %.1f GB/s\n", threads, measure_fma_rate() / 1e9,
              measure_read_bandwidth() / 1e9);
  if (hardware) {
    std::printf(
        "model,method,batch,kv_len,measured_tpot_s,predicted_tpot_s,measured_speedup,"
        "predicted_speedup,relative_error\n");
    compare(o, *hardware, architecture);
    return;
  }
  for (const std::string& method : o.methods) {
    const Checkpoint checkpoint(architecture, 1);
    const PassTimer timer(checkpoint, {.methods = parse_methods(method)});
    std::printf("%s %s batch %lu kv_len %lu\n", o.model.c_str(), method.c_str(), o.batch, o.kv_len);
    const auto values = timer.recording().symbols.resolve({o.batch, o.prompt_len, o.kv_len});
    report(timer.recording().decode(), values,
           timer.decode({o.batch, o.prompt_len, o.kv_len}, o.repeats));
    if (o.tokens == 0) continue;
    std::printf("prefill of %lu\n", o.tokens);
    report(timer.recording().prefill(),
           timer.recording().symbols.resolve({o.batch, o.tokens, o.tokens}),
           timer.prefill({o.batch, o.tokens, o.tokens}, o.repeats));
  }
}

}  // namespace
}  // namespace kvcast::execute

int main(int argc, char** argv) {
  kvcast::execute::Options o;
  CLI::App app("decode steps over long caches");
  app.add_option("--model", o.model, "");
  app.add_option("--method", o.methods, "");
  app.add_option("--set", o.set, "");
  app.add_option("--batch", o.batch, "");
  app.add_option("--prompt-len", o.prompt_len, "");
  app.add_option("--kv-len", o.kv_len, "");
  app.add_option("--prefill", o.tokens, "");
  app.add_option("--hardware", o.hardware, "a calibrated file: the methods in turns, as CSV");
  app.add_option("--repeats", o.repeats, "")->check(CLI::PositiveNumber);
  app.add_option("--threads", o.threads, "")->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  return kvcast::run_guarded(argv[0], [&] { kvcast::execute::run(o); });
}
