/// Multi-layer key-value heads (MLKV): fewer key-value heads in a layer, and fewer layers that have
/// any; the others read those of the nearest such layer below them.
///
/// Source: Zuhri et al. 2024 (arXiv:2406.09297), section 3; the authors' code:
/// zaydzuhri/pythia-mlkv, convert_to_mlkv.py and gpt_neox_mlkv/modeling_gpt_neox.py.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/config/architecture.h"

namespace kvcast {

/// How the MLPs take up the parameters that go with the keys and values; a shape for all but None.
enum class MlpWidening {
  None,
  Copy,      ///< neurons 0, 1, ... once more, as released: the model computes something else
  Preserve,  ///< the same, the outputs of both copies halved: the MLP computes what it did
};

struct MlkvShape {
  std::uint64_t layers = 0;  ///< that own keys and values
  std::uint64_t heads = 0;   ///< key-value heads in each of them
  MlpWidening widening = MlpWidening::Preserve;
};

/// "none", "copy" or "preserve". Throws Error with the nearest word.
MlpWidening parse_mlp_widening(std::string_view word);
/// "paper" or "released". Throws Error with the nearest word.
SharedKeys parse_shared_keys(std::string_view word);

/// Neurons that each layer's MLP gains, so that the model keeps about as many parameters: those of
/// the lost heads, divided by the layers and by the hidden size, rounded half to even, divided by
/// the MLP's matrices without a remainder. As released, which has two matrices; a gated MLP has
/// three, which the authors' code does not know. The biases of neurons do not count.
std::uint64_t added_neurons(const Architecture& a, const MlkvShape& shape);

/// The model's MLKV form. Throws Error: another family, an MLKV model already, key-value layers
/// that do not divide its layers, heads that do not divide its key-value heads, MLPs too narrow to
/// be widened by copies.
Architecture to_mlkv(const Architecture& a, const MlkvShape& shape);

}  // namespace kvcast
