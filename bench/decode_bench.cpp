// Decode steps of methods over long, made-up caches: each method's speed-up over the first one, the
// methods in turns, beside the forecast.
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/turns.h"
#include "model/execute/pass_timer.h"
#include "roofline/step_cost.h"

namespace kvcast::execute {
namespace {

struct Options : MethodOptions {
  std::uint64_t prompt_len = 1024;
  std::uint64_t kv_len = 1025;
};

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

/// A turn is the median of three steps.
void run(const Options& o) {
  const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  const roofline::Hardware hardware = roofline::load_hardware(catalog, o.hardware);
  const Checkpoint checkpoint(load_model(catalog, o.model), 1);
  use_threads(o.threads);
  std::vector<std::unique_ptr<PassTimer>> timers;
  std::vector<Turn> turns;
  const PassSizes sizes{o.batch, o.prompt_len, o.kv_len};
  for (const std::string& method : o.methods) {
    const SessionOptions options{.methods = parse_methods(method)};
    timers.push_back(std::make_unique<PassTimer>(checkpoint, options));
    PassTimer& timer = *timers.back();
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
  std::printf(
      "model,method,batch,kv_len,measured_tpot_s,predicted_tpot_s,measured_speedup,"
      "predicted_speedup,relative_error\n");
  print_speedups(turns, [&](const std::string& method) {
    return fmt::format("{},{},{},{}", o.model, method, o.batch, o.kv_len);
  });
}

}  // namespace
}  // namespace kvcast::execute

int main(int argc, char** argv) {
  kvcast::execute::Options o;
  o.model = "pythia-410m";
  CLI::App app("decode steps over long caches");
  o.add_to(app);
  app.add_option("--prompt-len", o.prompt_len, "");
  app.add_option("--kv-len", o.kv_len, "cache slots at the end of the step");
  CLI11_PARSE(app, argc, argv);
  return o.run(argv[0], [&] { kvcast::execute::run(o); });
}
