#include "roofline/training_forecast.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/base/words.h"
#include "roofline/interconnect.h"
#include "roofline/pipeline_schedule.h"

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

/// What follows the passes, without its messages, which add_communication() has.
std::vector<OpGroup> update_of(const TrainingRecording& recording, const Lowering& lowering) {
  std::vector<OpGroup> groups = fold(recording.update, lowering);
  std::erase_if(groups, [](const OpGroup& g) { return g.collective.has_value(); });
  return groups;
}

/// How many tensors a launch of a fused optimiser takes: AdamW's are in four lists, a norm's in
/// one. Source: NVIDIA/apex, csrc/multi_tensor_apply.cuh: depth_to_max_tensors. PyTorch's own takes
/// as many, in a dozen kernels one after another.
std::uint64_t tensors_of_a_launch(const OpGroup& g) {
  return g.op == AdamW::traits.name ? 36 : 110;
}

/// The update's groups, counted as the host issues them.
std::vector<OpGroup> by_many(std::vector<OpGroup> update) {
  std::map<std::string, std::uint64_t> tensors;
  for (OpGroup& g : update) {
    std::uint64_t& before = tensors[g.op];
    const std::uint64_t most = tensors_of_a_launch(g);
    const std::uint64_t launches_before = divided_up(before, most);
    before += g.count;
    g.count = divided_up(before, most) - launches_before;
  }
  return update;
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

TrainingOptions with_devices(TrainingOptions options, const Configuration& c,
                             std::uint64_t virtual_stages) {
  const Parallelism& p = c.parallelism;
  if (p.ep > 1) {
    throw Error("training: " + to_string(p), "spread experts", "--tp, --pp and --dp alone");
  }
  if (p.sequence_parallel && p.tp == 1) check_parallelism(c.architecture, p);
  options.replicas = {p.dp, p.tp, 0};
  options.split = p;
  options.split.pp = checked_multiply(p.pp, virtual_stages);
  options.stage_layers = c.stage_layers;
  if (!options.gradients && c.lowering.weights.main == DType::BF16) {
    options.gradients = c.engine.bf16_gradients;
  }
  if (p.pp > 1) options.ends = {2, (p.pp - 1) * p.of_stage(), 0};
  options.find_model = c.find_model;
  return options;
}

constexpr Words<ShardedStates, 4> zero_stages{{{ShardedStates::None, "0"},
                                               {ShardedStates::Optimizer, "1"},
                                               {ShardedStates::Gradients, "2"},
                                               {ShardedStates::Weights, "3"}}};

}  // namespace

ShardedStates parse_zero(std::string_view stage) { return parse_word("stage", stage, zero_stages); }

/// Recordings number the devices of a replica alone, a stage for each part.
RankGroup TrainingForecaster::on_devices(RankGroup group) const {
  const std::uint64_t part = group.first / tp_;
  group.first = part % stages_ * tp_ * replicas_ + group.first % tp_;
  return group;
}

TrainingForecaster::Pass TrainingForecaster::compile(const TrainingPass& pass) const {
  FoldedGraph folded = fold_nodes(pass.graph, lowering_);
  for (OpGroup& g : folded.groups) {
    if (g.collective) g.collective->group = on_devices(g.collective->group);
  }
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
                                       ShardedStates sharded, std::uint64_t virtual_stages)
    : layers_(c.architecture.decoder.layers.size()),
      lowering_(c.lowering),
      rates_(in_training(in_pass(rates_of(c), false), c.hardware, c.mode)),
      gradient_rates_(rates_),
      tp_(c.parallelism.tp),
      replicas_(c.parallelism.dp),
      stages_(c.parallelism.pp),
      devices_(c.parallelism.devices()),
      virtual_stages_(virtual_stages),
      loss_chunks_(options.loss_chunks),
      sharded_(sharded),
      mode_(c.mode) {
  for (const LayerShape& layer : c.architecture.decoder.layers) {
    attention_width_ += layer.heads.num_attention_heads * layer.heads.head_dim;
    if (!layer.experts || layer.experts->copies == 0) continue;
    throw Error("expert_copies", "a training step", "a forecast of inference");
  }
  const std::uint64_t pp = c.parallelism.pp;
  if (virtual_stages == 0) throw Error("--virtual-stages", "0", "at least 1");
  if (virtual_stages > 1 && pp == 1) throw Error("--virtual-stages", "one stage", "--pp above 1");
  if (virtual_stages > 1 && virtual_stages > layers_ / pp) {
    throw Error("--virtual-stages", fmt::format("{} of each of {} stages", virtual_stages, pp),
                fmt::format("at most the {} layers of {}", layers_, c.architecture.name));
  }
  if (pp > 1 && sharded > ShardedStates::Optimizer) {
    throw Error("--zero", "gradients or weights of several stages", "0 or 1 with --pp");
  }
  if (c.mode == Mode::Calibrated) {
    gradient_rates_.flops_per_second[static_cast<std::size_t>(RateClass::TiledAttention)].value *=
        attention_gradient_rate;
  }
  if (sharded != ShardedStates::None && replicas_ == 1) {
    throw Error("--zero", "one replica", "--dp above 1");
  }
  if (devices_ > 1 && c.interconnect == nullptr) {
    throw Error(to_string(c.parallelism), "no platform that joins the devices",
                "--platform NAME, or hardware whose node is known");
  }
  const Rates peak = make_rates(c.hardware, c.lowering, Mode::SpeedOfLight);
  peak_flops_per_second_ = peak.flops_per_second[static_cast<std::size_t>(RateClass::Matrix)].value;
  const TrainingOptions of_devices = with_devices(options, c, virtual_stages);
  gradient_dtype_ = of_devices.gradients.value_or(c.lowering.weights.main);
  make_parts(c, of_devices);
  for (std::uint64_t stage = 0; pp > 1 && stage < pp; ++stage) {
    hops_.push_back(hop_to_next_stage(c, stage));
  }
  if (pp > 1 && tp_ > 1 && !c.parallelism.sequence_parallel) {
    gather_ =
        c.interconnect->curve(CollectiveKind::AllGather, {tp_, 1, 0}, c.engine.collectives, c.mode);
  }
}

void TrainingForecaster::make_parts(const Configuration& c, TrainingOptions options) {
  const std::uint64_t number = options.split.pp;
  const std::vector<LayerShape>& layers = c.architecture.decoder.layers;
  std::vector<std::size_t> ends{layers.size()};
  if (number > 1) ends = stage_ends(c.architecture, number, options.stage_layers);
  // Parts between the ends with the same layers do the same.
  std::vector<std::vector<LayerShape>> layers_of;
  for (std::uint64_t i = 0; i < number; ++i) {
    const auto begin = layers.begin() + static_cast<std::ptrdiff_t>(i == 0 ? 0 : ends[i - 1]);
    const std::vector<LayerShape> own(begin, layers.begin() + static_cast<std::ptrdiff_t>(ends[i]));
    const auto same = std::find(layers_of.begin() + (i > 0 ? 1 : 0), layers_of.end(), own);
    if (i > 0 && i + 1 < number && same != layers_of.end()) {
      row_.push_back(static_cast<std::size_t>(same - layers_of.begin()));
      continue;
    }
    options.place = i * options.split.tp;
    TrainingRecording recording = record_training(c.architecture, c.methods, c.lowering, options);
    Pass first = compile(recording.first);
    Pass next = compile(recording.next);
    std::vector<OpGroup> update = update_of(recording, c.lowering);
    const StepCost cost(update, rates_);
    const SymbolValues none(recording.symbols.size(), 1);
    std::array<double, 1> seconds{};
    cost.part_seconds(none, seconds);
    const double share = update_share();
    const bool fused = c.lowering.elementwise == Kernels::Fused;
    const StepCost issued(fused ? by_many(update) : update, rates_);
    const double paced_s = paced_seconds(seconds[0], issued.host_seconds());
    const Count sent =
        bytes_to_next_stage(recording.first.graph, recording.first.first_backward.index);
    row_.push_back(parts_.size());
    layers_of.push_back(own);
    parts_.push_back({std::move(recording), std::move(first), std::move(next), std::move(update),
                      share * paced_s, share * (paced_s - seconds[0]), 0, 0, 0, sent});
    add_communication(c, parts_.back());
  }
}

double TrainingForecaster::update_share() const {
  return sharded_ == ShardedStates::None ? 1 : 1 / static_cast<double>(replicas_);
}

void TrainingForecaster::add_communication(const Configuration& c, Part& part) const {
  if (devices_ == 1) return;
  const RankGroup replicas{replicas_, c.parallelism.tp, 0};
  const auto curve = [&](CollectiveKind kind) {
    return c.interconnect->curve(kind, replicas, c.engine.collectives, c.mode);
  };
  const CollectiveCurve sum = curve(CollectiveKind::AllReduce);
  const CollectiveCurve scatter = curve(CollectiveKind::ReduceScatter);
  const CollectiveCurve gather = curve(CollectiveKind::AllGather);
  const Graph& update = part.recording.update;
  for (const Node& node : update.nodes()) {
    const auto* const sums = std::get_if<Collective>(&node.op);
    if (sums == nullptr) continue;
    const TensorInfo& gradient = update.tensor(node.output());
    const double bytes = whole_bytes(gradient.bytes());
    if (sums->group != replicas) {  // of those that split a replica, or a tied embedding's
      const RankGroup group = node.label == "sum_tied" ? sums->group : on_devices(sums->group);
      part.alone_s +=
          c.interconnect->curve(sums->kind, group, c.engine.collectives, c.mode).at(bytes);
      continue;
    }
    const double weight = whole_bytes(bytes_of(gradient.elements(), lowering_.weights.main));
    switch (sharded_) {
      case ShardedStates::None: part.of_step_s += sum.at(bytes); break;
      case ShardedStates::Optimizer:
        part.of_step_s += scatter.at(bytes);
        part.alone_s += gather.at(weight);
        break;
      case ShardedStates::Gradients:
        part.of_pass_s += scatter.at(bytes);
        part.alone_s += gather.at(weight);
        break;
      case ShardedStates::Weights:
        part.of_pass_s += scatter.at(bytes) + 2 * gather.at(weight);
        break;
    }
  }
}

TrainingForecaster::Passes TrainingForecaster::passes(const Part& part,
                                                      const TrainingPoint& p) const {
  if (p.batch == 0 || p.seq_len == 0 || p.micro_batches == 0) {
    throw Error("a step of training", "a batch, a sequence or micro-batches of 0",
                "at least 1 of each");
  }
  check_loss_chunks(loss_chunks_, p.seq_len);
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
    return part.recording.symbols.resolve({batch, p.seq_len, p.seq_len});
  };
  return {resolve(parts.large), resolve(parts.small()), parts.num_large(), parts.num_small};
}

std::uint64_t TrainingForecaster::default_micro_batches(std::uint64_t batch) const {
  if (stages_ == 1) return 1;
  const std::uint64_t sequences = std::max<std::uint64_t>(1, divided_up(batch, replicas_));
  const bool in_rounds = virtual_stages_ > 1 && sequences > stages_;
  return in_rounds ? sequences - sequences % stages_ : sequences;
}

/// Of a micro-batch: forward, and back.
struct TrainingForecaster::PassTime {
  std::array<double, 2> work_s{};
  std::array<double, 2> messages_s{};  ///< of devices that split a replica
  std::array<double, 2> waiting_s{};   ///< of work_s, for the host
  double flops = 0;
  double bytes = 0;
  double sent_bytes = 0;  ///< to the next part
  std::array<double, num_bounds> by_bound{};

  double way_s(bool forward) const {
    const std::size_t w = forward ? 0 : 1;
    return work_s[w] + messages_s[w];
  }
};

/// Of a step.
struct TrainingForecaster::PartTime {
  PassTime first;
  PassTime small;
  PassTime large;
  std::uint64_t num_small = 0;
  double forward_s = 0;
  double backward_s = 0;
  std::array<double, 2> waiting_s{};
  double messages_s = 0;  ///< in the passes
  double after_s = 0;     ///< what messages add behind them
  double flops = 0;
  double bytes = 0;
  std::array<double, num_bounds> by_bound{};

  const PassTime& of(std::uint64_t micro_batch) const {
    return micro_batch == 0 ? first : micro_batch < num_small ? small : large;
  }
};

double TrainingForecaster::added(double messages_s, double work_s) const {
  const double cost = mode_ == Mode::Calibrated ? beside_work : 0;
  return std::max(0.0, messages_s - work_s) + cost * std::min(messages_s, work_s);
}

TrainingForecaster::PassTime TrainingForecaster::pass_time(const Pass& pass,
                                                           const SymbolValues& values) const {
  PassTime t;
  pass.step.part_seconds(values, t.work_s);
  std::array<double, 1> attention{};
  pass.attention_step.part_seconds(values, attention);
  t.work_s[1] += attention[0];
  const double on_device = t.work_s[0] + t.work_s[1];
  const double host_s = pass.step.host_seconds() + pass.attention_step.host_seconds();
  const double slower = on_device > 0 ? paced_seconds(on_device, host_s) / on_device : 1;
  const auto count_groups = [&](const std::vector<OpGroup>& groups, const Rates& rates,
                                double& messages_s) {
    for (const OpGroup& g : groups) {
      const OpTime op = time_of(g, rates, values);
      const auto count = static_cast<double>(g.count);
      messages_s += count * op.collective.value;
      t.by_bound[static_cast<std::size_t>(op.bound)] += count * op.total.value;
      t.flops += count * static_cast<double>(op.flops.count);
      t.bytes += count * static_cast<double>(op.bytes.count);
    }
  };
  count_groups(pass.forward, rates_, t.messages_s[0]);
  count_groups(pass.backward, rates_, t.messages_s[1]);
  count_groups(pass.attention, gradient_rates_, t.messages_s[1]);
  for (std::size_t w = 0; w < 2; ++w) {
    t.waiting_s[w] = (slower - 1) * t.work_s[w];
    t.work_s[w] = slower * t.work_s[w] - t.messages_s[w];
  }
  return t;
}

TrainingForecaster::PartTime TrainingForecaster::part_time(const Part& part,
                                                           const TrainingPoint& p) const {
  const Passes all = passes(part, p);
  PartTime t;
  t.num_small = all.num_small;
  double last_work_s = 0;  // of the last pass, what its messages leave
  const auto add = [&](PassTime& of, const Pass& pass, const SymbolValues& values,
                       std::uint64_t passes) {
    if (passes == 0) return;
    of = pass_time(pass, values);
    of.sent_bytes = static_cast<double>(part.sent_bytes.at(values));
    const auto times = static_cast<double>(passes);
    t.forward_s += times * of.work_s[0];
    t.backward_s += times * of.work_s[1];
    for (std::size_t w = 0; w < 2; ++w) t.waiting_s[w] += times * of.waiting_s[w];
    t.messages_s += times * (of.messages_s[0] + of.messages_s[1]);
    const double work_s = of.work_s[1] + (sharded_ == ShardedStates::Weights ? of.work_s[0] : 0);
    t.messages_s += times * added(part.of_pass_s, work_s);
    last_work_s = std::max(0.0, work_s - part.of_pass_s);
    t.flops += times * of.flops;
    t.bytes += times * of.bytes;
    for (std::size_t b = 0; b < num_bounds; ++b) t.by_bound[b] += times * of.by_bound[b];
  };
  add(t.first, part.first, all.first(), 1);
  add(t.small, part.next, all.small, all.more_small());
  add(t.large, part.next, all.large, all.more_large());
  t.after_s = added(part.of_step_s, last_work_s) + part.alone_s;
  return t;
}

void TrainingForecaster::add_times(TrainingForecast& f, const std::vector<PartTime>& times,
                                   std::uint64_t micro_batches) const {
  // What a stage does, and what it does when its passes are done.
  std::vector<TrainingForecast> works(stages_);
  std::vector<std::array<double, num_bounds>> by_bound(stages_);
  std::vector<double> after_s(stages_, 0);
  for (std::size_t i = 0; i < row_.size(); ++i) {
    const PartTime& t = times[row_[i]];
    TrainingForecast& work = works[i % stages_];
    work.forward_s += t.forward_s;
    work.backward_s += t.backward_s;
    work.communication_s += t.messages_s + t.after_s;
    work.update_s += parts_[row_[i]].update_s;
    after_s[i % stages_] += t.after_s + parts_[row_[i]].update_s;
    for (std::size_t b = 0; b < num_bounds; ++b) by_bound[i % stages_][b] += t.by_bound[b];
  }
  for (TrainingForecast& w : works) {
    w.step_s = w.forward_s + w.backward_s + w.update_s + w.communication_s;
  }
  const auto busiest = std::max_element(
      works.begin(), works.end(),
      [](const TrainingForecast& a, const TrainingForecast& b) { return a.step_s < b.step_s; });
  std::array<double, num_bounds>& bounds =
      by_bound[static_cast<std::size_t>(busiest - works.begin())];
  const auto bound = [&] {
    return static_cast<Bound>(std::max_element(bounds.begin(), bounds.end()) - bounds.begin());
  };
  f.forward_s = busiest->forward_s;
  f.backward_s = busiest->backward_s;
  f.update_s = busiest->update_s;
  f.communication_s = busiest->communication_s;
  f.step_s = busiest->step_s;
  f.bound = bound();
  if (stages_ == 1) return;

  const PipelineShape shape{stages_, virtual_stages_, micro_batches};
  const auto seconds = [&](const PartPass& p) {
    return times[row_[p.part]].of(p.micro_batch).way_s(p.is_forward);
  };
  const auto hop = [&](const PartPass& p) {
    const std::uint64_t before = p.is_forward ? p.part - 1 : p.part;  // the message
    const double bytes = times[row_[before]].of(p.micro_batch).sent_bytes;
    const CollectiveCurve& link = hops_[before % stages_];
    if (!gather_) return link.at(bytes);
    // Each device of a group sends all that the others send too, or its part, which they gather.
    const double part = link.at(bytes / static_cast<double>(tp_)) + gather_->at(bytes);
    return std::min(link.at(bytes), part);
  };
  const auto step = [&](const std::vector<double>& done_s) {
    double last = 0;
    for (std::size_t s = 0; s < stages_; ++s) last = std::max(last, done_s[s] + after_s[s]);
    return last;
  };
  const double without_hops_s = step(play(shape, seconds, [](const PartPass&) { return 0.0; }));
  f.step_s = step(play(shape, seconds, hop));
  f.communication_s += f.step_s - without_hops_s;
  f.bubble_s = std::max(0.0, without_hops_s - busiest->step_s);
  bounds[static_cast<std::size_t>(Bound::Link)] += f.step_s - without_hops_s;
  f.bound = bound();
}

void TrainingForecaster::add_memory(TrainingForecast& f, const TrainingPoint& p) const {
  const auto share = [&](ShardedStates from) {
    return sharded_ >= from ? 1 / static_cast<double>(replicas_) : 1.0;
  };
  const bool in_place = lowering_.elementwise == Kernels::Fused;
  std::vector<ActivationBytes> activations;
  for (const Part& part : parts_) {
    activations.push_back(activation_bytes(part.recording.first, passes(part, p).large, in_place));
  }
  for (std::uint64_t stage = 0; stage < stages_; ++stage) {
    double weights = 0;
    double gradients = 0;
    double states = 0;
    for (std::size_t i = stage; i < row_.size(); i += stages_) {
      const TrainingRecording& r = parts_[row_[i]].recording;
      weights += share(ShardedStates::Weights) * whole_bytes(r.weight_bytes);
      gradients += share(ShardedStates::Gradients) * whole_bytes(r.gradient_bytes);
      states += share(ShardedStates::Optimizer) * whole_bytes(r.optimizer_bytes);
    }
    // Of passes that wait for their way back; the others of a pipeline of one stage have had it.
    double waiting = 0;
    double saved = 0;
    double peak = 0;
    double peak_with_gradients = 0;
    const std::uint64_t micro_batches = stages_ == 1 ? 1 : p.micro_batches;
    for (const PartPass& pass : passes_of({stages_, virtual_stages_, micro_batches}, stage)) {
      const ActivationBytes& a = activations[row_[pass.part]];
      if (!pass.is_forward) waiting -= static_cast<double>(a.saved);
      peak = std::max(peak, waiting + static_cast<double>(a.peak));
      peak_with_gradients =
          std::max(peak_with_gradients, waiting + static_cast<double>(a.peak_with_gradients));
      if (pass.is_forward) waiting += static_cast<double>(a.saved);
      saved = std::max(saved, waiting);
    }
    // Eager frameworks drop gradients after each step; replicas keep them, in what they send.
    const bool drops_gradients =
        !in_place && p.micro_batches == 1 && replicas_ == 1 && stages_ == 1;
    const double all =
        weights + states +
        (drops_gradients ? std::max(gradients, peak_with_gradients) : gradients + peak);
    if (all <= f.peak_memory_bytes) continue;
    f.peak_memory_bytes = all;
    f.weight_bytes = weights;
    f.gradient_bytes = gradients;
    f.optimizer_bytes = states;
    f.saved_activation_bytes = saved;
    f.activation_bytes = peak;
  }
  f.fits = f.peak_memory_bytes <= rates_.memory_capacity_bytes;
}

TrainingForecast TrainingForecaster::at(const TrainingPoint& p) const {
  TrainingForecast f;
  std::vector<PartTime> times;
  for (const Part& part : parts_) times.push_back(part_time(part, p));
  add_times(f, times, p.micro_batches);
  f.tokens_per_s = static_cast<double>(p.batch) * static_cast<double>(p.seq_len) / f.step_s;

  const auto replicas = static_cast<double>(replicas_);
  const double of_part = static_cast<double>(devices_) / static_cast<double>(stages_);
  // Of replicas with fewer sequences than the largest in proportion.
  const double used = static_cast<double>(p.batch) /
                      (replicas * static_cast<double>(divided_up(p.batch, replicas_)));
  const auto of_passes = [&](const Part& part, const Count& flops) {
    const Passes all = passes(part, p);
    const auto sum = [&](std::uint64_t times_, const SymbolValues& values) {
      return static_cast<double>(times_) * static_cast<double>(flops.at(values));
    };
    return used * (sum(all.num_large, all.large) + sum(all.num_small, all.small));
  };
  for (const std::size_t i : row_) {
    const Part& part = parts_[i];
    const Work update = total_work(part.update);
    f.flops += of_part * (used * times[i].flops + static_cast<double>(update.flops.constant()));
    f.bytes += of_part * (used * times[i].bytes + whole_bytes(update.bytes()));
    f.hardware_flops += of_part * of_passes(part, part.recording.hardware_flops);
  }
  f.model_flops = replicas * of_passes(parts_.front(), recording().model_flops);
  const double possible = static_cast<double>(devices_) * peak_flops_per_second_ * f.step_s;
  f.mfu = f.model_flops / possible;
  f.hfu = f.hardware_flops / possible;
  add_memory(f, p);
  return f;
}

FlopsConventions TrainingForecaster::conventions(std::uint64_t seq_len) const {
  const auto parameters = static_cast<double>(recording().active_parameters);
  const auto embedding = static_cast<double>(recording().embedding_parameters);
  const double pairs = static_cast<double>(attention_width_) * static_cast<double>(seq_len);
  return {6 * parameters + 12 * pairs, 6 * parameters + 6 * pairs,
          6 * (parameters - embedding) + 6 * pairs};
}

std::vector<BreakdownRow> TrainingForecaster::breakdown(const TrainingPoint& p) const {
  std::vector<BreakdownRow> rows;
  for (std::size_t i = 0; i < row_.size(); ++i) {
    const Part& part = parts_[row_[i]];
    const Passes all = passes(part, p);
    const std::string of = row_.size() == 1 ? "" : fmt::format(" of stage {}", i % stages_);
    const auto add = [&](const char* pass, const std::vector<OpGroup>& groups,
                         const SymbolValues& values, std::uint64_t times, double share = 1) {
      if (times == 0) return;
      for (const OpGroup& g : groups) {
        const OpTime t = time_of(g, is_attention_gradient(g) ? gradient_rates_ : rates_, values);
        const std::uint64_t count = g.count * times;
        rows.push_back({pass + of, g, t, count, share * static_cast<double>(count) * t.total});
      }
    };
    const PartTime time = part_time(part, p);
    const auto add_host = [&](const char* pass, double waiting_s) {
      if (waiting_s > 0) rows.push_back(host_row(pass + of, "issue", 1, Seconds{waiting_s}));
    };
    add("forward", part.first.forward, all.large, all.num_large);
    add("forward", part.first.forward, all.small, all.num_small);
    add_host("forward", time.waiting_s[0]);
    add("backward", part.first.backward, all.first(), 1);
    add("backward", part.next.backward, all.small, all.more_small());
    add("backward", part.next.backward, all.large, all.more_large());
    add("backward", part.first.attention, all.large, all.num_large);
    add("backward", part.first.attention, all.small, all.num_small);
    add_host("backward", time.waiting_s[1]);
    add("update", part.update, all.large, 1, update_share());
    add_host("update", part.update_waiting_s);
  }
  return rows;
}

}  // namespace kvcast::roofline
