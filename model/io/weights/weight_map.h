/// Where the weights of the forward pass lie in checkpoint files.
///
/// Sources: the modelling code of each family in transformers; OpenELM: apple/corenet; GGUF:
/// ggml-org/llama.cpp, convert_hf_to_gguf.py (classes LlamaModel ... OpenELMModel) and
/// gguf-py/gguf/{constants,tensor_mapping}.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/architecture.h"

namespace kvcast {

struct GgufFile;

struct WeightSource {
  std::vector<std::string> names;   ///< the first of them that the file has
  std::vector<std::uint64_t> rows;  ///< stored rows that make up the weight; empty: all, in order
  bool transposed = false;          ///< stored [in, out] (GPT-2): `rows` are columns, in order
  /// Above 0: a tensor of so many numbers in a row is not transposed.
  std::uint64_t inputs = 0;
  double offset = 0;  ///< added to every element
  /// Above 0: each name holds "{i}" and stands for so many tensors, whose rows follow each other.
  std::uint64_t pieces = 0;
  /// Above 0: stored [blocks, rows, in] (transposed: [blocks, in, rows]; vectors: [blocks, rows]),
  /// whose rows follow each other.
  std::uint64_t blocks = 0;
  /// The tensor's shape, which files store with other dims of 1; empty: as stored.
  std::vector<std::uint64_t> shape = {};
  std::vector<std::uint64_t> columns = {};  ///< stored columns in their order; empty: as stored
  bool negated_exponent = false;            ///< stored -exp(w) (the decay of a Mamba)
};

/// A weight's name in parts: "decoder.layers.3.query.weight" is {decoder., 3, query, .weight}.
struct WeightName {
  std::string stack;                 ///< "", "encoder." or "decoder."
  std::optional<std::size_t> layer;  ///< empty outside the layers
  std::string part;
  std::string kind;  ///< ".weight" or ".bias"
};
WeightName parse_weight_name(const std::string& name);

/// "experts.{i}.up_proj" with the number in the place of "{i}".
std::string piece_name(std::string name, std::uint64_t number);

/// Where the weight that the recorder calls `name` ("layers.3.query.weight") lies in a Hugging Face
/// checkpoint of this architecture: fused tensors (query-key-value, gate-up, ...) are taken apart
/// by rows. Throws Error for more rows than any model has.
WeightSource huggingface_weight(const Architecture& a, const std::string& name);

/// Whether the weight can be in such a checkpoint; methods read others too.
bool may_hold(const Architecture& a, const std::string& name);

/// Whether a file has a tensor.
using HasTensor = std::function<bool(std::string_view)>;

/// The same for a GGUF file, which differs in five things: the query and key rows of Llama and
/// OLMo are interleaved for llama.cpp's rotary pairs, which `rows` undoes; fused query-key-value
/// tensors have all queries first, then all keys; Gemma's norms hold 1 + w, which `offset` takes
/// back; the experts of a layer are one tensor; state spaces have decays of another form, other
/// dims of 1 and, in Qwen3.5, another order of heads. Files of other ages and options fuse other
/// tensors: `has` tells which. Throws Error for families that llama.cpp does not write, too.
WeightSource gguf_weight(
    const Architecture& a, const std::string& name,
    const HasTensor& has = [](std::string_view) { return false; });

/// Whether the weight can be in such a file.
bool gguf_may_hold(const Architecture& a, const std::string& name, const HasTensor& has);

/// The types of the file's own tensors.
WeightTypes gguf_weight_types(const GgufFile& file, const Architecture& a);

/// True for tensors that Hugging Face checkpoints hold and no forward pass reads: masks, frequency
/// buffers, copies of a tied weight, and layers that predict further tokens.
bool is_unused_buffer(const Architecture& a, std::string_view stored_name);
/// The same for GGUF files: frequency factors, which belong to the configuration, and such layers.
bool is_unused_in_gguf(const Architecture& a, std::string_view stored_name);

}  // namespace kvcast
