"""The cases of the families of 2024-26: windows and chunks, layers without positions, qk-norms, mixtures of experts, MLA."""

import torch
import transformers as hf

from cases import REMOVED, Case, rope

LAYERS = 3


def sizes(hidden, heads, kv_heads, mlp, vocab, **more):
    """What every config here has; `more` overrides."""
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **more,
    }


def kinds(text):
    names = {"L": "sliding_attention", "G": "full_attention", "C": "chunked_attention"}
    return [names[letter] for letter in text]


def yarn(theta=10000.0, **more):
    return rope("yarn", theta, **{"factor": 4.0, "original_max_position_embeddings": 32, **more})


def qwen3_cases():
    model = hf.Qwen3ForCausalLM
    return {
        "qwen3": Case(
            model,
            hf.Qwen3Config(
                **sizes(28, 5, 1, 41, 61),
                head_dim=8,
                tie_word_embeddings=True,
                rope_parameters=rope(theta=1000000.0),
                rms_norm_eps=1e-4,
            ),
            prompt_len=23,
            stored=torch.bfloat16,
        ),
        "qwen3_windowed": Case(
            model,
            hf.Qwen3Config(
                **sizes(26, 3, 3, 37, 59),
                hidden_act="gelu",
                head_dim=10,
                attention_bias=True,
                use_sliding_window=True,
                sliding_window=9,
                max_window_layers=1,
                rope_parameters=rope(theta=700.0),
            ),
            prompt_len=23,
        ),
    }


def post_norm_cases():
    return {
        "olmo2": Case(
            hf.Olmo2ForCausalLM,
            hf.Olmo2Config(
                **sizes(36, 6, 2, 45, 57),
                rms_norm_eps=1e-3,
                rope_parameters=rope(theta=500000.0),
            ),
            prompt_len=21,
        ),
        "olmo2_biases": Case(
            hf.Olmo2ForCausalLM,
            hf.Olmo2Config(
                **sizes(24, 3, 3, 33, 53),
                attention_bias=True,
                tie_word_embeddings=True,
                hidden_act="gelu",
            ),
            prompt_len=20,
            new_form=True,
        ),
        # Without RoPE in the full layers, because there are sliding ones.
        "exaone4": Case(
            hf.Exaone4ForCausalLM,
            hf.Exaone4Config(
                **sizes(30, 3, 1, 43, 62, num_hidden_layers=4),
                rms_norm_eps=1e-3,
                head_dim=8,
                sliding_window=7,
                layer_types=kinds("LLGL"),
                rope_parameters=rope(theta=1000000.0),
            ),
            prompt_len=25,
        ),
        "exaone4_full": Case(
            hf.Exaone4ForCausalLM,
            hf.Exaone4Config(
                **sizes(24, 4, 2, 39, 55),
                hidden_act="relu",
                sliding_window=None,
                layer_types=kinds("GGG"),
                tie_word_embeddings=True,
                rope_parameters=rope(
                    "llama3",
                    1000.0,
                    factor=4.0,
                    low_freq_factor=1.0,
                    high_freq_factor=4.0,
                    original_max_position_embeddings=32,
                ),
            ),
            prompt_len=22,
            new_form=True,
        ),
    }


def llama_like_cases():
    return {
        "llama_yarn": Case(
            hf.LlamaForCausalLM,
            hf.LlamaConfig(
                **sizes(30, 5, 1, 41, 61),
                head_dim=12,
                rope_parameters=yarn(500.0, beta_fast=8.0, beta_slow=0.5),
            ),
            prompt_len=41,
        ),
        # Beyond 30 positions every greedy step has a rotary base of its own; cached keys keep theirs.
        "llama_dynamic": Case(
            hf.LlamaForCausalLM,
            hf.LlamaConfig(
                **sizes(30, 5, 1, 41, 59, max_position_embeddings=30),
                head_dim=10,
                rope_parameters=rope("dynamic", 700.0, factor=3.0),
            ),
            prompt_len=25,
            changes_with_length=True,
        ),
        "smollm3": Case(
            hf.SmolLM3ForCausalLM,
            hf.SmolLM3Config(
                **sizes(24, 3, 1, 37, 63, num_hidden_layers=4),
                head_dim=10,
                no_rope_layers=[1, 0, 1, 1],
                attention_bias=True,
                mlp_bias=True,
                rope_parameters=rope(theta=5000000.0),
            ),
            prompt_len=22,
        ),
        "smollm3_windowed": Case(
            hf.SmolLM3ForCausalLM,
            hf.SmolLM3Config(
                **sizes(28, 7, 7, 31, 58),
                rms_norm_eps=1e-3,
                hidden_act="gelu_pytorch_tanh",
                no_rope_layer_interval=2,
                use_sliding_window=True,
                sliding_window=8,
                tie_word_embeddings=False,
            ),
            prompt_len=24,
            new_form=True,
        ),
        "granite": Case(
            hf.GraniteForCausalLM,
            hf.GraniteConfig(
                **sizes(30, 5, 1, 43, 59),
                rms_norm_eps=1e-3,
                embedding_multiplier=3.0,
                residual_multiplier=0.43,
                attention_multiplier=0.21,
                logits_scaling=1.7,
                attention_bias=True,
                mlp_bias=True,
                tie_word_embeddings=True,
                rope_parameters=rope(theta=300.0),
            ),
            prompt_len=21,
            # Else the tied head finds the token just read, whatever the layers add.
            stds={"embed_tokens": 0.15},
        ),
    }


def cohere_cases():
    small = {"embed_tokens": 0.1}
    return {
        "cohere": Case(
            hf.CohereForCausalLM,
            hf.CohereConfig(**sizes(30, 5, 1, 47, 61), logit_scale=0.4, layer_norm_eps=1e-3),
            prompt_len=21,
            stds=small,
        ),
        "cohere_qk_norm": Case(
            hf.CohereForCausalLM,
            hf.CohereConfig(
                **sizes(36, 6, 3, 41, 53, tie_word_embeddings=False),
                hidden_act="relu",
                logit_scale=0.7,
                use_qk_norm=True,
                attention_bias=True,
                rope_parameters=rope(theta=4000000.0),
            ),
            prompt_len=23,
        ),
        "cohere2": Case(
            hf.Cohere2ForCausalLM,
            hf.Cohere2Config(
                **sizes(32, 4, 2, 37, 57, num_hidden_layers=4),
                logit_scale=0.25,
                layer_types=kinds("LLGL"),
                sliding_window=8,
                attention_bias=True,
                rope_parameters=rope(theta=50000.0),
            ),
            prompt_len=26,
            stds=small,
        ),
    }


def layer_norm_cases():
    model = hf.Starcoder2ForCausalLM
    return {
        "starcoder2": Case(
            model,
            hf.Starcoder2Config(
                **sizes(28, 7, 1, 51, 60),
                sliding_window=9,
                norm_epsilon=1e-3,
                rope_parameters=rope(theta=999999.4420358813),
            ),
            prompt_len=24,
            stds={"embed_tokens": 0.1},
        ),
        "starcoder2_no_biases": Case(
            model,
            hf.Starcoder2Config(
                **sizes(24, 3, 3, 35, 54),
                use_bias=False,
                tie_word_embeddings=False,
                hidden_act="gelu",
            ),
            prompt_len=20,
            new_form=True,
        ),
        # LayerNorm multiplies by 1 + weight.
        "nemotron": Case(
            hf.NemotronForCausalLM,
            hf.NemotronConfig(
                **sizes(30, 3, 1, 41, 61),
                head_dim=12,
                norm_eps=1e-3,
                rope_parameters=rope(partial_rotary_factor=0.5),
            ),
            prompt_len=21,
            norm_offset=True,
        ),
        "nemotron_biases": Case(
            hf.NemotronForCausalLM,
            hf.NemotronConfig(
                **sizes(24, 4, 2, 37, 55),
                attention_bias=True,
                mlp_bias=True,
                tie_word_embeddings=True,
                hidden_act="silu",
                rope_parameters=rope(theta=700.0, partial_rotary_factor=1.0),
            ),
            prompt_len=20,
            norm_offset=True,
            stds={"embed_tokens": 0.1},
        ),
        "stablelm": Case(
            hf.StableLmForCausalLM,
            hf.StableLmConfig(
                **sizes(32, 2, 1, 43, 59),
                use_qkv_bias=True,
                layer_norm_eps=1e-3,
                rope_parameters=rope(partial_rotary_factor=0.25),
            ),
            prompt_len=21,
        ),
        "stablelm_parallel": Case(
            hf.StableLmForCausalLM,
            hf.StableLmConfig(
                **sizes(36, 6, 3, 39, 57),
                hidden_act="gelu",
                qk_layernorm=True,
                use_parallel_residual=True,
                tie_word_embeddings=True,
                rope_parameters=rope(theta=900.0, partial_rotary_factor=0.67),
            ),
            prompt_len=22,
            stds={"embed_tokens": 0.1},
        ),
        "phi": Case(
            hf.PhiForCausalLM,
            hf.PhiConfig(
                **sizes(36, 3, 3, 41, 61),
                layer_norm_eps=1e-3,
                rope_parameters=rope(partial_rotary_factor=0.5),
            ),
            prompt_len=21,
        ),
        "phi_qk_layernorm": Case(
            hf.PhiForCausalLM,
            hf.PhiConfig(
                **sizes(36, 6, 2, 45, 56),
                qk_layernorm=True,
                hidden_act="gelu",
                rope_parameters=rope(theta=800.0, partial_rotary_factor=0.7),
            ),
            prompt_len=23,
            new_form=True,
        ),
    }


def gemma3_cases():
    model = hf.Gemma3ForCausalLM
    small = {"embed_tokens": 0.1}
    return {
        "gemma3_text": Case(
            model,
            hf.Gemma3TextConfig(
                **sizes(27, 3, 1, 47, 61, num_hidden_layers=4),
                head_dim=10,
                query_pre_attn_scalar=7,
                sliding_window=8,
                layer_types=kinds("LLGL"),
                rope_parameters={
                    "full_attention": rope("linear", 1000.0, factor=8.0),
                    "sliding_attention": rope(theta=200.0),
                },
            ),
            prompt_len=26,
            norm_offset=True,
            stds=small,
        ),
        "gemma3_text_softcaps": Case(
            model,
            hf.Gemma3TextConfig(
                **sizes(32, 4, 2, 41, 57),
                rms_norm_eps=1e-2,
                head_dim=6,
                query_pre_attn_scalar=11,
                sliding_window=7,
                layer_types=kinds("GLL"),
                attention_bias=True,
                attn_logit_softcapping=3.0,
                final_logit_softcapping=1.5,
                hidden_activation="gelu",
            ),
            prompt_len=24,
            norm_offset=True,
            stds=small,
            new_form=True,
        ),
    }


def mixture_cases():
    return {
        "mixtral": Case(
            hf.MixtralForCausalLM,
            hf.MixtralConfig(
                **sizes(26, 3, 1, 15, 61),
                head_dim=10,
                num_local_experts=5,
                num_experts_per_tok=2,
                sliding_window=9,
                rms_norm_eps=1e-4,
            ),
            prompt_len=24,
        ),
        # Only layer 1 has experts.
        "qwen3_moe": Case(
            hf.Qwen3MoeForCausalLM,
            hf.Qwen3MoeConfig(
                **sizes(24, 6, 2, 19, 59, num_hidden_layers=5),
                head_dim=6,
                num_experts=7,
                num_experts_per_tok=3,
                moe_intermediate_size=7,
                norm_topk_prob=True,
                decoder_sparse_step=2,
                mlp_only_layers=[3],
                attention_bias=True,
                rope_parameters=rope(theta=1000000.0),
            ),
            prompt_len=23,
        ),
        "qwen3_moe_windowed": Case(
            hf.Qwen3MoeForCausalLM,
            hf.Qwen3MoeConfig(
                **sizes(24, 3, 3, 21, 54),
                rms_norm_eps=1e-3,
                hidden_act="relu",
                head_dim=10,
                num_experts=6,
                num_experts_per_tok=2,
                moe_intermediate_size=13,
                norm_topk_prob=False,
                use_sliding_window=True,
                sliding_window=7,
                tie_word_embeddings=True,
            ),
            prompt_len=21,
            new_form=True,
        ),
        "olmoe": Case(
            hf.OlmoeForCausalLM,
            hf.OlmoeConfig(
                **sizes(30, 5, 1, 7, 58),
                num_experts=9,
                num_experts_per_tok=4,
            ),
            prompt_len=21,
        ),
        "olmoe_clipped": Case(
            hf.OlmoeForCausalLM,
            hf.OlmoeConfig(
                **sizes(24, 3, 3, 13, 52),
                hidden_act="gelu",
                num_experts=6,
                num_experts_per_tok=2,
                norm_topk_prob=True,
                clip_qkv=0.9,
                attention_bias=True,
                rms_norm_eps=1e-3,
                rope_parameters=rope(theta=500.0),
            ),
            prompt_len=20,
            new_form=True,
        ),
        "granitemoe": Case(
            hf.GraniteMoeForCausalLM,
            hf.GraniteMoeConfig(
                **sizes(30, 5, 1, 13, 59),
                rms_norm_eps=1e-3,
                num_local_experts=6,
                num_experts_per_tok=3,
                embedding_multiplier=3.0,
                residual_multiplier=0.43,
                attention_multiplier=0.21,
                logits_scaling=1.7,
                attention_bias=True,
                tie_word_embeddings=True,
            ),
            prompt_len=21,
            stds={"embed_tokens": 0.15},
        ),
        "gpt_oss": Case(
            hf.GptOssForCausalLM,
            hf.GptOssConfig(
                **sizes(24, 6, 2, 9, 61, num_hidden_layers=4),
                swiglu_alpha=1.3,
                head_dim=6,
                num_local_experts=5,
                num_experts_per_tok=3,
                sliding_window=8,
                layer_types=kinds("LGLL"),
                swiglu_limit=0.9,
                rms_norm_eps=1e-4,
                rope_parameters=yarn(700.0, beta_fast=8.0, beta_slow=0.5, truncate=False),
            ),
            prompt_len=41,
            stds={"experts.gate_up_proj": 0.5},
        ),
        "llama4_text": Case(
            hf.Llama4ForCausalLM,
            hf.Llama4TextConfig(
                **sizes(26, 5, 1, 11, 61, num_hidden_layers=4),
                head_dim=8,
                intermediate_size_mlp=29,
                num_local_experts=5,
                num_experts_per_tok=1,
                interleave_moe_layer_step=2,
                attention_chunk_size=8,
                no_rope_layers=[1, 0, 1, 0],
                floor_scale=4,
                attn_scale=0.6,
                attention_bias=True,
                rms_norm_eps=1e-4,
                rope_parameters=rope(
                    "llama3",
                    500.0,
                    factor=4.0,
                    low_freq_factor=1.0,
                    high_freq_factor=1.0,
                    original_max_position_embeddings=32,
                ),
            ),
            prompt_len=27,
        ),
        "llama4_text_dense_first": Case(
            hf.Llama4ForCausalLM,
            hf.Llama4TextConfig(
                **sizes(24, 3, 3, 17, 55),
                rms_norm_eps=1e-3,
                hidden_act="gelu",
                head_dim=10,
                intermediate_size_mlp=29,
                num_local_experts=4,
                num_experts_per_tok=2,
                moe_layers=[1, 2],
                no_rope_layer_interval=3,
                attention_chunk_size=7,
                use_qk_norm=False,
                attn_temperature_tuning=False,
                tie_word_embeddings=True,
            ),
            prompt_len=22,
            new_form=True,
        ),
        "glm4_moe": Case(
            hf.Glm4MoeForCausalLM,
            hf.Glm4MoeConfig(
                **sizes(26, 6, 2, 23, 61),
                head_dim=12,
                n_routed_experts=6,
                num_experts_per_tok=2,
                n_shared_experts=2,
                moe_intermediate_size=7,
                n_group=1,
                topk_group=1,
                first_k_dense_replace=1,
                routed_scaling_factor=1.8,
                norm_topk_prob=True,
                use_qk_norm=True,
                attention_bias=True,
                rope_parameters=rope(theta=1000000.0, partial_rotary_factor=0.5),
            ),
            prompt_len=23,
        ),
        "glm4_moe_groups": Case(
            hf.Glm4MoeForCausalLM,
            hf.Glm4MoeConfig(
                **sizes(24, 3, 1, 17, 53),
                rms_norm_eps=1e-3,
                hidden_act="gelu",
                head_dim=10,
                n_routed_experts=9,
                num_experts_per_tok=3,
                n_shared_experts=1,
                moe_intermediate_size=9,
                n_group=3,
                topk_group=2,
                first_k_dense_replace=0,
                norm_topk_prob=False,
                tie_word_embeddings=True,
                rope_parameters=rope(theta=600.0, partial_rotary_factor=0.8),
            ),
            prompt_len=20,
            new_form=True,
        ),
    }


def latent_cases():
    heads = {"qk_nope_head_dim": 7, "qk_rope_head_dim": 6, "v_head_dim": 9, "kv_lora_rank": 13}
    # torch reads DeepSeek-V2's pairs as complex numbers, at even strides only.
    even = {**heads, "qk_nope_head_dim": 8, "kv_lora_rank": 14}
    scaled = yarn(mscale=0.7, mscale_all_dim=0.9)
    return {
        "deepseek_v2": Case(
            hf.DeepseekV2ForCausalLM,
            hf.DeepseekV2Config(
                **sizes(24, 3, 3, 23, 61),
                **even,
                q_lora_rank=17,
                n_routed_experts=8,
                num_experts_per_tok=3,
                n_shared_experts=2,
                moe_intermediate_size=7,
                first_k_dense_replace=1,
                topk_method="group_limited_greedy",
                n_group=4,
                topk_group=2,
                routed_scaling_factor=2.3,
                attention_bias=True,
                rms_norm_eps=1e-3,
                rope_parameters=scaled,
            ),
            prompt_len=41,
        ),
        "deepseek_v2_lite": Case(
            hf.DeepseekV2ForCausalLM,
            hf.DeepseekV2Config(
                **sizes(28, 4, 4, 27, 57),
                hidden_act="gelu",
                **even,
                q_lora_rank=None,
                n_routed_experts=6,
                num_experts_per_tok=2,
                n_shared_experts=1,
                moe_intermediate_size=9,
                first_k_dense_replace=0,
                topk_method="greedy",
                tie_word_embeddings=True,
                mlp_bias=True,
            ),
            prompt_len=22,
            new_form=True,
        ),
        "deepseek_v3": Case(
            hf.DeepseekV3ForCausalLM,
            hf.DeepseekV3Config(
                **sizes(25, 5, 5, 23, 61),
                **heads,
                q_lora_rank=11,
                n_routed_experts=9,
                num_experts_per_tok=3,
                n_shared_experts=1,
                moe_intermediate_size=7,
                first_k_dense_replace=1,
                n_group=3,
                topk_group=2,
                routed_scaling_factor=1.6,
                norm_topk_prob=True,
                rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0),
            ),
            prompt_len=41,
        ),
        "deepseek_v3_half_split": Case(
            hf.DeepseekV3ForCausalLM,
            hf.DeepseekV3Config(
                **sizes(24, 3, 3, 25, 54),
                hidden_act="relu",
                **heads,
                q_lora_rank=None,
                n_routed_experts=6,
                num_experts_per_tok=2,
                n_shared_experts=2,
                moe_intermediate_size=9,
                first_k_dense_replace=2,
                n_group=1,
                topk_group=1,
                routed_scaling_factor=0.8,
                norm_topk_prob=False,
                rope_interleave=False,
                attention_bias=True,
                rms_norm_eps=1e-3,
                rope_parameters=rope(theta=700.0),
            ),
            prompt_len=21,
            new_form=True,
        ),
        "deepseek_v32": Case(
            hf.DeepseekV32ForCausalLM,
            hf.DeepseekV32Config(
                **sizes(26, 5, 5, 23, 61, num_hidden_layers=2),
                **heads,
                q_lora_rank=11,
                index_n_heads=7,
                index_head_dim=9,
                index_topk=8,
                n_routed_experts=9,
                num_experts_per_tok=3,
                n_shared_experts=1,
                moe_intermediate_size=7,
                first_k_dense_replace=1,
                n_group=3,
                topk_group=2,
                routed_scaling_factor=1.6,
                norm_topk_prob=True,
                rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0),
            ),
            prompt_len=23,
            stds={"experts": 0.6},
            config_changes={"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        ),
        "minicpm3": Case(
            hf.MiniCPM3ForCausalLM,
            hf.MiniCPM3Config(
                **sizes(30, 5, 5, 37, 59, max_position_embeddings=512),
                rms_norm_eps=1e-3,
                **heads,
                q_lora_rank=11,
                scale_emb=3,
                scale_depth=1.1,
                dim_model_base=17,
                attention_bias=True,
                mlp_bias=True,
                rope_parameters=rope(
                    "longrope",
                    short_factor=[1.0, 1.3, 1.9],
                    long_factor=[1.1, 2.7, 6.3],
                    original_max_position_embeddings=128,
                ),
            ),
            prompt_len=23,
            stds={"embed_tokens": 0.15},
        ),
    }


def more_dense_cases():
    return {
        "olmo3": Case(
            hf.Olmo3ForCausalLM,
            hf.Olmo3Config(
                **sizes(30, 5, 1, 41, 59, num_hidden_layers=5),
                rms_norm_eps=1e-3,
                sliding_window=8,
                rope_parameters={
                    "full_attention": yarn(500000.0, beta_fast=8.0, beta_slow=0.5),
                    "sliding_attention": rope(theta=500000.0),
                },
            ),
            prompt_len=41,
        ),
        "olmo3_layer_types": Case(
            hf.Olmo3ForCausalLM,
            hf.Olmo3Config(
                **sizes(24, 3, 3, 29, 55),
                hidden_act="gelu",
                sliding_window=5,
                layer_types=kinds("GLG"),
                attention_bias=True,
                tie_word_embeddings=True,
                rope_parameters={
                    "full_attention": rope("linear", 700.0, factor=3.0),
                    "sliding_attention": rope(theta=90.0),
                },
            ),
            prompt_len=22,
            new_form=True,
        ),
        "glm4": Case(
            hf.Glm4ForCausalLM,
            hf.Glm4Config(
                **sizes(26, 6, 2, 43, 61),
                head_dim=12,
                rms_norm_eps=1e-3,
                rope_parameters=rope(theta=600.0, partial_rotary_factor=0.5),
            ),
            prompt_len=23,
        ),
        "glm": Case(
            hf.GlmForCausalLM,
            hf.GlmConfig(
                **sizes(22, 4, 2, 41, 57),
                head_dim=10,
                rms_norm_eps=1e-3,
                rope_parameters=rope(theta=800.0, partial_rotary_factor=0.6),
            ),
            prompt_len=21,
        ),
        "ministral_layer_types": Case(
            hf.MinistralForCausalLM,
            hf.MinistralConfig(
                **sizes(24, 4, 2, 37, 55),
                head_dim=8,
                sliding_window=5,
                layer_types=["full_attention", "sliding_attention", "sliding_attention"],
                rope_parameters=rope(theta=900.0),
            ),
            prompt_len=23,
        ),
        "ministral3": Case(
            hf.Ministral3ForCausalLM,
            hf.Ministral3Config(
                **sizes(20, 4, 1, 39, 59),
                head_dim=6,
                rope_parameters=yarn(700.0, original_max_position_embeddings=7, llama_4_scaling_beta=0.4),
            ),
            prompt_len=29,
            new_form=True,
        ),
        "glm4_no_biases": Case(
            hf.Glm4ForCausalLM,
            hf.Glm4Config(
                **sizes(24, 3, 3, 35, 53),
                hidden_act="gelu",
                head_dim=10,
                attention_bias=False,
                tie_word_embeddings=True,
                rope_parameters=yarn(700.0, partial_rotary_factor=0.8),
            ),
            prompt_len=41,
            new_form=True,
        ),
        "seed_oss": Case(
            hf.SeedOssForCausalLM,
            hf.SeedOssConfig(**sizes(26, 6, 2, 43, 61), head_dim=8, rms_norm_eps=1e-3, rope_parameters=rope(theta=1e7)),
            prompt_len=23,
        ),
        "seed_oss_biases": Case(
            hf.SeedOssForCausalLM,
            hf.SeedOssConfig(
                **sizes(24, 3, 1, 35, 53),
                hidden_act="gelu",
                head_dim=10,
                attention_bias=False,
                attention_out_bias=True,
                mlp_bias=True,
                tie_word_embeddings=True,
                rope_parameters=rope("linear", 700.0, factor=3.0),
            ),
            prompt_len=20,
            new_form=True,
        ),
        "ernie4_5": Case(
            hf.Ernie4_5ForCausalLM,
            hf.Ernie4_5Config(**sizes(26, 6, 2, 43, 61), head_dim=8, rms_norm_eps=1e-3),
            prompt_len=23,
            stds={"embed_tokens": 0.15},
        ),
        "ernie4_5_biases": Case(
            hf.Ernie4_5ForCausalLM,
            hf.Ernie4_5Config(
                **sizes(24, 3, 1, 35, 53),
                hidden_act="gelu",
                head_dim=10,
                use_bias=True,
                tie_word_embeddings=False,
                rope_parameters=rope(theta=700.0),
            ),
            prompt_len=20,
            new_form=True,
        ),
        "arcee": Case(
            hf.ArceeForCausalLM,
            hf.ArceeConfig(**sizes(30, 5, 1, 43, 61), rms_norm_eps=1e-3, rope_parameters=yarn(700.0)),
            prompt_len=41,
        ),
        "arcee_biases": Case(
            hf.ArceeForCausalLM,
            hf.ArceeConfig(
                **sizes(24, 3, 3, 35, 53),
                head_dim=10,
                hidden_act="gelu",
                attention_bias=True,
                mlp_bias=True,
                tie_word_embeddings=True,
            ),
            prompt_len=20,
            new_form=True,
        ),
    }


def more_mixture_cases():
    return {
        "qwen2_moe": Case(
            hf.Qwen2MoeForCausalLM,
            hf.Qwen2MoeConfig(
                **sizes(30, 5, 1, 23, 61, num_hidden_layers=4),
                num_experts=7,
                num_experts_per_tok=3,
                moe_intermediate_size=9,
                shared_expert_intermediate_size=13,
                decoder_sparse_step=1,
                mlp_only_layers=[1],
                rms_norm_eps=1e-4,
                rope_parameters=rope(theta=1000000.0),
            ),
            prompt_len=23,
        ),
        "qwen2_moe_windowed": Case(
            hf.Qwen2MoeForCausalLM,
            hf.Qwen2MoeConfig(
                **sizes(24, 3, 3, 17, 53, num_hidden_layers=5),
                hidden_act="gelu",
                num_experts=5,
                num_experts_per_tok=2,
                moe_intermediate_size=7,
                shared_expert_intermediate_size=11,
                decoder_sparse_step=2,
                norm_topk_prob=True,
                qkv_bias=False,
                use_sliding_window=True,
                sliding_window=8,
                max_window_layers=4,
                tie_word_embeddings=True,
                rope_parameters=rope(theta=700.0),
            ),
            prompt_len=22,
            new_form=True,
        ),
        "minimax_m2": Case(
            hf.MiniMaxM2ForCausalLM,
            hf.MiniMaxM2Config(
                **sizes(26, 6, 2, 9, 61),
                head_dim=12,
                num_local_experts=7,
                num_experts_per_tok=3,
                rms_norm_eps=1e-4,
                rope_parameters=rope(theta=5000000.0, partial_rotary_factor=0.5),
            ),
            prompt_len=23,
            stds={"experts": 0.7},
        ),
        "minimax_m2_share": Case(
            hf.MiniMaxM2ForCausalLM,
            hf.MiniMaxM2Config(
                **sizes(24, 3, 1, 11, 53),
                hidden_act="gelu",
                head_dim=10,
                num_local_experts=5,
                num_experts_per_tok=2,
                rms_norm_eps=1e-3,
                tie_word_embeddings=True,
                rope_parameters=yarn(700.0, partial_rotary_factor=0.8),
            ),
            prompt_len=41,
            stds={"experts": 0.7},
            new_form=True,
        ),
        "dots1": Case(
            hf.Dots1ForCausalLM,
            hf.Dots1Config(
                **sizes(30, 5, 1, 23, 61),
                n_routed_experts=6,
                num_experts_per_tok=2,
                n_shared_experts=2,
                moe_intermediate_size=7,
                first_k_dense_replace=1,
                routed_scaling_factor=1.8,
                norm_topk_prob=True,
                rms_norm_eps=1e-3,
                rope_parameters=rope(theta=1000000.0),
            ),
            prompt_len=23,
        ),
        "dots1_windowed": Case(
            hf.Dots1ForCausalLM,
            hf.Dots1Config(
                **sizes(24, 3, 3, 17, 53, num_hidden_layers=4),
                hidden_act="gelu",
                n_routed_experts=9,
                num_experts_per_tok=3,
                n_shared_experts=1,
                moe_intermediate_size=9,
                n_group=3,
                topk_group=2,
                sliding_window=8,
                max_window_layers=2,
                attention_bias=True,
                tie_word_embeddings=True,
                rope_parameters=rope(theta=600.0),
            ),
            prompt_len=20,
            new_form=True,
        ),
    }


def old_layout(tensors):
    """The names of transformers before 4.52, a module language_model that holds its head."""
    names = {}
    for name, tensor in tensors.items():
        name = name.replace("model.language_model.", "language_model.model.")
        if name.startswith("lm_head"):
            name = f"language_model.{name}"
        names[name.removeprefix("model.")] = tensor
    return names


def new_layout(tensors):
    """The names of the modules since 4.52, model.language_model beside lm_head."""
    names = {}
    for name, tensor in tensors.items():
        name = name.replace("language_model.model.", "model.language_model.")
        name = name.replace("language_model.lm_head.", "lm_head.")
        names[name if name.startswith(("model.", "lm_head.")) else f"model.{name}"] = tensor
    return names


def wrapper_cases():
    """Text models inside models of images, whose vision towers are as small as they can be. Their inputs are text."""
    siglip = hf.SiglipVisionConfig(
        hidden_size=8, intermediate_size=9, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    pixtral = hf.PixtralVisionConfig(
        hidden_size=8, intermediate_size=9, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    small = {"embed_tokens": 0.1}
    return {
        # Tied by the classes' defaults, of which the file says nothing.
        "gemma3_wrapped": Case(
            hf.Gemma3ForConditionalGeneration,
            hf.Gemma3Config(
                text_config=hf.Gemma3TextConfig(
                    **sizes(32, 8, 4, 43, 61, num_hidden_layers=4),
                    head_dim=6,
                    query_pre_attn_scalar=7,
                    sliding_window=8,
                    layer_types=kinds("LLGL"),
                    rope_parameters={
                        "full_attention": rope("linear", 1000.0, factor=8.0),
                        "sliding_attention": rope(theta=200.0),
                    },
                ),
                vision_config=siglip,
                mm_tokens_per_image=4,
                image_token_index=60,
            ),
            prompt_len=26,
            norm_offset=True,
            stds=small,
            change_tensors=new_layout,
            config_changes={"tie_word_embeddings": REMOVED},
        ),
        # A head of its own, of which only the file's tensors tell.
        "mistral3_wrapped": Case(
            hf.Mistral3ForConditionalGeneration,
            hf.Mistral3Config(
                text_config=hf.MistralConfig(
                    **sizes(28, 4, 2, 37, 59),
                    head_dim=10,
                    sliding_window=None,
                    rms_norm_eps=1e-3,
                    rope_parameters=rope(theta=1000000.0),
                ),
                vision_config=pixtral,
                image_token_index=58,
                tie_word_embeddings=False,
            ),
            prompt_len=23,
            change_tensors=old_layout,
            config_changes={"tie_word_embeddings": REMOVED},
        ),
        "llama4_wrapped": Case(
            hf.Llama4ForConditionalGeneration,
            hf.Llama4Config(
                text_config=hf.Llama4TextConfig(
                    **sizes(26, 5, 1, 11, 57, num_hidden_layers=4),
                    head_dim=8,
                    intermediate_size_mlp=23,
                    num_local_experts=4,
                    interleave_moe_layer_step=2,
                    attention_chunk_size=8,
                    floor_scale=4,
                    attn_scale=0.6,
                ),
                vision_config=hf.Llama4VisionConfig(
                    hidden_size=8,
                    intermediate_size=32,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    image_size=16,
                    patch_size=8,
                    vision_output_dim=8,
                    projector_input_dim=8,
                    projector_output_dim=8,
                ),
                image_token_index=56,
            ),
            prompt_len=27,
            new_form=True,
        ),
        # The key inside text_config ties.
        "llava_wrapped": Case(
            hf.LlavaForConditionalGeneration,
            hf.LlavaConfig(
                text_config=hf.Qwen2Config(
                    **sizes(32, 4, 2, 41, 60), tie_word_embeddings=True, rope_parameters=rope(theta=1000000.0)
                ),
                vision_config=siglip,
                image_token_index=59,
            ),
            prompt_len=22,
            stds=small,
            change_tensors=old_layout,
            config_changes={"tie_word_embeddings": REMOVED},
        ),
        "qwen3_vl_wrapped": Case(
            hf.Qwen3VLForConditionalGeneration,
            hf.Qwen3VLConfig(
                text_config={
                    **sizes(28, 4, 2, 37, 58),
                    "head_dim": 12,
                    "rope_parameters": rope(theta=5000000.0, mrope_section=[2, 2, 2], mrope_interleaved=True),
                },
                vision_config={
                    "hidden_size": 8,
                    "intermediate_size": 9,
                    "depth": 1,
                    "num_heads": 2,
                    "out_hidden_size": 28,
                    "deepstack_visual_indexes": [],
                    "num_position_embeddings": 4,
                },
                image_token_id=57,
                video_token_id=56,
                vision_start_token_id=55,
                vision_end_token_id=54,
                tie_word_embeddings=True,
            ),
            prompt_len=24,
            stds=small,
        ),
    }


def vl_moe_cases():
    def as_published(tensors):
        """Experts [E, in, out]; transformers writes [E, out, in] and reads both."""
        flip = lambda name, t: t.transpose(1, 2).contiguous() if ".mlp.experts." in name else t
        return {name: flip(name, tensor) for name, tensor in tensors.items()}

    return {
        "qwen3_vl_moe_wrapped": Case(
            hf.Qwen3VLMoeForConditionalGeneration,
            hf.Qwen3VLMoeConfig(
                text_config={
                    **sizes(22, 4, 2, 31, 58),
                    "head_dim": 8,
                    "num_experts": 5,
                    "num_experts_per_tok": 2,
                    "moe_intermediate_size": 9,
                    "mlp_only_layers": [1],
                    "rope_parameters": rope(theta=5000000.0, mrope_section=[2, 1, 1], mrope_interleaved=True),
                },
                vision_config={
                    "hidden_size": 8,
                    "intermediate_size": 9,
                    "depth": 1,
                    "num_heads": 2,
                    "out_hidden_size": 22,
                    "deepstack_visual_indexes": [],
                    "num_position_embeddings": 4,
                },
                image_token_id=57,
                video_token_id=56,
                vision_start_token_id=55,
                vision_end_token_id=54,
            ),
            prompt_len=24,
            change_tensors=as_published,
        ),
    }


def granite_swa_cases():
    return {
        # Sinks, and a base of rotations for each layer; the third does not rotate.
        "granite_swa": Case(
            hf.GraniteSWAForCausalLM,
            hf.GraniteSWAConfig(
                **sizes(24, 6, 2, 33, 61, num_hidden_layers=4),
                sliding_window=8,
                layer_types=kinds("GLGL"),
                layer_rope_theta=[700.0, 40.0, 0, 700.0],
                attention_multiplier=0.4,
                embedding_multiplier=3.0,
                residual_multiplier=0.5,
                logits_scaling=2.0,
                attention_bias=True,
                rms_norm_eps=1e-3,
                tie_word_embeddings=False,
                rope_parameters=rope("linear", 900.0, factor=2.0),
            ),
            prompt_len=23,
            new_form=True,
        ),
    }


def apertus_cases():
    return {
        "apertus": Case(
            hf.ApertusForCausalLM,
            hf.ApertusConfig(
                **sizes(32, 4, 2, 37, 59),
                attention_bias=True,
                rms_norm_eps=1e-3,
                rope_parameters=rope(
                    "llama3",
                    1000.0,
                    factor=4.0,
                    low_freq_factor=1.0,
                    high_freq_factor=4.0,
                    original_max_position_embeddings=32,
                ),
            ),
            prompt_len=22,
        ),
    }


def gemma3n_cases():
    model = hf.Gemma3nForCausalLM
    small = {"embed_tokens": 0.1}
    two_bases = {
        "full_attention": rope("linear", 1000.0, factor=8.0),
        "sliding_attention": rope(theta=200.0),
    }
    return {
        # Layers 3 to 5 read the keys and values of layers 2, 1 and 2.
        "gemma3n_text": Case(
            model,
            hf.Gemma3nTextConfig(
                **sizes(24, 6, 2, [47, 31, 40, 29, 47, 35], 61, num_hidden_layers=6),
                head_dim=10,
                num_kv_shared_layers=3,
                sliding_window=8,
                layer_types=kinds("LGLLGL"),
                rope_parameters=two_bases,
                altup_num_inputs=3,
                altup_active_idx=1,
                laurel_rank=5,
                hidden_size_per_layer_input=6,
                vocab_size_per_layer_input=49,
                activation_sparsity_pattern=[0.9, 0.5, 0.0, 0.3, 0.0, 0.0],
                attention_bias=True,
                final_logit_softcapping=2.5,
                rms_norm_eps=1e-3,
            ),
            prompt_len=26,
            stds=small,
            new_form=True,
        ),
        # Without windows, so that prompts can be pruned.
        "gemma3n_text_full": Case(
            model,
            hf.Gemma3nTextConfig(
                **sizes(21, 3, 1, 37, 59, num_hidden_layers=5),
                head_dim=8,
                num_kv_shared_layers=2,
                layer_types=kinds("GGGGG"),
                altup_correct_scale=False,
                laurel_rank=4,
                hidden_size_per_layer_input=5,
                vocab_size_per_layer_input=59,
                activation_sparsity_pattern=[0.95, 0.0, 0.6, 0.0, 0.0],
                hidden_activation="gelu",
                final_logit_softcapping=100.0,
                tie_word_embeddings=False,
            ),
            prompt_len=23,
        ),
        # Each layer has its own keys and values; the fifth sees all.
        "gemma3n_text_own": Case(
            model,
            hf.Gemma3nTextConfig(
                **sizes(14, 2, 2, 19, 57, num_hidden_layers=5),
                head_dim=6,
                num_kv_shared_layers=0,
                sliding_window=9,
                altup_num_inputs=2,
                laurel_rank=3,
                hidden_size_per_layer_input=4,
                vocab_size_per_layer_input=57,
            ),
            prompt_len=24,
            stds=small,
        ),
    }


def softmax_mixture_cases():
    return {
        # A base that is stretched for good.
        "hunyuan_v1_dense": Case(
            hf.HunYuanDenseV1ForCausalLM,
            hf.HunYuanDenseV1Config(
                **sizes(26, 6, 2, 35, 61),
                head_dim=8,
                rms_norm_eps=1e-3,
                rope_parameters=rope("dynamic", alpha=50.0, factor=1.0),
            ),
            prompt_len=23,
            config_changes={"use_qk_norm": True, "use_cla": False, "attention_head_dim": 8},
        ),
        "hunyuan_v1_dense_biases": Case(
            hf.HunYuanDenseV1ForCausalLM,
            hf.HunYuanDenseV1Config(
                **sizes(24, 3, 3, 31, 53),
                head_dim=10,
                hidden_act="gelu",
                attention_bias=True,
                tie_word_embeddings=True,
                rope_parameters=rope("linear", 700.0, factor=2.0),
            ),
            prompt_len=21,
            new_form=True,
        ),
        # Keys as in the published file.
        "hunyuan_v1_moe": Case(
            hf.HunYuanMoEV1ForCausalLM,
            hf.HunYuanMoEV1Config(
                **sizes(22, 5, 1, 11, 59),
                head_dim=6,
                num_experts=7,
                moe_topk=3,
                rms_norm_eps=1e-3,
                rope_parameters=rope("dynamic", alpha=1000.0, factor=1.0),
            ),
            prompt_len=22,
            config_changes={
                "moe_topk": [3] * LAYERS,
                "num_shared_expert": [1] * LAYERS,
                "moe_intermediate_size": [11] * LAYERS,
                "use_mixed_mlp_moe": True,
            },
        ),
        # Experts in layers 1 and 3 of 6; biases but for the experts.
        "ernie4_5_moe": Case(
            hf.Ernie4_5_MoeForCausalLM,
            hf.Ernie4_5_MoeConfig(
                **sizes(24, 4, 2, 19, 61, num_hidden_layers=6),
                head_dim=8,
                use_bias=True,
                moe_k=2,
                moe_num_experts=6,
                moe_num_shared_experts=2,
                moe_intermediate_size=9,
                moe_layer_interval=2,
                moe_layer_start_index=1,
                moe_layer_end_index=4,
                rms_norm_eps=1e-3,
                tie_word_embeddings=False,
                rope_parameters=rope(theta=500000.0),
            ),
            prompt_len=23,
            new_form=True,
        ),
        # Sums of weights below the least, no shared expert.
        "ernie4_5_moe_unshared": Case(
            hf.Ernie4_5_MoeForCausalLM,
            hf.Ernie4_5_MoeConfig(
                **sizes(30, 3, 3, 21, 55),
                hidden_act="gelu",
                moe_k=3,
                moe_num_experts=9,
                moe_num_shared_experts=0,
                moe_intermediate_size=7,
                moe_layer_start_index=0,
                moe_norm_min=0.6,
                rope_parameters=rope(theta=700.0),
            ),
            prompt_len=20,
            stds={"embed_tokens": 0.15},
            config_changes={"moe_layer_end_index": -1, "moe_gate": "topk", "moe_use_aux_free": True},
        ),
        # Rotations for long texts, whose gain is a key.
        "phimoe": Case(
            hf.PhimoeForCausalLM,
            hf.PhimoeConfig(
                **sizes(24, 3, 1, 13, 59),
                num_local_experts=6,
                router_jitter_noise=0.3,
                attention_bias=True,
                lm_head_bias=True,
                rms_norm_eps=1e-3,
                rope_parameters=rope(
                    "longrope",
                    10000.0,
                    short_factor=[1.0, 1.1, 1.3, 1.6],
                    long_factor=[1.0, 1.7, 2.9, 4.1],
                    short_mscale=1.2,
                    long_mscale=1.2,
                    original_max_position_embeddings=96,
                ),
            ),
            prompt_len=24,
        ),
        "phimoe_windowed": Case(
            hf.PhimoeForCausalLM,
            hf.PhimoeConfig(
                **sizes(24, 4, 4, 11, 53),
                hidden_act="gelu",
                num_local_experts=4,
                sliding_window=9,
                tie_word_embeddings=True,
                rope_parameters=rope(theta=1000000.0),
            ),
            prompt_len=22,
            stored=torch.bfloat16,
            stds={"embed_tokens": 0.15},
            new_form=True,
        ),
        # DeepSeek V3 in other sizes, dense layers by a list.
        "glm4_moe_lite": Case(
            hf.Glm4MoeLiteForCausalLM,
            hf.Glm4MoeLiteConfig(
                **sizes(26, 3, 3, 19, 59),
                q_lora_rank=11,
                kv_lora_rank=10,
                qk_nope_head_dim=7,
                qk_rope_head_dim=4,
                v_head_dim=9,
                n_routed_experts=6,
                num_experts_per_tok=2,
                moe_intermediate_size=7,
                routed_scaling_factor=1.3,
                mlp_layer_types=["sparse", "dense", "sparse"],
                rope_interleave=False,
                attention_bias=True,
                rms_norm_eps=1e-3,
                rope_parameters=rope(theta=700.0),
            ),
            prompt_len=22,
            new_form=True,
        ),
    }


def mixtures_of_2026():
    heads = dict(qk_nope_head_dim=7, qk_rope_head_dim=4, v_head_dim=9, kv_lora_rank=10, q_lora_rank=11)
    mixture = dict(n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=7)
    return {
        # The second layer attends to what the first one chose.
        "glm_moe_dsa": Case(
            hf.GlmMoeDsaForCausalLM,
            hf.GlmMoeDsaConfig(
                **sizes(26, 3, 3, 19, 59),
                **heads,
                **mixture,
                index_n_heads=7,
                index_head_dim=9,
                index_topk=8,
                indexer_types=["full", "shared", "full"],
                mlp_layer_types=["sparse", "dense", "dense"],
                routed_scaling_factor=1.3,
                rope_parameters=rope(theta=700.0),
            ),
            prompt_len=22,
            stds={"experts": 0.6},
            new_form=True,
        ),
        # DeepSeek V3's layers whose queries grow with the position, and a softmax over groups.
        "mistral4": Case(
            hf.Mistral4ForCausalLM,
            hf.Mistral4Config(
                **sizes(26, 3, 3, 19, 59, num_hidden_layers=2),
                **heads,
                **mixture,
                n_group=3,
                topk_group=2,
                routed_scaling_factor=1.3,
                first_k_dense_replace=1,
                rope_parameters=yarn(
                    700.0, original_max_position_embeddings=7, mscale=1.0, mscale_all_dim=0.8, llama_4_scaling_beta=0.4
                ),
            ),
            prompt_len=29,
            new_form=True,
        ),
        # A gate with a tensor of its own, norms around the branches, positions only where windows are.
        "afmoe": Case(
            hf.AfmoeForCausalLM,
            hf.AfmoeConfig(
                **sizes(22, 4, 2, 23, 57),
                head_dim=6,
                num_experts=5,
                num_experts_per_tok=2,
                num_shared_experts=2,
                num_dense_layers=1,
                moe_intermediate_size=7,
                route_scale=1.4,
                sliding_window=7,
                layer_types=kinds("LGL"),
                mup_enabled=True,
                rms_norm_eps=1e-3,
                rope_parameters=rope(theta=800.0),
            ),
            prompt_len=23,
        ),
        "lfm2_moe": Case(
            hf.Lfm2MoeForCausalLM,
            hf.Lfm2MoeConfig(
                **sizes(24, 3, 1, 21, 59),
                layer_types=["conv", "full_attention", "conv"],
                conv_bias=True,
                num_experts=5,
                num_experts_per_tok=2,
                num_dense_layers=1,
                moe_intermediate_size=7,
                routed_scaling_factor=1.3,
                norm_topk_prob=False,
                rope_parameters=rope(theta=1000000.0),
            ),
            prompt_len=21,
        ),
    }


def all_cases():
    groups = [qwen3_cases, post_norm_cases, llama_like_cases, cohere_cases, layer_norm_cases]
    groups += [gemma3_cases, gemma3n_cases, mixture_cases, latent_cases, more_dense_cases, more_mixture_cases]
    groups += [softmax_mixture_cases, wrapper_cases, vl_moe_cases, granite_swa_cases, apertus_cases,
               mixtures_of_2026]
    return {name: case for group in groups for name, case in group().items()}
