#include "simulate/graph_programs.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "model/base/error.h"
#include "roofline/step_cost.h"

namespace kvcast::simulate {
namespace {

using Labels = std::map<std::string, std::uint32_t, std::less<>>;

/// Appends what a rank does to its program.
class Player {
 public:
  Player(Programs& programs, Labels& labels, std::size_t rank)
      : programs_(programs), labels_(labels), program_(programs.ranks[rank]) {}

  void compute(double seconds, double host_s, std::string_view label) {
    program_.push_back(Compute{seconds, index_of(label)});
    device_s_ += seconds;
    host_s_ += host_s;
    computes_ = true;
  }
  void message(Instruction instruction, double host_s) {
    if (computes_) wait_for_host();
    program_.push_back(instruction);
    host_s_ += host_s;
  }
  void host(double seconds) { host_s_ += seconds; }
  void wait_for_host() {
    const double idle_s = roofline::paced_seconds(device_s_, host_s_) - device_s_;
    if (idle_s > 0) program_.push_back(Compute{idle_s, index_of("host")});
    host_s_ = device_s_ = 0;
    computes_ = false;
  }

 private:
  std::uint32_t index_of(std::string_view label) {
    const auto known = labels_.find(label);
    if (known != labels_.end()) return known->second;
    const auto index = static_cast<std::uint32_t>(programs_.labels.size());
    programs_.labels.emplace_back(label);
    labels_.emplace(label, index);
    return index;
  }

  Programs& programs_;
  Labels& labels_;
  Program& program_;
  bool computes_ = false;  ///< since the last message, as the times below
  double device_s_ = 0;
  double host_s_ = 0;
};

std::uint32_t peer(std::uint64_t rank, std::size_t ranks) {
  if (rank < ranks) return static_cast<std::uint32_t>(rank);
  throw Error("a recorded message", fmt::format("rank {}", rank),
              fmt::format("one of {} ranks", ranks));
}

/// The first and the last message of each layer.
std::map<int, std::pair<std::size_t, std::size_t>> exchanges_of(const Graph& graph) {
  std::map<int, std::pair<std::size_t, std::size_t>> exchanges;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    if (!is_message(graph.nodes()[i].op)) continue;
    exchanges.try_emplace(graph.nodes()[i].layer, i, i).first->second.second = i;
  }
  return exchanges;
}

void play(const RankPass& pass, std::size_t ranks, const Lowering& lowering,
          const roofline::Rates& rates, const ExchangeCost& cost, Player& player) {
  const roofline::FoldedGraph folded = roofline::fold_nodes(pass.graph, lowering);
  const std::vector<roofline::LaunchTime> times =
      roofline::launch_times(folded.groups, rates, pass.values);
  const auto exchanges = exchanges_of(pass.graph);
  for (std::size_t i = 0; i < pass.graph.nodes().size(); ++i) {
    const kvcast::Node& node = pass.graph.nodes()[i];
    if (!is_message(node.op)) {
      if (folded.group_of_node[i] == roofline::no_group) continue;  // of the launch before
      const double pace = node.layer == no_layer ? 1 : cost.lockstep;
      const roofline::LaunchTime& t = times[folded.group_of_node[i]];
      player.compute(t.device_s / pace, t.host_s, node.label);
      continue;
    }
    const auto& [first, last] = exchanges.at(node.layer);
    if (i == first) player.host(cost.exchange_s / 2);
    if (const auto* send = std::get_if<kvcast::Send>(&node.op)) {
      const std::uint64_t bytes = pass.graph.tensor(node.output()).bytes().at(pass.values);
      player.message(Send{peer(send->rank, ranks), bytes}, cost.message_s);
    } else {
      const auto& receive = std::get<kvcast::Receive>(node.op);
      player.message(Receive{peer(receive.rank, ranks)}, cost.message_s);
    }
    if (i == last) player.host(cost.exchange_s / 2);
  }
  player.wait_for_host();
}

}  // namespace

Programs graph_programs(std::size_t ranks, const std::function<RankPass(std::size_t)>& pass_of,
                        const Lowering& lowering, const roofline::Rates& rates,
                        const ExchangeCost& cost) {
  Programs programs;
  programs.ranks.resize(ranks);
  Labels labels;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Player player(programs, labels, rank);
    play(pass_of(rank), ranks, lowering, rates, cost, player);
    // The ranks' programs are about as long as the first one.
    if (rank == 0) check_instructions(ranks * programs.ranks[0].size());
  }
  return programs;
}

Programs recorded_programs(const Architecture& architecture, std::vector<MethodSpec> methods,
                           Schedule schedule, const std::vector<std::uint64_t>& partition,
                           const Lowering& lowering, const roofline::Rates& rates,
                           ExchangeCost cost) {
  const std::size_t ranks = partition.size();
  const Recording whole = record(architecture, methods, lowering);
  methods.push_back({std::string(name(schedule)), {{"p", std::to_string(ranks)}}});
  cost.lockstep = exchange_pace(schedule, cost, 0, ranks).lockstep;
  const auto pass_of = [&](std::size_t rank) -> RankPass {
    const RankShare share{partition, rank};
    Recording r = record_rank(whole, architecture, methods, lowering, share);
    return {std::move(r.pass(prefill_name).graph),
            r.symbols.resolve({1, share.tokens(), share.end()})};
  };
  return graph_programs(ranks, pass_of, lowering, rates, cost);
}

}  // namespace kvcast::simulate
