// Time to first token of methods: each method's speed-up over plain beside the forecast one, the
// methods in turns. Random weights, whose values do not matter to what a shape costs.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/turns.h"
#include "model/base/error.h"
#include "model/execute/batch_order.h"
#include "roofline/forecast.h"

namespace kvcast::execute {
namespace {

struct Options : MethodOptions {
  std::uint64_t prompt_len = 1024;
  int uncounted = 1;
};

/// One method, loaded.
class Prefill {
 public:
  Prefill(const Options& o, const Catalog& catalog, const Checkpoint& checkpoint,
          const roofline::Hardware& hardware, const std::string& method)
      : options_(o),
        session_(checkpoint, {.methods = parse_methods(method),
                              .open =
                                  [&catalog](const std::string& name) {
                                    return Checkpoint(load_model(catalog, name), 2);
                                  }}),
        forecaster_(session_.recording(), session_lowering(session_.options()),
                    roofline::make_rates(hardware, session_lowering(session_.options()),
                                         roofline::Mode::Calibrated)),
        method_(method) {
    const std::vector<TokenId> all =
        made_up_prompt(o.batch * o.prompt_len, session_.architecture().vocab_size);
    for (std::size_t b = 0; b < o.batch; ++b) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(b * o.prompt_len);
      request_.tokens.emplace_back(first, first + static_cast<std::ptrdiff_t>(o.prompt_len));
    }
    if (runs_one_by_one(session_, request_)) {
      throw Error(method, "a batch that runs one after another", "one that runs together");
    }
  }

  Turn turn() const {
    return {method_, forecaster_.at({options_.batch, options_.prompt_len, 1}).ttft_s,
            [this] { return session_.run(request_).ttft_s; }};
  }

 private:
  const Options& options_;
  Session session_;
  roofline::Forecaster forecaster_;
  std::string method_;
  Request request_;
};

void run(const Options& o) {
  const Catalog catalog(KVCAST_SOURCE_DIR "/data");
  const roofline::Hardware hardware = roofline::load_hardware(catalog, o.hardware);
  const Checkpoint checkpoint(load_model(catalog, o.model), 1);
  use_threads(o.threads);
  std::vector<std::unique_ptr<Prefill>> prefills;
  std::vector<Turn> turns;
  for (const std::string& method : o.methods) {
    prefills.push_back(std::make_unique<Prefill>(o, catalog, checkpoint, hardware, method));
    turns.push_back(prefills.back()->turn());
  }
  take_turns(turns, o.uncounted);
  for (Turn& turn : turns) turn.seconds.clear();
  {
    ClockMeter meter;
    take_turns(turns, o.repeats, &meter);
  }
  std::printf(
      "model,method,batch,prompt_len,rounds,measured_ttft_s,predicted_ttft_s,measured_speedup,"
      "predicted_speedup,relative_error,speedup_at_one_clock,relative_error_at_one_clock\n");
  print_speedups(turns, [&](const std::string& method) {
    // A method's options are separated by commas.
    const std::string cell = method.find(',') == std::string::npos ? method : '"' + method + '"';
    return fmt::format("{},{},{},{},{}", o.model, cell, o.batch, o.prompt_len, o.repeats);
  });
}

}  // namespace
}  // namespace kvcast::execute

int main(int argc, char** argv) {
  kvcast::execute::Options o;
  o.model = "openelm-270m";
  CLI::App app("time to first token of methods");
  o.add_to(app);
  app.add_option("--prompt-len", o.prompt_len, "")->check(CLI::PositiveNumber);
  app.add_option("--uncounted", o.uncounted, "rounds before those that count")
      ->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  return o.run(argv[0], [&] { kvcast::execute::run(o); });
}
