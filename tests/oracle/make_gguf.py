#!/usr/bin/env python3
"""GGUF files that llama.cpp's own converter makes of the checkpoints here, in fp32 and without tokenizers.

Writes gguf/NAME/model.gguf. It must compute what tests/oracle/NAME does; of the cases below, whose forms differ, the
results of transformers lie beside it, as make_checkpoints.py writes them.

Usage: make_gguf.py LLAMA_CPP [NAME ...]      (a checkout of ggml-org/llama.cpp; none: all cases)
"""

import json
import logging
import pathlib
import shutil
import sys
import tempfile
import unittest.mock

import torch
import transformers as hf

import make_checkpoints as mc
from cases import Case, add_t5_head, rope
from cases_today import LAYERS, kinds, sizes

HERE = pathlib.Path(__file__).resolve().parent

# What published files say and the converter asks for; none of it changes what transformers computes.
MAMBA_TYPES = {"linear_attention": "mamba", "full_attention": "attention"}
BLOCKS = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}


def hub_types(config):
    config["layer_types"] = [MAMBA_TYPES.get(t, t) for t in config["layer_types"]]


def head_dim(config):
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])


def blocks(config):
    pattern = "".join(BLOCKS[t] for t in config.pop("layers_block_type"))
    config.update(hybrid_override_pattern=pattern, num_hidden_layers=len(pattern), mamba_d_head=config["mamba_head_dim"])
    if "E" not in pattern:
        for key in ("num_experts_per_tok", "n_routed_experts", "n_shared_experts", "n_group", "topk_group"):
            del config[key]


def long_context(config):
    config["max_position_embeddings"] = 32768  # the converter knows its rotations with 2^15 and 2^18 alone


def hub_class(config):
    config["architectures"] = ["PhiMoEForCausalLM"]


def unchanged(config):
    pass


STORED = {
    "olmo3": unchanged,
    "glm4": unchanged,
    "seed_oss": unchanged,
    "ernie4_5": unchanged,
    "dots1": unchanged,
    "arcee": unchanged,
    "minimax_m2": unchanged,
    "deepseek_v32": unchanged,
    "granitemoehybrid": hub_types,
    "falcon_h1": head_dim,
    "falcon_h1_gated": head_dim,
    "nemotron_h": blocks,
    "nemotron_h_moe": blocks,
    "qwen3_5_text": unchanged,
    "qwen3_5_moe_text": unchanged,
    "hunyuan_v1_dense": long_context,
    "lfm2_tied": unchanged,
}
# The same for the cases below.
OWN = {"phimoe_published": hub_class}


def t5(**more):
    return hf.T5Config(
        vocab_size=59,
        d_model=20,
        d_kv=6,
        d_ff=33,
        num_heads=4,
        decoder_start_token_id=0,
        **more,
    )


def own_cases():
    return {
        # Experts in all layers.
        "qwen2_moe_sparse": Case(
            hf.Qwen2MoeForCausalLM,
            hf.Qwen2MoeConfig(
                **sizes(30, 5, 1, 23, 61),
                num_experts=7,
                num_experts_per_tok=3,
                moe_intermediate_size=9,
                shared_expert_intermediate_size=13,
                rms_norm_eps=1e-4,
                rope_parameters=rope(theta=1000000.0),
            ),
            prompt_len=23,
        ),
        "qwen3_next_sparse": Case(
            hf.Qwen3NextForCausalLM,
            hf.Qwen3NextConfig(
                **sizes(24, 3, 1, 21, 59, num_hidden_layers=4),
                head_dim=8,
                linear_key_head_dim=6,
                linear_value_head_dim=6,
                linear_num_key_heads=2,
                linear_num_value_heads=4,
                linear_conv_kernel_dim=3,
                layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
                num_experts=5,
                num_experts_per_tok=2,
                moe_intermediate_size=11,
                shared_expert_intermediate_size=9,
                rms_norm_eps=1e-3,
                rope_parameters=rope(partial_rotary_factor=0.5),
            ),
            prompt_len=69,
            norm_offset=True,
            new_form=True,
        ),
        # Granite 3's mixture with an expert for all tokens.
        "granitemoeshared": Case(
            hf.GraniteMoeSharedForCausalLM,
            hf.GraniteMoeSharedConfig(
                **sizes(24, 3, 1, 19, 59),
                num_local_experts=5,
                num_experts_per_tok=2,
                shared_intermediate_size=13,
                rms_norm_eps=1e-3,
                embedding_multiplier=3.0,
                residual_multiplier=0.5,
                attention_multiplier=0.4,
                logits_scaling=2.0,
                rope_parameters=rope(theta=700.0),
            ),
            prompt_len=21,
            new_form=True,
        ),
        # The four streams that llama.cpp has; the head is the embedding.
        "gemma3n_text_streams": Case(
            hf.Gemma3nForCausalLM,
            hf.Gemma3nTextConfig(
                **sizes(24, 6, 2, [47, 31, 40, 29, 47, 35], 61, num_hidden_layers=6),
                head_dim=10,
                num_kv_shared_layers=3,
                sliding_window=8,
                layer_types=kinds("LGLLGL"),
                rope_parameters={
                    "sliding_attention": rope(theta=100.0),
                    "full_attention": rope(theta=1000000.0),
                },
                altup_active_idx=1,
                laurel_rank=5,
                hidden_size_per_layer_input=6,
                vocab_size_per_layer_input=61,
                activation_sparsity_pattern=[0.9, 0.5, 0.0, 0.3, 0.0, 0.0],
                final_logit_softcapping=2.5,
                rms_norm_eps=1e-3,
            ),
            prompt_len=26,
            stds={"embed_tokens": 0.1, "per_layer": 0.2},
            new_form=True,
        ),
        # Heads that fill the hidden size, which the converter takes for granted.
        "jamba_filled": Case(
            hf.JambaForCausalLM,
            hf.JambaConfig(
                **sizes(24, 3, 1, 17, 59, num_hidden_layers=6),
                attn_layer_period=3,
                attn_layer_offset=1,
                expert_layer_period=2,
                expert_layer_offset=1,
                num_experts=5,
                num_experts_per_tok=2,
                mamba_d_state=6,
                mamba_d_conv=3,
                mamba_dt_rank=5,
                rms_norm_eps=1e-3,
            ),
            prompt_len=21,
            stds={"A_log": 0.5},
            new_form=True,
        ),
        # Experts in the middle layers.
        "ernie4_5_moe_middle": Case(
            hf.Ernie4_5_MoeForCausalLM,
            hf.Ernie4_5_MoeConfig(
                **sizes(24, 4, 2, 19, 61, num_hidden_layers=5),
                moe_k=2,
                moe_num_experts=6,
                moe_num_shared_experts=2,
                moe_intermediate_size=9,
                moe_layer_start_index=1,
                moe_layer_end_index=3,
                tie_word_embeddings=False,
                rms_norm_eps=1e-3,
            ),
            prompt_len=22,
        ),
        # A file of DeepSeek's architecture that does not say how its experts are scored.
        "glm4_moe_lite_dense_first": Case(
            hf.Glm4MoeLiteForCausalLM,
            hf.Glm4MoeLiteConfig(
                **sizes(26, 3, 3, 19, 59),
                n_routed_experts=6,
                num_experts_per_tok=2,
                moe_intermediate_size=7,
                mlp_layer_types=["dense", "sparse", "sparse"],
                q_lora_rank=11,
                kv_lora_rank=10,
                qk_nope_head_dim=7,
                qk_rope_head_dim=4,
                v_head_dim=9,
                routed_scaling_factor=1.3,
                rms_norm_eps=1e-3,
                rope_parameters=rope(theta=700.0),
            ),
            prompt_len=22,
            config_changes={"first_k_dense_replace": 1},
            stds={"e_score_correction_bias": 0.1},
        ),
        "hunyuan_v1_moe_filled": Case(
            hf.HunYuanMoEV1ForCausalLM,
            hf.HunYuanMoEV1Config(
                **sizes(24, 4, 2, 11, 59),
                head_dim=6,
                num_experts=7,
                moe_topk=3,
                rms_norm_eps=1e-3,
                rope_parameters=rope(theta=700.0),
            ),
            prompt_len=22,
            config_changes={
                "moe_topk": [3] * LAYERS,
                "num_shared_expert": [1] * LAYERS,
                "moe_intermediate_size": [11] * LAYERS,
                "use_mixed_mlp_moe": True,
            },
        ),
        # The converter knows no decoder that is deeper than its encoder.
        "t5_deep_encoder": Case(
            hf.T5ForConditionalGeneration,
            t5(num_layers=3, num_decoder_layers=2),
            prompt_len=7,
            encoder_len=41,
            stds={"SelfAttention.q": 0.2, "EncDecAttention.q": 0.2},
        ),
        "t5_gated": Case(
            hf.T5ForConditionalGeneration,
            t5(
                num_layers=2,
                feed_forward_proj="gated-gelu",
                tie_word_embeddings=False,
                relative_attention_num_buckets=16,
            ),
            prompt_len=9,
            encoder_len=27,
            stds={"SelfAttention.q": 0.2, "EncDecAttention.q": 0.2},
            config_changes={"tie_word_embeddings": False},
            change_tensors=add_t5_head,
        ),
        # With the gain and the tolerance of the published models, which no key of a file says.
        "phimoe_published": Case(
            hf.PhimoeForCausalLM,
            hf.PhimoeConfig(
                **sizes(24, 3, 1, 13, 59),
                num_local_experts=6,
                attention_bias=True,
                lm_head_bias=True,
                rms_norm_eps=1e-3,
                rope_parameters=rope(
                    "longrope",
                    10000.0,
                    short_factor=[1.0, 1.1, 1.3, 1.6],
                    long_factor=[1.0, 1.7, 2.9, 4.1],
                    short_mscale=1.243163121016122,
                    long_mscale=1.243163121016122,
                    original_max_position_embeddings=96,
                ),
            ),
            prompt_len=24,
        ),
    }


def convert(folder, change, out, scratch):
    """Lets llama.cpp convert a copy of the folder whose config.json `change` has changed."""
    import gguf
    from conversion import get_model_class
    from conversion.base import ModelBase, ModelType, get_model_architecture

    copy = scratch / folder.name
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    change(config)
    (copy / "config.json").write_text(json.dumps(config))
    # transformers' class would add its defaults, of experts that a dense Nemotron-H has not.
    read = ModelBase.load_hparams
    if change is blocks:
        read = lambda copy, is_mistral_format: json.loads((copy / "config.json").read_text())
    with torch.inference_mode(), unittest.mock.patch.object(ModelBase, "load_hparams", staticmethod(read)):
        name = get_model_architecture(ModelBase.load_hparams(copy, False), ModelType.TEXT)
        family = get_model_class(name)

        class WithoutTokenizer(family):
            model_arch = family.model_arch

            def set_vocab(self):
                pass

        if family.supports_mtp_export:
            WithoutTokenizer.no_mtp = True
        out.unlink(missing_ok=True)
        WithoutTokenizer(copy, gguf.LlamaFileType.ALL_F32, out, eager=True).write()
    out.chmod(0o644)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    llama_cpp = pathlib.Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp / "gguf-py"), str(llama_cpp)]
    logging.disable(logging.WARNING)
    hf.utils.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    own = own_cases()
    for name in sys.argv[2:] or [*STORED, *own]:
        folder = HERE / "gguf" / name
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            if name in STORED:
                convert(HERE / name, STORED[name], folder / "model.gguf", scratch)
                continue
            made = scratch / "made" / name
            mc.make(name, own[name], made)
            shutil.rmtree(folder)
            folder.mkdir()
            for file in ("expected.json", "expected.safetensors"):
                shutil.copy(made / file, folder / file)
            convert(made, OWN.get(name, unchanged), folder / "model.gguf", scratch)


if __name__ == "__main__":
    main()
