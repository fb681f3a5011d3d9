/// What a GGUF file's metadata and tensor names mean: the model's config and where its weights lie.
///
/// Families: llama (also Mistral), qwen2, phi3, gemma, gemma2, gpt2, gptneox, falcon, olmo and
/// openelm, as llama.cpp's converter writes them. OPT, T5 and Whisper have no such files.
/// Source: ggml-org/llama.cpp, convert_hf_to_gguf.py (classes LlamaModel ... OpenELMModel) and
/// gguf-py/gguf/{constants,tensor_mapping}.py.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "model/config/architecture.h"
#include "model/io/weights/gguf.h"
#include "model/io/weights/weight_source.h"

namespace kvcast {

/// The config.json that read_config() takes for the model in the file. Llama 3.1's frequencies
/// become the rope_type "frequency_factors"; the head is tied when the file has no output.weight;
/// general.name stands under "_name_or_path". Throws Error: another architecture, a missing or
/// impossible entry, one file of a split model.
nlohmann::json gguf_config(const GgufFile& file);

/// Where the weight that the recorder calls `name` ("layers.3.query.weight") lies in a GGUF file of
/// this architecture. Three things differ from Hugging Face's files: the query and key rows of
/// Llama and OLMo are interleaved for llama.cpp's rotary pairs, which `rows` undoes; fused
/// query-key-value tensors have all queries first, then all keys; Gemma's norms hold 1 + w, which
/// `offset` takes back. Throws Error for families that llama.cpp does not write.
WeightSource gguf_weight(const Architecture& a, const std::string& name);

}  // namespace kvcast
