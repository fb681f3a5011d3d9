/// What the readers of mixtures of experts share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/base/json_file.h"
#include "model/families/family.h"

namespace kvcast::families {

/// The number of experts and how many of them read a token; a default of 0: required.
Routing read_routing(const JsonObject& c, const char* experts, std::uint64_t default_experts,
                     std::uint64_t default_per_token);
/// The experts' groups of DeepSeek and GLM.
void read_groups(const JsonObject& c, Routing& r, std::uint64_t default_groups,
                 std::uint64_t default_kept);
/// The layers of Qwen2 and Qwen3 that have experts.
std::vector<bool> sparse_layers(const JsonObject& c, std::size_t layers);
void set_experts(Stack& s, const Experts& e, const std::vector<bool>& with_experts);
void set_experts(Stack& s, const Experts& e);
/// Qwen's: a softmax of all logits, and an expert for all tokens with a gate of its own. The
/// numbers are defaults of the keys.
Experts read_gated_experts(const JsonObject& c, std::uint64_t experts, std::uint64_t per_token,
                           std::uint64_t width, std::uint64_t shared_width);
/// Granite's: a softmax of the best logits, experts as wide as `intermediate_size`.
Experts read_granite_experts(const JsonObject& c);
/// What the class of a model with corrected experts calls its keys, and what it takes where its
/// file is silent: DeepSeek V3's rule, sigmoids that a correction ranks and groups limit.
struct CorrectedExperts {
  std::uint64_t experts;
  std::uint64_t per_token = 8;
  std::uint64_t width;
  double scale = 1;
  std::uint64_t groups = 1;
  std::uint64_t groups_kept = 1;
  std::uint64_t dense_layers = 1;
  std::uint64_t shared = 1;
  const char* scoring = "sigmoid";  ///< what its files call the rule
  bool listed_layers = false;       ///< mlp_layer_types says which layers have experts
  const char* experts_key = "n_routed_experts";
  const char* shared_key = "n_shared_experts";
  const char* scale_key = "routed_scaling_factor";
  const char* dense_key = "first_k_dense_replace";
};
void read_corrected_experts(const JsonObject& c, Architecture& a, const CorrectedExperts& d);
/// Throws Error unless a key is absent or says this. Hub files say how their code chooses experts,
/// which transformers takes for granted.
void require_text(const JsonObject& c, std::string_view key, const std::string& value);
/// Each expert has tensors of its own.
void name_experts(Family& f, const std::string& module, const char* gate, const char* up,
                  const char* down);
void name_shared_expert(Family& f, const std::string& module);

}  // namespace kvcast::families
