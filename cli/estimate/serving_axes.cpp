#include "cli/estimate/serving_axes.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/base/error.h"
#include "simulate/serving/serving_scenario.h"

namespace kvcast::cli {
namespace {

/// Each is a queue that is played.
constexpr double most_of_range = 10'000;

double number_of(std::string_view text, const char* flag) {
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(rate >= simulate::least_rate && rate <= simulate::most_rate)) {
    throw Error(flag, "'" + std::string(text) + "'",
                fmt::format("numbers from {:g} to {:g}, such as 0.5,1,2 or 1..64:x2",
                            simulate::least_rate, simulate::most_rate));
  }
  return rate;
}

}  // namespace

std::vector<double> parse_rates(const std::string& text, const char* flag) {
  std::vector<double> rates;
  for (const std::string& word : reports::parse_words(text, flag)) {
    const std::size_t dots = word.find("..");
    if (dots == std::string::npos) {
      rates.push_back(number_of(word, flag));
      continue;
    }
    const std::size_t times = word.find(":x", dots);
    const double first = number_of(word.substr(0, dots), flag);
    const double last = number_of(word.substr(dots + 2, times - dots - 2), flag);
    const double factor = times == std::string::npos ? 2 : number_of(word.substr(times + 2), flag);
    if (factor <= 1) throw Error(flag, "'" + word + "'", "a factor above 1");
    if (last < first) {
      throw Error(flag, "the reversed range '" + word + "'", "its smaller end first");
    }
    if (std::log(last / first) / std::log(factor) > most_of_range) {
      throw Error(flag, "'" + word + "'", fmt::format("at most {} numbers", most_of_range));
    }
    for (double rate = first; rate <= last * (1 + 1e-12); rate *= factor) rates.push_back(rate);
  }
  return rates;
}

void ServingAxes::add_to(Command c) {
  c.add("--serving", serving, "a queue of requests at each point, as kvcast simulate serving");
  c.add("--scheduler LIST", schedulers,
        "with --serving: schedulers separated by ';', or by ',' unless KEY=VALUE follows it")
      .allow_extra_args(false)
      .group("Axes");
  c.add("--rate LIST", rates,
        "with --serving: requests a second, 0.5,1,2 or 1..64:x2; default: the requests' own times")
      .group("Axes");
  c.add("--slo LIMITS", slo, "with --serving: ttft=S,tpot=S,e2e=S, what a request must keep");
  workload.add_to(c);
  c.need({"--scheduler", "--rate", "--slo", "--requests", "--arrivals", "--prompt-lens",
          "--output-lens", "--prefixes", "--num-requests", "--seed"},
         {"--serving"});
  c.exclude("--serving", {"--batch", "--prompt-len", "--output-len"},
            "the workload has the lengths (--prompt-lens, --output-lens or --requests)");
}

reports::ServingSweep ServingAxes::over(const reports::SweepGrid& grid, const Globals& globals,
                                        bool searches) const {
  workload.check(globals, true);
  if (grid.num_sizes() > 1 || !grid.spec().prompt_len.empty()) {
    throw Error(
        "--serving: cannot be combined with --batch, --prompt-len and --output-len; the "
        "workload has the lengths (--prompt-lens, --output-lens or --requests)");
  }
  const std::vector<std::string>& norms = grid.spec().sequence_parallel;
  if (std::find(norms.begin(), norms.end(), "on") != norms.end()) {
    throw Error("--serving", "--sequence-parallel on", "norms of all tokens: steps have no others");
  }
  if (!grid.spec().micro_batches.empty()) {
    throw Error("--serving", "--micro-batches", "none: a server's steps are its scheduler's");
  }
  reports::ServingSweep sweep{grid, {}, {}, {}, {}, parse_objective(slo, searches).slo};
  sweep.schedulers = schedulers.empty()
                         ? std::vector<std::string>{""}
                         : reports::parse_method_words(
                               fmt::format("{}", fmt::join(schedulers, ";")), "--scheduler");
  for (const std::string& text : sweep.schedulers) {
    simulate::SchedulerSettings settings;
    if (!text.empty()) simulate::set_scheduler(text, "--scheduler", settings);
  }
  sweep.rates = rates.empty() ? std::vector<double>{0} : parse_rates(rates, "--rate");
  sweep.open = [this](double rate) {
    return workload.open(rate > 0 ? std::optional(rate) : std::nullopt);
  };
  sweep.workload = workload.in_words();
  // What is wrong with it, on any line of a file, is found before the first point.
  const auto all = sweep.open(sweep.rates.front());
  while (workload.is_file() && all->next()) continue;
  return sweep;
}

}  // namespace kvcast::cli
