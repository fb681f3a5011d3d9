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

/// Room on the stack for the values of symbols, of which a pass has about ten, and for the parts of
/// a step, two for each kind of layer.
constexpr std::size_t most_symbols = 64;
constexpr std::size_t most_parts = 512;

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
    : host_operator_s_(rates.host_operator_latency.value),
      logits_(logits),
      scores_in_memory_(lowering.attention == Kernels::Eager) {
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
  std::vector<std::vector<roofline::OpGroup>> parts{by_phase[std::string(embedding_phase)],
                                                    by_phase[std::string(head_phase)]};

  using Costs = std::map<roofline::OpCost, std::uint64_t>;
  using Layer = std::tuple<Costs, Costs, std::uint64_t>;
  std::map<Layer, std::size_t> known;
  const int layers = static_cast<int>(recording.model.decoder.layers.size());
  for (int l = 0; l < layers; ++l) {
    const auto& before = by_phase[phase_of_layer(l, true)];
    const auto& after = by_phase[phase_of_layer(l, false)];
    const std::uint64_t bytes = cached_bytes_per_token(graph, l);
    const auto [kind, is_new] =
        known.emplace(Layer{roofline::merge(before), roofline::merge(after), bytes}, kinds_.size());
    if (is_new) {
      parts.push_back(before);
      parts.push_back(after);
      kinds_.push_back({bytes, 0});
    }
    kinds_[kind->second].layers += 1;
    kind_of_layer_.push_back(kind->second);
  }
  step_ = std::make_shared<roofline::StepCost>(parts, rates);
  std::size_t nodes = 0;
  for (const auto& [phase, groups] : by_phase) {
    for (const roofline::OpGroup& g : groups) nodes += g.count;
  }
  KVCAST_ASSERT(static_cast<double>(nodes) == num_operators());  // no node is left out
  KVCAST_ASSERT(symbols_.size() <= most_symbols && parts.size() <= most_parts);
}

std::uint64_t LayerTimes::kv_cache_bytes_per_token() const {
  std::uint64_t bytes = 0;
  for (const std::size_t kind : kind_of_layer_) bytes += kinds_[kind].bytes_per_token;
  return bytes;
}

double LayerTimes::num_operators() const {
  double sum = operators(embedding) + operators(head);
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    sum += kinds_[k].layers * (operators(before(k)) + operators(after(k)));
  }
  return sum;
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
  copy.host_operator_s_ = 0;
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
  std::array<std::uint64_t, most_symbols> values{};
  values[symbol::batch.id] = batch_;
  values[symbol::prompt_len.id] = tokens;
  values[symbol::kv_len.id] = keys;
  const std::span<std::uint64_t> symbols(values.data(), symbols_.size());
  if (symbols_.has_derived()) symbols_.resolve(symbols);
  std::array<double, most_parts> seconds;
  step_->part_seconds(symbols, seconds);

  // Keys and values: each one read and written, and one operator.
  const bool joins = scores_in_memory_ && keys > tokens;
  const double join_bytes = joins ? 2 * static_cast<double>(keys) : 0;
  const double join_operators = joins ? 2 : 0;
  const roofline::Rates& rates = step_->rates();
  const double join_bandwidth =
      rates.bytes_per_second[static_cast<std::size_t>(roofline::Stream::Elementwise)].value;
  const double host = host_operator_s_;
  const auto after_operators = [&](std::size_t k) {
    return operators(after(k)) + (kinds_[k].bytes_per_token > 0 ? join_operators : 0);
  };

  out.embedding_s = seconds[embedding];
  out.head_s = has_head ? seconds[head] : 0;
  out.kinds.resize(kinds_.size());
  double device_total = out.embedding_s + out.head_s;
  double host_total = host * (operators(embedding) + (has_head ? operators(head) : 0));
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    const Kind& kind = kinds_[k];
    LayerTime& time = out.kinds[k];
    time = {seconds[before(k)], seconds[after(k)]};
    if (joins && kind.bytes_per_token > 0) {
      time.after_exchange_s +=
          join_bytes * static_cast<double>(kind.bytes_per_token) / join_bandwidth +
          join_operators * rates.latency(Engine::Vector, roofline::Stream::Elementwise).value;
    }
    time.before_exchange_s /= pace.lockstep;
    time.after_exchange_s /= pace.lockstep;
    device_total += kind.layers * (time.before_exchange_s + time.after_exchange_s);
    host_total += kind.layers * host * (operators(before(k)) + after_operators(k));
  }
  if (host == 0 && pace.messages_s == 0 && pace.exchange_s == 0) return;

  using roofline::paced_seconds;
  if (pace.exchanges) {
    out.embedding_s = paced_seconds(out.embedding_s, host * operators(embedding));
    if (has_head) out.head_s = paced_seconds(out.head_s, host * operators(head));
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      const bool exchanges = kinds_[k].bytes_per_token > 0;
      const double half = exchanges ? pace.exchange_s / 2 : 0;
      const double messages = exchanges ? pace.messages_s : 0;
      LayerTime& time = out.kinds[k];
      time = {paced_seconds(time.before_exchange_s, host * operators(before(k)) + half),
              paced_seconds(time.after_exchange_s, host * after_operators(k) + half + messages)};
    }
    return;
  }
  const double idle_total = paced_seconds(device_total, host_total) - device_total;
  if (idle_total == 0) return;
  // The device idles, in each part its share of the host's time.
  const double idle = host * idle_total / host_total;
  out.embedding_s += idle * operators(embedding);
  if (has_head) out.head_s += idle * operators(head);
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    out.kinds[k].before_exchange_s += idle * operators(before(k));
    out.kinds[k].after_exchange_s += idle * after_operators(k);
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
