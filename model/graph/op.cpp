#include "model/graph/op.h"

#include "model/base/error.h"

namespace kvcast {
namespace {

struct OpName {
  std::string_view operator()(const Embedding&) const { return "embedding"; }
  std::string_view operator()(const Linear&) const { return "linear"; }
  std::string_view operator()(const HeadLinear&) const { return "head_linear"; }
  std::string_view operator()(const AttentionScores&) const { return "attention_scores"; }
  std::string_view operator()(const AttentionValues&) const { return "attention_values"; }
  std::string_view operator()(const SparseValues&) const { return "sparse_values"; }
  std::string_view operator()(const TiledAttention&) const { return "tiled_attention"; }
  std::string_view operator()(const LargestProbability&) const { return "largest_probability"; }
  std::string_view operator()(const KeepTokens&) const { return "keep_tokens"; }
  std::string_view operator()(const GatherRows&) const { return "gather_rows"; }
  std::string_view operator()(const DropTokens&) const { return "drop_tokens"; }
  std::string_view operator()(const MissingTokens&) const { return "missing_tokens"; }
  std::string_view operator()(const TokenRows&) const { return "token_rows"; }
  std::string_view operator()(const TokenStates&) const { return "token_states"; }
  std::string_view operator()(const StoreStates&) const { return "store_states"; }
  std::string_view operator()(const TokenMask&) const { return "token_mask"; }
  std::string_view operator()(const Softmax&) const { return "softmax"; }
  std::string_view operator()(const Elementwise& e) const { return name(e.function); }
  std::string_view operator()(const GatedActivation&) const { return "gated_activation"; }
  std::string_view operator()(const RowMean&) const { return "row_mean"; }
  std::string_view operator()(const RmsNorm&) const { return "rms_norm"; }
  std::string_view operator()(const LayerNorm&) const { return "layer_norm"; }
  std::string_view operator()(const Rope&) const { return "rope"; }
  std::string_view operator()(const RopeAngles&) const { return "rope_angles"; }
  std::string_view operator()(const RotateHalf&) const { return "rotate_half"; }
  std::string_view operator()(const CacheAppend&) const { return "cache_append"; }
  std::string_view operator()(const CacheEvict&) const { return "cache_evict"; }
  std::string_view operator()(const JoinRows&) const { return "join_rows"; }
  std::string_view operator()(const Send&) const { return "send"; }
  std::string_view operator()(const Receive&) const { return "receive"; }
  std::string_view operator()(const RepeatHeads&) const { return "repeat_heads"; }
  std::string_view operator()(const LastToken&) const { return "last_token"; }
  std::string_view operator()(const Conv1d&) const { return "conv1d"; }
  std::string_view operator()(const RelativePositionBias&) const {
    return "relative_position_bias";
  }
  std::string_view operator()(const AlibiBias&) const { return "alibi_bias"; }
  std::string_view operator()(const CausalMask&) const { return "causal_mask"; }
};

}  // namespace

std::string_view name(const Op& op) { return std::visit(OpName{}, op); }

std::string_view name(Function function) {
  switch (function) {
    case Function::Copy: return "copy";
    case Function::Add: return "add";
    case Function::Multiply: return "multiply";
    case Function::Scale: return "scale";
    case Function::ClampBelow: return "clamp_below";
    case Function::Square: return "square";
    case Function::Center: return "center";
    case Function::InverseRoot: return "inverse_root";
    case Function::SoftCap: return "soft_cap";
    case Function::Relu: return "relu";
    case Function::Silu: return "silu";
    case Function::Gelu: return "gelu";
    case Function::GeluTanh: return "gelu_tanh";
    case Function::OnePlus: return "one_plus";
  }
  KVCAST_ASSERT(false);
  return {};
}

std::uint64_t flops_per_element(Function function) {
  switch (function) {
    case Function::Copy: return 0;
    case Function::Add:
    case Function::Multiply:
    case Function::Scale:
    case Function::ClampBelow:
    case Function::Square:
    case Function::Center:
    case Function::Relu:
    case Function::OnePlus: return 1;
    case Function::InverseRoot:
    case Function::SoftCap: return 3;
    case Function::Silu: return 4;
    case Function::Gelu: return 5;
    case Function::GeluTanh: return 9;
  }
  KVCAST_ASSERT(false);
  return 0;
}

}  // namespace kvcast
