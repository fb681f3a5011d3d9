#include "model/io/weights/weight_map.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "model/base/error.h"
#include "model/families/family.h"
#include "model/families/wrappers.h"
#include "model/io/tensors/gguf.h"

namespace kvcast {
namespace {

/// Rows are listed one by one; no model is near this many, a file may claim more.
constexpr std::uint64_t max_listed_rows = 1u << 22;

/// Rows first ... first + count - 1.
std::vector<std::uint64_t> row_range(std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> rows(count);
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

[[noreturn]] void fail_rows(const Architecture& a, const std::string& of, std::uint64_t rows) {
  throw Error(a.name + ": the shape of " + of, std::to_string(rows) + " rows of a projection",
              "at most " + std::to_string(max_listed_rows));
}

/// The shape of a weight's layer. Throws Error when its rows are too many to list.
const LayerShape& layer_of(const Architecture& a, const WeightName& name) {
  const Stack& stack = name.stack == "encoder." ? a.encoder : a.decoder;
  KVCAST_ASSERT(*name.layer < stack.layers.size());
  const LayerShape& layer = stack.layers[*name.layer];
  std::uint64_t most =
      std::max({query_features(layer.heads), kv_features(layer.heads), layer.intermediate_size});
  if (layer.experts) {
    const Experts& e = *layer.experts;
    most = std::max({most, checked_multiply(e.routing.num_experts, e.intermediate_size),
                     e.shared_intermediate_size});
  }
  if (layer.latent) {
    const std::uint64_t widest = std::max(layer.heads.head_dim, layer.latent->value_dim);
    most = std::max(
        {most, layer.latent->rank, checked_multiply(layer.heads.num_attention_heads, 2 * widest)});
  }
  if (layer.state_space) {
    const StateSpace& s = *layer.state_space;
    most = std::max({most, checked_multiply(s.num_heads, s.value_dim),
                     checked_multiply(s.num_groups, s.key_dim)});
  }
  if (most > max_listed_rows) fail_rows(a, "layer " + std::to_string(*name.layer), most);
  return layer;
}

/// Rows of all query, then all key, then all value heads.
std::vector<std::uint64_t> side_by_side(const Heads& heads, const std::string& part) {
  const std::uint64_t q = query_features(heads);
  const std::uint64_t kv = kv_features(heads);
  if (part == "query") return row_range(0, q);
  return row_range(part == "key" ? q : q + kv, kv);
}

/// Rows where each key-value head's group holds its query heads, then its key and its value head.
std::vector<std::uint64_t> grouped(const Heads& heads, const std::string& part) {
  const std::uint64_t queries = heads.num_attention_heads / heads.num_key_value_heads;
  std::vector<std::uint64_t> rows;
  for (std::uint64_t g = 0; g < heads.num_key_value_heads; ++g) {
    const std::uint64_t first_head =
        g * (queries + 2) + (part == "query" ? 0 : queries + (part == "value" ? 1 : 0));
    const std::uint64_t num_heads = part == "query" ? queries : 1;
    const auto group = row_range(first_head * heads.head_dim, num_heads * heads.head_dim);
    rows.insert(rows.end(), group.begin(), group.end());
  }
  return rows;
}

/// Rows [first, first + count) of each of `groups` groups of `size` rows.
std::vector<std::uint64_t> of_groups(std::uint64_t groups, std::uint64_t size, std::uint64_t first,
                                     std::uint64_t count) {
  std::vector<std::uint64_t> rows;
  rows.reserve(groups * count);
  for (std::uint64_t g = 0; g < groups; ++g) {
    for (std::uint64_t i = 0; i < count; ++i) rows.push_back(g * size + first + i);
  }
  return rows;
}

/// Every second row, from the first or from the second on.
std::vector<std::uint64_t> alternating(std::uint64_t count, bool second) {
  std::vector<std::uint64_t> rows(count);
  for (std::uint64_t i = 0; i < count; ++i) rows[i] = 2 * i + (second ? 1 : 0);
  return rows;
}

/// The tensors that hold several parts.
constexpr std::pair<std::string_view, std::string_view> fused_parts[] = {
    {"query", "qkv"},
    {"key", "qkv"},
    {"value", "qkv"},
    {"gate", "gate_up"},
    {"up", "gate_up"},
    {"experts.gate", "experts.gate_up"},
    {"experts.up", "experts.gate_up"},
    {"shared_expert.gate", "shared_expert.gate_up"},
    {"shared_expert.up", "shared_expert.gate_up"},
    {"query_nope", "query_heads"},
    {"query_rope", "query_heads"},
    {"query", "query_gates"},
    {"attention_gate", "query_gates"},
    {"kv_latent", "kv_latents"},
    {"key_rope", "kv_latents"},
    {"key_up", "kv_up"},
    {"value_up", "kv_up"},
};

/// The fused tensor of a part of a state space, "state.NAME", and the part's place in it.
struct StatePart {
  const FusedStates* tensor = nullptr;  ///< null: it has a tensor of its own
  std::size_t place = 0;
};
StatePart fused_state(const CheckpointNames& names, std::string_view part) {
  constexpr std::string_view prefix = "state.";
  if (!part.starts_with(prefix)) return {};
  part.remove_prefix(prefix.size());
  for (const FusedStates& f : names.fused_states) {
    const auto found = std::find(f.parts.begin(), f.parts.end(), part);
    if (found != f.parts.end()) {
      return {&f, static_cast<std::size_t>(found - f.parts.begin())};
    }
  }
  return {};
}

/// Rows of a part of a state space: of its values, its keys, its time steps, or its heads.
std::uint64_t state_rows(const StateSpace& s, std::string_view part) {
  if (part.ends_with("value") || part.ends_with("gate")) return s.num_heads * s.value_dim;
  if (part.ends_with("key") || part.ends_with("query")) return s.num_groups * s.key_dim;
  if (part == "time_step_latent") return s.time_step_rank;
  return s.num_heads;
}

std::vector<std::uint64_t> rows_of_state(const StateSpace& s, const StatePart& p) {
  const std::uint64_t groups = p.tensor->by_group ? s.num_groups : 1;
  std::uint64_t size = 0;
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < p.tensor->parts.size(); ++i) {
    if (i == p.place) first = size;
    size += state_rows(s, p.tensor->parts[i]) / groups;
  }
  return of_groups(groups, size, first, state_rows(s, p.tensor->parts[p.place]) / groups);
}

/// The rows of a part in a fused tensor.
std::vector<std::uint64_t> fused_rows(const Architecture& a, const WeightName& name,
                                      const CheckpointNames& names) {
  const LayerShape& layer = layer_of(a, name);
  const std::string& part = name.part;
  if (const StatePart state = fused_state(names, part); state.tensor != nullptr) {
    return rows_of_state(*layer.state_space, state);
  }
  if (layer.experts && part.starts_with("experts.")) {
    const std::uint64_t width = layer.experts->intermediate_size;
    const std::uint64_t experts = layer.experts->routing.num_experts;
    const bool up = part.ends_with("up");
    if (names.experts_interleaved) return alternating(experts * width, up);
    return of_groups(experts, 2 * width, up ? width : 0, width);
  }
  if (layer.experts && part.starts_with("shared_expert.")) {
    const std::uint64_t width = layer.experts->shared_intermediate_size;
    return row_range(part.ends_with("up") ? width : 0, width);
  }
  if (part == "gate") return row_range(0, layer.intermediate_size);
  if (part == "up") {
    const Stack& stack = name.stack == "encoder." ? a.encoder : a.decoder;
    return row_range(stack.gated_mlp ? layer.intermediate_size : 0, layer.intermediate_size);
  }
  if (layer.latent) {
    const Latent& l = *layer.latent;
    const std::uint64_t heads = layer.heads.num_attention_heads;
    if (part == "query_nope") return of_groups(heads, l.nope_dim + l.rope_dim, 0, l.nope_dim);
    if (part == "query_rope") {
      return of_groups(heads, l.nope_dim + l.rope_dim, l.nope_dim, l.rope_dim);
    }
    if (part == "kv_latent") return row_range(0, l.rank);
    if (part == "key_rope") return row_range(l.rank, l.rope_dim);
    if (part == "key_up") return of_groups(heads, l.nope_dim + l.value_dim, 0, l.nope_dim);
    return of_groups(heads, l.nope_dim + l.value_dim, l.nope_dim, l.value_dim);
  }
  const TensorNames& parts = names.in_layer;
  if (parts.contains("query_gates") && (part == "query" || part == "attention_gate")) {
    const std::uint64_t dim = layer.heads.head_dim;
    return of_groups(layer.heads.num_attention_heads, 2 * dim, part == "query" ? 0 : dim, dim);
  }
  return names.groups_heads ? grouped(layer.heads, part) : side_by_side(layer.heads, part);
}

/// How many tensors a name with "{i}" stands for.
std::uint64_t pieces_of(const Architecture& a, const WeightName& name) {
  const LayerShape& layer = layer_of(a, name);
  if (layer.experts && name.part.starts_with("experts.")) return layer.experts->routing.num_experts;
  return name.part == "query_norm" ? layer.heads.num_attention_heads
                                   : layer.heads.num_key_value_heads;
}

/// One tensor holds the weight of all experts, or the norms of all heads.
bool is_stacked(const Architecture& a, const WeightName& name) {
  if (name.part.starts_with("experts.")) return true;
  const bool of_heads = name.part == "query_norm" || name.part == "key_norm";
  return of_heads && a.decoder.query_key_norm == QueryKeyNorm::LayerHeads;
}

/// Whether the weight is of a layer that the model lacks: a helper's, with more of them.
bool is_beyond(const Architecture& a, const WeightName& weight) {
  const Stack& stack = weight.stack == "encoder." ? a.encoder : a.decoder;
  return weight.layer && *weight.layer >= stack.layers.size();
}

/// Whether files with these names can have the weight; methods read others.
bool has_name(const CheckpointNames& names, const WeightName& weight) {
  const TensorNames& parts = weight.layer ? names.in_layer : names.outside;
  const auto is_part = [&](std::string_view part) {
    return parts.contains(part) || parts.contains(std::string(part) + weight.kind);
  };
  return is_part(weight.part) || fused_state(names, weight.part).tensor != nullptr ||
         std::any_of(std::begin(fused_parts), std::end(fused_parts),
                     [&](const auto& p) { return p.first == weight.part && is_part(p.second); });
}

/// Where files with these names keep the weight.
WeightSource source_in(const CheckpointNames& names, const Architecture& a,
                       const WeightName& weight) {
  WeightSource source;
  const TensorNames& parts = weight.layer ? names.in_layer : names.outside;
  // Names of a part and kind stand as they are; those of a part go before its kind.
  std::string kind;
  const auto find = [&](std::string_view part) {
    kind.clear();
    const auto exact = parts.find(std::string(part) + weight.kind);
    if (exact != parts.end()) return exact;
    kind = weight.kind;
    return parts.find(part);
  };
  auto found = find(weight.part);
  const bool fused = found == parts.end();
  if (fused) {
    const StatePart state = fused_state(names, weight.part);
    for (const auto& [part, whole] : fused_parts) {
      if (found == parts.end() && part == weight.part) found = find(whole);
    }
    if (state.tensor != nullptr) found = find(state.tensor->tensor);
  }
  KVCAST_ASSERT(found != parts.end());
  const std::string layer =
      weight.layer ? names.layer + std::to_string(*weight.layer) + "." : std::string();
  for (std::string prefix : names.prefixes) {
    constexpr std::string_view stack = "{stack}";
    const std::size_t at = prefix.find(stack);
    if (at != std::string::npos) prefix.replace(at, stack.size(), weight.stack);
    source.names.push_back(prefix + layer + found->second + kind);
  }
  if (fused) source.rows = fused_rows(a, weight, names);
  const bool norm = weight.part.ends_with("_norm");
  const bool matrix = weight.kind == ".weight" && !norm;
  source.transposed = weight.layer && names.transposed && matrix;
  if (norm && weight.kind == ".weight") source.offset = names.norm_offset;
  if (found->second.find("{i}") != std::string::npos) {
    source.pieces = pieces_of(a, weight);
  } else if (weight.layer && is_stacked(a, weight)) {
    source.blocks = pieces_of(a, weight);
    source.transposed = names.experts_transposed && matrix;
    if (names.experts_either_way && matrix) {
      const bool down = weight.part == "experts.down";
      source.inputs = down ? layer_of(a, weight).experts->intermediate_size : a.hidden_size;
    }
  } else if (names.row_correction && weight.part == "router" && weight.kind == ".correction") {
    source.blocks = 1;
  }
  return source;
}

/// MLKV models keep queries, keys and values in tensors of their own, for some layers have queries
/// alone. Source: zaydzuhri/pythia-mlkv, convert_to_mlkv.py ("attention.query", ...).
void take_apart(TensorNames& names) {
  const auto fused = names.find("qkv");
  if (fused == names.end()) return;
  const std::string module = fused->second.substr(0, fused->second.rfind('.') + 1);
  names.erase(fused);
  for (const char* part : {"query", "key", "value"}) names[part] = module + part;
}

CheckpointNames huggingface_names(const Architecture& a, const WeightName& weight) {
  const Family* const family = find_family(a.model_type);
  CheckpointNames names = (family != nullptr ? *family : all_families().front()).names;
  if (family != nullptr && family->rename != nullptr) family->rename(a, weight.stack, names);
  if (a.decoder.num_key_value_layers > 0) take_apart(names.in_layer);
  return names;
}

/// How a file stores what some fuse and others do not.
TensorNames fused_or_not(const GgufForm& form, const std::string& layer, const HasTensor& has) {
  TensorNames names;
  const bool fused_qkv = form.fused_qkv || has(layer + "attn_qkv.weight");
  names.merge(fused_qkv ? TensorNames{{"qkv", "attn_qkv"}}
                        : TensorNames{{"query", "attn_q"}, {"key", "attn_k"}, {"value", "attn_v"}});
  names.merge(form.fused_gate_up ? TensorNames{{"gate_up", "ffn_up"}}
                                 : TensorNames{{"gate", "ffn_gate"}, {"up", "ffn_up"}});
  // Until April 2024 each expert had tensors of its own.
  const std::string experts = has(layer + "ffn_down.0.weight") ? ".{i}" : "_exps";
  names.merge(has(layer + "ffn_gate_up_exps.weight")
                  ? TensorNames{{"experts.gate_up", "ffn_gate_up_exps"}}
                  : TensorNames{{"experts.gate", "ffn_gate" + experts},
                                {"experts.up", "ffn_up" + experts}});
  names["experts.down"] = "ffn_down" + experts;
  // Until April 2025 in all files, since then in those of MiniCPM3.
  names.merge(has(layer + "attn_kv_b.weight")
                  ? TensorNames{{"kv_up", "attn_kv_b"}}
                  : TensorNames{{"key_up", "attn_k_b"}, {"value_up", "attn_v_b"}});
  // Qwen3-Next's first files have all projections of a mixer in one tensor.
  names.merge(has(layer + "attn_gate.weight")
                  ? TensorNames{{"state.qkv", "attn_qkv"}, {"state.gate", "attn_gate"}}
                  : TensorNames{{"state.projections", "ssm_in"}, {"state.qkvz", "ssm_in"}});
  return names;
}

/// The names of llama.cpp's files.
CheckpointNames gguf_names(const Family& family, const Architecture& a, const WeightName& weight,
                           const HasTensor& has) {
  static const CheckpointNames common{
      .prefixes = {""},
      .layer = "blk.",
      .in_layer = {{"attention_norm", "attn_norm"},
                   {"mlp_norm", "ffn_norm"},
                   {"post_attention_norm", "post_attention_norm"},
                   {"post_mlp_norm", "post_ffw_norm"},
                   {"query_norm", "attn_q_norm"},
                   {"key_norm", "attn_k_norm"},
                   {"sinks", "attn_sinks"},
                   {"query_latent", "attn_q_a"},
                   {"query_latent_norm", "attn_q_a_norm"},
                   {"query_heads", "attn_q"},
                   {"kv_latents", "attn_kv_a_mqa"},
                   {"kv_latent_norm", "attn_kv_a_norm"},
                   {"attention_output", "attn_output"},
                   {"down", "ffn_down"},
                   {"router", "ffn_gate_inp"},
                   {"router.correction", "exp_probs_b.bias"},
                   {"shared_expert.gate", "ffn_gate_shexp"},
                   {"shared_expert.up", "ffn_up_shexp"},
                   {"shared_expert.down", "ffn_down_shexp"},
                   {"shared_expert.router", "ffn_gate_inp_shexp"},
                   {"state.conv", "ssm_conv1d"},
                   {"state.time_step_bias.weight", "ssm_dt.bias"},
                   {"state.decay.weight", "ssm_a"},
                   {"state.skip.weight", "ssm_d"},
                   {"state.norm", "ssm_norm"},
                   {"state.output", "ssm_out"}},
      .outside = {{"embedding", "token_embd"},
                  {"positions", "position_embd"},
                  {"final_norm", "output_norm"},
                  {"head", "output"},
                  {"layer_inputs", "per_layer_token_embd"},
                  {"layer_inputs_projection", "per_layer_model_proj"},
                  {"layer_inputs_norm", "per_layer_proj_norm"}}};
  const GgufForm& form = family.gguf;
  CheckpointNames names = common;
  names.row_correction = family.names.row_correction;
  if (!weight.stack.empty()) names.prefixes = {weight.stack == "encoder." ? "enc." : "dec."};
  if (!weight.layer) {
    names.outside = with(names.outside, form.names);
    for (const std::string_view stack : {"stream.", "unstream."}) {
      if (weight.part.starts_with(stack)) {
        names.outside[weight.part] = stack == "stream." ? "altup_proj" : "altup_unembd_proj";
      }
    }
    return names;
  }
  names.in_layer.merge(fused_or_not(form, names.layer + std::to_string(*weight.layer) + ".", has));
  const Stack& stack = weight.stack == "encoder." ? a.encoder : a.decoder;
  const std::optional<Latent>& latent = stack.layers[*weight.layer].latent;
  if (latent && latent->query_rank > 0) names.in_layer["query_heads"] = "attn_q_b";
  if (form.mlp_norm_first && a.decoder.residual == Residual::ParallelTwoNorms) {
    names.in_layer["attention_norm"] = "attn_norm_2";
    names.in_layer["mlp_norm"] = "attn_norm";
  }
  names.in_layer = with(std::move(names.in_layer), form.names);
  if (names.in_layer.contains("query_gates")) names.in_layer.erase("query");
  for (const FusedStates& fused : family.names.fused_states) {
    if (names.in_layer.contains(fused.tensor)) names.fused_states.push_back(fused);
  }
  return names;
}

/// Undoes LlamaModel.permute: it puts rows j and j + head_dim/2 of a head, which one rotary pair
/// turns, beside each other.
std::vector<std::uint64_t> uninterleaved(std::uint64_t num_heads, std::uint64_t head_dim) {
  std::vector<std::uint64_t> rows = row_range(0, num_heads * head_dim);
  const std::uint64_t half = head_dim / 2;
  if (head_dim % 2 != 0) return rows;  // no rotary pairs
  for (std::uint64_t i = 0; i < rows.size(); ++i) {
    const std::uint64_t row = i % head_dim;
    rows[i] = i - row + 2 * (row % half) + row / half;
  }
  return rows;
}

/// What llama.cpp's converter does to the weights of a state space: it drops or adds dims of 1,
/// stores -exp(A_log), and in some families moves the value heads.
void undo_state_form(const GgufForm& form, const StateSpace& s, const WeightName& weight,
                     WeightSource& source) {
  const std::string_view part = weight.part;
  const std::uint64_t values = s.num_heads * s.value_dim;
  const bool is_weight = weight.kind == ".weight";
  const bool decays = part == "state.decay";
  source.negated_exponent = decays;
  const bool convolves_values = s.time_step_rank > 0 || !s.scans;
  if (is_weight && part.starts_with("state.conv_")) {
    const std::uint64_t others = convolves_values ? 0 : 2 * s.num_groups * s.key_dim;
    source.shape = {values + others, 1, s.kernel};
  } else if ((decays && s.time_step_rank == 0) || part == "state.skip") {
    source.shape = {s.num_heads};
  } else if (part == "state.norm" && !s.shares_norm) {
    source.shape = {values};
  }
  if (!form.tiled_states || s.num_groups == 0) return;
  const bool of_values = part == "state.gate" || part == "state.value" || part == "state.output" ||
                         part == "state.conv_value";
  const bool of_heads =
      decays || part == "state.beta" || part == "state.time_step" || part == "state.time_step_bias";
  if (!of_values && !of_heads) return;
  const std::uint64_t size = of_values ? s.value_dim : 1;
  const std::uint64_t of_group = s.num_heads / s.num_groups;
  std::vector<std::uint64_t> moved;
  moved.reserve(s.num_heads * size);
  for (std::uint64_t head = 0; head < s.num_heads; ++head) {
    const std::uint64_t stored = head % of_group * s.num_groups + head / of_group;
    for (std::uint64_t i = 0; i < size; ++i) moved.push_back(stored * size + i);
  }
  if (part == "state.output") {
    source.columns = std::move(moved);
    return;
  }
  if (!source.rows.empty()) {  // in a fused tensor
    for (std::uint64_t& row : moved) row = source.rows[row];
  }
  source.rows = std::move(moved);
}

/// The layer of a stored tensor, and its name in it; none: it is of no layer.
std::optional<std::pair<std::size_t, std::string_view>> in_layer(std::string_view stored_name,
                                                                 std::string_view prefix) {
  if (!stored_name.starts_with(prefix)) return {};
  stored_name.remove_prefix(prefix.size());
  std::size_t layer = 0;
  const auto [end, error] =
      std::from_chars(stored_name.data(), stored_name.data() + stored_name.size(), layer);
  if (error != std::errc()) return {};
  stored_name.remove_prefix(static_cast<std::size_t>(end - stored_name.data()));
  return std::pair{layer, stored_name};
}

/// Layers that predict further tokens (multi-token prediction) stand after those of the model.
bool is_of_later_layer(const Architecture& a, std::string_view stored_name,
                       std::string_view prefix) {
  const Family* const family = find_family(a.model_type);
  if (family == nullptr) return false;
  const bool is_gguf = prefix == "blk.";
  if (!family->names.later_layers && !(is_gguf && family->gguf.later_layers)) return false;
  const auto found = in_layer(stored_name, prefix);
  return found && found->first >= a.num_hidden_layers();
}

/// Files of Gemma 3n have keys and values of layers that read others', and a scale that a switch
/// turns off.
bool is_unread_by_altup(const Architecture& a, std::string_view stored_name) {
  if (!a.decoder.altup) return false;
  if (stored_name.ends_with(".altup.correct_output_scale")) return !a.decoder.altup->scales_active;
  for (const std::string_view prefix : {"model.layers.", "layers.", "blk."}) {
    const auto found = in_layer(stored_name, prefix);
    if (!found || found->first >= a.num_hidden_layers()) continue;
    const std::string_view part = found->second;
    return a.decoder.layers[found->first].kv_layer &&
           (part.starts_with(".self_attn.k_") || part.starts_with(".self_attn.v_") ||
            part.starts_with(".attn_k") || part.starts_with(".attn_v"));
  }
  return false;
}

}  // namespace

WeightName parse_weight_name(const std::string& name) {
  WeightName parsed;
  std::string_view rest = name;
  for (const std::string_view stack : {"encoder.", "decoder."}) {
    if (rest.starts_with(stack)) {
      parsed.stack = stack;
      rest.remove_prefix(stack.size());
      break;
    }
  }
  if (rest.starts_with("layers.")) {
    rest.remove_prefix(7);
    std::size_t layer = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    KVCAST_ASSERT(error == std::errc());
    parsed.layer = layer;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
  }
  const std::size_t dot = rest.rfind('.');
  KVCAST_ASSERT(dot != std::string_view::npos);
  parsed.part = rest.substr(0, dot);
  parsed.kind = rest.substr(dot);
  return parsed;
}

std::string piece_name(std::string name, std::uint64_t number) {
  constexpr std::string_view place = "{i}";
  const std::size_t at = name.find(place);
  KVCAST_ASSERT(at != std::string::npos);
  return name.replace(at, place.size(), std::to_string(number));
}

WeightSource huggingface_weight(const Architecture& a, const std::string& name) {
  // Converted checkpoints hold the weights as the forward pass reads them.
  if (!a.converted_for.empty()) return {{name}, {}};
  const WeightName parsed = parse_weight_name(name);
  CheckpointNames names = huggingface_names(a, parsed);
  if (parsed.part == "head") {
    constexpr std::string_view weight = ".weight";
    std::vector<std::string> heads{names.head.substr(0, names.head.size() - weight.size())};
    if (!a.wrapper.empty()) heads = wrapper_heads();
    for (std::string& head : heads) head += parsed.kind;
    return {std::move(heads), {}};
  }
  if (!a.wrapper.empty()) names.prefixes = wrapper_prefixes();
  if (parsed.stack.empty() && parsed.part == "embedding" && !names.embedding.empty()) {
    return {names.embedding, {}};
  }
  return source_in(names, a, parsed);
}

bool may_hold(const Architecture& a, const std::string& name) {
  if (!a.converted_for.empty()) return true;
  const WeightName parsed = parse_weight_name(name);
  if (is_beyond(a, parsed)) return false;
  const CheckpointNames names = huggingface_names(a, parsed);
  return parsed.part == "head" || parsed.part == "embedding" || has_name(names, parsed);
}

bool gguf_may_hold(const Architecture& a, const std::string& name, const HasTensor& has) {
  const WeightName parsed = parse_weight_name(name);
  if (is_beyond(a, parsed)) return false;
  return has_name(gguf_names(*find_family(a.model_type), a, parsed, has), parsed);
}

WeightSource gguf_weight(const Architecture& a, const std::string& name, const HasTensor& has) {
  const Family* const family = find_family(a.model_type);
  if (family == nullptr || family->gguf.architecture == nullptr) {
    throw Error("weights of a GGUF file", "model type " + a.model_type,
                "a family that llama.cpp writes");
  }
  const GgufForm& form = family->gguf;
  const WeightName parsed = parse_weight_name(name);
  const CheckpointNames names = gguf_names(*family, a, parsed, has);
  WeightSource source = source_in(names, a, parsed);
  if (parsed.part == "head") source.names.push_back("token_embd" + parsed.kind);  // tied
  if (form.interleaved_heads && (parsed.part == "query" || parsed.part == "key")) {
    const Heads& heads = layer_of(a, parsed).heads;
    std::vector<std::uint64_t> rows = uninterleaved(
        parsed.part == "query" ? heads.num_attention_heads : heads.num_key_value_heads,
        heads.head_dim);
    if (!source.rows.empty()) {  // in a fused tensor
      for (std::uint64_t& row : rows) row = source.rows[row];
    }
    source.rows = std::move(rows);
  }
  // [heads, rank, nope_dim] for queries that go to the latents, and [heads, value_dim, rank].
  const bool key_up = parsed.part == "key_up";
  if ((key_up || parsed.part == "value_up") && names.in_layer.contains(parsed.part)) {
    source.blocks = layer_of(a, parsed).heads.num_attention_heads;
    source.transposed = key_up;
  }
  if (parsed.layer && parsed.part.starts_with("state.")) {
    undo_state_form(form, *layer_of(a, parsed).state_space, parsed, source);
  }
  if (parsed.part == "shared_expert.router") source.shape = {1, a.hidden_size};
  // Gemma 3n's streams but the first, one after the other.
  if (!parsed.layer && parsed.part.find("stream.") != std::string::npos) {
    const std::uint64_t stream = std::stoull(parsed.part.substr(parsed.part.find('.') + 1));
    if (a.hidden_size > max_listed_rows) fail_rows(a, "the streams", a.hidden_size);
    source.blocks = a.decoder.altup->num_streams - 1;
    source.rows = row_range((stream - 1) * a.hidden_size, a.hidden_size);
  }
  const bool is_unit_offset_norm =
      a.decoder.norm == NormKind::RmsUnitOffset && parsed.part.ends_with("_norm");
  if (is_unit_offset_norm) source.offset = -1;
  return source;
}

WeightTypes gguf_weight_types(const GgufFile& file, const Architecture& a) {
  const std::vector<std::string> known = dtype_names();
  std::map<std::string, DType, std::less<>> types;
  std::map<DType, std::uint64_t> elements;
  std::set<std::string, std::less<>> stored;
  for (const StoredTensor& t : file.tensors) {
    stored.insert(t.name);
    std::string type = lower_case(t.type);
    if (type == "f32" || type == "f16") type.insert(1, "p");
    if (type.starts_with("ggml type")) {  // nobody says how many bits it has
      throw Error(t.place(), "element type " + t.type, "a type that kvcast knows");
    }
    if (std::find(known.begin(), known.end(), type) == known.end()) continue;
    const DType dtype = types.emplace(t.name, parse_dtype(type)).first->second;
    elements[dtype] += t.elements();
  }
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](auto& x, auto& y) { return x.second < y.second; });
  WeightTypes weights = most == elements.end() ? DType::FP16 : most->first;
  weights.text = "gguf";
  weights.in_file = std::make_shared<const WeightTypes::InFile>(
      [types = std::move(types), stored = std::move(stored),
       a](const std::string& name) -> std::optional<DType> {
        const HasTensor has = [&](std::string_view tensor) { return stored.contains(tensor); };
        if (!gguf_may_hold(a, name, has)) return {};
        const WeightSource source = gguf_weight(a, name, has);
        for (const std::string& tensor : source.names) {
          const auto found = types.find(source.pieces > 0 ? piece_name(tensor, 0) : tensor);
          if (found != types.end()) return found->second;
        }
        return {};
      });
  return weights;
}

bool is_unused_buffer(const Architecture& a, std::string_view stored_name) {
  static constexpr std::string_view suffixes[] = {"rotary_emb.inv_freq",
                                                  ".attn.bias",
                                                  ".attn.masked_bias",
                                                  ".attention.bias",
                                                  ".masked_bias",
                                                  ".act_fn.beta",
                                                  ".act_fn.eps",
                                                  "embed_positions.weights",
                                                  "EncDecAttention.relative_attention_bias.weight"};
  const auto ends = [&](std::string_view suffix) { return stored_name.ends_with(suffix); };
  if (std::any_of(std::begin(suffixes), std::end(suffixes), ends)) return true;
  const bool head = ends("lm_head.weight") || ends("proj_out.weight") || ends("embed_out.weight");
  if (head && a.tied_embeddings) return true;
  if (a.encoder_decoder && ends("embed_tokens.weight")) return true;
  if (is_unread_by_altup(a, stored_name)) return true;
  if (a.wrapper.empty()) return is_of_later_layer(a, stored_name, "model.layers.");
  const auto is_later = [&](const std::string& prefix) {
    return is_of_later_layer(a, stored_name, prefix + "layers.");
  };
  return !is_text_tensor(stored_name) ||
         std::any_of(wrapper_prefixes().begin(), wrapper_prefixes().end(), is_later);
}

bool is_unused_in_gguf(const Architecture& a, std::string_view stored_name) {
  return stored_name == "rope_freqs.weight" || stored_name == "rope_factors_short.weight" ||
         stored_name == "rope_factors_long.weight" ||
         stored_name.ends_with(".cross_attn_rel_b.weight") || is_unread_by_altup(a, stored_name) ||
         is_of_later_layer(a, stored_name, "blk.");
}

}  // namespace kvcast
