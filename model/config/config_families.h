/// One reader for each family of `config.json` files; `config_reader.h` is the door to them.
#pragma once

#include "model/base/json_file.h"
#include "model/config/architecture.h"

namespace kvcast::config {

Architecture read_llama(const JsonObject& c);  ///< also Mistral, Qwen2, OLMo
Architecture read_phi3(const JsonObject& c);
Architecture read_gemma(const JsonObject& c);  ///< Gemma and Gemma 2
Architecture read_gpt_neox(const JsonObject& c);
Architecture read_openelm(const JsonObject& c);
Architecture read_falcon(const JsonObject& c);
Architecture read_gpt2(const JsonObject& c);
Architecture read_opt(const JsonObject& c);
Architecture read_t5(const JsonObject& c);
Architecture read_whisper(const JsonObject& c);

/// What the readers share.

/// The keys a family gives its head counts under, and what transformers takes for absent ones,
/// which a saved config leaves out when they equal the family's defaults. No key for KV heads means
/// as many as heads.
struct HeadKeys {
  const char* hidden_size = "hidden_size";
  const char* num_attention_heads = "num_attention_heads";
  const char* num_key_value_heads = "num_key_value_heads";
  std::uint64_t default_key_value_heads = 0;  ///< 0: as many as heads
  std::uint64_t default_head_dim = 0;         ///< 0: hidden size / heads
};
/// Throws Error when the heads do not divide.
Heads read_heads(const JsonObject& c, const HeadKeys& keys = {});
/// At most 10,000 layers, so that a wrong number fails before it allocates.
std::uint64_t read_num_layers(const JsonObject& c, const char* key);
/// `num_key_value_layers` and `mlkv_semantics` of MLKV models: which layers own keys and values,
/// and what the others read. Nothing to do for configs without the former.
void read_shared_key_values(Stack& stack, const JsonObject& c);
Function read_activation(const JsonObject& c, const char* key, const char* fallback);
/// Frequencies of the first `rotary_dims` dims of a head, with the config's `rope_scaling`.
std::shared_ptr<const RopeTable> read_rope(const JsonObject& c, double theta,
                                           std::uint64_t rotary_dims);
/// head_dim^-0.5
double inverse_root(std::uint64_t head_dim);

}  // namespace kvcast::config
