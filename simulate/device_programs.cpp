#include "simulate/device_programs.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <variant>

#include <fmt/format.h>

#include "model/base/error.h"
#include "roofline/interconnect.h"
#include "roofline/step_cost.h"
#include "simulate/collectives.h"

namespace kvcast::simulate {
namespace {

using roofline::Configuration;
using roofline::DesignPoint;

std::uint32_t label_of(Programs& programs, std::string_view label) {
  const auto known = std::find(programs.labels.begin(), programs.labels.end(), label);
  if (known == programs.labels.end()) programs.labels.emplace_back(label);
  return static_cast<std::uint32_t>(
      std::find(programs.labels.begin(), programs.labels.end(), label) - programs.labels.begin());
}

/// The devices of one stage, which do the same.
class StagePlayer {
 public:
  StagePlayer(const Configuration& c, std::uint64_t stage, Programs& programs)
      : c_(c),
        size_(c.parallelism.of_stage()),
        first_(stage * size_),
        recording_(
            roofline::record_for(c, DevicePlace{c.parallelism, first_, c.stage_layers}).whole),
        rates_(roofline::in_pass(roofline::rates_of(c), false)),
        folded_(roofline::fold_nodes(recording_.prefill(), c.lowering)),
        programs_(programs) {
    if (!recording_.helpers().empty()) {
      throw Error("methods " + to_string(c.methods), "passes of a helper model",
                  "methods without, or kvcast estimate");
    }
  }

  void play(std::uint64_t batch, std::uint64_t prompt_len) {
    const SymbolValues values = recording_.symbols.resolve({batch, prompt_len, prompt_len});
    std::vector<double> seconds;
    double host_s = 0;
    double device_s = 0;
    for (const roofline::OpGroup& group : folded_.groups) {
      roofline::OpGroup on_device = group;
      on_device.collective.reset();
      const bool works = !group.collective || !group.work.bytes().is_zero();
      seconds.push_back(works ? roofline::time_of(on_device, rates_, values).total.value : 0);
      host_s += static_cast<double>(group.count) * rates_.host_operator_latency.value;
      device_s += static_cast<double>(group.count) * seconds.back();
    }
    compute(rates_.host.step.value + static_cast<double>(batch) * rates_.host.sequence.value,
            "host");
    compute(std::max(0.0, host_s - device_s), "host");
    const Graph& graph = recording_.prefill();
    double busy_s = 0;
    std::string_view label;
    const auto end_of_work = [&] {
      compute(busy_s, label);
      busy_s = 0;
    };
    for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
      const kvcast::Node& node = graph.nodes()[i];
      if (is_message(node.op)) {
        end_of_work();
        message(graph, node, values);
        continue;
      }
      const std::size_t group = folded_.group_of_node[i];
      if (group == roofline::no_group) continue;  // of the launch before
      busy_s += seconds[group];
      label = node.phase;
      if (!folded_.groups[group].collective) continue;
      end_of_work();
      exchange(*folded_.groups[group].collective, values);
    }
    end_of_work();
  }

 private:
  void compute(double seconds, std::string_view label) {
    if (seconds <= 0) return;
    const std::uint32_t index = label_of(programs_, label);
    for (std::uint64_t d = 0; d < size_; ++d) {
      programs_.ranks[first_ + d].push_back(Compute{seconds, index});
    }
  }
  /// To or from the device in the same place of the next or previous stage.
  void message(const Graph& graph, const kvcast::Node& node,
               std::span<const std::uint64_t> values) {
    for (std::uint64_t d = 0; d < size_; ++d) {
      if (std::holds_alternative<kvcast::Send>(node.op)) {
        const std::uint64_t bytes = graph.tensor(node.output()).bytes().at(values);
        programs_.ranks[first_ + d].push_back(
            Send{static_cast<std::uint32_t>(first_ + size_ + d), bytes});
      } else {
        programs_.ranks[first_ + d].push_back(
            Receive{static_cast<std::uint32_t>(first_ - size_ + d)});
      }
    }
  }
  /// In every group of the stage like that of the first device.
  void exchange(const roofline::CollectiveCall& call, std::span<const std::uint64_t> values) {
    if (call.group.size > 1) compute(rates_.collectives.wait.value, "wait");
    const std::uint64_t bytes = call.bytes.at(values);
    for (std::uint64_t d = 0; d < size_; d += call.group.size) {
      append_collective(*c_.interconnect, call.kind,
                        {call.group.size, call.group.stride, first_ + d}, c_.engine.collectives,
                        bytes, programs_);
    }
  }

  const Configuration& c_;
  std::uint64_t size_;
  std::uint64_t first_;
  Recording recording_;
  roofline::Rates rates_;
  roofline::FoldedGraph folded_;
  Programs& programs_;
};

}  // namespace

Programs device_programs(const Configuration& c, const DesignPoint& point) {
  const Parallelism& p = c.parallelism;
  KVCAST_ASSERT(c.interconnect != nullptr);
  if (c.engine.prefill_tokens > 0) {
    throw Error("simulate prefill: the engine " + c.engine.name,
                "prompts that are read in several steps", "--engine ideal or pytorch");
  }
  if (p.pp == 1 && c.micro_batches > 1) {
    throw Error("simulate prefill", "micro-batches that overlap on one stage", "--pp above 1");
  }
  Programs programs;
  programs.ranks.resize(c.interconnect->devices());
  const std::uint64_t own = roofline::divided_up(point.batch, p.dp);
  programs.answers_from = p.devices() - p.of_stage();  // where devices are left out, they end at 0
  const roofline::MicroBatches micro(own, p.pp == 1             ? 1
                                          : c.micro_batches > 0 ? c.micro_batches
                                                                : p.pp);
  for (std::uint64_t stage = 0; stage < p.pp; ++stage) {
    StagePlayer player(c, stage, programs);
    for (std::uint64_t i = 0; i < micro.number; ++i) {
      player.play(i < micro.num_large() ? micro.large : micro.small(), point.prompt_len);
      check_instructions(programs.num_instructions());
    }
  }
  return programs;
}

}  // namespace kvcast::simulate
