/// What the readers of mixtures of experts share.
#pragma once

#include <cstdint>
#include <string>
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
/// Each expert has tensors of its own.
void name_experts(Family& f, const std::string& module, const char* gate, const char* up,
                  const char* down);
void name_shared_expert(Family& f, const std::string& module);

}  // namespace kvcast::families
