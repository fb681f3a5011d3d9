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

/// Appends what a rank does to its program.
class Player {
 public:
  Player(Programs& programs, std::map<std::string, std::uint32_t, std::less<>>& labels,
         Program& program, double host_operator_s)
      : programs_(programs),
        labels_(labels),
        program_(program),
        host_operator_s_(host_operator_s) {}

  void compute(double seconds, std::string_view label) {
    program_.push_back(Compute{seconds, index_of(label)});
    device_s_ += seconds;
    host_s_ += host_operator_s_;
  }
  void message(Instruction instruction) {
    wait_for_host();
    program_.push_back(instruction);
  }
  void wait_for_host() {
    const double idle_s = roofline::paced_seconds(device_s_, host_s_) - device_s_;
    if (idle_s > 0) program_.push_back(Compute{idle_s, index_of("host")});
    host_s_ = device_s_ = 0;
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
  std::map<std::string, std::uint32_t, std::less<>>& labels_;
  Program& program_;
  double host_operator_s_;
  double device_s_ = 0;  ///< since the last message
  double host_s_ = 0;
};

std::uint32_t peer(std::uint64_t rank, std::size_t ranks) {
  if (rank < ranks) return static_cast<std::uint32_t>(rank);
  throw Error("a recorded message", fmt::format("rank {}", rank),
              fmt::format("one of {} ranks", ranks));
}

/// Programs of ranks whose graphs need not all be there at once.
class GraphPrograms {
 public:
  GraphPrograms(std::size_t ranks, const Lowering& lowering, const roofline::Rates& rates,
                bool block)
      : lowering_(lowering), rates_(rates), block_(block) {
    programs_.ranks.resize(ranks);
  }

  void set_rank(std::size_t rank, const RankPass& pass) {
    const Graph& graph = *pass.graph;
    const std::size_t ranks = programs_.ranks.size();
    const roofline::FoldedGraph folded = roofline::fold_nodes(graph, lowering_);
    std::vector<double> seconds;
    for (const roofline::OpGroup& group : folded.groups) {
      seconds.push_back(roofline::time_of(group, rates_, pass.values).total.value);
    }
    Player player(programs_, labels_, programs_.ranks[rank], rates_.host_operator_latency.value);
    for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
      const Node& node = graph.nodes()[i];
      // The n-th send to a rank is for its n-th receive from the sender: one tag for all.
      if (const auto* send = std::get_if<kvcast::Send>(&node.op)) {
        player.message(
            Send{peer(send->rank, ranks), 0, graph.tensor(node.output()).bytes().at(pass.values)});
        if (block_) player.message(WaitSend{});
      } else if (const auto* receive = std::get_if<kvcast::Receive>(&node.op)) {
        player.message(Receive{peer(receive->rank, ranks), 0});
      } else {
        player.compute(seconds[folded.group_of_node[i]], node.label);
      }
    }
    player.wait_for_host();
    // The ranks' programs are about as long as the first one.
    if (rank == 0) check_instructions(ranks * programs_.ranks[0].size());
  }

  Programs take() { return std::move(programs_); }

 private:
  const Lowering& lowering_;
  const roofline::Rates& rates_;
  bool block_;
  Programs programs_;
  std::map<std::string, std::uint32_t, std::less<>> labels_;
};

}  // namespace

Programs graph_programs(std::span<const RankPass> ranks, const Lowering& lowering,
                        const roofline::Rates& rates, bool block) {
  GraphPrograms programs(ranks.size(), lowering, rates, block);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) programs.set_rank(rank, ranks[rank]);
  return programs.take();
}

Programs recorded_programs(const Architecture& architecture, const std::vector<MethodSpec>& methods,
                           const std::vector<std::uint64_t>& partition, const Lowering& lowering,
                           const roofline::Rates& rates, bool block) {
  const Recording whole = record(architecture, without_placement(methods), lowering);
  GraphPrograms programs(partition.size(), lowering, rates, block);
  for (std::size_t rank = 0; rank < partition.size(); ++rank) {
    const RankShare share{partition, rank};
    const Recording r = record_rank(whole, architecture, methods, lowering, share);
    programs.set_rank(rank, {&r.prefill(), r.symbols.resolve({1, share.tokens(), share.end()})});
  }
  return programs.take();
}

}  // namespace kvcast::simulate
