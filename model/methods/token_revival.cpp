#include "model/methods/token_revival.h"

#include <memory>
#include <string>

#include "model/base/error.h"

namespace kvcast {
namespace {

/// Consecutive layers that see the same tokens.
struct LayerGroup {
  std::size_t first_layer = 0;
  double share = 1;
  Count kept;      ///< of the prompt
  Count attended;  ///< in a decode step
  Symbol before;   ///< revived in the steps before
  Symbol now;      ///< revived in this one

  /// Tokens with keys and values before a decode step.
  Count held() const { return kept + Count(symbol::kv_len) - 1 - symbol::prompt_len + before; }
};

/// The groups after the first one, whose layers see all tokens.
using LayerGroups = std::vector<LayerGroup>;

/// What a pass has at its current layer.
struct FlowState {
  const LayerGroup* group = nullptr;  ///< null: all tokens
  std::size_t next = 0;               ///< index of the next group
  std::optional<Value> states;        ///< the Aux Cache
  std::optional<Value> state_tokens;  ///< of its rows
  std::optional<Value> tokens;        ///< that go through the layers [batch, n]; all if absent
  // Decode only.
  Value wanted;  ///< the tokens that the layers attend to [batch, attended]
  Value held;    ///< those with keys and values in the layers, the pass's included
};

Value keep(const LayerGap& gap, const Count& kept) {
  const LayerShape& layer = gap.stack.layers[gap.index];
  const Value query = scored_query(gap.r, layer, "layers." + std::to_string(gap.index), gap.below);
  return gap.r.keep_tokens(attention_of(gap.stack, scored_heads(layer)), query, gap.below.keys,
                           kept);
}

/// The group that begins after the gap; null: there is none.
const LayerGroup* entered(const LayerGroups& groups, const LayerGap& gap, FlowState& state) {
  if (state.next == groups.size() || groups[state.next].first_layer != gap.index + 1)
    return nullptr;
  return &groups[state.next++];
}

std::string tokens_name(const LayerGroup& group) {
  return "layers." + std::to_string(group.first_layer) + ".tokens";
}

Value append(Recorder& r, Value cache, Value rows, std::string_view label) {
  const Value all = r.append(cache, rows, label);
  r.output(all);
  return all;
}

Value drop(const LayerGroups& groups, const LayerGap& gap, FlowState& state, Value x) {
  const LayerGroup* group = entered(groups, gap, state);
  if (group == nullptr) return x;
  Recorder& r = gap.r;
  const std::vector<Count> shape = r.info(x).shape;
  if (!state.states) {
    state.states = r.state("aux.states", {shape[0], 0, shape[2]}, r.info(x).dtype);
    state.state_tokens = r.state("aux.tokens", {shape[0], 0, 1}, DType::FP32);
  }
  const Value indices = keep(gap, group->kept);
  const Value dropped = r.drop_tokens(indices, shape[1]);
  const auto of = [&](std::string_view label, Value rows) {
    return state.tokens ? r.gather_rows(label, *state.tokens, rows) : rows;
  };
  state.states = append(r, *state.states, r.gather_rows("drop_states", x, dropped), "aux_states");
  state.state_tokens = append(r, *state.state_tokens, of("drop_positions", dropped), "aux_tokens");
  state.tokens = of("keep_positions", indices);
  append(r, r.state(tokens_name(*group), {shape[0], 0, 1}, DType::FP32), *state.tokens,
         "cache_tokens");
  gap.positions = state.tokens;
  if (has_windows(gap.stack)) gap.kept = KeptKeys{*state.tokens, group->share, group->kept};
  return r.gather_rows("keep_states", x, indices);
}

Value revive(const LayerGroups& groups, const LayerGap& gap, FlowState& state, Value x) {
  const bool pruned = state.group != nullptr;  // the layer below
  const LayerGroup* group = entered(groups, gap, state);
  if (group == nullptr) return x;
  state.group = group;
  Recorder& r = gap.r;
  const Count batch = r.info(x).shape[0];
  if (!state.states) {
    const Count rows = Count(symbol::prompt_len) - groups.back().kept;
    state.states = r.state("aux.states", {batch, rows, r.info(x).shape[2]}, r.info(x).dtype);
    state.state_tokens = r.state("aux.tokens", {batch, rows, 1}, DType::FP32);
  }
  const Value indices = keep(gap, group->attended);
  state.wanted = pruned ? r.gather_rows("keep_wanted", state.wanted, indices) : indices;
  if (pruned) {
    state.states = r.store_states(*state.states, *state.state_tokens, x, *state.tokens);
    r.output(*state.states);
  }
  const Value held = r.state(tokens_name(*group), {batch, group->held(), 1}, DType::FP32);
  state.tokens = r.missing_tokens(held, state.wanted, group->now);
  state.held = append(r, held, *state.tokens, "cache_tokens");
  gap.positions = state.tokens;
  return r.token_states(*state.states, *state.state_tokens, x, *state.tokens);
}

Value attend_to_wanted(const AttentionSite& s, const FlowState& state) {
  if (state.group == nullptr) return plain_attention(s);
  const auto settings = [&] {
    Recorder::Attention a = attention_of(s.stack, s.layer.heads);
    a.additive_mask = s.r.token_mask({s.layer.sliding_window, s.layer.attention_chunk},
                                     *state.tokens, state.wanted);
    a.stores_scores = true;
    return a;
  };
  if (s.layer.latent) {
    return latent_attention(
        s,
        {s.cache("latents", state.group->held(), s.layer.latent->cached()),
         [&](Value all) { return s.r.token_rows("take_latents", all, state.held, state.wanted); },
         settings()});
  }
  const Value q = s.rotate_query(s.query(), 0);
  const Value new_keys = s.key();
  const Value past_keys = s.cache("keys", state.group->held());
  const Value past_values = s.cache("values", state.group->held());
  const Value all_keys = append(s.r, past_keys, s.rotate_key(new_keys, 0), "cache_keys");
  const Value all_values = append(s.r, past_values, s.value(), "cache_values");
  const Value k = s.r.token_rows("take_keys", all_keys, state.held, state.wanted);
  const Value v = s.r.token_rows("take_values", all_values, state.held, state.wanted);
  s.shared = {past_keys, new_keys, k, v, q};
  return s.r.attention(settings(), q, k, v);
}

LayerGroups layer_groups(const std::vector<double>& shares, RevivedShares revived,
                         Symbols& symbols) {
  const Count kv_len = symbol::kv_len;
  const Count prompt_len = symbol::prompt_len;
  LayerGroups groups;
  for (std::size_t i = 1; i < shares.size(); ++i) {
    KVCAST_ASSERT(shares[i] <= shares[i - 1]);
    if (shares[i] == shares[i - 1]) continue;
    LayerGroup g;
    g.first_layer = i;
    g.share = shares[i];
    g.kept = symbols.ceil_fraction(prompt_len, shares[i]);
    g.attended = symbols.ceil_fraction(kv_len, shares[i]);
    const Count dropped = prompt_len - g.kept;
    Count before;
    Count now;
    if (revived.first_step > 0 || revived.later_steps > 0) {
      const auto taken = [&](double share) {
        if (share == 0) return Count();
        return symbols.minimum(symbols.ceil_fraction(dropped, share), g.attended - 1);
      };
      const Count steps = kv_len - 1 - symbols.minimum(kv_len - 1, prompt_len);  // before this one
      const Count is_later = symbols.minimum(steps, 1);
      const Count first = taken(revived.first_step);
      const Count later = taken(revived.later_steps);
      before = symbols.minimum(is_later * first + (steps - is_later) * later, dropped);
      now = symbols.minimum(first - is_later * first + is_later * later, dropped - before);
    }
    const std::string layer = std::to_string(i);
    g.before = symbols.found_by_run(dropped, "revived_before_" + layer, before);
    g.now = symbols.found_by_run(dropped - g.before, "revived_" + layer, now);
    groups.push_back(g);
  }
  return groups;
}

/// The group of a layer; null: its layers see all tokens.
const LayerGroup* group_of(const LayerGroups& groups, std::size_t layer) {
  const LayerGroup* found = nullptr;
  for (const LayerGroup& g : groups) {
    if (g.first_layer <= layer) found = &g;
  }
  return found;
}

}  // namespace

void prune_progressively(Plan& plan, const std::vector<double>& shares, RevivedShares revived) {
  KVCAST_ASSERT(shares.front() == 1);
  const auto groups = std::make_shared<LayerGroups>(layer_groups(shares, revived, plan.symbols));
  TokenFlow flow;
  flow.prefill = [groups](Pass& pass) {
    const auto state = std::make_shared<FlowState>();
    pass.tokens_in = [groups, all = pass.tokens](std::size_t layer) {
      const LayerGroup* group = group_of(*groups, layer);
      return group == nullptr ? all : group->kept;
    };
    pass.between_layers = [=](const LayerGap& gap, Value x) {
      return drop(*groups, gap, *state, x);
    };
  };
  flow.decode = [groups](Pass& pass) {
    const auto state = std::make_shared<FlowState>();
    pass.tokens_in = [groups](std::size_t layer) {
      const LayerGroup* group = group_of(*groups, layer);
      return group == nullptr ? Count(1) : Count(group->now) + 1;
    };
    pass.attention = [=](const AttentionSite& s) { return attend_to_wanted(s, *state); };
    pass.between_layers = [=](const LayerGap& gap, Value x) {
      return revive(*groups, gap, *state, x);
    };
  };
  for (const LayerGroup& g : *groups) plan.revived.push_back({g.first_layer, g.before, g.now});
  plan.let_flow(std::move(flow));
}

}  // namespace kvcast
