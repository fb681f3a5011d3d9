#include "model/forward/mlp.h"

#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/base/order_statistics.h"
#include "model/forward/attention_site.h"

namespace kvcast {
namespace {

/// Two or three products, `width` wide.
Value dense_mlp(const MlpSite& s, std::uint64_t width, const std::string& name, Value x,
                const std::optional<double>& gate_cutoff = {}) {
  const Stack& stack = s.stack;
  const auto product = [&](const std::string& part, Value in, std::uint64_t out) {
    return project(s.r, part, name + "." + part, in, out, stack.mlp_bias);
  };
  Value h;
  if (stack.gated_mlp) {
    const Value gate = s.r.scaled("gate_scale", product("gate", x, width), stack.gate_scale);
    const GatedActivation gated{.function = stack.activation, .cutoff = gate_cutoff};
    const Value up = product("up", x, width);
    const auto activated = [&](Value g, Value u) { return s.r.gated("activation", gated, g, u); };
    // A cutoff is above the mean of all features.
    h = !gate_cutoff ? activated(gate, up) : with_all_features(s.r, "gate", gate, [&](Value all) {
      return activated(all, s.r.gather_features("gather_up", up));
    });
  } else if (stack.activation == Function::Xielu) {
    const auto parameter = [&](const char* part) {
      return s.r.weight(fmt::format("{}.{}.weight", name, part), {1});
    };
    h = s.r.xielu("activation", product("up", x, width), parameter("alpha_p"),
                  parameter("alpha_n"));
  } else {
    h = s.r.unary("activation", stack.activation, product("up", x, width));
  }
  return s.r.scaled("mlp_scale", product("down", h, s.architecture.hidden_size), stack.mlp_scale);
}

/// The operators between the devices that have the experts.
struct ExpertExchange {
  DispatchTokens dispatch;
  ReturnTokens back;
};
ExpertExchange exchange_of(const Experts& e, const ExpertCounts& counts, const Sharding& sharding) {
  DispatchTokens d;
  if (sharding.plan().dp > 1) {
    d.group = sharding.replica_group();
    d.member = sharding.replica();
    d.sent = *counts.sent;
    d.received = *counts.received;
  }
  d.num_experts = e.routing.num_experts;
  d.first_expert = sharding.first_expert(e);
  d.experts_here = sharding.experts_here(e);
  d.pairs = *counts.pairs;
  d.distinct = counts.distinct;
  d.layers = counts.layers;
  return {d, {d.group, d.member, d.received, d.sent, d.layers}};
}

/// Each token's chosen experts.
Value routed_experts(const MlpSite& s, const Experts& e, Value x) {
  Recorder& r = s.r;
  const std::uint64_t hidden = s.architecture.hidden_size;
  const std::string router = s.name + ".router";
  const Value logits = project(r, "router", router, x, e.routing.num_experts, e.router_bias);
  std::optional<Value> correction;
  if (e.router_correction) {
    correction = r.weight(router + ".correction", {e.routing.num_experts});
  }
  Recorder::Routed routed = r.route({e.routing, s.counts->distinct}, logits, correction);
  ExpertLinear op{e.routing.num_experts, e.routing.num_experts_per_tok, s.counts->distinct,
                  s.counts->layers, !e.probabilities.empty()};
  const Sharding* const sharding = r.sharding();
  const bool spreads = sharding != nullptr && sharding->plan().ep > 1;
  std::optional<ExpertExchange> exchange;
  std::vector<Count> shape = r.info(x).shape;
  std::optional<Value> places;
  if (spreads) {
    exchange = exchange_of(e, *s.counts, *sharding);
    exchange->dispatch.sent_as = r.lowering().operand_dtype();
    const auto here = r.dispatch_tokens(exchange->dispatch, x, routed);
    x = here.rows;
    places = here.places;
    routed = {here.experts, here.weights};
    op.num_experts = exchange->dispatch.experts_here;
    op.num_experts_per_tok = 1;
  }
  const auto product = [&](const std::string& part, Value in, std::uint64_t features,
                           std::uint64_t out) {
    const std::string weight = s.name + ".experts." + part;
    const Value w = r.weight(weight + ".weight", {op.num_experts * out, features});
    std::optional<Value> b;
    if (e.mlp_bias && (sharding == nullptr || sharding->adds_bias(weight))) {
      b = r.weight(weight + ".bias", {op.num_experts * out});
    }
    return r.expert_linear("expert_" + part, op, in, routed.experts, w, b);
  };
  Value in = x;
  if (e.weighs_input) {
    in = r.binary("weigh_input", Function::Multiply,
                  r.repeat_rows("repeat", x, op.num_experts_per_tok), routed.weights);
  }
  std::optional<Value> gate;
  if (s.stack.gated_mlp) gate = product("gate", in, hidden, e.intermediate_size);
  const Value up = product("up", in, hidden, e.intermediate_size);
  const GatedActivation gated{s.stack.activation, e.gate_limit, e.gate_alpha};
  const Value h =
      gate ? r.gated("activation", gated, *gate, up) : r.unary("activation", gated.function, up);
  const Value y = product("down", h, e.intermediate_size, hidden);
  const auto weights = e.weighs_input ? std::nullopt : std::optional(routed.weights);
  if (spreads) return r.return_tokens(exchange->back, y, weights, *places, std::move(shape));
  return r.combine_experts(op.num_experts_per_tok, y, weights);
}

/// The expert that all tokens read.
Value shared_expert(const MlpSite& s, const Experts& e, Value x) {
  const std::string name = s.name + ".shared_expert";
  const Value y = dense_mlp(s, e.shared_intermediate_size, name, x);
  if (!e.shared_gate) return y;
  const Value gate = project(s.r, "shared_gate", name + ".router", x, 1, false);
  return s.r.binary("weigh_shared", Function::Multiply, y,
                    s.r.unary("shared_gate", Function::Sigmoid, gate));
}

/// Adds `count` experts of one layer, from `first` on.
void add(const Experts& e, std::uint64_t first, std::uint64_t count, ExpertLoads& loads) {
  if (e.probabilities.empty()) {
    loads[static_cast<double>(e.routing.num_experts_per_tok) /
          static_cast<double>(e.routing.num_experts)] += count;
    return;
  }
  for (std::uint64_t i = first; i < first + count; ++i) ++loads[e.probabilities[i]];
}

/// How likely a token is to choose one of `count` experts, K of E at random: 1 - C(E-n,K)/C(E,K).
double reaches(const Routing& routing, std::uint64_t count) {
  double none = 1;
  for (std::uint64_t i = 0; i < routing.num_experts_per_tok; ++i) {
    const std::uint64_t left = routing.num_experts - i;
    none *= left > count ? static_cast<double>(left - count) / static_cast<double>(left) : 0;
  }
  return 1 - none;
}

/// The experts and their copies as the devices have them, each as likely as its share of the
/// expert: the next copy is of the expert whose copies have most, and the heaviest first goes to
/// the device with least and room left (as EPLB, deepseek-ai/EPLB: eplb.py).
Experts placed_experts(const Experts& e, std::uint64_t devices) {
  if (e.copies == 0) return e;
  std::vector<double> chosen = e.probabilities;
  if (chosen.empty()) {
    chosen.assign(e.routing.num_experts, static_cast<double>(e.routing.num_experts_per_tok) /
                                             static_cast<double>(e.routing.num_experts));
  }
  std::vector<double> number(chosen.size(), 1);
  using Load = std::pair<double, std::size_t>;
  std::set<Load> by_load;  // of one copy; ties in a fixed order
  for (std::size_t i = 0; i < chosen.size(); ++i) by_load.insert({-chosen[i], i});
  for (std::uint64_t copy = 0; copy < e.copies; ++copy) {
    const std::size_t i = by_load.begin()->second;
    by_load.erase(by_load.begin());
    number[i] += 1;
    by_load.insert({-chosen[i] / number[i], i});
  }
  std::vector<std::vector<double>> of_device(devices);
  std::set<Load> by_room;
  for (std::size_t d = 0; d < devices; ++d) by_room.insert({0, d});
  const std::size_t room = (chosen.size() + e.copies) / devices;
  for (const auto& [load, i] : by_load) {
    for (double copy = 0; copy < number[i]; ++copy) {
      const auto [least, d] = *by_room.begin();
      by_room.erase(by_room.begin());
      of_device[d].push_back(-load);
      if (of_device[d].size() < room) by_room.insert({least - load, d});
    }
  }
  Experts placed = e;
  placed.probabilities.clear();
  for (const auto& device : of_device) {
    placed.probabilities.insert(placed.probabilities.end(), device.begin(), device.end());
  }
  return placed;
}

/// The sum of the probabilities of `count` experts from `first` on.
double chosen_of(const Experts& e, std::uint64_t first, std::uint64_t count) {
  const auto begin = e.probabilities.begin() + static_cast<std::ptrdiff_t>(first);
  return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(count), 0.0);
}

/// How likely a token is to reach a device of `count` experts from `first` on, and the mean of all
/// devices.
struct Reach {
  double here;
  double mean;
};
/// Alike experts and copies: a token takes K of all. Others as if a token took each for itself, but
/// to the power that makes of alike ones the same; no device gets more tokens than pairs.
Reach reach_of(const Experts& e, bool alike, std::uint64_t first, std::uint64_t count) {
  Routing routing = e.routing;
  routing.num_experts += e.copies;
  const double even = reaches(routing, count);
  if (alike || even >= 1) return {even, even};
  const double each =
      static_cast<double>(routing.num_experts_per_tok) / static_cast<double>(routing.num_experts);
  const double power = std::log1p(-even) / (static_cast<double>(count) * std::log1p(-each));
  Reach reach{0, 0};
  for (std::uint64_t device = 0; device < e.probabilities.size(); device += count) {
    double none = 1;
    for (std::uint64_t i = device; i < device + count; ++i) none *= 1 - e.probabilities[i];
    const double some = std::min(1 - std::pow(none, power), chosen_of(e, device, count));
    if (device == first) reach.here = some;
    reach.mean += some * static_cast<double>(count) / static_cast<double>(e.probabilities.size());
  }
  return reach;
}

/// The first of those `count` experts of a device that tokens choose most: the other devices wait.
std::uint64_t first_of_fullest(const Experts& e, std::uint64_t count) {
  std::uint64_t fullest = 0;
  for (std::uint64_t first = 0; first < e.probabilities.size(); first += count) {
    if (chosen_of(e, first, count) > chosen_of(e, fullest, count)) fullest = first;
  }
  return fullest;
}

/// The share of all pairs of token and expert that these experts have.
double share_of(const Experts& e, std::uint64_t first, std::uint64_t count) {
  if (e.probabilities.empty()) {
    return static_cast<double>(count) / static_cast<double>(e.routing.num_experts);
  }
  return chosen_of(e, first, count) / chosen_of(e, 0, e.probabilities.size());
}

/// How far the pairs of the fullest device in Experts::draws steps lie above the mean, over the
/// root of the number of tokens, whose sums are taken to be normal.
double above_mean(const Experts& e, std::uint64_t first, std::uint64_t count) {
  const auto chosen = static_cast<double>(e.routing.num_experts_per_tok);
  const auto all = static_cast<double>(e.routing.num_experts);
  const double share = share_of(e, first, count);
  // K of E without replacement (hypergeometric); or each expert for itself.
  double variance = all > 1 ? chosen * share * (1 - share) * (all - chosen) / (all - 1) : 0;
  std::uint64_t rivals = e.routing.num_experts / count;
  if (!e.probabilities.empty()) {
    variance = 0;
    // Copies make devices alike; without them the one with most is taken to be the fullest.
    rivals = e.copies > 0 ? e.probabilities.size() / count : 1;
    for (std::uint64_t i = first; i < first + count; ++i) {
      variance += e.probabilities[i] * (1 - e.probabilities[i]);
    }
  }
  return expected_largest_normal(e.draws * rivals) * std::sqrt(variance);
}

/// Pairs of `tokens` and these `count` experts of a device: in the mean, or of the fullest device.
Count expected_pairs(Symbols& symbols, const Experts& e, const Count& tokens, std::uint64_t first,
                     std::uint64_t count) {
  const auto chosen = static_cast<double>(e.routing.num_experts_per_tok);
  const double share = share_of(e, first, count);
  if (e.draws == 0) return symbols.ceil_fraction(tokens * e.routing.num_experts_per_tok, share);
  return symbols.minimum(symbols.drawn_sum(tokens, chosen * share, above_mean(e, first, count)),
                         tokens * std::min(e.routing.num_experts_per_tok, count));
}

/// As many tokens as have those pairs in the mean.
Count tokens_of_pairs(Symbols& symbols, const Experts& e, const Count& tokens, std::uint64_t first,
                      std::uint64_t count) {
  const double mean =
      static_cast<double>(e.routing.num_experts_per_tok) * share_of(e, first, count);
  if (e.draws == 0 || mean == 0) return tokens;
  const auto most = static_cast<double>(std::min(e.routing.num_experts_per_tok, count));
  return symbols.minimum(symbols.drawn_sum(tokens, 1, above_mean(e, first, count) / mean),
                         tokens * static_cast<std::uint64_t>(std::ceil(most / mean)));
}

/// Probabilities within a tenth of the least of them count as their mean, which moves the expected
/// experts by less than 0.1 %: a sweep takes a power of each.
ExpertLoads merged(const ExpertLoads& loads) {
  ExpertLoads merged;
  for (auto first = loads.begin(); first != loads.end();) {
    double sum = 0;
    std::uint64_t experts = 0;
    auto next = first;
    for (; next != loads.end() && next->first <= 1.1 * first->first; ++next) {
      sum += next->first * static_cast<double>(next->second);
      experts += next->second;
    }
    const bool one = std::next(first) == next;
    merged[one ? first->first : sum / static_cast<double>(experts)] += experts;
    first = next;
  }
  return merged;
}

}  // namespace

Value mlp(const MlpSite& s, Value x) {
  if (!s.layer.experts) {
    return dense_mlp(s, s.layer.intermediate_size, s.name, x, s.layer.gate_cutoff);
  }
  const Experts& e = *s.layer.experts;
  const Value routed = routed_experts(s, e, x);
  if (e.shared_intermediate_size == 0) return routed;
  return s.r.binary("add_shared", Function::Add, routed, shared_expert(s, e, x));
}

std::optional<ExpertCounts> count_experts(Symbols& symbols, const Stack& stack,
                                          const std::string& name,
                                          const std::function<Count(std::size_t layer)>& rows,
                                          const Sharding* sharding) {
  const Parallelism plan = sharding != nullptr ? sharding->plan() : Parallelism{};
  const bool spreads = plan.ep > 1;
  const std::uint64_t others = plan.dp - 1;
  // Layers with as many rows are counted together.
  std::map<Count, ExpertLoads> loads;
  struct Moved {
    Count most;
    Count usual;
  };
  Moved pairs;
  Moved sent;
  Count received;  ///< expected, by the fullest device
  Count most;
  ExpertCounts counts;
  for (std::size_t i = 0; i < stack.layers.size(); ++i) {
    if (!stack.layers[i].experts) continue;
    const Experts& whole = *stack.layers[i].experts;
    const Experts e = spreads ? placed_experts(whole, plan.ep) : whole;
    const Count own = rows(i);
    if (own.is_zero()) continue;
    ++counts.layers;
    const std::uint64_t here = spreads ? sharding->experts_here(e) : e.routing.num_experts;
    const std::uint64_t first = spreads ? first_of_fullest(e, here) : 0;
    const Count all = spreads ? own * plan.dp : own;
    const std::uint64_t chosen = e.routing.num_experts_per_tok;
    add(e, first, here, loads[spreads ? tokens_of_pairs(symbols, e, all, first, here) : all]);
    most += symbols.minimum(all * chosen, here);
    if (!spreads) continue;
    pairs.most += all * std::min(chosen, here);
    pairs.usual += expected_pairs(symbols, e, all, first, here);
    if (others == 0) continue;
    sent.most += own * std::min(chosen, others);
    const Reach reach = reach_of(e, whole.probabilities.empty(), first, here);
    sent.usual += symbols.ceil_fraction(own * others, reach.mean);
    const Count weighed = tokens_of_pairs(symbols, e, own * others, first, here);
    const Count reaching = symbols.ceil_fraction(weighed, reach.here);
    received += e.draws == 0 ? reaching : symbols.minimum(reaching, own * others);
  }
  if (loads.empty()) return {};
  Count usual;
  for (const auto& [own, of_layers] : loads) {
    usual += symbols.expected_distinct(own, merged(of_layers));
  }
  counts.distinct = symbols.found_by_run(most, name, usual);
  if (!spreads) return counts;
  counts.pairs = symbols.found_by_run(pairs.most, name + "_pairs", pairs.usual);
  if (others == 0) return counts;
  counts.sent = symbols.found_by_run(sent.most, name + "_sent", sent.usual);
  const Count all_received = pairs.most;  // no token comes for fewer than one pair
  counts.received = symbols.found_by_run(all_received, name + "_received", received);
  return counts;
}

}  // namespace kvcast
