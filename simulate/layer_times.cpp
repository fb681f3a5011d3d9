#include "simulate/layer_times.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "model/base/error.h"
#include "model/base/units.h"

namespace kvcast::simulate {
namespace {

constexpr std::string_view embedding_phase = "embedding";
constexpr std::string_view head_phase = "head";

/// Room on the stack for the values of symbols, of which a pass has about ten, and for the parts of
/// a step, four for each kind of layer.
constexpr std::size_t most_symbols = 64;
constexpr std::size_t most_parts = 768;
/// Longer than any.
constexpr std::uint64_t no_prompt = std::uint64_t{1} << 40;

/// What a rank does of one layer.
struct LayerSegments {
  std::vector<roofline::OpGroup> before;   ///< up to its first message
  std::vector<roofline::OpGroup> between;  ///< up to its last one
  std::vector<roofline::OpGroup> after;
  std::vector<const TensorInfo*> sent;    ///< rows of keys and values
  std::vector<const TensorInfo*> states;  ///< a state, and rows that a convolution sees
};

/// The node whose result is sent.
const kvcast::Node& sent_by(const Graph& graph, const kvcast::Node& send) {
  return graph.node(*graph.tensor(send.inputs[0]).producer);
}

bool leaves_scan(const Graph& graph, const kvcast::Node& send) {
  return std::holds_alternative<kvcast::StateScan>(sent_by(graph, send).op);
}

/// What a state space leaves: a scan's state, or rows that its convolution sees.
bool is_of_state(const Graph& graph, const kvcast::Node& send) {
  return leaves_scan(graph, send) || sent_by(graph, send).label.starts_with("cache_state");
}

/// A rank's pass, folded at its messages. Those of a layer are taken to leave all at once, where
/// the last of them stands, and to be waited for there; of a layer that scans, where the scan's do.
struct Segments {
  std::vector<roofline::OpGroup> embedding;
  std::vector<roofline::OpGroup> head;
  std::vector<LayerSegments> layers;
};

using Span = std::pair<std::size_t, std::size_t>;  ///< the first and the last

/// By layer, its first and last message; where it scans, those of its scan.
std::map<int, Span> message_spans(const Graph& graph) {
  std::map<int, Span> messages;
  std::map<int, Span> of_scans;
  const auto widen = [](std::map<int, Span>& spans, int layer, std::size_t i) {
    Span& span = spans.try_emplace(layer, i, i).first->second;
    span = {std::min(span.first, i), std::max(span.second, i)};
  };
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const kvcast::Node& node = graph.nodes()[i];
    if (is_message(node.op)) widen(messages, node.layer, i);
    if (std::holds_alternative<kvcast::Send>(node.op) && leaves_scan(graph, node)) {
      widen(of_scans, node.layer, i);
    }
    if (!std::holds_alternative<kvcast::StateScan>(node.op)) continue;
    for (const TensorId input : node.inputs) {
      const std::optional<NodeId> made_by = graph.tensor(input).producer;
      if (made_by && is_message(graph.node(*made_by).op))
        widen(of_scans, node.layer, made_by->index);
    }
  }
  for (const auto& [layer, scan] : of_scans) messages[layer] = scan;
  return messages;
}

Segments segments_of(const Graph& graph, const Lowering& lowering) {
  const roofline::FoldedGraph folded = roofline::fold_nodes(graph, lowering);
  Segments segments;
  const std::map<int, Span> exchange = message_spans(graph);
  for (const kvcast::Node& node : graph.nodes()) {
    segments.layers.resize(
        std::max(segments.layers.size(), static_cast<std::size_t>(node.layer + 1)));
  }
  const auto segment = [&](std::size_t i) -> std::vector<roofline::OpGroup>& {
    const kvcast::Node& node = graph.nodes()[i];
    if (node.phase == embedding_phase) return segments.embedding;
    if (node.phase == head_phase) return segments.head;
    LayerSegments& layer = segments.layers[static_cast<std::size_t>(node.layer)];
    const auto found = exchange.find(node.layer);
    if (found == exchange.end() || i > found->second.second) return layer.after;
    return i < found->second.first ? layer.before : layer.between;
  };
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const kvcast::Node& node = graph.nodes()[i];
    if (std::holds_alternative<kvcast::Send>(node.op)) {
      LayerSegments& layer = segments.layers[static_cast<std::size_t>(node.layer)];
      (is_of_state(graph, node) ? layer.states : layer.sent)
          .push_back(&graph.tensor(node.output()));
    }
    // A launch, and its conversions behind it.
    for (std::size_t g = folded.group_of_node[i]; g < folded.groups.size(); ++g) {
      const bool is_launch = g == folded.group_of_node[i];
      if (!is_launch && folded.groups[g].op != roofline::conversion_name) break;
      segment(i).push_back(folded.groups[g]);
      segment(i).back().count = 1;
    }
  }
  return segments;
}

/// torch.cat of what came in and the own rows, as eager kernels read them.
std::vector<roofline::OpGroup> joins(const LayerSegments& layer, const Lowering& lowering) {
  Graph graph;
  for (const TensorInfo* sent : layer.sent) {
    const auto tensor = [&](const Count& rows) {
      return TensorInfo{
          "", {sent->shape[0], rows, sent->shape[2]}, sent->dtype, Storage::Activations, {}};
    };
    const TensorId others = graph.add_tensor(tensor(Count(symbol::kv_len) - symbol::prompt_len));
    const TensorId own = graph.add_tensor(tensor(symbol::prompt_len));
    graph.add_node({JoinRows{}, {others, own}, {}, "join", "layer"}, tensor(symbol::kv_len));
  }
  std::vector<roofline::OpGroup> groups = roofline::fold(graph, lowering);
  for (roofline::OpGroup& group : groups)
    group.bandwidth_class = roofline::BandwidthClass::Elementwise;
  return groups;
}

/// Found in the rows that a rank sends: as many as there are up to some length, then a window of
/// them or those of a new chunk.
SeenTokens seen_keys(const std::vector<const TensorInfo*>& sent, const Symbols& symbols) {
  if (sent.empty()) return {};
  const auto rows = [&](std::uint64_t kv_len) {
    return sent.front()->shape[1].at(symbols.resolve({1, 1, kv_len}));
  };
  if (rows(no_prompt) == no_prompt) return {};
  std::uint64_t low = 1;  // all are sent
  std::uint64_t high = no_prompt;
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (rows(middle) == middle ? low : high) = middle;
  }
  if (rows(high) == 0) return {.chunk = high};
  return {.most = low};
}

/// The same with what a state space sends: rows of as many tokens as its convolution sees, and a
/// state, which is of one row whatever the tokens.
SeenTokens seen_tokens(const LayerSegments& layer, const Symbols& symbols) {
  SeenTokens seen = seen_keys(layer.sent, symbols);
  const SymbolValues one = symbols.resolve({1, 1, 1});
  const SymbolValues many = symbols.resolve({1, 1, no_prompt});
  for (const TensorInfo* sent : layer.states) {
    const std::uint64_t rows = sent->shape[1].at(many);
    if (sent->shape[1].is_constant()) {
      seen.state_bytes += sent->bytes().at(one);
    } else {
      seen.taps = rows;
      seen.tap_bytes += sent->bytes().at(one);
    }
  }
  return seen;
}

/// A layer with a state waits for the rank before where its scan begins. What it computes up to
/// there needs nothing of others, and so is the end of what comes before.
void wait_at_scans(Segments& segments, const Symbols& symbols) {
  std::vector<roofline::OpGroup>* previous = &segments.embedding;
  for (LayerSegments& layer : segments.layers) {
    if (seen_tokens(layer, symbols).has_state()) {
      previous->insert(previous->end(), layer.before.begin(), layer.before.end());
      layer.before.clear();
    }
    previous = &layer.after;
  }
}

Recording record_whole(const Architecture& architecture, const std::vector<MethodSpec>& methods,
                       const Lowering& lowering, Logits logits) {
  if (architecture.encoder_decoder) {
    throw Error("parallel prefill of " + architecture.name, "an encoder-decoder model",
                "a decoder-only one, whose prompt can be read in parts");
  }
  return record(architecture, methods, lowering, {.logits = logits, .chunked = true});
}

}  // namespace

ExchangePace exchange_pace(Schedule schedule, const ExchangeCost& cost, std::size_t rank,
                           std::size_t ranks) {
  if (ranks == 1) return {};
  if (schedule == Schedule::Tsp) {
    return {true, true, 2 * static_cast<double>(ranks - 1) * cost.message_s, cost.exchange_s,
            cost.lockstep};
  }
  const int messages = (rank > 0 ? 1 : 0) + (rank + 1 < ranks ? 1 : 0);
  return {true, false, messages * cost.message_s, cost.exchange_s};
}

LayerTimes::LayerTimes(const Architecture& architecture, const std::vector<MethodSpec>& methods,
                       const Lowering& lowering, const roofline::Rates& rates, Logits logits)
    : LayerTimes(record_chain(record_whole(architecture, methods, lowering, logits), architecture,
                              methods, lowering, {.logits = logits}),
                 lowering, rates, logits) {}

LayerTimes::LayerTimes(const ChainPasses& passes, const Lowering& lowering,
                       const roofline::Rates& rates, Logits logits)
    : symbols_(passes.symbols),
      host_operator_s_(rates.host_operator_latency.value),
      logits_(logits),
      scores_in_memory_(lowering.attention == Kernels::Eager) {
  if (lowering.skip_unread_rows) {
    throw Error("--skip-unread-rows", "a prompt that several ranks read",
                "one device: ranks compute all rows of the last layer");
  }
  Segments segments = segments_of(passes.middle, lowering);
  const Segments last = segments_of(passes.last, lowering);
  wait_at_scans(segments, symbols_);
  std::vector<std::vector<roofline::OpGroup>> parts{segments.embedding, last.head};

  using Costs = std::map<roofline::OpCost, std::uint64_t>;
  std::map<std::tuple<Costs, Costs, Costs, std::uint64_t>, std::size_t> known;
  std::vector<Layer> layers;
  const SymbolValues one_token = symbols_.resolve({1, 1, 1});
  for (const LayerSegments& layer : segments.layers) {
    std::uint64_t bytes = 0;
    for (const TensorInfo* sent : layer.sent) bytes += sent->bytes().at(one_token);
    most_messages_ = std::max(most_messages_, layer.sent.size());
    const SeenTokens seen = seen_tokens(layer, symbols_);
    const auto [known_layer, is_new] =
        known.emplace(std::tuple(roofline::merge(layer.before), roofline::merge(layer.between),
                                 roofline::merge(layer.after), bytes),
                      parts.size());
    if (is_new) {
      parts.push_back(layer.before);
      parts.push_back(layer.between);
      parts.push_back(layer.after);
      parts.push_back(scores_in_memory_ ? joins(layer, lowering)
                                        : std::vector<roofline::OpGroup>());
    }
    layers.push_back({known_layer->second, bytes, seen});
  }
  for (const bool rings : {false, true}) cut_into_stretches(layers, rings);
  std::map<Layer, std::size_t> kind_of;
  for (const Layer& layer : layers) {
    const auto [kind, is_new] = kind_of.emplace(layer, kinds_.size());
    if (is_new) {
      kinds_.push_back(layer);
      bytes_per_token_.push_back(layer.bytes_per_token);
      seen_.push_back(layer.seen);
      layers_.push_back(0);
    }
    layers_[kind->second] += 1;
    kind_of_layer_.push_back(kind->second);
  }
  step_ = std::make_shared<roofline::StepCost>(parts, rates);
  // No launch is left out.
  const auto launches = [](const std::vector<roofline::OpGroup>& groups) {
    std::uint64_t sum = 0;
    for (const roofline::OpGroup& g : groups) sum += g.count;
    return sum;
  };
  std::uint64_t all = launches(segments.embedding) + launches(last.head);
  for (const LayerSegments& layer : segments.layers)
    all += launches(layer.before) + launches(layer.between) + launches(layer.after);
  KVCAST_ASSERT(all == launches(roofline::fold(passes.last, lowering)));
  KVCAST_ASSERT(symbols_.size() <= most_symbols && parts.size() <= most_parts);
  for (const auto& stretches : stretches_) KVCAST_ASSERT(stretches.size() <= most_parts);
}

void LayerTimes::cut_into_stretches(std::vector<Layer>& layers, bool rings) {
  std::vector<Stretch>& stretches = stretches_[rings ? 1 : 0];
  Stretch stretch;
  const auto add = [&](std::size_t part) {
    const auto same = std::find_if(stretch.parts.begin(), stretch.parts.end(),
                                   [&](const auto& known) { return known.first == part; });
    if (same == stretch.parts.end()) {
      stretch.parts.emplace_back(part, 1);
    } else {
      same->second += 1;
    }
  };
  std::size_t first_stretch = 0;
  std::size_t* begun = &first_stretch;
  const auto end_stretch = [&](bool at_exchange) {
    stretch.ends_at_exchange = at_exchange;
    const auto same = std::find(stretches.begin(), stretches.end(), stretch);
    *begun = static_cast<std::size_t>(same - stretches.begin());
    if (same == stretches.end()) stretches.push_back(std::move(stretch));
    stretch = {};
  };
  const auto cut = [&](std::size_t& next, bool at_exchange) {
    end_stretch(at_exchange);
    begun = &next;
  };
  add(embedding);
  for (Layer& layer : layers) {
    const bool has_state = layer.seen.has_state();
    Begun& of_layer = layer.begun[rings ? 1 : 0];
    if (has_state && !rings) cut(of_layer.before, false);
    add(layer.first_part + before);
    if (layer.exchanges() && !has_state && !rings) cut(of_layer.before, true);
    add(layer.first_part + between);
    if (layer.exchanges()) {
      cut(of_layer.after, has_state || rings);
      stretch.begins_after_exchange = true;
    }
    add(layer.first_part + after);
    add(layer.first_part + join);
  }
  add(head);
  end_stretch(false);
}

double LayerTimes::num_operators() const {
  double sum = operators(embedding) + operators(head);  // those of a whole prompt join nothing
  for (std::size_t k = 0; k < layers_.size(); ++k) {
    for (const LayerPart part : {before, between, after}) sum += layers_[k] * operators(k, part);
  }
  return sum;
}

LayerTimes LayerTimes::for_batch(std::uint64_t batch) const {
  KVCAST_ASSERT(batch >= 1);
  LayerTimes copy = *this;
  copy.batch_ = batch;
  for (std::uint64_t& bytes : copy.bytes_per_token_) {
    bytes = checked_multiply(bytes / batch_, batch);
  }
  for (SeenTokens& seen : copy.seen_) {
    seen.state_bytes = checked_multiply(seen.state_bytes / batch_, batch);
    seen.tap_bytes = checked_multiply(seen.tap_bytes / batch_, batch);
  }
  return copy;
}

RankTimes LayerTimes::of_rank(std::uint64_t tokens, std::uint64_t keys, bool makes_token,
                              const ExchangePace& pace) const {
  RankTimes times;
  evaluate(tokens, keys, makes_token, pace, times);
  return times;
}

void LayerTimes::evaluate(std::uint64_t tokens, std::uint64_t keys, bool makes_token,
                          const ExchangePace& pace, RankTimes& out) const {
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

  const bool has_joins = scores_in_memory_ && keys > tokens;
  out.embedding_s = seconds[embedding];
  out.head_s = has_head ? seconds[head] : 0;
  out.kinds.resize(layers_.size());
  for (std::size_t k = 0; k < layers_.size(); ++k) {
    LayerTime& time = out.kinds[k];
    time = {seconds[part_of(k, before)] + seconds[part_of(k, between)],
            seconds[part_of(k, after)] + (has_joins ? seconds[part_of(k, join)] : 0)};
    time.before_exchange_s /= pace.lockstep;
    time.after_exchange_s /= pace.lockstep;
  }
  const double host = host_operator_s_;
  if (host == 0 && pace.messages_s == 0 && pace.exchange_s == 0) return;

  if (pace.exchanges) return pace_stretches(seconds, has_head, has_joins, pace, out);

  // The device idles, in each part its share of the host's time.
  const auto for_each_part = [&](const auto& visit) {
    visit(out.embedding_s, operators(embedding), 1.0);
    if (has_head) visit(out.head_s, operators(head), 1.0);
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      const double n = operators(k, before) + operators(k, between);
      visit(out.kinds[k].before_exchange_s, n, layers_[k]);
      visit(out.kinds[k].after_exchange_s, operators(k, after), layers_[k]);
    }
  };
  double all_operators = 0;
  for_each_part([&](double&, double n, double layers) { all_operators += layers * n; });
  const double device_s = total_s(out);
  const double idle_s = roofline::paced_seconds(device_s, host * all_operators) - device_s;
  for_each_part([&](double& s, double n, double) { s += idle_s * n / all_operators; });
}

void LayerTimes::pace_stretches(std::span<const double> seconds, bool has_head, bool has_joins,
                                const ExchangePace& pace, RankTimes& times) const {
  const std::size_t arrangement = pace.rings ? 1 : 0;
  const std::vector<Stretch>& stretches = stretches_[arrangement];
  std::array<double, most_parts> idle;
  for (std::size_t i = 0; i < stretches.size(); ++i) {
    const Stretch& stretch = stretches[i];
    double device_s = 0;
    double host_s = stretch.begins_after_exchange ? pace.exchange_s / 2 + pace.messages_s : 0;
    if (stretch.ends_at_exchange) host_s += pace.exchange_s / 2;
    for (const auto& [part, count] : stretch.parts) {
      if ((part == head && !has_head) || (is_join(part) && !has_joins)) continue;
      device_s += count * seconds[part] / (part < layer_parts ? 1 : pace.lockstep);
      host_s += count * host_operator_s_ * operators(part);
    }
    idle[i] = roofline::paced_seconds(device_s, host_s) - device_s;
  }
  times.embedding_s += idle[0];
  for (std::size_t k = 0; k < layers_.size(); ++k) {
    if (!kinds_[k].exchanges()) continue;
    const Begun& begun = kinds_[k].begun[arrangement];
    if (!pace.rings) times.kinds[k].before_exchange_s += idle[begun.before];
    times.kinds[k].after_exchange_s += idle[begun.after];
  }
}

double LayerTimes::total_s(const RankTimes& times) const {
  double total = times.embedding_s + times.head_s;
  for (std::size_t k = 0; k < layers_.size(); ++k) {
    const LayerTime& layer = times.kinds[k];
    total += layers_[k] * (layer.before_exchange_s + layer.after_exchange_s);
  }
  return total;
}

PrefillWork prefill_work(const LayerTimes& times, Schedule schedule,
                         const std::vector<std::uint64_t>& partition_tokens,
                         const ExchangeCost& cost, AllGather all_gather) {
  check_parts(partition_tokens);
  const bool has_states = std::any_of(times.seen().begin(), times.seen().end(),
                                      [](const SeenTokens& seen) { return seen.has_state(); });
  if (schedule == Schedule::Tsp && has_states) {
    throw Error("schedule tsp", "layers with states, which are made token after token",
                "kvr, whose ranks pass states on");
  }
  const std::size_t ranks = partition_tokens.size();
  std::uint64_t prompt_len = 0;
  for (const std::uint64_t tokens : partition_tokens) prompt_len = checked_add(prompt_len, tokens);
  PrefillWork work;
  work.schedule = schedule;
  work.all_gather = all_gather;
  work.partition_tokens = partition_tokens;
  work.layers = times.kinds();
  work.bytes_per_token = times.bytes_per_token();
  work.seen = times.seen();
  std::uint64_t boundary = 0;
  for (std::size_t i = 0; i < ranks; ++i) {
    boundary += partition_tokens[i];
    work.ranks.push_back(times.of_rank(partition_tokens[i],
                                       times.keys(schedule, boundary, prompt_len), i + 1 == ranks,
                                       exchange_pace(schedule, cost, i, ranks)));
  }
  return work;
}

}  // namespace kvcast::simulate
