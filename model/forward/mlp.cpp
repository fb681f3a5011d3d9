#include "model/forward/mlp.h"

#include <iterator>
#include <map>
#include <vector>

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
    h = s.r.gated("activation", gated, gate, product("up", x, width));
  } else {
    h = s.r.unary("activation", stack.activation, product("up", x, width));
  }
  return s.r.scaled("mlp_scale", product("down", h, s.architecture.hidden_size), stack.mlp_scale);
}

/// Each token's chosen experts.
Value routed_experts(const MlpSite& s, const Experts& e, Value x) {
  Recorder& r = s.r;
  const std::uint64_t hidden = s.architecture.hidden_size;
  const std::uint64_t num_experts = e.routing.num_experts;
  const std::uint64_t chosen = e.routing.num_experts_per_tok;
  const std::string router = s.name + ".router";
  const Value logits = project(r, "router", router, x, num_experts, e.router_bias);
  std::optional<Value> correction;
  if (e.router_correction) correction = r.weight(router + ".correction", {num_experts});
  const auto [experts, weights] = r.route({e.routing, *s.distinct_experts}, logits, correction);
  const ExpertLinear op{num_experts, chosen, *s.distinct_experts, layers_with_experts(s.stack),
                        !e.probabilities.empty()};
  const auto product = [&, chosen_experts = experts](const std::string& part, Value in,
                                                     std::uint64_t features, std::uint64_t out) {
    const std::string weight = s.name + ".experts." + part;
    const Value w = r.weight(weight + ".weight", {num_experts * out, features});
    std::optional<Value> b;
    if (e.mlp_bias) b = r.weight(weight + ".bias", {num_experts * out});
    return r.expert_linear("expert_" + part, op, in, chosen_experts, w, b);
  };
  Value in = x;
  if (e.weighs_input) {
    in = r.binary("weigh_input", Function::Multiply, r.repeat_rows("repeat", x, chosen), weights);
  }
  std::optional<Value> gate;
  if (s.stack.gated_mlp) gate = product("gate", in, hidden, e.intermediate_size);
  const Value up = product("up", in, hidden, e.intermediate_size);
  const GatedActivation gated{s.stack.activation, e.gate_limit, e.gate_alpha};
  const Value h =
      gate ? r.gated("activation", gated, *gate, up) : r.unary("activation", gated.function, up);
  const Value y = product("down", h, e.intermediate_size, hidden);
  return r.combine_experts(chosen, y, e.weighs_input ? std::nullopt : std::optional(weights));
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

/// Adds the experts of one layer.
void add(const Experts& e, ExpertLoads& loads) {
  const std::uint64_t experts = e.routing.num_experts;
  if (e.probabilities.empty()) {
    loads[static_cast<double>(e.routing.num_experts_per_tok) / static_cast<double>(experts)] +=
        experts;
  }
  for (const double p : e.probabilities) ++loads[p];
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

std::optional<Symbol> count_experts(Symbols& symbols, const Stack& stack, const std::string& name,
                                    const std::function<Count(std::size_t layer)>& rows) {
  // Layers with as many rows are counted together.
  std::map<Count, ExpertLoads> loads;
  Count most;
  for (std::size_t i = 0; i < stack.layers.size(); ++i) {
    const std::optional<Experts>& e = stack.layers[i].experts;
    if (!e) continue;
    const Count own = rows(i);
    add(*e, loads[own]);
    most += symbols.minimum(own * e->routing.num_experts_per_tok, e->routing.num_experts);
  }
  if (loads.empty()) return {};
  Count usual;
  for (const auto& [own, of_layers] : loads) {
    usual += symbols.expected_distinct(own, merged(of_layers));
  }
  return symbols.found_by_run(most, name, usual);
}

}  // namespace kvcast
