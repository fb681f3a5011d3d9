#include "model/families/inert_keys.h"

#include <algorithm>
#include <iterator>

namespace kvcast {
namespace {

/// Sorted.
constexpr std::string_view inert_keys[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_kvcast",
    "_name_or_path",
    "_sliding_window_pattern",  // saved by Gemma 3's class, which reads sliding_window_pattern
    "add_cross_attention",
    "apply_spec_augment",
    "architectures",
    "attn_implementation",
    "auto_map",
    "aux_loss_alpha",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_proj_size",
    "cross_attention_hidden_size",
    "dense_act_fn",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "ep_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_decoder_ids",
    "gradient_checkpointing",
    "hidden_act",  // beside Gemma's hidden_activation
    "id2label",
    "init_device",
    "init_std",
    "initial_context_length",
    "initializer_factor",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "layers_block_type",
    "length_penalty",
    "max_length",
    "max_sequence_length",
    "median_filter_width",
    "min_length",
    "model_type",
    "n_ctx",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_logits_to_keep",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "output_scores",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "qk_head_dim",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "router_z_loss_coef",
    "seq_aux",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_weighted_layer_sum",
};

constexpr std::string_view inert_endings[] = {"_token_id",    "_token_ids", "_pdrop",
                                              "dropout",      "_dropout",   "_dropout_rate",
                                              "dropout_rate", "layerdrop"};
constexpr std::string_view inert_beginnings[] = {"mask_feature_", "mask_time_", "summary_"};

}  // namespace

bool is_inert_key(std::string_view key) {
  static_assert(std::is_sorted(std::begin(inert_keys), std::end(inert_keys)));
  const auto ends = [&](std::string_view ending) { return key.ends_with(ending); };
  const auto begins = [&](std::string_view beginning) { return key.starts_with(beginning); };
  return std::binary_search(std::begin(inert_keys), std::end(inert_keys), key) ||
         std::any_of(std::begin(inert_endings), std::end(inert_endings), ends) ||
         std::any_of(std::begin(inert_beginnings), std::end(inert_beginnings), begins);
}

bool is_rope_key(std::string_view key) {
  static constexpr std::string_view known[] = {"alpha",
                                               "attention_factor",
                                               "beta_fast",
                                               "beta_slow",
                                               "factor",
                                               "finetuned",
                                               "high_freq_factor",
                                               "llama_4_scaling_beta",
                                               "long_factor",
                                               "long_mscale",
                                               "low_freq_factor",
                                               "max_position_embeddings",
                                               "mrope_interleaved",
                                               "mrope_section",
                                               "mscale",
                                               "mscale_all_dim",
                                               "original_max_position_embeddings",
                                               "partial_rotary_factor",
                                               "rope_theta",
                                               "rope_type",
                                               "short_factor",
                                               "short_mscale",
                                               "truncate",
                                               "type"};
  static_assert(std::is_sorted(std::begin(known), std::end(known)));
  return std::binary_search(std::begin(known), std::end(known), key);
}

}  // namespace kvcast
