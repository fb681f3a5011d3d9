#include "simulate/layer_times.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast::simulate {
namespace {

constexpr std::string_view embedding_phase = "embedding";
constexpr std::string_view head_phase = "head";

/// Room for the values of symbols and monomials on the stack; a pass has about ten of each.
constexpr std::size_t most_values = 64;

std::string phase_of_layer(int layer, bool before) {
  return fmt::format("{} {}", before ? "before" : "after", layer);
}

/// The node behind which each layer exchanges: its last append to a cache.
std::map<int, std::size_t> exchanges(const Graph& graph) {
  std::map<int, std::size_t> last;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (std::holds_alternative<CacheAppend>(node.op)) last[node.layer] = i;
  }
  return last;
}

/// The same graph, its nodes' phases saying which part of which layer they belong to.
Graph split_by_layer(const Graph& graph) {
  const std::map<int, std::size_t> exchange = exchanges(graph);
  Graph split;
  for (const TensorInfo& tensor : graph.tensors()) {
    if (!tensor.producer) {
      split.add_tensor(tensor);
      continue;
    }
    const std::size_t index = tensor.producer->index;
    Node node = graph.node(*tensor.producer);
    if (node.phase == embedding_phase) node.layer = no_layer;
    if (node.layer != no_layer) {
      const auto found = exchange.find(node.layer);
      node.phase = phase_of_layer(node.layer, found != exchange.end() && index <= found->second);
    }
    TensorInfo output = tensor;
    output.producer.reset();
    split.add_node(std::move(node), std::move(output));
  }
  return split;
}

/// Operator groups that cost the same under one entry.
using Costs = std::map<roofline::OpCost, std::uint64_t>;

Costs merge(const std::vector<roofline::OpGroup>& groups) {
  Costs merged;
  for (const roofline::OpGroup& g : groups) merged[g.cost()] += g.count;
  return merged;
}

std::uint64_t cached_bytes_per_token(const Graph& graph, int layer) {
  Count bytes;
  for (const Node& node : graph.nodes()) {
    if (node.layer != layer || !std::holds_alternative<CacheAppend>(node.op)) continue;
    const TensorInfo& cache = graph.tensor(node.output);
    bytes += bytes_of(cache.shape.back(), cache.dtype);
  }
  return bytes.constant();
}

}  // namespace

LayerTimes::LayerTimes(const Architecture& architecture, const std::vector<MethodSpec>& methods,
                       const Lowering& lowering, const roofline::Rates& rates, Logits logits)
    : rates_(rates), logits_(logits), scores_in_memory_(lowering.attention == Kernels::Eager) {
  if (architecture.encoder_decoder) {
    throw Error("parallel prefill of " + architecture.name, "an encoder-decoder model",
                "a decoder-only one, whose prompt can be read in parts");
  }
  const Recording recording =
      record(architecture, methods, lowering, {.logits = logits, .chunked = true});
  symbols_ = recording.symbols;
  const Graph graph = split_by_layer(recording.prefill());
  std::map<std::string, std::vector<roofline::OpGroup>> by_phase;
  for (roofline::OpGroup& g : roofline::fold(graph, lowering)) {
    by_phase[g.phase].push_back(std::move(g));
  }
  embedding_ = compile(by_phase[std::string(embedding_phase)]);
  head_ = compile(by_phase[std::string(head_phase)]);

  using Layer = std::tuple<Costs, Costs, std::uint64_t>;
  std::map<Layer, std::size_t> known;
  const int layers = static_cast<int>(recording.model.decoder.layers.size());
  for (int l = 0; l < layers; ++l) {
    const auto& before = by_phase[phase_of_layer(l, true)];
    const auto& after = by_phase[phase_of_layer(l, false)];
    const std::uint64_t bytes = cached_bytes_per_token(graph, l);
    const auto [kind, is_new] =
        known.emplace(Layer{merge(before), merge(after), bytes}, kinds_.size());
    if (is_new) kinds_.push_back({compile(before), compile(after), bytes, 0});
    kinds_[kind->second].layers += 1;
    kind_of_layer_.push_back(kind->second);
  }
  std::size_t nodes = 0;
  for (const auto& [phase, groups] : by_phase) {
    for (const roofline::OpGroup& g : groups) nodes += g.count;
  }
  KVCAST_ASSERT(static_cast<double>(nodes) == num_operators());  // no node is left out
  KVCAST_ASSERT(monomials_.size() <= most_values && symbols_.size() <= most_values);
}

LayerTimes::Range LayerTimes::add(const Count& count, double scale) {
  Range range{static_cast<std::uint32_t>(terms_.size()), 0};
  const double unit = scale / static_cast<double>(count.denominator());
  for (const Count::Term& t : count.terms()) {
    const auto found = std::find(monomials_.begin(), monomials_.end(), t.monomial);
    const auto index = static_cast<std::uint32_t>(found - monomials_.begin());
    if (found == monomials_.end()) monomials_.push_back(t.monomial);
    terms_.push_back({index, static_cast<double>(t.numerator) * unit});
  }
  range.end = static_cast<std::uint32_t>(terms_.size());
  return range;
}

LayerTimes::Part LayerTimes::compile(const std::vector<roofline::OpGroup>& groups) {
  Part part;
  for (const auto& [cost, count] : merge(groups)) {
    const double rate = rates_.flops_per_second[static_cast<std::size_t>(cost.engine)].value;
    Entry e;
    e.seconds_per_byte = 1 / rates_.bytes_per_second[static_cast<std::size_t>(cost.stream)].value;
    e.compute_s = add(cost.flops, cost.flops.is_zero() ? 0 : 1 / rate);
    e.memory_s = add(cost.bytes, e.seconds_per_byte);
    e.latency_s = rates_.latency(cost.engine, cost.stream).value;
    e.count = static_cast<double>(count);
    e.repeats = !cost.repetition.operand_bytes.is_zero();
    if (e.repeats) {
      e.bytes = add(cost.bytes, 1);
      e.operand_bytes = add(cost.repetition.operand_bytes, 1);
      e.times = add(cost.repetition.times, 1);
    }
    for (const roofline::SparedBytes& s : roofline::spared_bytes(cost, rates_)) {
      e.spared.push_back({add(s.bytes, 1), s.most_bytes, s.seconds_per_byte});
    }
    e.curves = roofline::length_curves(cost, rates_);
    if (!e.curves.are_flat()) e.length = add(cost.length, 1);
    part.operators += e.count;
    part.entries.push_back(std::move(e));
  }
  return part;
}

double LayerTimes::sum(Range range, std::span<const double> monomials) const {
  double total = 0;
  for (std::uint32_t t = range.begin; t < range.end; ++t) {
    total += terms_[t].coefficient * monomials[terms_[t].monomial];
  }
  return total;
}

double LayerTimes::device_seconds(const Part& part, std::span<const double> monomials) const {
  double total = 0;
  for (const Entry& e : part.entries) {
    double compute = sum(e.compute_s, monomials);
    double memory = sum(e.memory_s, monomials);
    for (const Spared& s : e.spared) {
      const double bytes = sum(s.bytes, monomials);
      if (bytes <= s.most_bytes) memory -= bytes * s.seconds_per_byte;
    }
    if (e.repeats) {
      const double operand = sum(e.operand_bytes, monomials);
      const double times = sum(e.times, monomials);
      const double between = (sum(e.bytes, monomials) - operand) / times + operand;
      if (between > rates_.on_chip_bytes) memory += operand * (times - 1) * e.seconds_per_byte;
    }
    if (!e.curves.are_flat()) {
      const double length = sum(e.length, monomials);
      compute /= e.curves.flops.at(length);
      memory /= e.curves.bytes.at(length);
    }
    total += e.count * (roofline::busy_seconds(compute, memory, rates_.exposed) + e.latency_s);
  }
  return total;
}

std::uint64_t LayerTimes::kv_cache_bytes_per_token() const {
  std::uint64_t bytes = 0;
  for (const std::size_t kind : kind_of_layer_) bytes += kinds_[kind].bytes_per_token;
  return bytes;
}

double LayerTimes::num_operators() const {
  double operators = embedding_.operators + head_.operators;
  for (const Kind& k : kinds_) operators += k.layers * (k.before.operators + k.after.operators);
  return operators;
}

LayerTimes LayerTimes::for_batch(std::uint64_t batch) const {
  KVCAST_ASSERT(batch >= 1);
  LayerTimes copy = *this;
  copy.batch_ = batch;
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    copy.kinds_[k].bytes_per_token = checked_multiply(kinds_[k].bytes_per_token / batch_, batch);
  }
  return copy;
}

LayerTimes LayerTimes::on_device() const {
  LayerTimes copy = *this;
  copy.rates_.host_operator_latency = {0};
  return copy;
}

ProcessTimes LayerTimes::process(std::uint64_t tokens, std::uint64_t keys, bool makes_token,
                                 const ExchangePace& pace) const {
  ProcessTimes times;
  evaluate(tokens, keys, makes_token, pace, times);
  return times;
}

void LayerTimes::evaluate(std::uint64_t tokens, std::uint64_t keys, bool makes_token,
                          const ExchangePace& pace, ProcessTimes& out) const {
  KVCAST_ASSERT(tokens >= 1 && tokens <= keys);
  const bool has_head = makes_token || logits_ == Logits::All;
  std::array<std::uint64_t, most_values> values{};
  values[symbol::batch.id] = batch_;
  values[symbol::prompt_len.id] = tokens;
  values[symbol::kv_len.id] = keys;
  const std::span<std::uint64_t> symbols(values.data(), symbols_.size());
  if (symbols_.has_derived()) symbols_.resolve(symbols);
  std::array<double, most_values> monomials{};
  for (std::size_t m = 0; m < monomials_.size(); ++m) {
    double product = 1;
    for (const std::uint16_t factor : monomials_[m].factors()) {
      product *= static_cast<double>(symbols[factor]);
    }
    monomials[m] = product;
  }

  // Keys and values: each one read and written, and one operator.
  const bool joins = scores_in_memory_ && keys > tokens;
  const double join_bytes = joins ? 2 * static_cast<double>(keys) : 0;
  const double join_operators = joins ? 2 : 0;
  const double join_bandwidth =
      rates_.bytes_per_second[static_cast<std::size_t>(roofline::Stream::Elementwise)].value;
  const double host = rates_.host_operator_latency.value;
  const auto after_operators = [&](const Kind& k) {
    return k.after.operators + (k.bytes_per_token > 0 ? join_operators : 0);
  };

  out.embedding_s = device_seconds(embedding_, monomials);
  out.head_s = has_head ? device_seconds(head_, monomials) : 0;
  out.kinds.resize(kinds_.size());
  double device_total = out.embedding_s + out.head_s;
  double host_total = host * (embedding_.operators + (has_head ? head_.operators : 0));
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    const Kind& k = kinds_[i];
    LayerTime& time = out.kinds[i];
    time = {device_seconds(k.before, monomials), device_seconds(k.after, monomials)};
    if (joins && k.bytes_per_token > 0) {
      time.after_exchange_s +=
          join_bytes * static_cast<double>(k.bytes_per_token) / join_bandwidth +
          join_operators * rates_.latency(Engine::Vector, roofline::Stream::Elementwise).value;
    }
    time.before_exchange_s /= pace.lockstep;
    time.after_exchange_s /= pace.lockstep;
    device_total += k.layers * (time.before_exchange_s + time.after_exchange_s);
    host_total += k.layers * host * (k.before.operators + after_operators(k));
  }
  if (host == 0 && pace.messages_s == 0 && pace.exchange_s == 0) return;

  if (pace.exchanges) {
    out.embedding_s = std::max(out.embedding_s, host * embedding_.operators);
    if (has_head) out.head_s = std::max(out.head_s, host * head_.operators);
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      const Kind& k = kinds_[i];
      LayerTime& time = out.kinds[i];
      const double half = k.bytes_per_token > 0 ? pace.exchange_s / 2 : 0;
      const double messages = k.bytes_per_token > 0 ? pace.messages_s : 0;
      time = {std::max(time.before_exchange_s, host * k.before.operators + half),
              std::max(time.after_exchange_s, host * after_operators(k) + half + messages)};
    }
    return;
  }
  if (host_total <= device_total) return;
  // The device idles, in each part its share of the host's time.
  const double idle = host * (host_total - device_total) / host_total;
  out.embedding_s += idle * embedding_.operators;
  if (has_head) out.head_s += idle * head_.operators;
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    out.kinds[i].before_exchange_s += idle * kinds_[i].before.operators;
    out.kinds[i].after_exchange_s += idle * after_operators(kinds_[i]);
  }
}

double LayerTimes::total_s(const ProcessTimes& times) const {
  double total = times.embedding_s + times.head_s;
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    const LayerTime& layer = times.kinds[k];
    total += kinds_[k].layers * (layer.before_exchange_s + layer.after_exchange_s);
  }
  return total;
}

}  // namespace kvcast::simulate
