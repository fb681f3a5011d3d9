/// Ways of doing one thing in turns, each beside what was forecast for it.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/clock_meter.h"
#include "bench/guarded.h"
#include "bench/shapes.h"
#include "model/io/weights/catalog.h"

namespace kvcast::execute {

/// What benchmarks that compare methods take.
struct MethodOptions {
  std::string model;
  std::vector<std::string> methods{"plain"};
  std::uint64_t batch = 1;
  std::string hardware;
  int repeats = 5;
  int threads = 0;

  void add_to(CLI::App& app) {
    app.add_option("--model", model, "of the catalog; random weights");
    app.add_option("--method", methods, "repeatable; speed-ups are over the first one")
        ->delimiter('\n');  // commas are a method's own
    app.add_option("--batch", batch, "")->check(CLI::PositiveNumber);
    app.add_option("--hardware", hardware, "a calibrated file of this machine");
    app.add_option("--repeats", repeats, "rounds")->check(CLI::PositiveNumber);
    app.add_option("--threads", threads, "")->check(CLI::NonNegativeNumber);
  }
  /// The exit status of `work`. Without a hardware file there is nothing to compare with: `./run
  /// bench` goes on with the next program.
  int run(const char* argv0, const std::function<void()>& work) const {
    if (!hardware.empty()) return run_guarded(argv0, work);
    std::printf("%s: no --hardware given; see --help\n", argv0);
    return 0;
  }
};

struct Turn {
  std::string method;
  double forecast_s = 0;
  std::function<double()> measure;  ///< seconds
  std::vector<double> seconds = {};
  std::vector<double> clocks = {};  ///< FLOP/s of a core in the meantime, if that is metered
};

/// Each round takes all turns, so that a machine that changes speed changes all of them.
inline void take_turns(std::vector<Turn>& turns, int rounds, ClockMeter* meter = nullptr) {
  for (int round = 0; round < rounds; ++round) {
    for (Turn& turn : turns) {
      if (meter != nullptr) meter->restart();
      turn.seconds.push_back(turn.measure());
      if (meter != nullptr) turn.clocks.push_back(meter->mean());
    }
  }
}

/// CSV rows that begin with `row` of the method: medians, and the medians of each round's speed-up
/// over the first turn beside it. Metered turns have two cells more: the speed-up if all had run at
/// one clock, and the forecast's error then.
inline void print_speedups(const std::vector<Turn>& turns,
                           const std::function<std::string(const std::string& method)>& row) {
  for (const Turn& turn : turns) {
    std::vector<double> speedups;
    std::vector<double> at_one_clock;
    for (std::size_t i = 0; i < turn.seconds.size(); ++i) {
      speedups.push_back(turns[0].seconds[i] / turn.seconds[i]);
      if (turn.clocks.empty()) continue;
      at_one_clock.push_back(speedups[i] * turns[0].clocks[i] / turn.clocks[i]);
    }
    const double measured = median(speedups);
    const double forecast = turns[0].forecast_s / turn.forecast_s;
    std::printf("%s,%.6g,%.6g,%.4f,%.4f,%.4f", row(turn.method).c_str(), median(turn.seconds),
                turn.forecast_s, measured, forecast, forecast / measured - 1);
    if (!at_one_clock.empty()) {
      std::printf(",%.4f,%.4f", median(at_one_clock), forecast / median(at_one_clock) - 1);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace kvcast::execute
