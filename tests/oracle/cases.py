"""The cases: one small model each, of odd sizes, with what is peculiar to its family switched on."""

import dataclasses
from typing import Any, Callable

import torch
import transformers as hf

import openelm

REMOVED = object()  # in config_changes: the key goes


@dataclasses.dataclass
class Case:
    family: Any  # a transformers model class, or the module openelm
    config: Any
    prompt_len: int = 17
    encoder_len: int = 0
    stored: torch.dtype = torch.float32  # the expected values are those of the rounded weights
    std: float = 0.3
    stds: dict[str, float] = dataclasses.field(default_factory=dict)  # by part of a tensor's name
    norm_offset: bool = False  # norms multiply by 1 + weight
    shard_size: str = "1GB"
    attention: str = "eager"  # transformers' implementation
    new_form: bool = False  # config.json with transformers 5's rope_parameters
    config_changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    change_tensors: Callable | None = None
    changes_with_length: bool = False  # a pass without a cache is no longer the same as steps with one

    def std_of(self, name):
        return next((std for part, std in self.stds.items() if part in name), self.std)


def rope(kind="default", theta=10000.0, **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


def llama(heads, kv_heads, hidden, **more):
    return hf.LlamaConfig(
        **{
            "vocab_size": 61,
            "hidden_size": hidden,
            "num_hidden_layers": 2,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "intermediate_size": 53,
            "max_position_embeddings": 128,
            **more,
        }
    )


def llama_cases():
    llama3 = rope(
        "llama3",
        500.0,
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )
    model = hf.LlamaForCausalLM
    return {
        "llama_mha": Case(model, llama(3, 3, 24, tie_word_embeddings=False)),
        "llama_gqa_llama3_rope": Case(
            model,
            llama(6, 2, 36, tie_word_embeddings=True, rope_parameters=llama3, rms_norm_eps=1e-5),
            prompt_len=41,
        ),
        "llama_mqa_linear_rope": Case(
            model, llama(5, 1, 30, rope_parameters=rope("linear", factor=3.0)), new_form=True
        ),
        "llama_biases": Case(model, llama(3, 1, 24, attention_bias=True, mlp_bias=True)),
        "llama_sharded": Case(
            model, llama(2, 2, 20, num_hidden_layers=3, intermediate_size=37), shard_size="30KB"
        ),
        "llama_extra_tensors": Case(
            model,
            llama(3, 3, 18, intermediate_size=29, tie_word_embeddings=True),
            change_tensors=add_llama1_buffers,
        ),
    }


def add_llama1_buffers(tensors):
    """Llama-1 files hold the frequencies of every layer, others a tied head once more."""
    tensors = dict(tensors)
    for i in range(2):
        tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    return tensors


def llama_like_cases():
    common = {"hidden_size": 24, "num_hidden_layers": 3, "max_position_embeddings": 128}
    qwen = {**common, "vocab_size": 67, "intermediate_size": 41, "num_attention_heads": 4}
    qwen |= {"num_key_value_heads": 2, "rms_norm_eps": 1e-6}
    return {
        "mistral": Case(
            hf.MistralForCausalLM,
            hf.MistralConfig(
                **common,
                vocab_size=59,
                intermediate_size=47,
                num_attention_heads=3,
                num_key_value_heads=1,
                head_dim=10,
                sliding_window=7,
            ),
            prompt_len=19,
        ),
        "qwen2": Case(
            hf.Qwen2ForCausalLM,
            hf.Qwen2Config(
                **qwen, tie_word_embeddings=True, rope_parameters=rope(theta=1000000.0)
            ),
            stored=torch.bfloat16,
        ),
        "qwen2_windowed": Case(
            hf.Qwen2ForCausalLM,
            hf.Qwen2Config(
                **qwen,
                tie_word_embeddings=False,
                use_sliding_window=True,
                sliding_window=6,
                max_window_layers=1,
            ),
        ),
        "olmo": Case(
            hf.OlmoForCausalLM,
            hf.OlmoConfig(
                **common,
                vocab_size=53,
                intermediate_size=45,
                num_attention_heads=3,
                num_key_value_heads=3,
                tie_word_embeddings=True,
            ),
        ),
    }


def phi3_cases():
    def config(**more):
        return hf.Phi3Config(
            **{
                "vocab_size": 47,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "intermediate_size": 43,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "max_position_embeddings": 512,
                "original_max_position_embeddings": 128,
                **more,
            }
        )

    longrope = rope(
        "longrope",
        short_factor=[1.0, 1.3, 1.7, 2.9],
        long_factor=[1.1, 2.3, 5.1, 9.7],
        original_max_position_embeddings=128,
    )
    model = hf.Phi3ForCausalLM
    return {
        "phi3": Case(model, config(sliding_window=9, original_max_position_embeddings=512)),
        "phi3_longrope": Case(model, config(sliding_window=None, rope_parameters=longrope)),
        "phi3_partial_rope": Case(
            model,
            config(
                sliding_window=None,
                original_max_position_embeddings=512,
                rope_parameters=rope(partial_rotary_factor=0.75),
            ),
        ),
    }


def gemma_cases():
    common = {"vocab_size": 71, "hidden_size": 28, "intermediate_size": 51}
    common |= {"max_position_embeddings": 128}
    return {
        "gemma": Case(
            hf.GemmaForCausalLM,
            hf.GemmaConfig(
                **common,
                num_hidden_layers=2,
                num_attention_heads=3,
                num_key_value_heads=1,
                head_dim=10,
            ),
            norm_offset=True,
        ),
        "gemma2": Case(
            hf.Gemma2ForCausalLM,
            hf.Gemma2Config(
                **common,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=6,
                query_pre_attn_scalar=11,
                sliding_window=8,
                attn_logit_softcapping=5.0,
                final_logit_softcapping=1.5,
            ),
            norm_offset=True,
            # Else the tied head finds the token just read, whatever the layers add.
            stds={"embed_tokens": 0.1},
        ),
    }


def add_neox_buffers(tensors):
    tensors = dict(tensors)
    mask = torch.ones(64, 64, dtype=torch.bool).tril().view(1, 1, 64, 64)
    for i in range(2):
        name = f"gpt_neox.layers.{i}.attention."
        tensors[name + "bias"] = mask.clone()
        tensors[name + "masked_bias"] = torch.tensor(-1e9)
        tensors[name + "rotary_emb.inv_freq"] = torch.ones(1)
    return tensors


def gpt_neox_cases():
    def config(share, heads, **more):
        return hf.GPTNeoXConfig(
            vocab_size=73,
            hidden_size=8 * heads,
            num_hidden_layers=2,
            num_attention_heads=heads,
            intermediate_size=59,
            max_position_embeddings=128,
            rope_parameters=rope(partial_rotary_factor=share),
            **more,
        )

    model = hf.GPTNeoXForCausalLM
    return {
        "gpt_neox": Case(
            model, config(0.25, 3), stored=torch.float16, change_tensors=add_neox_buffers
        ),
        "gpt_neox_sequential": Case(model, config(0.5, 3, use_parallel_residual=False)),
    }


def to_hub_gpt2(tensors):
    """GPT-2's own files have no `transformer.` prefix, and hold causal masks."""
    hub = {name.removeprefix("transformer."): t for name, t in tensors.items()}
    mask = torch.ones(112, 112).tril().view(1, 1, 112, 112)
    for i in range(2):
        hub[f"h.{i}.attn.bias"] = mask.to(torch.uint8)
    return hub


def gpt2_and_opt_cases():
    def gpt2():
        return hf.GPT2Config(vocab_size=79, n_positions=112, n_embd=24, n_layer=2, n_head=3)

    return {
        "gpt2": Case(hf.GPT2LMHeadModel, gpt2(), stds={"wpe": 0.15}),
        "gpt2_hub_names": Case(
            hf.GPT2LMHeadModel, gpt2(), stds={"wpe": 0.15}, change_tensors=to_hub_gpt2
        ),
        "opt": Case(
            hf.OPTForCausalLM,
            hf.OPTConfig(
                vocab_size=83,
                hidden_size=30,
                word_embed_proj_dim=30,
                num_hidden_layers=2,
                ffn_dim=45,
                num_attention_heads=3,
                max_position_embeddings=100,
            ),
        ),
    }


def add_falcon_head(tensors):
    """Falcon-7B's files hold the tied head once more."""
    head = {"lm_head.weight": tensors["transformer.word_embeddings.weight"].clone()}
    return {**tensors, **head}


def falcon_cases():
    def config(heads, **more):
        return hf.FalconConfig(
            vocab_size=89,
            hidden_size=8 * heads,
            num_hidden_layers=2,
            num_attention_heads=heads,
            max_position_embeddings=128,
            **more,
        )

    rw = {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
    grouped = {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 59}
    model = hf.FalconForCausalLM
    return {
        "falcon_7b": Case(model, config(3), change_tensors=add_falcon_head),
        # The eager path of transformers 5 adds ALiBi twice, to the scores and in the mask.
        "falcon_rw": Case(model, config(4, **rw), attention="sdpa"),
        "falcon_rw_5_heads": Case(
            model, config(5, **rw, ffn_hidden_size=47), attention="sdpa"
        ),
        "falcon_40b": Case(model, config(6, **grouped)),
    }


def openelm_cases():
    config = {
        "model_type": "openelm",
        "architectures": ["OpenELMForCausalLM"],
        "vocab_size": 67,
        "model_dim": 30,
        "num_transformer_layers": 3,
        "head_dim": 6,
        "num_query_heads": [2, 4, 6],
        "num_kv_heads": [1, 2, 2],
        "num_gqa_groups": 2,
        "ffn_multipliers": [0.5, 1.73, 2.5],
        "ffn_dim_divisor": 9,
        "ffn_with_glu": True,
        "activation_fn_name": "swish",
        "normalization_layer_name": "rms_norm",
        "normalize_qk_projections": True,
        "share_input_output_layers": True,
        "max_context_length": 128,
        "rope_freq_constant": 10000,
        "rope_max_length": 256,
        "torch_dtype": "float32",
    }
    return {"openelm": Case(openelm, config)}


def add_t5_copies(tensors):
    """Old T5 files repeat the embedding and hold a table that nothing reads."""
    tensors = dict(tensors)
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
    tensors["decoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors[name] = torch.ones(32, 4)
    return tensors


def add_t5_head(tensors):
    """transformers 5 ties every T5 it makes; one read from a file keeps the file's own head."""
    generator = torch.Generator().manual_seed(7)
    head = 0.3 * torch.randn(tensors["shared.weight"].shape, generator=generator)
    return {**tensors, "lm_head.weight": head}


def encoder_decoder_cases():
    def t5(projection, **more):
        return hf.T5Config(
            **{
                "vocab_size": 59,
                "d_model": 20,
                "d_kv": 6,
                "d_ff": 33,
                "num_layers": 2,
                "num_decoder_layers": 3,
                "num_heads": 4,
                "feed_forward_proj": projection,
                "decoder_start_token_id": 0,
                **more,
            }
        )

    # T5 does not scale its scores.
    sizes = {"SelfAttention.q": 0.2, "EncDecAttention.q": 0.2}
    whisper = hf.WhisperConfig(
        vocab_size=97,
        d_model=24,
        num_mel_bins=10,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=45,
        decoder_ffn_dim=41,
        max_source_positions=30,
        max_target_positions=100,
        pad_token_id=90,
        bos_token_id=90,
        eos_token_id=90,
        decoder_start_token_id=91,
        begin_suppress_tokens=None,
    )
    return {
        "t5": Case(
            hf.T5ForConditionalGeneration,
            t5("relu"),
            prompt_len=7,
            encoder_len=41,
            stds=sizes,
            change_tensors=add_t5_copies,
        ),
        "t5_gated": Case(
            hf.T5ForConditionalGeneration,
            t5("gated-gelu", tie_word_embeddings=False, num_heads=3, d_kv=8, relative_attention_num_buckets=16),
            prompt_len=9,
            encoder_len=27,
            stds=sizes,
            config_changes={"tie_word_embeddings": False},
            change_tensors=add_t5_head,
        ),
        "whisper": Case(hf.WhisperForConditionalGeneration, whisper, prompt_len=11),
    }


def all_cases():
    groups = [llama_cases, gpt_neox_cases, llama_like_cases, phi3_cases, gemma_cases]
    groups += [gpt2_and_opt_cases, falcon_cases, openelm_cases, encoder_decoder_cases]
    return {name: case for group in groups for name, case in group().items()}
