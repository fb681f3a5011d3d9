/// Where the weights lie in a GGUF file.
///
/// Source: ggml-org/llama.cpp, convert_hf_to_gguf.py (classes LlamaModel ... OpenELMModel) and
/// gguf-py/gguf/{constants,tensor_mapping}.py.
#pragma once

#include <string>

#include "model/config/architecture.h"
#include "model/io/weights/weight_source.h"

namespace kvcast {

/// Where the weight that the recorder calls `name` ("layers.3.query.weight") lies in a GGUF file of
/// this architecture. Three things differ from Hugging Face's files: the query and key rows of
/// Llama and OLMo are interleaved for llama.cpp's rotary pairs, which `rows` undoes; fused
/// query-key-value tensors have all queries first, then all keys; Gemma's norms hold 1 + w, which
/// `offset` takes back. Throws Error for families that llama.cpp does not write.
WeightSource gguf_weight(const Architecture& a, const std::string& name);

}  // namespace kvcast
