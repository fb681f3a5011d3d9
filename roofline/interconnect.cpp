#include "roofline/interconnect.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/words.h"

namespace kvcast::roofline {
namespace {

constexpr Words<CollectiveAlgorithm, 7> algorithms = {{{CollectiveAlgorithm::None, "none"},
                                                       {CollectiveAlgorithm::Ring, "ring"},
                                                       {CollectiveAlgorithm::Tree, "tree"},
                                                       {CollectiveAlgorithm::OneShot, "one_shot"},
                                                       {CollectiveAlgorithm::TwoShot, "two_shot"},
                                                       {CollectiveAlgorithm::InSwitch, "in_switch"},
                                                       {CollectiveAlgorithm::Direct, "direct"}}};

/// A cluster's stages overlap in so many parts at most; libraries choose alike from the size.
constexpr std::array<std::uint64_t, 5> chunk_counts{1, 2, 4, 8, 16};
const std::string nccl = "nccl";
constexpr std::array<std::string_view, 2> engines_with_kernels{"trtllm", "vllm"};

bool does(CollectiveAlgorithm algorithm, CollectiveKind kind) {
  switch (algorithm) {
    case CollectiveAlgorithm::Ring:
    case CollectiveAlgorithm::Tree: return kind != CollectiveKind::AllToAll;
    case CollectiveAlgorithm::OneShot:
    case CollectiveAlgorithm::TwoShot:
    case CollectiveAlgorithm::InSwitch: return kind == CollectiveKind::AllReduce;
    case CollectiveAlgorithm::Direct: return kind == CollectiveKind::AllToAll;
    case CollectiveAlgorithm::None: return false;
  }
  return false;
}

/// Linear between measured sizes, constant below the first, at the last segment's rate beyond.
double table_seconds(const CollectiveTable& table, double bytes) {
  if (bytes <= table.front().first) return table.front().second;
  std::size_t i = 1;
  while (i + 1 < table.size() && table[i].first < bytes) ++i;
  const auto [b0, s0] = table[i - 1];
  const auto [b1, s1] = table[i];
  return s0 + (bytes - b0) / (b1 - b0) * (s1 - s0);
}

/// Noise only adds time: what more bytes took less time for is held to that.
CollectiveTable ascending(CollectiveTable table) {
  for (std::size_t i = table.size() - 1; i-- > 0;) {
    table[i].second = std::min(table[i].second, table[i + 1].second);
  }
  return table;
}

void check(bool right, const std::string& name, std::string_view what, double found,
           std::string_view expected) {
  if (!right) throw Error("platform " + name, fmt::format("{} {}", what, found), expected);
}

}  // namespace

CollectiveKind parse_operation(std::string_view word) {
  std::vector<std::string> names;
  for (const CollectiveKind kind : {CollectiveKind::AllReduce, CollectiveKind::ReduceScatter,
                                    CollectiveKind::AllGather, CollectiveKind::AllToAll}) {
    if (word == kvcast::name(kind)) return kind;
    names.emplace_back(kvcast::name(kind));
  }
  throw unknown_name("operation", word, names);
}

CollectiveCurve::CollectiveCurve(const std::function<double(double)>& seconds) {
  for (int octave = 0; octave <= 40; ++octave) {
    for (int quarter = 0; quarter < 4; ++quarter) {
      seconds_.push_back(seconds(std::ldexp(1 + 0.25 * quarter, octave)));
      if (octave == 40) break;
    }
  }
  for (std::size_t i = seconds_.size() - 1; i-- > 0;) {
    seconds_[i] = std::min(seconds_[i], seconds_[i + 1]);
  }
}

double CollectiveCurve::beyond(double bytes) const {
  const double last = std::ldexp(1, 40);
  const double slope = (seconds_.back() - seconds_[seconds_.size() - 2]) / (last / 8);
  return seconds_.back() + slope * (bytes - last);
}

std::string_view name(CollectiveAlgorithm algorithm) { return word_for(algorithm, algorithms); }

double steps(CollectiveAlgorithm algorithm, CollectiveKind kind, std::uint64_t ranks) {
  const auto p = static_cast<double>(ranks);
  const double ways = kind == CollectiveKind::AllReduce ? 2 : 1;
  switch (algorithm) {
    case CollectiveAlgorithm::None: return 0;
    case CollectiveAlgorithm::Ring: return ways * (p - 1);
    case CollectiveAlgorithm::Tree: return ways * std::ceil(std::log2(p));
    case CollectiveAlgorithm::OneShot:
    case CollectiveAlgorithm::Direct: return 1;
    case CollectiveAlgorithm::TwoShot:
    case CollectiveAlgorithm::InSwitch: return 2;
  }
  return 0;
}

double volume(CollectiveAlgorithm algorithm, CollectiveKind kind, std::uint64_t ranks) {
  const auto p = static_cast<double>(ranks);
  const double ways = kind == CollectiveKind::AllReduce ? 2 : 1;
  switch (algorithm) {
    case CollectiveAlgorithm::None: return 0;
    case CollectiveAlgorithm::OneShot: return p - 1;
    case CollectiveAlgorithm::InSwitch: return 1 + 1 / p;
    case CollectiveAlgorithm::Ring:
    case CollectiveAlgorithm::Tree:
    case CollectiveAlgorithm::TwoShot:
    case CollectiveAlgorithm::Direct: return ways * (p - 1) / p;
  }
  return 0;
}

bool AlgorithmCost::takes(std::uint64_t ranks, double bytes) const {
  if (limits.empty()) return true;
  for (const Limit& limit : limits) {
    if (ranks <= limit.devices) return bytes < static_cast<double>(limit.bytes);
  }
  return false;
}

double AlgorithmCost::seconds(CollectiveKind kind, std::uint64_t ranks, double bytes) const {
  double best = std::numeric_limits<double>::infinity();
  for (const Protocol& protocol : protocols) {
    best = std::min(best, start_s + steps(algorithm, kind, ranks) * protocol.step_s +
                              volume(algorithm, kind, ranks) * bytes / protocol.bytes_per_s);
  }
  return best;
}

Interconnect::Interconnect(InterconnectData data) : data_(std::move(data)) {
  InterconnectData& d = data_;
  if (d.devices_per_node == 0 || d.nodes == 0) {
    throw Error("platform " + d.name,
                fmt::format("{} nodes of {} devices", d.nodes, d.devices_per_node), "at least one");
  }
  check(d.link_bytes_per_s > 0, d.name, "bandwidth", d.link_bytes_per_s, "more than 0");
  check(d.link_latency_s >= 0, d.name, "latency", d.link_latency_s, "0 or more");
  check(d.host_bytes_per_s > 0, d.name, "host memory", d.host_bytes_per_s, "more than 0");
  if (d.nodes > 1) {
    check(d.network_bytes_per_s > 0, d.name, "network bandwidth", d.network_bytes_per_s,
          "more than 0");
    check(d.network_payload_bytes_per_s > 0, d.name, "network payload",
          d.network_payload_bytes_per_s, "more than 0");
    check(d.network_latency_s >= 0, d.name, "network latency", d.network_latency_s, "0 or more");
  }
  // What no measured algorithm takes in any size follows the pure alpha-beta model.
  std::vector<AlgorithmCost>& plain = d.libraries[nccl];
  const AlgorithmCost::Protocol pure{2 * d.link_latency_s, d.link_bytes_per_s};
  const auto has = [&plain](CollectiveAlgorithm a) {
    return std::any_of(plain.begin(), plain.end(), [a](const AlgorithmCost& cost) {
      return cost.algorithm == a && cost.limits.empty() && !cost.whole_node;
    });
  };
  if (!has(CollectiveAlgorithm::Ring)) plain.push_back({CollectiveAlgorithm::Ring, 0, {pure}});
  if (!has(CollectiveAlgorithm::Direct)) plain.push_back({CollectiveAlgorithm::Direct, 0, {pure}});
  for (auto& [key, table] : d.tables) table = ascending(std::move(table));
}

Interconnect::Spread Interconnect::spread(const RankGroup& group) const {
  if (group.size == 0 || group.member(group.size - 1) >= devices()) {
    throw Error("platform " + name(),
                fmt::format("a group of {} ranks up to rank {}", group.size,
                            group.size == 0 ? 0 : group.member(group.size - 1)),
                fmt::format("ranks below its {} devices", devices()));
  }
  std::map<std::uint64_t, std::uint64_t> on_node;
  for (std::uint64_t i = 0; i < group.size; ++i) {
    ++on_node[group.member(i) / data_.devices_per_node];
  }
  const std::uint64_t members = on_node.begin()->second;
  const bool even = std::all_of(on_node.begin(), on_node.end(),
                                [members](const auto& entry) { return entry.second == members; });
  Spread s{members, on_node.size(), members, on_node.size()};
  for (const auto& [node, ranks] : on_node) s.most_members = std::max(s.most_members, ranks);
  // Where nodes have unequal parts, all of it goes at the network's rate.
  if (!even) {
    s.members = 1;
    s.nodes = group.size;
  }
  return s;
}

const std::string& Interconnect::checked_library(const std::string& library) const {
  if (library.empty() || library == nccl) return nccl;
  if (data_.libraries.contains(library)) return library;
  std::vector<std::string> names{nccl};
  for (const std::string_view engine : engines_with_kernels) {
    // Their own kernels need every device to read every other one's memory.
    if (library == engine) return nccl;
    names.emplace_back(engine);
  }
  throw Error(unknown_name("library", library, names).what() + (" on platform " + name()));
}

double Interconnect::on_link(CollectiveKind kind, Spread s) const {
  const double m = static_cast<double>(s.most_members);
  const double n = static_cast<double>(s.true_nodes);
  double on_link = volume(CollectiveAlgorithm::Ring, kind, s.most_members);
  if (kind == CollectiveKind::AllToAll) on_link = (m - 1) / (m * n);
  for (const AlgorithmCost& cost : data_.libraries.at(nccl)) {
    if (cost.algorithm == CollectiveAlgorithm::InSwitch && kind == CollectiveKind::AllReduce &&
        s.most_members > 1) {
      on_link = std::min(on_link, volume(cost.algorithm, kind, s.most_members));
    }
  }
  return on_link;
}

double Interconnect::least(CollectiveKind kind, Spread s, double bytes) const {
  const double m = static_cast<double>(s.most_members);
  const double n = static_cast<double>(s.true_nodes);
  double seconds = on_link(kind, s) * bytes / data_.link_bytes_per_s;
  if (s.true_nodes > 1) {
    const double share = kind == CollectiveKind::AllToAll
                             ? (n - 1) / n
                             : volume(CollectiveAlgorithm::Ring, kind, s.true_nodes) / m;
    seconds = std::max(seconds, share * bytes / data_.network_bytes_per_s);
  }
  return seconds;
}

double Interconnect::start_s(CollectiveAlgorithm algorithm) const {
  for (const AlgorithmCost& cost : data_.libraries.at(nccl)) {
    if (cost.algorithm == algorithm) return cost.start_s;
  }
  return 0;
}

Interconnect::Cost Interconnect::form(CollectiveKind kind, std::uint64_t ranks,
                                      const std::string& library, double bytes) const {
  if (library != nccl) {
    for (const AlgorithmCost& cost : data_.libraries.at(library)) {
      if (does(cost.algorithm, kind) && cost.takes(ranks, bytes)) {
        return {cost.algorithm, cost.seconds(kind, ranks, bytes)};
      }
    }
  }
  Cost best{CollectiveAlgorithm::None, std::numeric_limits<double>::infinity()};
  for (const AlgorithmCost& cost : data_.libraries.at(nccl)) {
    const bool part = cost.whole_node && ranks < data_.devices_per_node;
    if (!does(cost.algorithm, kind) || part || !cost.takes(ranks, bytes)) continue;
    double seconds = cost.seconds(kind, ranks, bytes);
    if (kind == CollectiveKind::AllToAll && data_.pcie_group > 0) {
      // All that leaves a group of the tree shares its link upwards.
      const auto p = static_cast<double>(ranks);
      const double group = std::min(p, static_cast<double>(data_.pcie_group));
      seconds = std::max(seconds, cost.start_s + 4 * data_.link_latency_s +
                                      group * (p - group) / p * bytes / data_.link_bytes_per_s);
    }
    if (seconds < best.seconds) best = {cost.algorithm, seconds};
  }
  return best;
}

Interconnect::Cost Interconnect::inside(CollectiveKind kind, std::uint64_t ranks,
                                        const std::string& library, double bytes) const {
  if (ranks == 1) return {};
  const bool has_own =
      std::any_of(data_.tables.begin(), data_.tables.end(), [&](const auto& entry) {
        return std::get<0>(entry.first) == library && std::get<1>(entry.first) == kind;
      });
  const std::string& measured_library = has_own ? library : nccl;
  Cost cost = form(kind, ranks, library, bytes);
  // The nearest measured group sizes below and above.
  const std::pair<const std::tuple<std::string, CollectiveKind, std::uint64_t>, CollectiveTable>*
      below = nullptr;
  decltype(below) above = nullptr;
  for (const auto& entry : data_.tables) {
    const auto& [of_library, of_kind, of_ranks] = entry.first;
    if (of_library != measured_library || of_kind != kind) continue;
    if (of_ranks <= ranks) below = &entry;
    if (of_ranks >= ranks && above == nullptr) above = &entry;
  }
  if (below == nullptr) below = above;
  if (above == nullptr) above = below;
  if (below == nullptr) return cost;
  if (below == above && std::get<2>(below->first) == ranks) {
    return {cost.algorithm, table_seconds(below->second, bytes), true};
  }
  // Between them the form gives the change with the number of ranks and they the level.
  const auto ratio = [&](const auto& entry) {
    return std::log(table_seconds(entry.second, bytes) /
                    form(kind, std::get<2>(entry.first), measured_library, bytes).seconds);
  };
  const double low = ratio(*below);
  const double high = ratio(*above);
  const double at =
      below == above
          ? 0
          : std::log(static_cast<double>(ranks) / static_cast<double>(std::get<2>(below->first))) /
                std::log(static_cast<double>(std::get<2>(above->first)) /
                         static_cast<double>(std::get<2>(below->first)));
  cost.seconds *= std::exp(low + at * (high - low));
  return cost;
}

Interconnect::Cost Interconnect::between(CollectiveKind kind, std::uint64_t nodes,
                                         double bytes) const {
  if (nodes == 1) return {};
  Cost best{CollectiveAlgorithm::None, std::numeric_limits<double>::infinity()};
  for (const CollectiveAlgorithm a : {CollectiveAlgorithm::Ring, CollectiveAlgorithm::Tree}) {
    if (a == CollectiveAlgorithm::Tree && !std::has_single_bit(nodes)) continue;
    const double seconds = steps(a, kind, nodes) * 2 * data_.network_latency_s +
                           volume(a, kind, nodes) * bytes / data_.network_payload_bytes_per_s;
    if (seconds < best.seconds) best = {a, seconds};
  }
  return best;
}

CollectivePlan Interconnect::plan_of(CollectiveKind kind, Spread s, const std::string& library,
                                     double bytes) const {
  CollectivePlan plan{kind, bytes, s.members, s.nodes};
  if (s.nodes == 1) {
    const Cost cost = inside(kind, s.members, library, bytes);
    plan.inside = cost.algorithm;
    plan.measured = cost.measured;
    plan.seconds = cost.seconds;
  } else {
    plan = across_nodes(kind, s, bytes);
  }
  const double through_host = static_cast<double>(s.most_members) * on_link(kind, s) * bytes;
  plan.seconds = std::max(plan.seconds, through_host / data_.host_bytes_per_s);
  return plan;
}

CollectivePlan Interconnect::across_nodes(CollectiveKind kind, Spread s, double bytes) const {
  CollectivePlan plan{kind, bytes, s.members, s.nodes};
  const double m = static_cast<double>(s.members);
  if (kind == CollectiveKind::AllToAll) {
    plan.inside = plan.between = CollectiveAlgorithm::Direct;
    const double ranks = m * static_cast<double>(s.nodes);
    double on_link = 0;
    double start = 0;
    for (const AlgorithmCost& cost : data_.libraries.at(nccl)) {
      if (cost.algorithm != CollectiveAlgorithm::Direct) continue;
      double best = std::numeric_limits<double>::infinity();
      for (const AlgorithmCost::Protocol& p : cost.protocols) {
        best = std::min(best, p.step_s + (m - 1) / ranks * bytes / p.bytes_per_s);
      }
      on_link = best;
      start = cost.start_s;
    }
    const double on_network = (ranks - m) / ranks * bytes / data_.network_payload_bytes_per_s;
    plan.seconds = start + 2 * data_.network_latency_s + std::max(on_link, on_network);
    return plan;
  }
  if (s.members == 1) {
    const Cost cost = between(kind, s.nodes, bytes);
    plan.between = cost.algorithm;
    plan.seconds = start_s(CollectiveAlgorithm::Ring) + cost.seconds;
    return plan;
  }
  // Part after part goes through the stages; the first and the last stage share a device's link.
  plan.seconds = std::numeric_limits<double>::infinity();
  const bool scatters = kind != CollectiveKind::AllGather;
  const bool gathers = kind != CollectiveKind::ReduceScatter;
  for (const std::uint64_t chunks : chunk_counts) {
    const double part = bytes / static_cast<double>(chunks);
    const Cost scatter =
        scatters ? inside(CollectiveKind::ReduceScatter, s.members, nccl, part) : Cost{};
    const Cost gather = gathers ? inside(CollectiveKind::AllGather, s.members, nccl, part) : Cost{};
    const Cost middle = between(kind, s.nodes, part / m);
    double seconds = 0;
    const std::uint64_t first = scatters ? 1 : 0;
    for (std::uint64_t slot = 0; slot < chunks + first + (gathers ? 1 : 0); ++slot) {
      double on_link = 0;
      if (scatters && slot < chunks) on_link += scatter.seconds;
      if (gathers && slot >= first + 1) on_link += gather.seconds;
      const bool crosses = slot >= first && slot < first + chunks;
      seconds += std::max(on_link, crosses ? middle.seconds : 0);
    }
    if (seconds < plan.seconds) {
      plan.seconds = seconds;
      plan.chunks = chunks;
      plan.inside = scatters ? scatter.algorithm : gather.algorithm;
      plan.between = middle.algorithm;
      plan.measured = false;
    }
  }
  return plan;
}

CollectivePlan Interconnect::plan(CollectiveKind kind, const RankGroup& group,
                                  const std::string& library, double bytes) const {
  return plan_of(kind, spread(group), checked_library(library), bytes);
}

CollectiveCurve Interconnect::curve(CollectiveKind kind, const RankGroup& group,
                                    const std::string& library, Mode mode) const {
  const std::string& known = checked_library(library);
  const Spread s = spread(group);
  if (group.size == 1) return {};
  if (mode == Mode::SpeedOfLight) {
    return CollectiveCurve([&](double bytes) { return least(kind, s, bytes); });
  }
  return CollectiveCurve([&](double bytes) { return plan_of(kind, s, known, bytes).seconds; });
}

CollectiveCurve Interconnect::point_to_point(std::uint64_t from, std::uint64_t to,
                                             Mode mode) const {
  if (from >= devices() || to >= devices()) {
    throw Error("platform " + name(), fmt::format("a message from {} to {}", from, to),
                fmt::format("two of its {} devices", devices()));
  }
  if (from == to) return {};
  const bool inner = from / data_.devices_per_node == to / data_.devices_per_node;
  if (mode == Mode::SpeedOfLight) {
    const double rate = inner ? data_.link_bytes_per_s : data_.network_bytes_per_s;
    return CollectiveCurve([rate](double bytes) { return bytes / rate; });
  }
  if (inner) {
    // An all-to-all of two exchanges half of each buffer: a send and a receive.
    return CollectiveCurve([this](double bytes) {
      return inside(CollectiveKind::AllToAll, 2, nccl, 2 * bytes).seconds;
    });
  }
  const double start = start_s(CollectiveAlgorithm::Direct);
  return CollectiveCurve([this, start](double bytes) {
    return start + 2 * data_.network_latency_s + bytes / data_.network_payload_bytes_per_s;
  });
}

}  // namespace kvcast::roofline
