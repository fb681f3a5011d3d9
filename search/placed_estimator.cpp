#include "search/placed_estimator.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/record/rank_recording.h"
#include "simulate/collectives.h"
#include "simulate/topologies.h"

namespace kvcast::search {
namespace {

using roofline::Configuration;
using roofline::DesignPoint;
using roofline::Estimate;

bool is_placement(const MethodSpec& spec) {
  return find_method(spec.name).kind == MethodKind::Placement;
}

Configuration without_placement(Configuration c) {
  c.methods = kvcast::without_placement(c.methods);
  return c;
}

std::uint64_t largest(const std::vector<Count>& counts, std::span<const std::uint64_t> values) {
  std::uint64_t most = 0;
  for (const Count& count : counts) most = std::max(most, count.at(values));
  return most;
}

/// The first nodes of the configuration's platform, at most `most`, as many as its devices need.
/// A layer leaves in so many messages, each with its latency.
simulate::Platform platform_of(const Configuration& c, std::uint64_t most, double messages = 1) {
  roofline::InterconnectData data = c.interconnect->data();
  data.nodes =
      std::min(most, roofline::divided_up(roofline::all_devices(c), data.devices_per_node));
  if (c.mode == roofline::Mode::SpeedOfLight) {
    data.network_payload_bytes_per_s = data.network_bytes_per_s;
    data.link_latency_s = data.network_latency_s = 0;
  }
  data.link_latency_s *= messages;
  data.network_latency_s *= messages;
  return simulate::node_platform(data);
}

/// The narrowest and longest way from one rank to the next: of all, or of those in the first node.
HardwareLink way_between(const Configuration& c, const simulate::Platform& platform, bool in_node) {
  const roofline::InterconnectData& data = c.interconnect->data();
  const auto group = static_cast<std::uint32_t>(c.parallelism.devices());
  std::uint64_t devices = std::min<std::uint64_t>(roofline::all_devices(c), platform.num_devices());
  if (in_node) devices = std::min(devices, data.devices_per_node);
  HardwareLink way;
  way.name = devices > data.devices_per_node ? "network" : "node";
  way.link = platform_chain(platform, SendOrder::Fifo, exchange_cost(c.hardware, c.mode),
                            static_cast<std::uint32_t>(devices), group)
                 .link;
  const std::string from = "the platform " + data.name;
  way.factors = {{way.name + " bandwidth", way.link.bytes_per_s, 1, "platform", from},
                 {way.name + " latency", way.link.latency_s, 1, "platform", from}};
  return way;
}

/// Programs of ranks of `group` devices each, one behind the other: the first `played` of a rank
/// compute at the same time, and send their parts to their like in another rank. All else is idle.
simulate::Programs on_devices(const simulate::Programs& ranks, std::uint32_t group,
                              std::uint32_t played, std::uint32_t devices) {
  simulate::Programs all{std::vector<simulate::Program>(devices), ranks.labels,
                         (ranks.ranks.size() - 1) * group};
  for (std::size_t rank = 0; rank < ranks.ranks.size(); ++rank) {
    for (std::uint32_t member = 0; member < played; ++member) {
      simulate::Program& program = all.ranks[rank * group + member];
      program = ranks.ranks[rank];
      for (simulate::Instruction& step : program) {
        if (auto* const send = std::get_if<simulate::Send>(&step)) {
          send->to = send->to * group + member;
        } else if (auto* const receive = std::get_if<simulate::Receive>(&step)) {
          receive->from = receive->from * group + member;
        }
      }
    }
  }
  return all;
}

}  // namespace

bool searches_partition(const std::vector<MethodSpec>& methods) {
  const std::pair<std::string, std::string> searched{"partition", "search"};
  return std::any_of(methods.begin(), methods.end(), [&](const MethodSpec& spec) {
    return is_placement(spec) &&
           std::find(spec.options.begin(), spec.options.end(), searched) != spec.options.end();
  });
}

PlacedEstimator::PlacedEstimator(const Configuration& c, const std::optional<HardwareLink>& link)
    : one_device_(without_placement(c)), placement_(find_placement(c.methods)) {
  if (!placement_) return;
  const MethodSpec& spec = *std::find_if(c.methods.begin(), c.methods.end(), is_placement);
  if (placement_->ranks > simulate::max_devices) {
    throw Error("method " + placement_->method, std::to_string(placement_->ranks) + " devices",
                "at most " + std::to_string(simulate::max_devices));
  }
  const std::string& engine = c.engine.name;
  if (placement_->ranks > 1 && c.engine.has_own_steps()) {
    throw Error("method " + placement_->method + " on several devices", "the engine " + engine,
                "ideal or pytorch, because " + engine + " has no such prefill");
  }
  if (placement_->ranks > 1 && c.micro_batches > 1) {
    throw Error("method " + placement_->method, "micro-batches", "the whole batch in each rank");
  }
  const std::vector<std::uint64_t> a_token_each(placement_->ranks, 1);
  RecordOptions options{.logits = c.logits, .find_model = c.find_model};
  if (!c.parallelism.is_one()) options.place = DevicePlace{c.parallelism};
  const Recording& whole = one_device_.device_recording();
  record_rank(whole, c.architecture, c.methods, c.lowering,
              {a_token_each, static_cast<std::size_t>(placement_->ranks) - 1},
              options);  // throws where they do not compose
  if (placement_->ranks == 1) return;

  searches_ = searches_partition(c.methods);
  if (searches_ && placement_->ranks > most_searched_ranks) {
    throw Error(
        "method " + placement_->method,
        std::to_string(placement_->ranks) + " devices to search a partition for",
        "at most " + std::to_string(most_searched_ranks) + ", or partition=even or A/B/...");
  }
  if (spec.name == "tsp") schedule_ = simulate::Schedule::Tsp;
  if (link || c.interconnect == nullptr) {
    link_ = link ? *link : hardware_link(c.hardware, c.mode);
  } else {
    const roofline::InterconnectData& data = c.interconnect->data();
    roofline::check_platform(c);
    const bool crosses = roofline::all_devices(c) > data.devices_per_node;
    const std::uint64_t nodes = simulate::max_devices / data.devices_per_node;
    platform_ = platform_of(c, nodes);
    link_ = way_between(c, *platform_, false);
    const bool has_inner = 2 * c.parallelism.devices() <= data.devices_per_node;
    if (crosses && has_inner) inner_link_ = way_between(c, *platform_, true).link;
    // Above what the simulator takes the ranks are a ring.
    if (roofline::all_devices(c) > platform_->num_devices()) platform_.reset();
    // Below one PCIe switch devices share its link.
    shares_links_ = data.pcie_group > 0;
  }
  if (schedule_ == simulate::Schedule::Tsp && link_.link.exchange.lockstep < 1 &&
      c.hardware.lockstep) {
    const roofline::Sourced& lockstep = *c.hardware.lockstep;
    link_.factors.push_back({"lockstep", 1, link_.link.exchange.lockstep,
                             std::string(roofline::name(lockstep.source)), lockstep.reference});
  }
  // A device of TSP computes what one of a chain does that reads as many keys.
  const ChainPasses chain = record_chain(whole, c.architecture,
                                         kvcast::without_placement(c.methods), c.lowering, options);
  times_ = std::make_unique<simulate::LayerTimes>(
      chain, c.lowering, roofline::in_pass(roofline::rates_of(c), false), c.logits);
  if (c.interconnect != nullptr && !link) {
    messages_ = static_cast<double>(times_->most_messages());
  }
  if (platform_) {
    const std::uint64_t nodes = platform_->num_devices() / c.interconnect->data().devices_per_node;
    platform_ = platform_of(c, nodes, messages_);
  }
  const auto pass = [&](const Graph& graph) {
    const Work work = total_work(roofline::fold(graph, c.lowering));
    return DevicePass{chain.symbols, work.flops, work.bytes(), activation_peaks(graph)};
  };
  middle_ = pass(chain.middle);
  last_ = pass(chain.last);
  decode_peaks_ = activation_peaks(whole.decode());
  const Work base = total_work(roofline::fold(whole.prefill(), c.lowering));
  base_flops_ = base.flops;
  base_bytes_ = base.bytes();
  for (const RecordedPass& helper : whole.helpers()) {
    helper_peaks_.push_back(activation_peaks(helper.graph));
  }
}

simulate::RunResult PlacedEstimator::run(const simulate::LayerTimes& times,
                                         const Partition& tokens) const {
  const ChainLink& link = link_.link;
  const auto ranks = static_cast<std::uint32_t>(tokens.size());
  simulate::Programs programs =
      prefill_programs(simulate::prefill_work(times, schedule_, tokens, link.exchange));
  if (!platform_) {
    const simulate::Platform ring = simulate::make_platform(
        {simulate::TopologyKind::Ring}, ranks, link.bytes_per_s, messages_ * link.latency_s);
    return simulate::Simulation(ring, std::move(programs)).run({.send_order = link.order});
  }
  const auto group = static_cast<std::uint32_t>(one_device_.parallelism().devices());
  const simulate::Simulation simulation(
      *platform_, on_devices(programs, group, shares_links_ ? group : 1, platform_->num_devices()));
  simulate::RunResult all = simulation.run({.send_order = link.order});
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    all.finish_s[rank] = all.finish_s[rank * group];
    all.ranks[rank] = all.ranks[rank * group];
  }
  all.finish_s.resize(ranks);
  all.ranks.resize(ranks);
  all.messages *= group / (shares_links_ ? group : 1);
  all.message_bytes *= group / (shares_links_ ? group : 1);
  return all;
}

PlacedPrefill PlacedEstimator::prefill(const DesignPoint& p, const Estimate& one_device) const {
  PlacedPrefill placed;
  const std::uint64_t read = shared_tokens(one_device_.recording(), p.prompt_len);
  placed.tokens = partition_tokens(*placement_, read);
  if (!helper_peaks_.empty()) {
    placed.helpers_s =
        one_device.ttft_s - one_device.ttft_parts_s[static_cast<std::size_t>(TtftPart::Base)];
  }
  const simulate::LayerTimes times = times_->for_batch(p.batch);
  const ChainLink& link = link_.link;
  if (searches_) {
    placed.found = search_partition(Runahead(times, link), read, placed.tokens.size(),
                                    PartitionAlgorithm::Balance);
    placed.tokens = placed.found->tokens;
  }
  placed.run = run(times, placed.tokens);
  if (searches_ && inner_link_) {  // most of the ways are faster
    PartitionFound found = search_partition(Runahead(times, *inner_link_), read,
                                            placed.tokens.size(), PartitionAlgorithm::Balance);
    found.evaluations += placed.found->evaluations;
    simulate::RunResult other = run(times, found.tokens);
    if (other.ttft_s < placed.run.ttft_s) {
      placed.tokens = found.tokens;
      placed.run = std::move(other);
    }
    placed.found = std::move(found);  // whose bound holds for faster ways too
  }
  placed.without_links_s =
      placed.helpers_s +
      prefill_bounds(times, schedule_, placed.tokens, link.exchange).no_communication_s;
  return placed;
}

void PlacedEstimator::add_devices(const DesignPoint& p, const Partition& tokens,
                                  Estimate& e) const {
  const Recording& whole = one_device_.device_recording();
  const auto group = static_cast<double>(one_device_.parallelism().devices());
  const std::uint64_t read = shared_tokens(whole, p.prompt_len);
  const auto at = [&](std::uint64_t kv_len) {
    return whole.symbols.resolve({p.batch, p.prompt_len, kv_len});
  };
  const SymbolValues at_end = at(checked_add(read, p.output_len));
  // What helper passes leave in a device's memory, and their peak beside that.
  std::uint64_t helper_cache = 0;
  std::uint64_t helper_activations = 0;
  for (std::size_t i = 0; i < helper_peaks_.size(); ++i) {
    const RecordedPass& pass = whole.helpers()[i];
    const SymbolValues last = at(checked_add(pass.first_kv_len.at(at(1)), pass.steps) - 1);
    helper_cache = checked_add(helper_cache, pass.cache_bytes.at(last));
    helper_activations = std::max(helper_activations, largest(helper_peaks_[i], last));
  }
  const bool gathers = schedule_ == simulate::Schedule::Tsp;
  std::uint64_t flops = 0;
  std::uint64_t bytes = 0;
  std::uint64_t most = 0;  // beside the weights
  std::uint64_t boundary = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    boundary += tokens[i];
    const bool is_last = i + 1 == tokens.size();
    const std::uint64_t keys = times_->keys(schedule_, boundary, read);
    const DevicePass& pass = is_last ? last_ : middle_;
    const SymbolValues values = pass.symbols.resolve({p.batch, tokens[i], keys});
    flops = checked_add(flops, pass.flops.at(values));
    bytes = checked_add(bytes, pass.bytes.at(values));
    std::uint64_t activations =
        std::max(largest(pass.activation_peaks, values), helper_activations);
    if (is_last) activations = std::max(activations, largest(decode_peaks_, at_end));
    const std::uint64_t cache =
        whole.kv_cache_bytes.at(is_last ? at_end : at(gathers ? read : boundary));
    most = std::max(most, checked_add(checked_add(cache, helper_cache), activations));
  }
  double helper_flops = 0;
  double helper_bytes = 0;
  if (!whole.helpers().empty()) {  // what one device computes before the base's prefill, each does
    const SymbolValues prefill = at(read);
    const auto ranks = static_cast<double>(tokens.size());
    helper_flops = ranks * (e.prefill_flops - group * static_cast<double>(base_flops_.at(prefill)));
    helper_bytes = ranks * (e.prefill_bytes - group * static_cast<double>(base_bytes_.at(prefill)));
  }
  e.prefill_flops = group * static_cast<double>(flops) + helper_flops;
  e.prefill_bytes = group * static_cast<double>(bytes) + helper_bytes;
  e.devices *= tokens.size();
  e.peak_memory_bytes = e.weight_bytes_per_device + static_cast<double>(most);
  e.fits = e.peak_memory_bytes <= one_device_.rates().memory_capacity_bytes;
}

Estimate PlacedEstimator::spread(Estimate e, const DesignPoint& p,
                                 const PlacedPrefill& placed) const {
  const double plain_ttft_s = e.ttft_speedup * e.ttft_s;
  e.ttft_s = placed.helpers_s + placed.run.ttft_s;
  e.ttft_parts_s[static_cast<std::size_t>(TtftPart::Base)] = placed.run.ttft_s;
  e.ttft_speedup = plain_ttft_s / e.ttft_s;
  // The collectives of the last rank, whose bytes go by its tokens, and the waits for messages.
  const auto read = static_cast<double>(
      std::accumulate(placed.tokens.begin(), placed.tokens.end(), std::uint64_t{0}));
  e.communication_s *= static_cast<double>(placed.tokens.back()) / read;
  e.communication_s += e.ttft_s - placed.without_links_s;
  if (e.ttft_s > 2 * placed.without_links_s) e.ttft_bound = roofline::Bound::Link;
  const double later_s = static_cast<double>(p.output_len - 1) * e.tpot_s;
  e.bound = e.ttft_s > later_s ? e.ttft_bound : e.tpot_bound;
  add_devices(p, placed.tokens, e);
  return e;
}

void PlacedEstimator::check_partition(const DesignPoint& p) const {
  if (placement_) {
    partition_tokens(*placement_, shared_tokens(one_device_.recording(), p.prompt_len));
  }
}

PlacedEstimate PlacedEstimator::at(const DesignPoint& p) const {
  PlacedEstimate e{one_device_.at(p), {}};
  if (is_placed()) {
    PlacedPrefill placed = prefill(p, e);
    return {spread(e, p, placed), std::move(placed)};
  }
  check_partition(p);
  return e;
}

void PlacedEstimator::sweep(std::span<const DesignPoint> points, std::span<Estimate> rows) const {
  KVCAST_ASSERT(points.size() == rows.size());
  if (!is_placed()) {
    for (const DesignPoint& p : points) check_partition(p);
    return one_device_.sweep(points, rows);
  }
  PlacedPrefill placed;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const DesignPoint& p = points[i];
    const bool is_new =
        i == 0 || p.batch != points[i - 1].batch || p.prompt_len != points[i - 1].prompt_len;
    const Estimate e = one_device_.at(p);
    if (is_new) placed = prefill(p, e);
    rows[i] = spread(e, p, placed);
  }
}

}  // namespace kvcast::search
