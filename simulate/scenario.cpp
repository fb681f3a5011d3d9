#include "simulate/scenario.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "simulate/topologies.h"

namespace kvcast::simulate {
namespace {

using nlohmann::json;

constexpr std::uint64_t max_layers = 10000;
constexpr std::size_t max_background_flows = 1000000;

/// 30 years: more is a slip of units, and sums of such times stay far from overflow.
constexpr double max_seconds = 1e9;

bool is_time(const json& value) { return value.is_number() && value.get<double>() >= 0; }

void check_longest(const JsonObject& o, const char* key, double seconds) {
  if (!(seconds <= max_seconds)) o.fail(key, fmt::format("at most {:g} s", max_seconds));
}

double seconds_at(const JsonObject& o, const char* key) {
  if (!is_time(o.at(key))) o.fail(key, "zero or a number of seconds above it");
  check_longest(o, key, o.at(key).get<double>());
  return o.at(key).get<double>();
}

void check_length(const JsonObject& o, const char* key, std::size_t length, std::size_t devices) {
  if (length == devices) return;
  throw Error(o.place_of(key), fmt::format("{} entries", length),
              fmt::format("one for each of the {} devices", devices));
}

std::vector<double> seconds_list(const JsonObject& o, const char* key, std::size_t devices) {
  const json& value = o.at(key);
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_time)) {
    o.fail(key, "a list of seconds, none below zero");
  }
  check_length(o, key, value.size(), devices);
  for (const json& seconds : value) check_longest(o, key, seconds.get<double>());
  return value.get<std::vector<double>>();
}

/// parse(text), with the place in errors.
template <typename Parse>
auto parse_word_at(const JsonObject& o, const char* key, Parse parse) {
  const std::string word = o.text(key);
  try {
    return parse(word);
  } catch (const Error& e) {
    throw Error(o.place_of(key), e);
  }
}

std::uint32_t device_at(const JsonObject& o, const char* key, std::uint32_t devices) {
  const std::uint64_t device = o.whole(key, 0);
  if (device >= devices) o.fail(key, fmt::format("a device from 0 to {}", devices - 1));
  return static_cast<std::uint32_t>(device);
}

std::vector<BackgroundFlow> background_flows(const JsonObject& o, std::uint32_t devices) {
  std::vector<BackgroundFlow> flows;
  if (!o.has("background_flows")) return flows;
  const json& list = o.at("background_flows");
  if (!list.is_array() || list.size() > max_background_flows) {
    o.fail("background_flows", fmt::format("a list of at most {} flows", max_background_flows));
  }
  for (const json& entry : list) {
    const JsonObject flow(entry,
                          fmt::format("{}/{}", o.place_of("background_flows"), flows.size()));
    flows.push_back({seconds_at(flow, "start_s"), device_at(flow, "source", devices),
                     device_at(flow, "destination", devices), flow.whole("bytes")});
    flow.reject_unknown_keys();
    if (flows.back().source == flows.back().destination) {
      flow.fail("destination", "another device than the source");
    }
  }
  return flows;
}

/// 1 and -1 in an order that repeats late, the same everywhere.
double sign(std::size_t i, std::size_t choice) {
  // The finaliser of MurmurHash3 (Appleby, public domain).
  std::uint64_t h = (choice << 32) + i + 1;
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdULL;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return ((h ^ (h >> 33)) & 1) != 0 ? 1 : -1;
}

}  // namespace

Scenario parse_scenario(const json& document, const std::string& place) {
  const JsonObject o(document, place);
  PrefillWork work;
  work.schedule = parse_word_at(o, "schedule", parse_schedule);
  const Topology topology = parse_word_at(o, "topology", parse_topology);
  const std::uint64_t devices = o.whole("devices");
  if (devices > max_devices) o.fail("devices", fmt::format("1 to {}", max_devices));
  const std::uint64_t layers = o.whole("layers");
  if (layers > max_layers) o.fail("layers", fmt::format("1 to {}", max_layers));
  const double link_bytes_per_s = o.positive("link_bytes_per_s");
  if (link_bytes_per_s < least_bytes_per_s) {
    o.fail("link_bytes_per_s", fmt::format("at least {}", least_bytes_per_s));
  }
  const double link_latency_s = seconds_at(o, "link_latency_s");
  work.bytes_per_token = {o.whole("bytes_per_token_layer")};
  work.partition_tokens = o.wholes("partition_tokens");
  check_length(o, "partition_tokens", work.partition_tokens.size(), devices);
  const std::vector<double> before = seconds_list(o, "compute_before_exchange_s", devices);
  const std::vector<double> after = seconds_list(o, "compute_after_exchange_s", devices);
  for (std::size_t i = 0; i < devices; ++i) work.ranks.push_back({0, 0, {{before[i], after[i]}}});
  work.layers.assign(layers, 0);
  if (o.has("all_gather")) work.all_gather = parse_word_at(o, "all_gather", parse_all_gather);
  RunOptions options;
  if (o.has("send_order")) options.send_order = parse_word_at(o, "send_order", parse_send_order);
  const auto num_devices = static_cast<std::uint32_t>(devices);
  options.background = background_flows(o, num_devices);
  if (o.has("message_overhead_s")) options.message_overhead_s = seconds_at(o, "message_overhead_s");
  o.reject_unknown_keys();
  return {std::move(work), make_platform(topology, num_devices, link_bytes_per_s, link_latency_s),
          std::move(options)};
}

Scenario read_scenario(const std::filesystem::path& path) {
  return parse_scenario(read_json_file(path), path.string());
}

double ttft_sensitivity(const Simulation& simulation, const RunOptions& options, double ttft_s) {
  constexpr double epsilon = 1e-9;
  constexpr std::size_t choices = 3;
  RunOptions moved = options;
  moved.record = false;
  if (ttft_s == 0) return 0;
  double largest = 0;
  moved.compute_factors.resize(simulation.platform().num_devices(), 1);
  const std::vector<double> compute = moved.compute_factors;
  moved.bandwidth_factors.resize(simulation.platform().links().size(), 1);
  const std::vector<double> bandwidth = moved.bandwidth_factors;
  for (std::size_t choice = 0; choice < choices; ++choice) {
    for (std::size_t i = 0; i < compute.size(); ++i) {
      moved.compute_factors[i] = compute[i] * (1 + epsilon * sign(i, choice));
    }
    for (std::size_t i = 0; i < bandwidth.size(); ++i) {
      moved.bandwidth_factors[i] = bandwidth[i] * (1 + epsilon * sign(i, choices + choice));
    }
    const double change = simulation.run(moved).ttft_s - ttft_s;
    largest = std::max(largest, std::abs(change) / ttft_s);
  }
  return largest;
}

}  // namespace kvcast::simulate
