#include "simulate/noise.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/random.h"
#include "simulate/parallel_for.h"

namespace kvcast::simulate {
namespace {

/// The most for all trials together. Our choice: minutes on two cores.
constexpr std::uint64_t max_flows = 10'000'000;

/// An entry of the text; numbers may be written as 1e8.
struct Entry {
  const char* key;
  double least;
  double most;
  std::variant<std::uint64_t NoiseSpec::*, double NoiseSpec::*> member;
};

const Entry entries[]{{"flows", 0, 1e6, &NoiseSpec::flows},
                      {"bytes", 1, 1e15, &NoiseSpec::bytes},
                      {"rate", 1e-9, 1e12, &NoiseSpec::rate},
                      {"jitter", 0, 0.999, &NoiseSpec::jitter},
                      {"stragglers", 0, 1e6, &NoiseSpec::stragglers},
                      {"slowdown", 1, 1e6, &NoiseSpec::slowdown},
                      {"seed", 0, 9e15, &NoiseSpec::seed},
                      {"trials", 1, 1e7, &NoiseSpec::trials}};

const Entry& entry_of(std::string_view key) {
  std::vector<std::string> known;
  for (const Entry& entry : entries) {
    if (entry.key == key) return entry;
    known.emplace_back(entry.key);
  }
  throw unknown_name("noise option", key, known);
}

void set_entry(const Entry& entry, std::string_view text, NoiseSpec& spec) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const auto* count = std::get_if<std::uint64_t NoiseSpec::*>(&entry.member);
  const bool right = error == std::errc() && stop == end && value >= entry.least &&
                     value <= entry.most && (count == nullptr || value == std::floor(value));
  if (!right) {
    throw Error(fmt::format("noise option '{}'", entry.key), "'" + std::string(text) + "'",
                fmt::format("a {}number from {:g} to {:g}", count != nullptr ? "whole " : "",
                            entry.least, entry.most));
  }
  if (count != nullptr) {
    spec.** count = static_cast<std::uint64_t>(value);
  } else {
    spec.*std::get<double NoiseSpec::*>(entry.member) = value;
  }
}

}  // namespace

NoiseSpec parse_noise(std::string_view text) {
  NoiseSpec spec;
  std::set<std::string_view> seen;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view option = rest.substr(0, comma);
    const std::size_t equals = option.find('=');
    const std::string_view key = option.substr(0, equals);
    const bool has_value = equals != std::string_view::npos;
    set_entry(entry_of(key), has_value ? option.substr(equals + 1) : std::string_view(), spec);
    if (!seen.insert(key).second) {
      throw Error("noise option '" + std::string(key) + "' given twice; expected once");
    }
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  if ((spec.flows > 0) != (spec.bytes > 0)) {
    throw Error("got '" + std::string(text) + "', expected both flows=N and bytes=B");
  }
  if (spec.flows * spec.trials > max_flows) {
    throw Error(fmt::format("got {} flows in {} trials, expected at most {} flows in all",
                            spec.flows, spec.trials, max_flows));
  }
  if ((spec.stragglers > 0) != (spec.slowdown > 0)) {
    throw Error("got '" + std::string(text) + "', expected both stragglers=N and slowdown=F");
  }
  if (spec.flows == 0 && spec.jitter == 0 && spec.stragglers == 0) {
    throw Error("got '" + std::string(text) +
                "', expected flows=N,bytes=B, jitter=F or stragglers=N,slowdown=F");
  }
  return spec;
}

std::string to_string(const NoiseSpec& s) {
  std::string text;
  for (const Entry& entry : entries) {
    std::visit(
        [&](const auto member) {
          const bool is_given = s.*member != NoiseSpec{}.*member;
          if (!is_given && entry.key != std::string_view("seed") &&
              entry.key != std::string_view("trials")) {
            return;
          }
          text += fmt::format("{}{}={}", text.empty() ? "" : ",", entry.key, s.*member);
        },
        entry.member);
  }
  return text;
}

RunOptions noisy_options(const NoiseSpec& spec, std::uint64_t trial, const Simulation& simulation,
                         const RunOptions& quiet, double quiet_makespan_s) {
  const Platform& platform = simulation.platform();
  RunOptions options = quiet;
  options.record = false;
  Random random(spec.seed, trial);
  options.bandwidth_factors.resize(platform.links().size(), 1);
  for (double& factor : options.bandwidth_factors) factor *= 1 - spec.jitter * random.uniform();
  const std::uint32_t devices = platform.num_devices();
  if (spec.stragglers > 0) {
    options.compute_factors.resize(devices, 1);
    std::vector<std::uint32_t> others = simulation.busy_ranks();
    for (std::uint64_t i = 0; i < spec.stragglers && !others.empty(); ++i) {
      const std::uint32_t chosen = random.below(static_cast<std::uint32_t>(others.size()));
      options.compute_factors[others[chosen]] *= spec.slowdown;
      others.erase(others.begin() + chosen);
    }
  }
  if (devices < 2) return options;
  double start_s = 0;
  for (std::uint64_t i = 0; i < spec.flows; ++i) {
    if (spec.rate > 0) {
      start_s += -std::log1p(-random.uniform()) / spec.rate;
    } else {
      start_s = random.uniform() * quiet_makespan_s;
    }
    const std::uint32_t source = random.below(devices);
    const std::uint32_t step = random.below(2) == 0 ? 1 : devices - 1;
    options.background.push_back({start_s, source, (source + step) % devices, spec.bytes});
  }
  return options;
}

NoiseResult run_noise(const Simulation& simulation, const RunOptions& quiet, const NoiseSpec& spec,
                      const std::function<void(std::uint64_t)>& on_trial, unsigned threads) {
  NoiseResult result;
  result.ttft_s.resize(spec.trials);
  RunOptions unrecorded = quiet;
  unrecorded.record = false;
  const double makespan_s = simulation.run(unrecorded).makespan_s;
  const auto run_trial = [&](std::size_t trial) {
    result.ttft_s[trial] =
        simulation.run(noisy_options(spec, trial, simulation, unrecorded, makespan_s)).ttft_s;
  };
  parallel_for(spec.trials, threads, run_trial, on_trial);
  double sum = 0;
  for (const double s : result.ttft_s) sum += s;
  const auto n = static_cast<double>(spec.trials);
  result.mean_s = sum / n;
  double squares = 0;
  for (const double s : result.ttft_s) squares += (s - result.mean_s) * (s - result.mean_s);
  result.deviation_s = spec.trials > 1 ? std::sqrt(squares / (n - 1)) : 0;
  return result;
}

}  // namespace kvcast::simulate
