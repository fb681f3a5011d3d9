#include "roofline/training_forecast.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "model/base/error.h"
#include "model/base/words.h"
#include "roofline/interconnect.h"

namespace kvcast::roofline {
namespace {

/// Of a Hopper GPU's rate in products one at a time, what it keeps in a long row of them, which its
/// power limits. Measured on an H100 SXM at 698 of 700 W, PyTorch 2.11, bf16: 678 TFLOP/s over 8 s
/// of the three products of a linear layer (8192 rows, 4096 to 11008), beside 0.77 of 989.
constexpr double sustained_products = 0.89;

/// The rate of a tiled attention's gradient over the attention's. Measured likewise, causal, heads
/// of 128: 0.76, 0.84 and 0.90 of FlashAttention-2's at 2048, 4096 and 8192 tokens, 0.76, 0.81 and
/// 0.87 of cuDNN's.
constexpr double attention_gradient_rate = 0.82;

/// What messages beside work cost of their time, as they take multiprocessors, memory bandwidth and
/// power from it. Computation beside messages took 1.189 times its time, and both one after the
/// other 1.102 times that: 0.189 / (1.189·1.102 - 1). Source: arXiv:2507.03114 (2025),
/// abstract: averages of GPT and Llama on A100, H100, MI210 and MI250.
constexpr double beside_work = 0.61;

Rates in_training(Rates rates, const Hardware& hw, Mode mode) {
  if (mode == Mode::Calibrated && hw.architecture == "hopper") {
    rates.flops_per_second[static_cast<std::size_t>(RateClass::Matrix)].value *= sustained_products;
  }
  return rates;
}

/// Of types in blocks, whose scales a matrix may not fill, the bytes are rounded up.
double whole_bytes(const Count& bytes) { return static_cast<double>(bytes.at({})); }

bool is_attention_gradient(const OpGroup& g) { return g.op == TiledAttentionGradient::traits.name; }

/// What follows the passes, without its messages, which add_communication has.
std::vector<OpGroup> update_of(const TrainingRecording& recording, const Lowering& lowering) {
  std::vector<OpGroup> groups = fold(recording.update, lowering);
  std::erase_if(groups, [](const OpGroup& g) { return g.collective.has_value(); });
  return groups;
}

/// The launches of nodes from `first` to before `end`, each followed by its conversions.
std::vector<OpGroup> part_of(const FoldedGraph& folded, std::size_t first, std::size_t end) {
  std::vector<std::uint64_t> counts(folded.groups.size(), 0);
  for (std::size_t n = first; n < end; ++n) {
    if (folded.group_of_node[n] != no_group) ++counts[folded.group_of_node[n]];
  }
  std::vector<OpGroup> groups;
  for (std::size_t g = 0; g < counts.size(); ++g) {
    if (folded.groups[g].op == conversion_name) counts[g] = counts[g - 1];
    if (counts[g] == 0) continue;
    groups.push_back(folded.groups[g]);
    groups.back().count = counts[g];
  }
  return groups;
}

TrainingOptions with_replicas(TrainingOptions options, const Configuration& c) {
  const Parallelism& p = c.parallelism;
  if (p.pp > 1 || p.ep > 1) {
    throw Error("training: " + to_string(p), "stages or spread experts", "--tp and --dp alone");
  }
  if (p.sequence_parallel && p.tp == 1) check_parallelism(c.architecture, p);
  options.replicas = {p.dp, p.tp, 0};
  options.split = p;
  options.find_model = c.find_model;
  return options;
}

constexpr Words<ShardedStates, 4> stages{{{ShardedStates::None, "0"},
                                          {ShardedStates::Optimizer, "1"},
                                          {ShardedStates::Gradients, "2"},
                                          {ShardedStates::Weights, "3"}}};

}  // namespace

ShardedStates parse_zero(std::string_view stage) { return parse_word("stage", stage, stages); }

TrainingForecaster::Part TrainingForecaster::compile(const TrainingPass& pass) const {
  const FoldedGraph folded = fold_nodes(pass.graph, lowering_);
  std::vector<OpGroup> forward = part_of(folded, 0, pass.first_backward.index);
  std::vector<OpGroup> backward =
      part_of(folded, pass.first_backward.index, pass.graph.nodes().size());
  std::vector<OpGroup> attention;
  std::copy_if(backward.begin(), backward.end(), std::back_inserter(attention),
               is_attention_gradient);
  std::erase_if(backward, is_attention_gradient);
  StepCost step(std::vector<std::vector<OpGroup>>{forward, backward}, rates_);
  StepCost of_attention(attention, gradient_rates_);
  return {std::move(forward), std::move(backward), std::move(attention), std::move(step),
          std::move(of_attention)};
}

TrainingForecaster::TrainingForecaster(const Configuration& c, const TrainingOptions& options,
                                       ShardedStates sharded)
    : layers_(c.architecture.decoder.layers.size()),
      hidden_size_(c.architecture.hidden_size),
      lowering_(c.lowering),
      rates_(in_training(in_pass(rates_of(c), false), c.hardware, c.mode)),
      gradient_rates_(rates_),
      replicas_(c.parallelism.dp),
      devices_(c.parallelism.devices()),
      sharded_(sharded),
      mode_(c.mode),
      recording_(record_training(c.architecture, c.methods, c.lowering, with_replicas(options, c))),
      update_(update_of(recording_, c.lowering)) {
  for (const LayerShape& layer : c.architecture.decoder.layers) {
    if (!layer.experts || layer.experts->copies == 0) continue;
    throw Error("expert_copies", "a training step", "a forecast of inference");
  }
  if (c.mode == Mode::Calibrated) {
    gradient_rates_.flops_per_second[static_cast<std::size_t>(RateClass::TiledAttention)].value *=
        attention_gradient_rate;
  }
  if (sharded != ShardedStates::None && replicas_ == 1) {
    throw Error("--zero", "one replica", "--dp above 1");
  }
  first_ = compile(recording_.first);
  next_ = compile(recording_.next);
  const Rates peak = make_rates(c.hardware, c.lowering, Mode::SpeedOfLight);
  peak_flops_per_second_ = peak.flops_per_second[static_cast<std::size_t>(RateClass::Matrix)].value;
  const StepCost cost(update_, rates_);
  const SymbolValues none(recording_.symbols.size(), 1);
  std::array<double, 1> seconds{};
  cost.part_seconds(none, seconds);
  // Each replica updates the part whose states it has.
  const double share = sharded == ShardedStates::None ? 1 : 1 / static_cast<double>(replicas_);
  update_s_ = share * paced_seconds(seconds[0], cost.host_seconds());
  add_communication(c);
}

void TrainingForecaster::add_communication(const Configuration& c) {
  if (devices_ == 1) return;
  if (c.interconnect == nullptr) {
    throw Error(to_string(c.parallelism), "no platform that joins the devices",
                "--platform NAME, or hardware whose node is known");
  }
  const RankGroup replicas{replicas_, c.parallelism.tp, 0};
  const auto curve = [&](CollectiveKind kind) {
    return c.interconnect->curve(kind, replicas, c.engine.collectives, c.mode);
  };
  const CollectiveCurve sum = curve(CollectiveKind::AllReduce);
  const CollectiveCurve scatter = curve(CollectiveKind::ReduceScatter);
  const CollectiveCurve gather = curve(CollectiveKind::AllGather);
  for (const Node& node : recording_.update.nodes()) {
    const auto* const sums = std::get_if<Collective>(&node.op);
    if (sums == nullptr) continue;
    const TensorInfo& gradient = recording_.update.tensor(node.output());
    const double bytes = whole_bytes(gradient.bytes());
    if (sums->group != replicas) {  // of those that split a replica
      alone_s_ +=
          c.interconnect->curve(sums->kind, sums->group, c.engine.collectives, c.mode).at(bytes);
      continue;
    }
    const double weight = whole_bytes(bytes_of(gradient.elements(), lowering_.weights.main));
    switch (sharded_) {
      case ShardedStates::None: of_step_s_ += sum.at(bytes); break;
      case ShardedStates::Optimizer:
        of_step_s_ += scatter.at(bytes);
        alone_s_ += gather.at(weight);
        break;
      case ShardedStates::Gradients:
        of_pass_s_ += scatter.at(bytes);
        alone_s_ += gather.at(weight);
        break;
      case ShardedStates::Weights: of_pass_s_ += scatter.at(bytes) + 2 * gather.at(weight); break;
    }
  }
}

TrainingForecaster::Passes TrainingForecaster::passes(const TrainingPoint& p) const {
  if (p.batch == 0 || p.seq_len == 0 || p.micro_batches == 0) {
    throw Error("a step of training", "a batch, a sequence or micro-batches of 0",
                "at least 1 of each");
  }
  if (p.batch < replicas_) {
    throw Error("--batch", std::to_string(p.batch),
                "at least a sequence for each of the " + std::to_string(replicas_) + " replicas");
  }
  const std::uint64_t sequences = divided_up(p.batch, replicas_);
  if (p.micro_batches > sequences) {
    throw Error("--micro-batches", std::to_string(p.micro_batches),
                "at most the " + std::to_string(sequences) + " sequences of a device");
  }
  const MicroBatches parts(sequences, p.micro_batches);
  const auto resolve = [&](std::uint64_t batch) {
    return recording_.symbols.resolve({batch, p.seq_len, p.seq_len});
  };
  return {resolve(parts.large), resolve(parts.small()), parts.num_large(), parts.num_small};
}

TrainingForecast TrainingForecaster::at(const TrainingPoint& p) const {
  const Passes all = passes(p);
  const auto replicas = static_cast<double>(replicas_);
  const auto devices = static_cast<double>(devices_);
  TrainingForecast f;
  std::array<double, num_bounds> by_bound{};
  // What messages add that have so much work beside them.
  const double cost = mode_ == Mode::Calibrated ? beside_work : 0;
  const auto added = [cost](double messages_s, double work_s) {
    return std::max(0.0, messages_s - work_s) + cost * std::min(messages_s, work_s);
  };
  double last_work_s = 0;  // of the last pass, what its messages leave
  const auto add = [&](const std::optional<Part>& part, const SymbolValues& values,
                       std::uint64_t passes) {
    if (passes == 0) return;
    const auto times = static_cast<double>(passes);
    std::array<double, 2> device{};
    part->step.part_seconds(values, device);
    std::array<double, 1> attention{};
    part->attention_step.part_seconds(values, attention);
    device[1] += attention[0];
    const double on_device = device[0] + device[1];
    const double host_s = part->step.host_seconds() + part->attention_step.host_seconds();
    const double slower = on_device > 0 ? paced_seconds(on_device, host_s) / on_device : 1;
    std::array<double, 2> messages{};  // of devices that split a replica, by way
    const auto count_groups = [&](const std::vector<OpGroup>& groups, const Rates& rates,
                                  double& messages_s) {
      for (const OpGroup& g : groups) {
        const OpTime t = time_of(g, rates, values);
        const auto count = static_cast<double>(g.count);
        messages_s += count * t.collective.value;
        by_bound[static_cast<std::size_t>(t.bound)] += times * count * t.total.value;
        f.flops += times * count * static_cast<double>(t.flops.count);
        f.bytes += times * count * static_cast<double>(t.bytes.count);
      }
    };
    count_groups(part->forward, rates_, messages[0]);
    count_groups(part->backward, rates_, messages[1]);
    count_groups(part->attention, gradient_rates_, messages[1]);
    f.forward_s += times * (slower * device[0] - messages[0]);
    f.backward_s += times * (slower * device[1] - messages[1]);
    f.communication_s += times * (messages[0] + messages[1]);
    const double work_s =
        slower * (device[1] - messages[1]) +
        (sharded_ == ShardedStates::Weights ? slower * (device[0] - messages[0]) : 0);
    f.communication_s += times * added(of_pass_s_, work_s);
    last_work_s = std::max(0.0, work_s - of_pass_s_);
  };
  // Small ones first, as the trainer cuts a batch.
  const bool small_first = all.num_small > 0;
  add(first_, small_first ? all.small : all.large, 1);
  add(next_, all.small, all.num_small - (small_first ? 1 : 0));
  add(next_, all.large, all.num_large - (small_first ? 0 : 1));
  const Work update = total_work(update_);
  // Of replicas with fewer sequences than this one in proportion.
  const double used = static_cast<double>(p.batch) /
                      (replicas * static_cast<double>(divided_up(p.batch, replicas_)));
  f.flops = devices * (used * f.flops + static_cast<double>(update.flops.constant()));
  f.bytes = devices * (used * f.bytes + whole_bytes(update.bytes()));
  f.bound =
      static_cast<Bound>(std::max_element(by_bound.begin(), by_bound.end()) - by_bound.begin());
  f.update_s = update_s_;
  f.communication_s += added(of_step_s_, last_work_s) + alone_s_;
  f.step_s = f.forward_s + f.backward_s + f.update_s + f.communication_s;
  f.tokens_per_s = static_cast<double>(p.batch) * static_cast<double>(p.seq_len) / f.step_s;
  const auto of_passes = [&](const Count& flops) {
    const auto sum = [&](std::uint64_t times, const SymbolValues& values) {
      return static_cast<double>(times) * static_cast<double>(flops.at(values));
    };
    return used * (sum(all.num_large, all.large) + sum(all.num_small, all.small));
  };
  f.model_flops = replicas * of_passes(recording_.model_flops);
  f.hardware_flops = devices * of_passes(recording_.hardware_flops);
  const double possible = devices * peak_flops_per_second_ * f.step_s;
  f.mfu = f.model_flops / possible;
  f.hfu = f.hardware_flops / possible;

  const auto share = [&](ShardedStates from) { return sharded_ >= from ? 1 / replicas : 1.0; };
  f.weight_bytes = share(ShardedStates::Weights) * whole_bytes(recording_.weight_bytes);
  f.gradient_bytes = share(ShardedStates::Gradients) * whole_bytes(recording_.gradient_bytes);
  f.optimizer_bytes = share(ShardedStates::Optimizer) * whole_bytes(recording_.optimizer_bytes);
  const bool in_place = lowering_.elementwise == Kernels::Fused;
  const ActivationBytes activations = activation_bytes(recording_.first, all.large, in_place);
  f.saved_activation_bytes = static_cast<double>(activations.saved);
  f.activation_bytes = static_cast<double>(activations.peak);
  // Eager frameworks drop gradients after each step; replicas keep them, in what they send.
  const bool drops_gradients = !in_place && p.micro_batches == 1 && replicas_ == 1;
  f.peak_memory_bytes =
      f.weight_bytes + f.optimizer_bytes +
      (drops_gradients
           ? std::max(f.gradient_bytes, static_cast<double>(activations.peak_with_gradients))
           : f.gradient_bytes + f.activation_bytes);
  f.fits = f.peak_memory_bytes <= rates_.memory_capacity_bytes;
  return f;
}

FlopsConventions TrainingForecaster::conventions(std::uint64_t seq_len) const {
  const auto parameters = static_cast<double>(recording_.parameters);
  const auto embedding = static_cast<double>(recording_.embedding_parameters);
  const double pairs = static_cast<double>(layers_) * static_cast<double>(hidden_size_) *
                       static_cast<double>(seq_len);
  return {6 * parameters + 12 * pairs, 6 * parameters + 6 * pairs,
          6 * (parameters - embedding) + 6 * pairs};
}

std::vector<BreakdownRow> TrainingForecaster::breakdown(const TrainingPoint& p) const {
  const Passes all = passes(p);
  std::vector<BreakdownRow> rows;
  const auto add = [&](const char* pass, const std::vector<OpGroup>& groups,
                       const SymbolValues& values, std::uint64_t times) {
    if (times == 0) return;
    for (const OpGroup& g : groups) {
      const OpTime t = time_of(g, is_attention_gradient(g) ? gradient_rates_ : rates_, values);
      const std::uint64_t count = g.count * times;
      rows.push_back({pass, g, t, count, static_cast<double>(count) * t.total});
    }
  };
  add("forward", first_->forward, all.large, all.num_large);
  add("forward", first_->forward, all.small, all.num_small);
  const bool small_first = all.num_small > 0;
  add("backward", first_->backward, small_first ? all.small : all.large, 1);
  add("backward", next_->backward, all.small, all.num_small - (small_first ? 1 : 0));
  add("backward", next_->backward, all.large, all.num_large - (small_first ? 0 : 1));
  add("backward", first_->attention, all.large, all.num_large);
  add("backward", first_->attention, all.small, all.num_small);
  add("update", update_, all.large, 1);
  return rows;
}

}  // namespace kvcast::roofline
