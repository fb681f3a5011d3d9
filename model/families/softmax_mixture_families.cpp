#include <cmath>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/families/config_parts.h"
#include "model/families/family.h"
#include "model/families/gguf_forms.h"
#include "model/families/mixture_parts.h"

namespace kvcast::families {
namespace {

using nlohmann::json;

/// A number, or a list of the same number for each layer.
std::uint64_t same_in_all_layers(const JsonObject& c, std::size_t layers, std::string_view key,
                                 std::uint64_t fallback) {
  if (!c.has(key) || !c.at(key).is_array()) return c.whole_or(key, fallback);
  const std::vector<std::uint64_t> listed = c.wholes(key);
  if (listed.size() != layers) c.fail(key, "a number, or one for each layer");
  for (const std::uint64_t n : listed) {
    if (n != listed.front()) c.fail(key, "the same number in all layers");
  }
  return listed.front();
}

/// Hunyuan's "dynamic" rotations with an `alpha` have a base that is stretched for good. Source:
/// transformers, models/hunyuan_v1_dense, compute_ntk_alpha_rope_parameters.
std::shared_ptr<const RopeTable> read_hunyuan_rope(const JsonObject& c, std::uint64_t head_dim) {
  ConfigKeys keys;
  const std::optional<JsonObject> scaling = rope_parameters(c);
  const bool is_dynamic =
      scaling && scaling->text_or("rope_type", scaling->text_or("type", "default")) == "dynamic";
  if (!is_dynamic || scaling->number_or("alpha", 0) == 0) return read_rope(c, keys, head_dim);
  if (head_dim <= 2 || head_dim % 2 != 0 || head_dim > 65536) {
    c.fail("head_dim", "an even number above 2, up to 65536");
  }
  const auto dims = static_cast<double>(head_dim);
  const double theta =
      scaling->positive_or("rope_theta", c.positive_or("rope_theta", keys.default_rope_theta));
  const double base = theta * std::pow(scaling->positive("alpha"), dims / (dims - 2));
  auto table = std::make_shared<RopeTable>();
  for (std::uint64_t j = 0; j < head_dim / 2; ++j) {
    table->inverse_frequencies.push_back(std::pow(base, -2 * static_cast<double>(j) / dims));
  }
  return table;
}

void refine_hunyuan_dense(const JsonObject& c, Architecture& a) {
  const auto rope = read_hunyuan_rope(c, a.decoder.layers.front().heads.head_dim);
  for (LayerShape& layer : a.decoder.layers) layer.rope = rope;
  require_flag(c, "use_qk_norm", true, "queries and keys without norms");
  require_flag(c, "use_cla", false, "keys and values of other layers");
  require_flag(c, "use_mla", false, "latents");
  require_flag(c, "mlp_bias", false, "biases of MLPs");
  require_flag(c, "use_rotary_pos_emb", true, "layers without rotations");
  require_flag(c, "position_embedding_xdrope", false, "positions of images");
  if (c.text_or("norm_type", "rms") != "rms") c.fail("norm_type", "rms");
}

/// The experts and one for all tokens are equally wide.
void refine_hunyuan_moe(const JsonObject& c, Architecture& a) {
  refine_hunyuan_dense(c, a);
  const std::size_t layers = a.decoder.layers.size();
  Experts e;
  e.routing.num_experts = same_in_all_layers(c, layers, "num_experts", 1);
  e.routing.num_experts_per_tok = same_in_all_layers(c, layers, "moe_topk", 1);
  if (e.routing.num_experts > 65536) c.fail("num_experts", "at most 65536 experts");
  if (e.routing.num_experts_per_tok > e.routing.num_experts) {
    c.fail("moe_topk", fmt::format("at most the {} experts", e.routing.num_experts));
  }
  e.routing.normalizes = true;
  e.intermediate_size = e.shared_intermediate_size = c.whole("intermediate_size");
  if (same_in_all_layers(c, layers, "moe_intermediate_size", e.intermediate_size) !=
      e.intermediate_size) {
    c.fail("moe_intermediate_size", "intermediate_size");
  }
  if (same_in_all_layers(c, layers, "num_shared_expert", 1) != 1) c.fail("num_shared_expert", "1");
  if (c.whole_or("moe_layer_num_skipped", 0, 0) > 0) c.fail("moe_layer_num_skipped", "0");
  require_flag(c, "use_mixed_mlp_moe", true, "mixtures without an expert for all tokens");
  set_experts(a.decoder, e);
}

void refine_ernie4_5_moe(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  Experts e{.routing = read_routing(c, "moe_num_experts", 64, 6)};
  e.routing.normalizes = true;
  e.routing.least_sum = c.positive_or("moe_norm_min", 1e-12);
  e.router_correction = true;
  e.intermediate_size = c.whole_or("moe_intermediate_size", 1536);
  e.shared_intermediate_size =
      checked_multiply(c.whole_or("moe_num_shared_experts", 2, 0), e.intermediate_size);
  const std::uint64_t interval = c.whole_or("moe_layer_interval", 1);
  const std::uint64_t start = c.whole_or("moe_layer_start_index", 1, 0);
  std::uint64_t end = s.layers.size() - 1;
  if (c.number_or("moe_layer_end_index", -1) != -1) end = c.whole("moe_layer_end_index", 0);
  std::vector<bool> sparse(s.layers.size());
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    sparse[i] = (i + 1) % interval == 0 && i >= start && i <= end;
  }
  set_experts(s, e, sparse);
  a.head_bias = s.mlp_bias;
  // Keys of the published files that transformers takes for granted.
  if (c.text_or("moe_gate", "topk") != "topk") c.fail("moe_gate", "topk");
  require_flag(c, "moe_use_aux_free", true, "routers without correction");
  c.whole_or("num_nextn_predict_layers", 0, 0);  // layers after the model's, not run
}

/// The gains on cos and sin are keys of their own. transformers 5.23 has the short factors beyond
/// the original context too; the authors' code and its config say the long ones.
void read_phimoe_gains(const JsonObject& c, Stack& s) {
  const std::optional<JsonObject> scaling = rope_parameters(c);
  if (!scaling) return;
  const std::string type = scaling->text_or("rope_type", scaling->text_or("type", "default"));
  if (type == "default") return;
  if (type != "longrope" && type != "su") scaling->fail("rope_type", "default or longrope");
  RopeTable table = *s.layers.front().rope;
  table.gain = scaling->positive("short_mscale");
  if (scaling->positive("long_mscale") != table.gain) {
    scaling->fail("long_mscale", "short_mscale: other gains for long texts are not modelled");
  }
  const auto shared = std::make_shared<const RopeTable>(std::move(table));
  for (LayerShape& layer : s.layers) layer.rope = shared;
}

void refine_phimoe(const JsonObject& c, Architecture& a) {
  Stack& s = a.decoder;
  Experts e{.routing = read_routing(c, "num_local_experts", 16, 2)};
  e.routing.score = Routing::Score::SoftmaxOfNear;
  const double jitter = c.number_or("router_jitter_noise", 0.01);
  if (jitter < 0) c.fail("router_jitter_noise", "0 or more");
  e.routing.tolerance = 2 * jitter;
  if (e.routing.num_experts_per_tok != 2) c.fail("num_experts_per_tok", "2");
  e.intermediate_size = c.whole("intermediate_size");
  set_experts(s, e);
  const std::uint64_t window = sliding_window(c, 0);
  for (LayerShape& layer : s.layers) layer.sliding_window = window;
  a.head_bias = c.flag_or("lm_head_bias", false);
  read_phimoe_gains(c, s);
}

/// OLMo 2 with experts.
void refine_flex_olmo(const JsonObject& c, Architecture& a) {
  Experts e{.routing = read_routing(c, "num_experts", 7, 5)};
  e.routing.normalizes = c.flag_or("norm_topk_prob", false);
  e.intermediate_size = c.whole("intermediate_size");
  set_experts(a.decoder, e);
}

void refine_granitemoeshared(const JsonObject& c, Architecture& a) {
  refine_granite(c, a);
  Experts e = read_granite_experts(c);
  e.shared_intermediate_size = c.whole_or("shared_intermediate_size", 0, 0);
  set_experts(a.decoder, e);
}

/// The config's rotations with another base.
std::shared_ptr<const RopeTable> read_rope_of_base(const JsonObject& c, double base,
                                                   std::uint64_t head_dim) {
  json own{{"rope_parameters", json::object()}};
  if (const std::optional<JsonObject> given = rope_parameters(c)) {
    for (const std::string& key : given->keys()) own["rope_parameters"][key] = given->at(key);
  }
  own["rope_parameters"]["rope_theta"] = base;
  for (const char* const key : {"max_position_embeddings", "original_max_position_embeddings"}) {
    if (c.has(key)) own[key] = c.at(key);
  }
  return read_rope(JsonObject(own, c.place()), ConfigKeys{}, head_dim);
}

/// Windows in all layers but the first of each four, and a base of rotations for each layer; 0: it
/// does not rotate.
void read_granite_windows(const JsonObject& c, Stack& s) {
  const std::size_t layers = s.layers.size();
  read_windows(s, c, sliding_window(c, 128), [](std::size_t i) { return i % 4 != 0; });
  constexpr const char* key = "layer_rope_theta";
  if (!c.has(key)) return;
  const json& bases = c.at(key);
  const std::string expected = fmt::format("{} numbers from 0 on, one a layer", layers);
  if (!bases.is_array() || bases.size() != layers) c.fail(key, expected);
  std::map<double, std::shared_ptr<const RopeTable>> tables{{0.0, nullptr}};
  for (std::size_t i = 0; i < layers; ++i) {
    if (!bases[i].is_number() || bases[i] < 0) c.fail(key, expected);
    const auto base = bases[i].get<double>();
    if (!tables.contains(base)) {
      tables[base] = read_rope_of_base(c, base, s.layers[i].heads.head_dim);
    }
    s.layers[i].rope = tables[base];
  }
}

void use_granite_windows(Family& f, const char* model_type) {
  f.model_types = {model_type};
  f.stack.attention_sinks = true;
  f.names.in_layer["sinks.weight"] = "self_attn.sinks";
  f.gguf = {};
}

}  // namespace

Family hunyuan_v1_dense() {
  Family f = llama_like("hunyuan_v1_dense");
  f.stack.norm_eps = 1e-5;
  f.stack.query_key_norm = QueryKeyNorm::HeadsAfterRope;
  f.keys.attention_bias = "attention_bias";
  f.keys.rope_theta = nullptr;  // read_hunyuan_rope()
  f.keys.other_names = {{"head_dim", "attention_head_dim", true}};
  f.keys.unread = {"add_classification_head",
                   "cla_share_factor",
                   "class_num",
                   "dense_list",
                   "im_end_id",
                   "im_newline_id",
                   "im_start_id",
                   "mask_init_id",
                   "org_vocab_size",
                   "pool_type",
                   "text_end_id",
                   "text_start_id"};
  f.refine = refine_hunyuan_dense;
  f.names.in_layer = with(f.names.in_layer, {{"query_norm", "self_attn.query_layernorm"},
                                             {"key_norm", "self_attn.key_layernorm"}});
  f.gguf = hunyuan_dense_form();
  return f;
}

Family hunyuan_v1_moe() {
  Family f = hunyuan_v1_dense();
  f.model_types = {"hunyuan_v1_moe"};
  f.keys.other_names.push_back({"moe_topk", "num_experts_per_tok"});
  f.keys.other_names.push_back({"num_experts", "num_local_experts"});
  f.keys.unread.insert(f.keys.unread.end(),
                       {"moe_drop_tokens", "moe_random_routing_dropped_token"});
  f.refine = refine_hunyuan_moe;
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  name_shared_expert(f, "mlp.shared_mlp");
  f.names.in_layer["router"] = "mlp.gate.wg";
  f.gguf = hunyuan_moe_form();
  return f;
}

Family ernie4_5_moe() {
  Family f = llama_like("ernie4_5_moe");
  f.stack.norm_eps = 1e-5;
  f.keys.attention_bias = f.keys.mlp_bias = "use_bias";
  f.keys.default_key_value_heads = 4;
  f.keys.default_rope_theta = 500000;
  f.keys.default_tied = true;
  f.keys.interleaved_rope = true;
  f.keys.other_names = {{"num_experts_per_tok", "moe_k"}, {"moe_num_experts", "num_experts"}};
  f.keys.unread = {"moe_capacity"};
  f.refine = refine_ernie4_5_moe;
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  name_shared_expert(f, "mlp.shared_experts");
  f.names.in_layer["router.correction"] = "mlp.moe_statics.e_score_correction_bias";
  f.names.row_correction = true;
  f.gguf = ernie4_5_moe_form();
  return f;
}

/// Phi-3.5-MoE.
Family phimoe() {
  Family f = llama_like("phimoe");
  f.stack.norm = NormKind::Layer;
  f.stack.norm_eps = 1e-5;
  f.keys.attention_bias = "attention_bias";
  f.keys.default_key_value_heads = 8;
  f.keys.default_rope_theta = 1000000;
  f.keys.unread = {"input_jitter_noise"};
  f.refine = refine_phimoe;
  name_experts(f, "block_sparse_moe", "w1", "w3", "w2");
  f.gguf = phimoe_form();
  return f;
}

Family flex_olmo() {
  Family f = olmo2();
  f.model_types = {"flex_olmo"};
  f.stack.norm_eps = 1e-6;
  f.keys.default_rope_theta = 500000;
  f.keys.other_names = {{"num_experts", "num_local_experts"}};
  f.refine = refine_flex_olmo;
  name_experts(f, "mlp", "gate_proj", "up_proj", "down_proj");
  f.gguf = {};
  return f;
}

/// GGUF files of it are Granite 4's without mixers.
Family granitemoeshared() {
  Family f = granitemoe();
  f.model_types = {"granitemoeshared"};
  f.refine = refine_granitemoeshared;
  f.names.in_layer["shared_expert.gate_up"] = "shared_mlp.input_linear";
  f.names.in_layer["shared_expert.down"] = "shared_mlp.output_linear";
  f.gguf = {};
  return f;
}

Family granite_swa() {
  Family f = granite();
  use_granite_windows(f, "granite_swa");
  f.stack.norm_eps = 1e-5;
  f.keys.default_key_value_heads = 4;
  f.keys.default_tied = true;
  f.refine = [](const JsonObject& c, Architecture& a) {
    refine_granite(c, a);
    read_granite_windows(c, a.decoder);
  };
  return f;
}

Family granitemoe_swa() {
  Family f = granitemoeshared();
  use_granite_windows(f, "granitemoe_swa");
  const std::string module = "block_sparse_moe.";
  f.names.in_layer["router"] = module + "router";
  f.names.in_layer["experts.gate_up.weight"] = module + "experts.gate_up_proj";
  f.names.in_layer["experts.down.weight"] = module + "experts.down_proj";
  f.refine = [](const JsonObject& c, Architecture& a) {
    refine_granitemoeshared(c, a);
    read_granite_windows(c, a.decoder);
  };
  return f;
}

}  // namespace kvcast::families
