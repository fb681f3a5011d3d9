#include "simulate/device_programs.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/record/rank_recording.h"
#include "roofline/interconnect.h"
#include "roofline/step_cost.h"
#include "simulate/collectives.h"

namespace kvcast::simulate {
namespace {

using roofline::Configuration;
using roofline::DesignPoint;
using roofline::Forecaster;

/// A token of a sequence as engines send it: an int32.
constexpr std::uint64_t bytes_per_token = 4;

std::uint32_t label_of(Programs& programs, std::string_view label) {
  const auto known = std::find(programs.labels.begin(), programs.labels.end(), label);
  if (known == programs.labels.end()) programs.labels.emplace_back(label);
  return static_cast<std::uint32_t>(
      std::find(programs.labels.begin(), programs.labels.end(), label) - programs.labels.begin());
}

/// Devices that do the same: those of a pipeline's stage, or of a rank of a placement.
class GroupPlayer {
 public:
  GroupPlayer(const Configuration& c, std::uint64_t group, Programs& programs)
      : c_(c), size_(c.parallelism.of_stage()), first_(group * size_), programs_(programs) {}

  /// A recorded pass at the values of its symbols, by `batch` sequences. Its host waits for the
  /// messages that come first, and issues nothing ahead of any later one, but for collectives.
  void play(const Graph& graph, bool decodes, std::uint64_t batch, const SymbolValues& values) {
    const Compiled& pass = compiled(graph, decodes);
    const roofline::HostTimes& host = pass.rates.host;
    const std::vector<roofline::LaunchTime> times =
        roofline::launch_times(pass.folded.groups, pass.rates, values);
    double before_s = host.step.value + static_cast<double>(batch) * host.sequence.value;
    double busy_s = 0;
    double host_s = 0;  // since the last message, as the next one
    double device_s = 0;
    std::string_view label;
    const auto end_of_work = [&] {
      compute(busy_s, label);
      busy_s = 0;
    };
    const auto wait_for_host = [&] {
      end_of_work();
      compute(roofline::paced_seconds(device_s, host_s) - device_s, "host");
      host_s = device_s = 0;
    };
    for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
      const kvcast::Node& node = graph.nodes()[i];
      if (is_message(node.op)) {
        wait_for_host();
        message(graph, node, values);
        continue;
      }
      compute(std::exchange(before_s, 0), "host");
      const std::size_t group = pass.folded.group_of_node[i];
      if (group == roofline::no_group) continue;  // of the launch before
      busy_s += times[group].device_s;
      device_s += times[group].device_s + times[group].collective_s;
      host_s += times[group].host_s;
      label = decodes ? decode_name : std::string_view(node.phase);
      if (!pass.folded.groups[group].collective) continue;
      end_of_work();
      exchange(*pass.folded.groups[group].collective, pass.rates.collectives.wait, values);
    }
    wait_for_host();
    check_instructions(programs_.num_instructions());
  }
  /// The helper passes of a prompt.
  void play_helpers(const Recording& r, const DesignPoint& p) {
    for (const RecordedPass& pass : r.helpers()) {
      const SymbolValues at = r.symbols.resolve({p.batch, p.prompt_len, 1});
      if (pass.steps == 0 || pass.tokens.at(at) == 0) continue;
      for (std::uint64_t step = 0; step < pass.steps; ++step) {
        const std::uint64_t kv_len = pass.first_kv_len.at(at) + step;
        play(pass.graph, pass.tokens == Count(1), p.batch,
             r.symbols.resolve({p.batch, p.prompt_len, kv_len}));
      }
    }
  }
  /// One of the steps after the first token; the first of them is 1.
  void play_decode(const Recording& r, const DesignPoint& p, std::uint64_t slots,
                   std::uint64_t step) {
    play(r.decode(), true, p.batch, r.symbols.resolve({p.batch, p.prompt_len, slots + step}));
  }
  void play_request(double tokens) {
    compute(roofline::rates_of(c_).host.before_s(tokens), "host");
  }

  void send(std::uint64_t group, std::uint64_t bytes) {
    for (std::uint64_t d = 0; d < size_; ++d) {
      programs_.ranks[first_ + d].push_back(
          Send(static_cast<std::uint32_t>(group * size_ + d), bytes));
    }
  }
  void receive(std::uint64_t group) {
    for (std::uint64_t d = 0; d < size_; ++d) {
      programs_.ranks[first_ + d].push_back(Receive{static_cast<std::uint32_t>(group * size_ + d)});
    }
  }

 private:
  struct Compiled {
    roofline::FoldedGraph folded;
    roofline::Rates rates;
  };
  const Compiled& compiled(const Graph& graph, bool decodes) {
    const auto known = compiled_.find(&graph);
    if (known != compiled_.end()) return known->second;
    return compiled_
        .emplace(&graph, Compiled{roofline::fold_nodes(graph, c_.lowering),
                                  roofline::in_pass(roofline::rates_of(c_), decodes)})
        .first->second;
  }
  void compute(double seconds, std::string_view label) {
    if (seconds <= 0) return;
    const std::uint32_t index = label_of(programs_, label);
    for (std::uint64_t d = 0; d < size_; ++d) {
      programs_.ranks[first_ + d].push_back(Compute{seconds, index});
    }
  }
  /// To or from the group of the device that the node names.
  void message(const Graph& graph, const kvcast::Node& node,
               std::span<const std::uint64_t> values) {
    if (const auto* to = std::get_if<kvcast::Send>(&node.op)) {
      send(to->rank / size_, graph.tensor(node.output()).bytes().at(values));
    } else {
      receive(std::get<kvcast::Receive>(node.op).rank / size_);
    }
  }
  /// In every group of devices like that of the first one.
  void exchange(const roofline::CollectiveCall& call, Seconds wait,
                std::span<const std::uint64_t> values) {
    if (call.group.size > 1) compute(wait.value, "wait");
    const std::uint64_t bytes = call.bytes.at(values);
    for (std::uint64_t d = 0; d < size_; ++d) {
      if (d / call.group.stride % call.group.size > 0) continue;  // not the first of its group
      append_collective(*c_.interconnect, call.kind,
                        {call.group.size, call.group.stride, first_ + d}, c_.engine.collectives,
                        bytes, programs_);
    }
  }

  const Configuration& c_;
  std::uint64_t size_;
  std::uint64_t first_;
  Programs& programs_;
  std::map<const Graph*, Compiled> compiled_;
};

double tokens_of(const DesignPoint& p) {
  return static_cast<double>(p.batch) * static_cast<double>(p.prompt_len);
}

/// One stage of a pipeline, or of one without others.
void add_stage(const Configuration& c, std::uint64_t stage, const DesignPoint& point,
               Programs& programs) {
  const std::uint64_t stages = c.parallelism.pp;
  GroupPlayer player(c, stage, programs);
  const roofline::Recordings recordings = roofline::record_for(
      c, DevicePlace{c.parallelism, stage * c.parallelism.of_stage(), c.stage_layers});
  const Recording& r = recordings.whole;
  const roofline::MicroBatches micro(point.batch, stages == 1           ? 1
                                                  : c.micro_batches > 0 ? c.micro_batches
                                                                        : stages);
  std::vector<DesignPoint> parts(micro.number, point);
  for (std::uint64_t i = 0; i < micro.number; ++i) {
    parts[i].batch = i < micro.num_large() ? micro.large : micro.small();
  }
  const bool is_last = stage + 1 == stages;
  const bool goes_on = point.output_len > 1;
  const auto hand_back = [&](const DesignPoint& p) {
    if (stages > 1 && is_last && goes_on) player.send(0, p.batch * bytes_per_token);
  };
  player.play_request(tokens_of(point));
  if (recordings.chunk) {
    const Recording& chunk = *recordings.chunk;
    const Forecaster forecaster(r, c.lowering, roofline::rates_of(c), &chunk);
    for (const Forecaster::PromptStep& s : forecaster.prompt_steps(point)) {
      player.play(chunk.prefill(), false, s.batch,
                  chunk.symbols.resolve({s.batch, s.tokens, s.kv_len}));
    }
    for (const DesignPoint& p : parts) hand_back(p);
  } else {
    for (const DesignPoint& p : parts) {
      player.play_helpers(r, p);
      player.play(r.prefill(), false, p.batch,
                  r.symbols.resolve({p.batch, p.prompt_len, p.prompt_len}));
      hand_back(p);
    }
  }
  const std::uint64_t slots = r.prompt_slots.at(r.symbols.resolve({1, point.prompt_len, 1}));
  for (std::uint64_t step = 1; step < point.output_len; ++step) {
    for (const DesignPoint& p : parts) {
      if (stages > 1 && stage == 0) player.receive(stages - 1);
      player.play_decode(r, p, slots, step);
      if (step + 1 < point.output_len) hand_back(p);
    }
  }
}

/// Ranks that share a prompt; the last one goes on.
void add_ranks(const Configuration& c, const DesignPoint& point,
               const std::vector<std::uint64_t>& partition, Programs& programs) {
  RecordOptions options{.logits = c.logits, .find_model = c.find_model};
  if (!c.parallelism.is_one()) options.place = DevicePlace{c.parallelism};
  const Recording whole = record(c.architecture, without_placement(c.methods), c.lowering, options);
  for (std::size_t rank = 0; rank < partition.size(); ++rank) {
    const RankShare share{partition, rank};
    GroupPlayer player(c, rank, programs);
    if (options.place) options.place->rank = rank;
    const Recording r = record_rank(whole, c.architecture, c.methods, c.lowering, share, options);
    player.play_request(tokens_of(point));
    player.play_helpers(whole, point);
    player.play(r.prefill(), false, point.batch,
                r.symbols.resolve({point.batch, share.tokens(), share.end()}));
    if (!share.is_last()) continue;
    for (std::uint64_t step = 1; step < point.output_len; ++step) {
      player.play_decode(whole, point, share.end(), step);
    }
  }
}

}  // namespace

Programs device_programs(const Configuration& c, const DesignPoint& point,
                         const std::vector<std::uint64_t>& partition) {
  const Parallelism& p = c.parallelism;
  KVCAST_ASSERT(c.interconnect != nullptr);
  if (p.pp == 1 && c.micro_batches > 1) {
    throw Error("simulate prefill", "micro-batches that overlap on one stage", "--pp above 1");
  }
  roofline::check_platform(c);
  check_size(c.interconnect->data());
  Programs programs;
  programs.ranks.resize(c.interconnect->devices());
  DesignPoint own = point;
  own.batch = roofline::divided_up(point.batch, p.dp);
  // Where devices are left out, they end at 0.
  programs.answers_from = roofline::all_devices(c) - p.of_stage();
  if (!partition.empty()) {
    add_ranks(c, own, partition, programs);
    return programs;
  }
  Configuration unplaced = c;  // of a placement on one rank
  unplaced.methods = without_placement(c.methods);
  for (std::uint64_t stage = 0; stage < p.pp; ++stage) add_stage(unplaced, stage, own, programs);
  return programs;
}

}  // namespace kvcast::simulate
