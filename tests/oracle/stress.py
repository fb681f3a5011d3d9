#!/usr/bin/env python3
"""Random odd-shaped checkpoints of every family, and what transformers computes from them.

Writes stress/FAMILY_SEED/: config.json and model.safetensors, expected.npz (logits [prompt, vocab]) and notes.json
(prompt, 12 greedy tokens computed with a cache, encoder_tokens of T5). The truth is what transformers computes from the
folder as it lies there, after config.json was spelt in one of four ways, by the number of the checkpoint in its family:
  0 as transformers 5 writes it               1 rope_theta + rope_scaling (type or rope_type), hub names of keys
  2 as 1, layer_types and the like replaced by the older keys that say the same
  3 as 2, and without keys that have the class's default

Usage: stress.py [--count N] [--start SEED] [--out FOLDER] [FAMILY ...]      (none: all families, 12 each)
"""

import argparse
import json
import pathlib
import random
import shutil
import traceback

import numpy as np
import torch
import transformers as hf

import cases_today
import make_checkpoints as mc

HERE = pathlib.Path(__file__).resolve().parent
GREEDY = 12
MARGIN = 3e-3  # of the range of a greedy step's logits, between the two best
ROUTER_GAP = 2e-4
NOISE = 2e-5  # of the range, between a pass over the prompt and steps with a cache; else the weights are chaotic


class Draw(random.Random):
    def maybe(self, share=0.5):
        return self.random() < share

    def act(self, usual):
        if self.maybe(0.04):
            return self.choice(["relu2", "quick_gelu"])
        return self.choice([usual] * 5 + ["gelu", "relu", "silu", "gelu_pytorch_tanh", "gelu_new"])

    def theta(self):
        return self.choice([30.0, 500.0, 10000.0, 1000000.0])

    def eps(self):
        return self.choice([1e-6, 1e-5, 1e-3, 1e-2])

    def heads(self, even_hidden=True):
        """Query heads, key heads."""
        kv = self.choice([1, 1, 2, 3, 4, 5])
        return kv * self.choice([1, 1, 2, 3] if kv > 1 else [1, 2, 3, 5, 7]), kv

    def hd(self):
        return self.choice([4, 6, 8, 10, 12, 16])

    def experts(self):
        count = self.choice([1, 2, 3, 5, 6, 8])
        return count, self.choice([count, self.randint(1, count), self.randint(1, count)])

    def rope(self, rotated, share=None, kinds=None):
        """rope_parameters; `rotated`: dims of a head that turn."""
        kind = self.choice(kinds or ["default"] * 4 + ["linear", "llama3", "yarn", "yarn", "dynamic", "longrope"])
        if kind == "dynamic" and rotated <= 2:
            kind = "default"
        out = {"rope_type": kind, "rope_theta": self.theta()}
        if share is not None:
            out["partial_rotary_factor"] = share
        if kind in ("linear", "dynamic", "yarn", "llama3"):
            out["factor"] = self.choice([2.0, 4.0, 8.0, 3.5])
        if kind == "llama3":
            out["low_freq_factor"] = 1.0
            out["high_freq_factor"] = self.choice([4.0, 2.0, 1.0])
            out["original_max_position_embeddings"] = self.choice([16, 32, 64])
        if kind == "yarn":
            out["original_max_position_embeddings"] = self.choice([16, 32, 64])
            if self.maybe(0.4):
                out["beta_fast"], out["beta_slow"] = self.choice([(8.0, 0.5), (32, 1), (4.0, 2.0)])
            if self.maybe(0.3):
                out["truncate"] = self.maybe()
            how = self.choice(["", "", "attention", "both", "mscale", "all"])
            if how == "attention":
                out["attention_factor"] = 1.3
            if how in ("both", "mscale"):
                out["mscale"] = self.choice([0.7, 1.0])
            if how in ("both", "all"):
                out["mscale_all_dim"] = self.choice([0.9, 1.0])
        if kind == "longrope":
            half = (rotated + 1) // 2
            out["short_factor"] = [round(1 + 0.4 * i * self.random(), 2) for i in range(half)]
            out["long_factor"] = [round(1.5 + 2 * i * self.random(), 2) for i in range(half)]
            out["original_max_position_embeddings"] = 64
            if self.maybe(0.3):
                out["factor"] = 4.0
            if self.maybe(0.3):
                out["attention_factor"] = self.choice([1.2, 0.8])
        return out


def common(r, explicit_hd, divides=False, act="silu", layers=None, square=False):
    """Shapes and what nearly all configs have. explicit_hd: the family reads head_dim."""
    heads, kv = r.heads()
    if square:
        kv = heads
    hd = r.hd()
    if heads * hd > 80:
        hd = max(4, 80 // heads // 2 * 2)
    own = explicit_hd and r.maybe(0.6)
    if own:
        hidden = r.randint(18, 41)
        if divides:
            hidden = heads * max(1, round(hidden / heads))
    else:
        hidden = heads * hd
    out = {
        "vocab_size": r.randint(40, 66),
        "hidden_size": hidden,
        "intermediate_size": r.randint(9, 50),
        "num_hidden_layers": layers or r.randint(2, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "hidden_act": r.act(act),
        "max_position_embeddings": r.choice([64, 128, 256]),
        "tie_word_embeddings": r.maybe(),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if own:
        out["head_dim"] = hd
    return out, hd


def window(r):
    return r.choice([1, 2, 5, 8, 13, 24, 40])


def types(r, count, first="sliding_attention", second="full_attention"):
    return [r.choice([first, second]) for _ in range(count)]


class Plan:
    """A config class with its keys. older: keys in place of `dropped` that say the same."""

    def __init__(self, model, config, keys, older=None, dropped=(), **more):
        self.model, self.config, self.keys = model, config, keys
        self.older, self.dropped = older or {}, dropped
        self.norm_offset = more.get("norm_offset", False)
        self.attention = more.get("attention", "eager")
        self.encoder = more.get("encoder", False)
        self.stds = more.get("stds", {})
        self.head = more.get("head", False)
        self.auto = more.get("auto", True)  # AutoModelForCausalLM knows the class
        self.wrapper = None  # of a text model in another: the classes of both, and whether the file has the old names


def llama(r, pattern):
    k, hd = common(r, True, divides=True)
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), mlp_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    return Plan(hf.LlamaForCausalLM, hf.LlamaConfig, k)


def mistral(r, pattern):
    k, hd = common(r, True)
    k |= dict(rms_norm_eps=r.eps(), sliding_window=r.choice([None, window(r)]), rope_parameters=r.rope(hd))
    k.setdefault("head_dim", hd)
    return Plan(hf.MistralForCausalLM, hf.MistralConfig, k)


def ministral(r, pattern):
    k, hd = common(r, True)
    k |= dict(rms_norm_eps=r.eps(), sliding_window=window(r), rope_parameters=r.rope(hd))
    k.setdefault("head_dim", hd)
    if not pattern and r.maybe():
        k["layer_types"] = types(r, k["num_hidden_layers"])
    return Plan(hf.MinistralForCausalLM, hf.MinistralConfig, k, {}, ["layer_types"])


def ministral3(r, pattern):
    k, hd = common(r, True)
    k |= dict(rms_norm_eps=r.eps(), sliding_window=r.choice([None, window(r)]))
    k.setdefault("head_dim", hd)
    k["rope_parameters"] = r.rope(hd, kinds=["yarn"]) | dict(llama_4_scaling_beta=r.choice([0.1, 0.5]))
    return Plan(hf.Ministral3ForCausalLM, hf.Ministral3Config, k)


def llama_class(r, config, **more):
    """A family whose model in transformers is Llama's."""
    k, hd = common(r, True, divides=True)
    k |= dict(rms_norm_eps=r.eps(), rope_parameters=r.rope(hd), **more)
    return Plan(hf.LlamaForCausalLM, config, k)


def internlm3(r, pattern):
    bias = r.maybe(0.4)
    plan = llama_class(r, hf.InternLM3Config, attention_bias=bias, mlp_bias=bias)
    plan.keys.setdefault("head_dim", plan.keys["hidden_size"] // plan.keys["num_attention_heads"])
    if r.maybe(0.2):
        plan.keys["head_dim"] = None
    return plan


def exaone(r, pattern):
    return llama_class(r, hf.ExaoneConfig, attention_bias=r.maybe(0.3), mlp_bias=r.maybe(0.3))


def cwm(r, pattern):
    k, hd = common(r, True, divides=True)
    k.setdefault("head_dim", hd)
    k |= dict(rms_norm_eps=r.eps(), mlp_bias=r.maybe(0.3), sliding_window=window(r))
    k["rope_parameters"] = r.choice([None, r.rope(hd), r.rope(hd)])
    if not pattern and r.maybe():
        k["layer_types"] = types(r, k["num_hidden_layers"])
    return Plan(hf.CwmForCausalLM, hf.CwmConfig, k, {}, ["layer_types"])


def helium(r, pattern):
    k, hd = common(r, False)
    k["head_dim"] = hd
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), mlp_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    return Plan(hf.HeliumForCausalLM, hf.HeliumConfig, k)


def apertus(r, pattern):
    k, hd = common(r, True, divides=True, act="xielu")
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), rope_parameters=r.choice([None, r.rope(hd), r.rope(hd)]))
    return Plan(hf.ApertusForCausalLM, hf.ApertusConfig, k)


def jais2(r, pattern):
    k, hd = common(r, True, divides=True, act="relu2")
    k |= dict(layer_norm_eps=r.eps(), attention_bias=r.maybe(), mlp_bias=r.maybe(), rope_parameters=r.rope(hd))
    return Plan(hf.Jais2ForCausalLM, hf.Jais2Config, k)


def qwen_windows(r, k, pattern):
    k["use_sliding_window"] = r.maybe(0.7)
    k["sliding_window"] = window(r)
    k["max_window_layers"] = r.randint(0, k["num_hidden_layers"])
    if not pattern and r.maybe() and k["use_sliding_window"]:
        k["layer_types"] = types(r, k["num_hidden_layers"])


def qwen2(r, pattern):
    k, hd = common(r, False)
    k |= dict(rms_norm_eps=r.eps(), rope_parameters=r.rope(hd))
    qwen_windows(r, k, pattern)
    return Plan(hf.Qwen2ForCausalLM, hf.Qwen2Config, k, {}, ["layer_types"])


def qwen3(r, pattern):
    k, hd = common(r, True)
    k |= dict(rms_norm_eps=r.eps(), rope_parameters=r.rope(hd), attention_bias=r.maybe(0.4))
    k.setdefault("head_dim", hd)
    qwen_windows(r, k, pattern)
    return Plan(hf.Qwen3ForCausalLM, hf.Qwen3Config, k, {}, ["layer_types"])


def olmo(r, pattern):
    k, hd = common(r, False)
    k |= dict(clip_qkv=r.choice([None, 0.8]), attention_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    return Plan(hf.OlmoForCausalLM, hf.OlmoConfig, k)


def olmo2(r, pattern):
    k, hd = common(r, True)
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    return Plan(hf.Olmo2ForCausalLM, hf.Olmo2Config, k)


def exaone4(r, pattern):
    k, hd = common(r, True)
    k |= dict(rms_norm_eps=r.eps(), rope_parameters=r.rope(hd))
    k["sliding_window"] = window(r)
    k["sliding_window_pattern"] = r.randint(1, k["num_hidden_layers"])
    if not pattern:
        how = r.choice(["pattern", "types", "full", "types"])
        if how == "types":
            k["layer_types"] = types(r, k["num_hidden_layers"])
        if how == "full":
            k["sliding_window"], k["layer_types"] = None, ["full_attention"] * k["num_hidden_layers"]
    return Plan(hf.Exaone4ForCausalLM, hf.Exaone4Config, k, {}, ["layer_types"])


def smollm3(r, pattern):
    k, hd = common(r, True)
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), mlp_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    k["use_sliding_window"] = r.maybe()
    k["sliding_window"] = window(r)
    k["no_rope_layer_interval"] = r.choice([1, 2, 3, 4])
    if not pattern:
        if r.maybe():
            k["no_rope_layers"] = [r.randint(0, 1) for _ in range(k["num_hidden_layers"])]
        if r.maybe(0.3):
            k["layer_types"] = types(r, k["num_hidden_layers"])
    return Plan(hf.SmolLM3ForCausalLM, hf.SmolLM3Config, k, {}, ["layer_types", "no_rope_layers"])


def granite_keys(r):
    return dict(
        rms_norm_eps=r.eps(),
        embedding_multiplier=r.choice([1.0, 3.0, 12]),
        residual_multiplier=r.choice([1.0, 0.22, 0.5]),
        attention_multiplier=r.choice([1.0, 0.3, 0.0625]),
        logits_scaling=r.choice([1.0, 2.5, 8.0]),
        attention_bias=r.maybe(0.4),
    )


def granite(r, pattern):
    k, hd = common(r, True)
    k |= granite_keys(r) | dict(mlp_bias=r.maybe(0.4), rope_parameters=r.rope(hd))
    return Plan(hf.GraniteForCausalLM, hf.GraniteConfig, k)


def granitemoe(r, pattern):
    k, hd = common(r, False)
    k["num_local_experts"], k["num_experts_per_tok"] = r.experts()
    k |= granite_keys(r) | dict(rope_parameters=r.rope(hd))
    return Plan(hf.GraniteMoeForCausalLM, hf.GraniteMoeConfig, k)


def granite_windows(r, k, hd, pattern):
    layers = k["num_hidden_layers"]
    k |= granite_keys(r) | dict(rope_parameters=r.rope(hd), sliding_window=window(r))
    k["layer_rope_theta"] = r.choice([None, [r.choice([0, 10000.0, r.theta()]) for _ in range(layers)]])
    if not pattern and r.maybe():
        k["layer_types"] = types(r, layers)


def granite_swa(r, pattern):
    k, hd = common(r, True)
    granite_windows(r, k, hd, pattern)
    k["mlp_bias"] = r.maybe(0.4)
    return Plan(hf.GraniteSWAForCausalLM, hf.GraniteSWAConfig, k, {}, ["layer_types"])


def granitemoeshared(r, pattern):
    k, hd = common(r, False)
    k["num_local_experts"], k["num_experts_per_tok"] = r.experts()
    k |= granite_keys(r) | dict(rope_parameters=r.rope(hd), shared_intermediate_size=r.choice([0, r.randint(3, 30)]))
    return Plan(hf.GraniteMoeSharedForCausalLM, hf.GraniteMoeSharedConfig, k)


def granitemoe_swa(r, pattern):
    k, hd = common(r, False)
    granite_windows(r, k, hd, pattern)
    k["num_local_experts"], k["num_experts_per_tok"] = r.experts()
    k["shared_intermediate_size"] = r.choice([0, r.randint(3, 30)])
    return Plan(hf.GraniteMoeSWAForCausalLM, hf.GraniteMoeSWAConfig, k, {}, ["layer_types"])


def cohere(r, pattern):
    k, hd = common(r, True)
    k |= dict(layer_norm_eps=r.eps(), logit_scale=r.choice([0.0625, 0.5, 1.0]), use_qk_norm=r.maybe())
    k |= dict(attention_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    return Plan(hf.CohereForCausalLM, hf.CohereConfig, k)


def pattern_keys(r, k, pattern, first="sliding_attention"):
    """layer_types from sliding_window_pattern, which is no field of the class, or at random."""
    count, every = k["num_hidden_layers"], r.randint(1, 4)
    k["layer_types"] = ["full_attention" if (i + 1) % every == 0 else first for i in range(count)]
    if not pattern and r.maybe():
        k["layer_types"] = types(r, count, first)
    return {"sliding_window_pattern": every}


def cohere2(r, pattern):
    k, hd = common(r, False)
    k |= dict(layer_norm_eps=r.eps(), logit_scale=r.choice([0.0625, 0.5, 1.0]), sliding_window=window(r))
    k |= dict(attention_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    older = pattern_keys(r, k, pattern)
    return Plan(hf.Cohere2ForCausalLM, hf.Cohere2Config, k, older, ["layer_types"])


def starcoder2(r, pattern):
    k, hd = common(r, True, act="gelu_pytorch_tanh")
    k |= dict(norm_epsilon=r.eps(), use_bias=r.maybe(0.6), sliding_window=r.choice([None, window(r)]))
    k |= dict(rope_parameters=r.rope(hd))
    return Plan(hf.Starcoder2ForCausalLM, hf.Starcoder2Config, k)


def share(r, hd, exact=True):
    """A share of a head's dims, an even number of them if exact."""
    options = [s for s in [0.25, 0.3, 0.4, 0.5, 0.67, 0.75, 0.8, 1.0] if int(hd * s) >= 2]
    if exact:
        options = [s for s in options if int(hd * s) % 2 == 0]
    return r.choice(options)


def nemotron(r, pattern):
    k, hd = common(r, True, act="relu2")
    part = share(r, hd)
    k |= dict(norm_eps=r.eps(), attention_bias=r.maybe(0.3), mlp_bias=r.maybe(0.3))
    k |= dict(rope_parameters=r.rope(int(hd * part), part))
    return Plan(hf.NemotronForCausalLM, hf.NemotronConfig, k, norm_offset=True)


def stablelm(r, pattern):
    k, hd = common(r, False)
    part = share(r, hd)
    k |= dict(layer_norm_eps=r.eps(), use_qkv_bias=r.maybe(), qk_layernorm=r.maybe(), use_parallel_residual=r.maybe())
    k |= dict(rope_parameters=r.rope(int(hd * part), part))
    return Plan(hf.StableLmForCausalLM, hf.StableLmConfig, k)


def phi(r, pattern):
    k, hd = common(r, False, act="gelu_new")
    part = share(r, hd)
    k |= dict(layer_norm_eps=r.eps(), qk_layernorm=r.maybe(0.4), rope_parameters=r.rope(int(hd * part), part))
    return Plan(hf.PhiForCausalLM, hf.PhiConfig, k)


def phi3(r, pattern):
    k, hd = common(r, False)
    part = share(r, hd)
    rope = r.rope(int(hd * part), part, ["default", "default", "longrope"])
    k |= dict(rms_norm_eps=r.eps(), sliding_window=r.choice([None, window(r)]), rope_parameters=rope)
    k["original_max_position_embeddings"] = rope.get("original_max_position_embeddings", k["max_position_embeddings"])
    return Plan(hf.Phi3ForCausalLM, hf.Phi3Config, k)


def gemma(r, pattern):
    k, hd = common(r, True, act="gelu_pytorch_tanh")
    k.setdefault("head_dim", hd)
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    return Plan(hf.GemmaForCausalLM, hf.GemmaConfig, k, norm_offset=True)


def gemma2(r, pattern):
    k, hd = common(r, True, divides=True)
    k.setdefault("head_dim", hd)
    k["hidden_activation"] = r.act("gelu_pytorch_tanh")
    del k["hidden_act"]
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), sliding_window=window(r))
    k |= dict(query_pre_attn_scalar=r.choice([4, 11, 256]), rope_parameters=r.rope(hd))
    k |= dict(attn_logit_softcapping=r.choice([None, 2.0, 50.0]), final_logit_softcapping=r.choice([None, 1.5, 30.0]))
    if not pattern and r.maybe():
        k["layer_types"] = types(r, k["num_hidden_layers"])
    return Plan(hf.Gemma2ForCausalLM, hf.Gemma2Config, k, {}, ["layer_types"], norm_offset=True)


def vaultgemma(r, pattern):
    plan = gemma2(r, pattern)
    plan.model, plan.config = hf.VaultGemmaForCausalLM, hf.VaultGemmaConfig
    return plan


def gemma3_text(r, pattern):
    k, hd = common(r, True, divides=True)
    k.setdefault("head_dim", hd)
    k["hidden_activation"] = r.act("gelu_pytorch_tanh")
    del k["hidden_act"]
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), sliding_window=window(r))
    k |= dict(query_pre_attn_scalar=r.choice([4, 11, 256]), final_logit_softcapping=r.choice([None, 1.5, 30.0]))
    k["attn_logit_softcapping"] = r.choice([None, None, 2.0])
    k["rope_parameters"] = {
        "full_attention": r.rope(hd, kinds=["default", "linear", "linear", "yarn", "llama3"]),
        "sliding_attention": r.rope(hd, kinds=["default"]),
    }
    older = pattern_keys(r, k, pattern)
    return Plan(hf.Gemma3ForCausalLM, hf.Gemma3TextConfig, k, older, ["layer_types"], norm_offset=True)


def mixtral(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    k["num_local_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(rms_norm_eps=r.eps(), sliding_window=r.choice([None, window(r)]), rope_parameters=r.rope(hd))
    return Plan(hf.MixtralForCausalLM, hf.MixtralConfig, k)


def qwen3_moe(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    k["num_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.4), rope_parameters=r.rope(hd), norm_topk_prob=r.maybe())
    k |= dict(use_sliding_window=r.maybe(), sliding_window=window(r), moe_intermediate_size=r.randint(3, 17))
    k["decoder_sparse_step"] = r.choice([1, 1, 2, 3])
    k["mlp_only_layers"] = [i for i in range(k["num_hidden_layers"]) if r.maybe(0.3)]
    return Plan(hf.Qwen3MoeForCausalLM, hf.Qwen3MoeConfig, k)


def olmoe(r, pattern):
    k, hd = common(r, False)
    k["num_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), rope_parameters=r.rope(hd), norm_topk_prob=r.maybe())
    k["clip_qkv"] = r.choice([None, 0.8])
    return Plan(hf.OlmoeForCausalLM, hf.OlmoeConfig, k)


def flex_olmo(r, pattern):
    k, hd = common(r, True)
    k["num_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), rope_parameters=r.rope(hd), norm_topk_prob=r.maybe())
    return Plan(hf.FlexOlmoForCausalLM, hf.FlexOlmoConfig, k)


def qwen3_vl_moe_text(r, pattern):
    plan = qwen3_moe(r, pattern)
    for key in ("use_sliding_window", "sliding_window", "norm_topk_prob"):
        del plan.keys[key]
    plan.config = type(hf.AutoConfig.for_model("qwen3_vl_moe_text"))
    plan.keys["rope_parameters"] = r.rope(plan.keys["head_dim"], kinds=["default", "linear", "yarn", "llama3"])
    return plan


def gpt_oss(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    k["num_local_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.7), sliding_window=window(r))
    k |= dict(swiglu_limit=r.choice([0.5, 7.0]), rope_parameters=r.rope(hd, kinds=["yarn", "yarn", "default", "linear"]))
    if r.maybe(0.3):
        k["swiglu_alpha"] = 1.2
    if not pattern and r.maybe():
        k["layer_types"] = types(r, k["num_hidden_layers"])
    return Plan(hf.GptOssForCausalLM, hf.GptOssConfig, k, {}, ["layer_types"])


def llama4_text(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    count = k["num_hidden_layers"]
    k["num_local_experts"], k["num_experts_per_tok"] = r.experts()
    if r.maybe():
        k["num_experts_per_tok"] = 1
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), intermediate_size_mlp=r.randint(9, 50))
    k |= dict(attention_chunk_size=r.choice([1, 3, 7, 8, 16, 64]), use_qk_norm=r.maybe(), rope_parameters=r.rope(hd))
    k |= dict(attn_temperature_tuning=r.maybe(0.7), floor_scale=r.choice([1, 3, 8]), attn_scale=r.choice([0.1, 0.7]))
    k |= dict(no_rope_layer_interval=r.choice([1, 2, 3, 4]), interleave_moe_layer_step=r.choice([1, 2, 3]))
    if not pattern:
        if r.maybe(0.4):
            k["no_rope_layers"] = [r.randint(0, 1) for _ in range(count)]
        if r.maybe(0.4):
            k["moe_layers"] = [i for i in range(count) if r.maybe()]
        if r.maybe(0.3):
            k["layer_types"] = types(r, count, "chunked_attention")
    dropped = ["layer_types", "no_rope_layers", "moe_layers"]
    return Plan(hf.Llama4ForCausalLM, hf.Llama4TextConfig, k, {}, dropped)


def routed(r, layers, per_group=1):
    """Keys of DeepSeek's mixtures."""
    groups = r.choice([1, 1, 2, 3, 4])
    each = r.randint(max(per_group, 2 if groups == 1 else 1), 4)
    chosen = r.randint(1, groups)
    return dict(
        n_routed_experts=groups * each,
        n_group=groups,
        topk_group=chosen,
        num_experts_per_tok=r.choice([chosen * each, r.randint(1, chosen * each), r.randint(1, chosen * each)]),
        n_shared_experts=r.choice([1, 2]),
        moe_intermediate_size=r.randint(3, 13),
        first_k_dense_replace=r.choice([0, 1, 1, 2, layers]),
        routed_scaling_factor=r.choice([1.0, 0.6, 2.5]),
        norm_topk_prob=r.maybe(),
    )


def glm4_moe(r, pattern):
    k, hd = common(r, True)
    part = share(r, hd, exact=False)
    k |= routed(r, k["num_hidden_layers"], 2)
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(), use_qk_norm=r.maybe())
    k |= dict(rope_parameters=r.rope(int(hd * part), part))
    return Plan(hf.Glm4MoeForCausalLM, hf.Glm4MoeConfig, k)


def qwen2_moe(r, pattern):
    k, hd = common(r, False)
    k["num_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(rms_norm_eps=r.eps(), qkv_bias=r.maybe(), rope_parameters=r.rope(hd), norm_topk_prob=r.maybe())
    k |= dict(moe_intermediate_size=r.randint(3, 17), shared_expert_intermediate_size=r.randint(3, 17))
    k["decoder_sparse_step"] = r.choice([1, 1, 2, 3])
    k["mlp_only_layers"] = [i for i in range(k["num_hidden_layers"]) if r.maybe(0.3)]
    qwen_windows(r, k, pattern)
    return Plan(hf.Qwen2MoeForCausalLM, hf.Qwen2MoeConfig, k, {}, ["layer_types"])


def minimax_m2(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    part = share(r, hd)
    k["num_local_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(rms_norm_eps=r.eps(), rope_parameters=r.rope(int(hd * part), part))
    return Plan(hf.MiniMaxM2ForCausalLM, hf.MiniMaxM2Config, k)


def dots1(r, pattern):
    k, hd = common(r, False)
    k |= routed(r, k["num_hidden_layers"], 2)
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    k |= dict(sliding_window=r.choice([None, window(r)]), max_window_layers=r.randint(0, k["num_hidden_layers"]))
    if not pattern and r.maybe() and k["sliding_window"]:
        k["layer_types"] = types(r, k["num_hidden_layers"])
    return Plan(hf.Dots1ForCausalLM, hf.Dots1Config, k, {}, ["layer_types"])


def olmo3(r, pattern):
    k, hd = common(r, True)
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), sliding_window=window(r))
    full = r.rope(hd, kinds=["default", "linear", "yarn", "yarn", "llama3"])
    sliding = r.rope(hd, kinds=["default"])
    if pattern or r.maybe():
        full["rope_theta"] = sliding["rope_theta"] = 500000.0
    k["rope_parameters"] = {"full_attention": full, "sliding_attention": sliding}
    if not pattern and r.maybe():
        k["layer_types"] = types(r, k["num_hidden_layers"])
    return Plan(hf.Olmo3ForCausalLM, hf.Olmo3Config, k, {}, ["layer_types"])


def glm4_keys(r):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    part = share(r, hd)
    return k | dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(), rope_parameters=r.rope(int(hd * part), part))


def glm(r, pattern):
    return Plan(hf.GlmForCausalLM, hf.GlmConfig, glm4_keys(r))


def glm4(r, pattern):
    return Plan(hf.Glm4ForCausalLM, hf.Glm4Config, glm4_keys(r))


def seed_oss(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(), attention_out_bias=r.maybe(), mlp_bias=r.maybe(0.3))
    k |= dict(rope_parameters=r.rope(hd))
    return Plan(hf.SeedOssForCausalLM, hf.SeedOssConfig, k)


def ernie4_5(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    k |= dict(rms_norm_eps=r.eps(), use_bias=r.maybe(), rope_parameters=r.rope(hd))
    return Plan(hf.Ernie4_5ForCausalLM, hf.Ernie4_5Config, k)


def arcee(r, pattern):
    k, hd = common(r, True, divides=True, act="relu2")
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), mlp_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    return Plan(hf.ArceeForCausalLM, hf.ArceeConfig, k)


def latent(r, even=False):
    """Shapes of latent attention."""
    heads = r.choice([1, 2, 3, 5])
    k, _ = common(r, False)
    k |= dict(num_attention_heads=heads, num_key_value_heads=heads, hidden_size=heads * (36 // heads - r.randint(0, 3)))
    step = 2 if even else 1
    k["qk_nope_head_dim"] = step * r.randint(2, 12 // step)
    k["qk_rope_head_dim"] = r.choice([2, 4, 6, 8])
    k["v_head_dim"] = r.randint(3, 13)
    k["kv_lora_rank"] = step * r.randint(2, 20 // step)
    k["q_lora_rank"] = r.choice([None, r.randint(5, 20)])
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3))
    return k


def deepseek_v2(r, pattern):
    k = latent(r, even=True)
    k |= routed(r, k["num_hidden_layers"])
    k["topk_method"] = r.choice(["greedy", "group_limited_greedy", "group_limited_greedy"])
    k |= dict(mlp_bias=r.maybe(0.2), rope_parameters=r.rope(k["qk_rope_head_dim"]))
    return Plan(hf.DeepseekV2ForCausalLM, hf.DeepseekV2Config, k)


def deepseek_v3(r, pattern):
    k = latent(r)
    k |= routed(r, k["num_hidden_layers"], 2)
    k |= dict(rope_interleave=r.maybe(0.7), rope_parameters=r.rope(k["qk_rope_head_dim"]))
    return Plan(hf.DeepseekV3ForCausalLM, hf.DeepseekV3Config, k)


def deepseek_v32(r, pattern):
    plan = deepseek_v3(r, pattern)
    k = plan.keys
    k["q_lora_rank"] = r.randint(5, 20)
    k["rope_parameters"] = r.rope(k["qk_rope_head_dim"], kinds=["default", "yarn", "linear"])
    del k["rope_interleave"]
    k |= dict(index_n_heads=r.randint(5, 9), index_head_dim=k["qk_rope_head_dim"] + r.randint(0, 5))
    k["index_topk"] = r.choice([1, 3, 8, 13, 24, 64])
    return Plan(hf.DeepseekV32ForCausalLM, hf.DeepseekV32Config, k)


def minicpm3(r, pattern):
    k = latent(r)
    k |= dict(scale_emb=r.choice([1, 3, 12]), scale_depth=r.choice([None, 1.4, 0.8]), dim_model_base=r.choice([None, 7, 256]))
    k |= dict(mlp_bias=r.maybe(0.3), rope_parameters=r.rope(k["qk_rope_head_dim"]))
    if r.maybe(0.3):
        del k["v_head_dim"]
    return Plan(hf.MiniCPM3ForCausalLM, hf.MiniCPM3Config, k)


def gpt_neox(r, pattern):
    k, hd = common(r, False, act="gelu", square=True)
    part = share(r, hd)
    del k["num_key_value_heads"]
    k |= dict(layer_norm_eps=r.eps(), use_parallel_residual=r.maybe(), attention_bias=r.maybe(0.7))
    k |= dict(rope_parameters=r.rope(int(hd * part), part))
    return Plan(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, k)


def falcon(r, pattern):
    k, hd = common(r, False)
    kv = k.pop("num_key_value_heads")
    k["activation"] = r.act("gelu")
    k["ffn_hidden_size"] = r.choice([None, k["intermediate_size"]])
    del k["hidden_act"], k["intermediate_size"]
    k |= dict(layer_norm_epsilon=r.eps(), bias=r.maybe(), new_decoder_architecture=r.maybe(0.4))
    alibi = False
    if k["new_decoder_architecture"]:
        k |= dict(num_kv_heads=kv, num_ln_in_parallel_attn=r.choice([None, 1, 2]), parallel_attn=True)
    else:
        k |= dict(multi_query=r.maybe(), parallel_attn=r.maybe())
        alibi = k["alibi"] = r.maybe(0.3)
    if not alibi:
        k["rope_parameters"] = r.rope(hd)
    return Plan(hf.FalconForCausalLM, hf.FalconConfig, k, attention="sdpa" if alibi else "eager")


def gpt2(r, pattern):
    heads = r.choice([1, 2, 3, 5])
    k = dict(vocab_size=r.randint(40, 66), n_positions=r.choice([64, 100]), n_head=heads, n_layer=r.randint(2, 4))
    k |= dict(n_embd=heads * r.randint(5, 11), n_inner=r.choice([None, r.randint(9, 50)]), layer_norm_epsilon=r.eps())
    k |= dict(activation_function=r.act("gelu_new"), scale_attn_weights=r.maybe(0.7), tie_word_embeddings=r.maybe())
    k |= dict(scale_attn_by_inverse_layer_idx=r.maybe(0.3), reorder_and_upcast_attn=r.maybe(0.2))
    return Plan(hf.GPT2LMHeadModel, hf.GPT2Config, k, stds={"wpe": 0.15})


def opt(r, pattern):
    heads = r.choice([1, 2, 3, 5])
    hidden = heads * r.randint(5, 11)
    k = dict(vocab_size=r.randint(40, 66), max_position_embeddings=64, num_attention_heads=heads, hidden_size=hidden)
    k |= dict(num_hidden_layers=r.randint(2, 4), ffn_dim=r.randint(9, 50), activation_function=r.act("relu"))
    k |= dict(word_embed_proj_dim=r.choice([hidden, hidden, hidden - 3]), do_layer_norm_before=r.maybe(0.7))
    k |= dict(enable_bias=r.maybe(0.7), layer_norm_elementwise_affine=r.maybe(0.8), tie_word_embeddings=r.maybe())
    k["_remove_final_layer_norm"] = r.maybe(0.2)
    return Plan(hf.OPTForCausalLM, hf.OPTConfig, k)


def t5(r, pattern):
    k = dict(vocab_size=r.randint(40, 66), d_model=r.randint(15, 33), d_kv=r.randint(3, 9), d_ff=r.randint(9, 50))
    k |= dict(num_layers=r.randint(1, 3), num_heads=r.choice([1, 2, 3, 5]), num_decoder_layers=r.choice([None, 2, 3]))
    k |= dict(relative_attention_num_buckets=r.choice([8, 16, 32]), relative_attention_max_distance=r.choice([16, 128]))
    forms = ["relu", "gated-gelu", "gelu", "gated-silu", "gated-relu"]
    k |= dict(feed_forward_proj=r.choice(forms), layer_norm_epsilon=r.eps(), decoder_start_token_id=0)
    sizes = {"SelfAttention.q": 0.2, "EncDecAttention.q": 0.2}
    plan = Plan(hf.T5ForConditionalGeneration, hf.T5Config, k, encoder=True, stds=sizes, head=r.maybe())
    return plan


def mamba_keys(r):
    """A Mamba-2 mixer without the width of its heads, and the number of these."""
    groups = r.choice([1, 1, 2, 3])
    heads = groups * r.choice([1, 2, 3])
    keys = dict(mamba_n_groups=groups, mamba_n_heads=heads, mamba_d_state=r.choice([3, 5, 8]), mamba_d_conv=r.choice([2, 3, 4]))
    keys |= dict(mamba_chunk_size=r.choice([4, 8, 256]), mamba_conv_bias=r.maybe(), mamba_proj_bias=r.maybe(0.3))
    return keys, heads


def granitemoehybrid(r, pattern):
    k, hd = common(r, False)
    m, heads = mamba_keys(r)
    expand = 2 * heads
    m |= dict(mamba_expand=expand, mamba_d_head=expand * k["hidden_size"] // heads)
    experts = r.maybe(0.6)
    k["num_local_experts"], k["num_experts_per_tok"] = r.experts() if experts else (0, 0)
    k |= m | granite_keys(r) | dict(rope_parameters=r.rope(hd), shared_intermediate_size=r.randint(7, 30))
    k["position_embedding_type"] = r.choice(["rope", None, "nope"]) if hd % 2 == 0 else None
    k["layer_types"] = types(r, k["num_hidden_layers"], "linear_attention", "full_attention")
    return Plan(hf.GraniteMoeHybridForCausalLM, hf.GraniteMoeHybridConfig, k)


def falcon_h1(r, pattern):
    k, hd = common(r, True)
    m, heads = mamba_keys(r)
    head = r.choice([3, 4, 7])
    m |= dict(mamba_d_ssm=heads * head, mamba_d_head=head, mamba_rms_norm=r.maybe(), mamba_norm_before_gate=r.maybe())
    scale = lambda: r.choice([1.0, 0.6, 1.3])
    k |= m | dict(rms_norm_eps=r.eps(), rope_parameters=r.rope(hd), projectors_bias=r.maybe(0.3))
    k |= dict(attention_bias=r.maybe(0.3), mlp_bias=r.maybe(0.3), key_multiplier=scale(), ssm_in_multiplier=scale())
    k |= dict(attention_in_multiplier=scale(), attention_out_multiplier=scale(), ssm_out_multiplier=scale())
    k |= dict(embedding_multiplier=scale(), lm_head_multiplier=scale())
    k |= dict(mlp_multipliers=[scale(), scale()], ssm_multipliers=[scale() for _ in range(5)])
    return Plan(hf.FalconH1ForCausalLM, hf.FalconH1Config, k)


def delta_keys(r, layers):
    groups = r.choice([1, 2, 3])
    keys = dict(linear_num_key_heads=groups, linear_num_value_heads=groups * r.choice([1, 2]))
    keys |= dict(linear_key_head_dim=r.choice([3, 4, 6]), linear_value_head_dim=r.choice([2, 5, 8]))
    keys |= dict(linear_conv_kernel_dim=r.choice([2, 3, 4]), rms_norm_eps=r.eps(), attention_bias=r.maybe(0.4))
    return keys | dict(layer_types=types(r, layers, "linear_attention", "full_attention"))


def qwen3_next(r, pattern):
    k, _ = common(r, True)
    k |= delta_keys(r, k["num_hidden_layers"]) | dict(head_dim=8, moe_intermediate_size=r.randint(7, 20))
    k["num_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(norm_topk_prob=r.maybe(), shared_expert_intermediate_size=r.randint(7, 20), decoder_sparse_step=r.choice([1, 1, 2]))
    k["rope_parameters"] = r.rope(4, share=0.5, kinds=["default", "linear", "yarn"])
    return Plan(hf.Qwen3NextForCausalLM, hf.Qwen3NextConfig, k, norm_offset=True)


def qwen3_5_text(r, pattern):
    k, _ = common(r, True)
    k |= delta_keys(r, k["num_hidden_layers"]) | dict(head_dim=8)
    k["rope_parameters"] = r.rope(4, share=0.5, kinds=["default", "linear", "yarn"])
    return Plan(hf.Qwen3_5ForCausalLM, type(hf.AutoConfig.for_model("qwen3_5_text")), k, norm_offset=True)


def nemotron_h(r, pattern):
    k, hd = common(r, True)
    layers = r.randint(3, 6)
    del k["num_hidden_layers"], k["hidden_act"]
    groups = r.choice([1, 2, 3])
    k |= dict(n_groups=groups, mamba_num_heads=groups * r.choice([1, 2, 3]), mamba_head_dim=r.choice([3, 4, 7]))
    k |= dict(ssm_state_size=r.choice([3, 5, 8]), conv_kernel=r.choice([2, 3, 4]), chunk_size=r.choice([4, 8, 128]))
    k |= dict(use_conv_bias=r.maybe(), use_bias=r.maybe(0.3), mlp_bias=r.maybe(0.3), layer_norm_epsilon=r.eps(), head_dim=hd)
    k["n_routed_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(moe_intermediate_size=r.randint(7, 20), moe_shared_expert_intermediate_size=r.randint(7, 20))
    k |= dict(norm_topk_prob=r.maybe(0.7), routed_scaling_factor=r.choice([1.0, 2.5]))
    kinds = ["linear_attention", "full_attention", "mlp", "moe"]
    k["layers_block_type"] = ["linear_attention", "full_attention"] + [r.choice(kinds) for _ in range(layers - 2)]
    k["time_step_min"] = r.choice([0.0, 0.001])  # larger ones count in prompts alone
    return Plan(hf.NemotronHForCausalLM, type(hf.AutoConfig.for_model("nemotron_h")), k)


def jamba(r, pattern):
    k, hd = common(r, True, layers=r.randint(2, 5))
    k["num_experts"], k["num_experts_per_tok"] = r.experts()
    for kind in ("attn", "expert"):
        period = r.randint(1, 4)
        k |= {f"{kind}_layer_period": period, f"{kind}_layer_offset": r.randrange(period)}
    k |= dict(mamba_d_state=r.choice([1, 3, 8]), mamba_d_conv=r.choice([1, 2, 3, 4]), mamba_expand=r.choice([1, 2, 3]))
    k |= dict(mamba_dt_rank=r.choice(["auto", 1, 5]), mamba_conv_bias=r.maybe(), mamba_proj_bias=r.maybe(0.3))
    k |= dict(rms_norm_eps=r.eps())
    return Plan(hf.JambaForCausalLM, hf.JambaConfig, k)


def lfm2(r, pattern):
    k, hd = common(r, True)
    del k["hidden_act"]
    k |= dict(norm_eps=r.eps(), conv_bias=r.maybe(), conv_L_cache=r.choice([1, 2, 3, 4]), rope_parameters=r.rope(hd))
    k |= dict(block_auto_adjust_ff_dim=r.maybe(), block_multiple_of=r.choice([1, 4, 7]))
    k["block_ffn_dim_multiplier"] = r.choice([1.0, 1.3, None])
    if k["block_ffn_dim_multiplier"] is None:
        del k["block_ffn_dim_multiplier"]
    count = k["num_hidden_layers"]
    k["full_attn_idxs"] = [i for i in range(count) if r.maybe()]
    if not pattern:
        k["layer_types"] = types(r, count, "conv")
    return Plan(hf.Lfm2ForCausalLM, hf.Lfm2Config, k, {}, ["layer_types"])


def hunyuan_rope(r, hd):
    if r.maybe() and hd > 2:
        return {"rope_type": "dynamic", "rope_theta": r.theta(), "alpha": r.choice([1.5, 50.0, 1000.0]), "factor": 1.0}
    return r.rope(hd)


def hunyuan_v1_dense(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), rope_parameters=hunyuan_rope(r, hd))
    return Plan(hf.HunYuanDenseV1ForCausalLM, hf.HunYuanDenseV1Config, k)


def hunyuan_v1_moe(r, pattern):
    k = hunyuan_v1_dense(r, pattern).keys
    k["num_experts"], k["moe_topk"] = r.experts()
    return Plan(hf.HunYuanMoEV1ForCausalLM, hf.HunYuanMoEV1Config, k)


def ernie4_5_moe(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    k["moe_num_experts"], k["moe_k"] = r.experts()
    k |= dict(rms_norm_eps=r.eps(), use_bias=r.maybe(), rope_parameters=r.rope(hd), moe_norm_min=r.choice([1e-12, 0.5]))
    k |= dict(moe_num_shared_experts=r.choice([0, 1, 2]), moe_intermediate_size=r.randint(3, 17))
    k |= dict(moe_layer_start_index=r.choice([0, 1, 2]), moe_layer_interval=r.choice([1, 1, 2]))
    k["moe_layer_end_index"] = r.choice([-1, k["num_hidden_layers"] - 1, 1])
    return Plan(hf.Ernie4_5_MoeForCausalLM, hf.Ernie4_5_MoeConfig, k)


def phimoe(r, pattern):
    k, hd = common(r, True)
    k["num_local_experts"] = r.choice([2, 3, 5, 8])
    rope = r.rope(hd, kinds=["default", "longrope"])
    if rope["rope_type"] == "longrope":
        rope["short_mscale"] = rope["long_mscale"] = r.choice([1.2, 0.9])
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(), lm_head_bias=r.maybe(), rope_parameters=rope)
    k |= dict(router_jitter_noise=r.choice([0.01, 0.1, 0.5]), sliding_window=r.choice([None, window(r)]))
    return Plan(hf.PhimoeForCausalLM, hf.PhimoeConfig, k)


def glm4_moe_lite(r, pattern):
    k = latent(r)
    k |= routed(r, k["num_hidden_layers"], 2)
    del k["first_k_dense_replace"]
    k |= dict(rope_interleave=r.maybe(0.7), rope_parameters=r.rope(k["qk_rope_head_dim"]))
    if not pattern:
        k["mlp_layer_types"] = types(r, k["num_hidden_layers"], "dense", "sparse")
    return Plan(hf.Glm4MoeLiteForCausalLM, hf.Glm4MoeLiteConfig, k, {}, ["mlp_layer_types"])


def glm_moe_dsa(r, pattern):
    plan = deepseek_v32(r, pattern)
    k = plan.keys
    layers = k["num_hidden_layers"]
    if not pattern:
        k["mlp_layer_types"] = types(r, layers, "dense", "sparse")
        if r.maybe():
            k["indexer_types"] = ["full"] + types(r, layers - 1, "full", "shared")
    if "indexer_types" not in k and r.maybe():
        k |= dict(index_topk_freq=r.choice([1, 2, 3]), index_skip_topk_offset=r.choice([1, 2]))
    return Plan(hf.GlmMoeDsaForCausalLM, hf.GlmMoeDsaConfig, k, {}, ["mlp_layer_types", "indexer_types"])


def mistral4(r, pattern):
    k = latent(r)
    k |= routed(r, k["num_hidden_layers"], 2)
    k["rope_interleave"] = r.maybe(0.7)
    k["rope_parameters"] = r.rope(k["qk_rope_head_dim"], kinds=["yarn"]) | dict(llama_4_scaling_beta=r.choice([0.1, 0.5]))
    return Plan(hf.Mistral4ForCausalLM, hf.Mistral4Config, k, auto=False)


def sarvam_mla(r, pattern):
    plan = deepseek_v3(r, pattern)
    return Plan(hf.DeepseekV3ForCausalLM, hf.SarvamMLAConfig, plan.keys)


def renamed(k, **names):
    """The keys of a mixture under other names."""
    for old, new in names.items():
        value = k.pop(old)
        if new:
            k[new] = value
    return k


def exaone_moe(r, pattern):
    plan = exaone4(r, pattern)
    k = plan.keys | routed(r, plan.keys["num_hidden_layers"], 2)
    renamed(k, n_routed_experts="num_experts", n_shared_experts="num_shared_experts")
    k["sliding_window"] = k["sliding_window"] or window(r)
    k.setdefault("sliding_window_pattern", 4)
    if not pattern:
        k["mlp_layer_types"] = types(r, k["num_hidden_layers"], "dense", "sparse")
    return Plan(hf.ExaoneMoeForCausalLM, hf.ExaoneMoeConfig, k, plan.older, [*plan.dropped, "mlp_layer_types"])


def solar_open(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    k |= routed(r, k["num_hidden_layers"], 2)
    renamed(k, first_k_dense_replace=None, intermediate_size=None)
    part = share(r, hd, exact=False)
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(), rope_parameters=r.rope(int(hd * part), part))
    return Plan(hf.SolarOpenForCausalLM, hf.SolarOpenConfig, k)


def afmoe(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    k["num_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(rms_norm_eps=r.eps(), rope_parameters=r.rope(hd), sliding_window=window(r), mup_enabled=r.maybe())
    k |= dict(num_dense_layers=r.choice([0, 1, 1, 2]), num_shared_experts=r.choice([1, 2]))
    k |= dict(moe_intermediate_size=r.randint(3, 13), route_scale=r.choice([1.0, 0.6, 2.8]))
    k["global_attn_every_n_layers"] = r.choice([1, 2, 3, 4])
    if not pattern:
        k["layer_types"] = types(r, k["num_hidden_layers"])
    return Plan(hf.AfmoeForCausalLM, hf.AfmoeConfig, k, {}, ["layer_types"])


def hy_v3(r, pattern):
    k, hd = common(r, True)
    k.setdefault("head_dim", hd)
    k["num_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), mlp_bias=r.maybe(0.3), rope_parameters=r.rope(hd))
    k |= dict(num_shared_experts=r.choice([1, 2]), moe_intermediate_size=r.randint(3, 13))
    k |= dict(router_scaling_factor=r.choice([1.0, 0.6, 2.8]), enable_moe_fp32_combine=r.maybe())
    if not pattern:
        k["mlp_layer_types"] = types(r, k["num_hidden_layers"], "dense", "sparse")
    return Plan(hf.HYV3ForCausalLM, hf.HYV3Config, k, {}, ["mlp_layer_types"])


def sarvam_moe(r, pattern):
    plan = glm4_moe(r, pattern)
    return Plan(hf.Glm4MoeForCausalLM, hf.SarvamMoEConfig, plan.keys)


def lfm2_moe(r, pattern):
    k, hd = common(r, True)
    del k["hidden_act"]
    k["num_experts"], k["num_experts_per_tok"] = r.experts()
    k |= dict(norm_eps=r.eps(), conv_bias=r.maybe(), conv_L_cache=r.choice([1, 2, 3, 4]), rope_parameters=r.rope(hd))
    k |= dict(moe_intermediate_size=r.randint(3, 13), num_dense_layers=r.choice([0, 1, 2]), norm_topk_prob=r.maybe())
    k |= dict(use_expert_bias=r.maybe(0.7), routed_scaling_factor=r.choice([1.0, 0.6, 2.5]))
    k["layer_types"] = types(r, k["num_hidden_layers"], "conv")
    return Plan(hf.Lfm2MoeForCausalLM, hf.Lfm2MoeConfig, k)


def in_wrapper(name, text, model, config, vision, **more):
    """The family of text models `text` inside models of images."""

    def wrapped(r, pattern):
        plan = text(r, pattern)
        plan.model, plan.wrapper = model, (config, vision, more, r.maybe())
        return plan

    wrapped.__name__ = name
    return wrapped


TOWER = dict(hidden_size=8, intermediate_size=9, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8)
SIGLIP, PIXTRAL = hf.SiglipVisionConfig(**TOWER), hf.PixtralVisionConfig(**TOWER)
QWEN3_TOWER = type(hf.AutoConfig.for_model("qwen3_vl_moe").vision_config)(
    depth=1, hidden_size=8, intermediate_size=9, num_heads=2, out_hidden_size=8, num_position_embeddings=4,
    deepstack_visual_indexes=[],
)  # fmt: skip
LLAMA4_TOWER = hf.Llama4VisionConfig(
    **{**TOWER, "intermediate_size": 32}, vision_output_dim=8, projector_input_dim=8, projector_output_dim=8
)


WRAPPERS = [
    in_wrapper("gemma3", gemma3_text, hf.Gemma3ForConditionalGeneration, hf.Gemma3Config, SIGLIP, mm_tokens_per_image=4),
    in_wrapper("mistral3", mistral, hf.Mistral3ForConditionalGeneration, hf.Mistral3Config, PIXTRAL),
    in_wrapper("mistral3_mistral4", mistral4, hf.Mistral3ForConditionalGeneration, hf.Mistral3Config, PIXTRAL),
    in_wrapper("llama4", llama4_text, hf.Llama4ForConditionalGeneration, hf.Llama4Config, LLAMA4_TOWER),
    in_wrapper("llava_llama", llama, hf.LlavaForConditionalGeneration, hf.LlavaConfig, SIGLIP),
    in_wrapper("llava_qwen2", qwen2, hf.LlavaForConditionalGeneration, hf.LlavaConfig, SIGLIP),
    in_wrapper("internvl", qwen3, hf.InternVLForConditionalGeneration, hf.InternVLConfig, None),
    in_wrapper("qwen3_vl_moe", qwen3_vl_moe_text, hf.Qwen3VLMoeForConditionalGeneration, hf.Qwen3VLMoeConfig, QWEN3_TOWER),
    in_wrapper("cohere2_vision", cohere2, hf.Cohere2VisionForConditionalGeneration, hf.Cohere2VisionConfig, SIGLIP),
]


def gemma3n_text(r, pattern):
    layers = r.choice([2, 3, 4, 6, 7, 11])
    k, hd = common(r, True, divides=True, layers=layers)
    k.setdefault("head_dim", hd)
    k["hidden_activation"] = r.act("gelu_pytorch_tanh")
    del k["hidden_act"]
    k |= dict(rms_norm_eps=r.eps(), attention_bias=r.maybe(0.3), sliding_window=window(r))
    k |= dict(final_logit_softcapping=r.choice([1.5, 30.0]))
    k["rope_parameters"] = {
        "full_attention": r.rope(hd, kinds=["default", "linear", "linear", "yarn", "llama3"]),
        "sliding_attention": r.rope(hd, kinds=["default"]),
    }
    if not pattern:
        k["layer_types"] = types(r, layers)
    kinds = k.get("layer_types") or ["full_attention" if i % 5 == 4 else "sliding_attention" for i in range(layers)]
    shared = [n for n in range(layers) if set(kinds[: layers - n]) == set(kinds)]
    k["num_kv_shared_layers"] = r.choice(shared + shared[-1:] * 2)
    streams = r.choice([1, 2, 3, 4, 4])
    k |= dict(altup_num_inputs=streams, altup_active_idx=r.choice([0, r.randrange(streams)]))
    k |= dict(altup_correct_scale=r.maybe(0.7), laurel_rank=r.randint(1, 9))
    k |= dict(hidden_size_per_layer_input=r.randint(1, 9), vocab_size_per_layer_input=r.randint(30, 70))
    if r.maybe(0.3):
        k["intermediate_size"] = [r.randint(9, 50) for _ in range(layers)]
    if r.maybe(0.7):
        k["activation_sparsity_pattern"] = [r.choice([0.0, 0.2, 0.5, 0.9, 0.95]) for _ in range(layers)]
    return Plan(hf.Gemma3nForCausalLM, hf.Gemma3nTextConfig, k, {}, ["layer_types"])


FAMILIES = [
    qwen3, olmo2, exaone4, smollm3, granite, cohere, cohere2, starcoder2, nemotron, stablelm, phi, gemma3_text, mixtral,
    gemma3n_text, granitemoehybrid, falcon_h1, qwen3_next, qwen3_5_text, nemotron_h, jamba,
    lfm2, hunyuan_v1_dense, hunyuan_v1_moe, ernie4_5_moe, phimoe, glm4_moe_lite,
    glm_moe_dsa, mistral4, sarvam_mla, exaone_moe, solar_open, afmoe, hy_v3, sarvam_moe, lfm2_moe,
    qwen3_moe, olmoe, granitemoe, gpt_oss, llama4_text, glm4_moe, deepseek_v2, deepseek_v3, deepseek_v32, minicpm3,
    qwen2_moe, minimax_m2, dots1, olmo3, glm, glm4, seed_oss, ernie4_5, arcee,
    internlm3, exaone, cwm, helium, apertus, jais2, vaultgemma, granite_swa, granitemoeshared, granitemoe_swa, flex_olmo,
    llama, mistral, ministral, ministral3, qwen2, olmo, phi3, gemma, gemma2, gpt_neox, falcon, gpt2, opt, t5, *WRAPPERS,
]  # fmt: skip


class Case:
    """What make_checkpoints.randomise reads."""

    def __init__(self, plan, r):
        self.norm_offset = plan.norm_offset
        self.stored = r.choice([torch.float32] * 4 + [torch.bfloat16, torch.float16])
        self.stds = {**plan.stds, **({"embed_tokens": 0.12, "wte": 0.12, "embed_in": 0.12, "word_embeddings": 0.12}
                                     if plan.keys.get("tie_word_embeddings") else {})}

    def std_of(self, name):
        return next((std for part, std in self.stds.items() if part in name), 0.3)


def spell(config, plan, spelling, r):
    if "text_config" in config:
        config["text_config"] = spell(config["text_config"], plan, spelling, r)
        inner, outer = config["text_config"], config.get("tie_word_embeddings")
        if spelling >= 2 and plan.config().tie_word_embeddings == plan.wrapper[0]().tie_word_embeddings == outer:
            del config["tie_word_embeddings"]
            inner.pop("tie_word_embeddings", None)
        return config
    if spelling == 0:
        return config
    config = mc.to_hub_form(config) | HUB_EXTRAS.get(config["model_type"], {})
    scaling = config.get("rope_scaling")
    # Among the entries of layer types transformers 5.23 does not see the older name.
    by_layer_type = config["model_type"] in ("gemma3_text", "gemma3n_text", "olmo3")
    if scaling and "rope_type" in scaling and r.maybe() and not by_layer_type:
        scaling["type"] = scaling.pop("rope_type")
    if spelling >= 2:
        for key in plan.dropped:
            config.pop(key, None)
        if plan.dropped:
            config.pop("_sliding_window_pattern", None)
            config.update(plan.older)
    if spelling == 3:
        usual = plan.config().to_dict()
        keep = {"model_type", "architectures", "transformers_version", "sliding_window_pattern"}
        for key in list(config):
            if key not in keep and key in usual and config[key] == usual[key]:
                del config[key]
        if config.get("rope_scaling", 1) is None:
            del config["rope_scaling"]
        if "rope_theta" in config and config["rope_theta"] == getattr(plan.config, "default_theta", 1e4):
            del config["rope_theta"]
    return config


HUB_EXTRAS = {  # keys of published files that transformers does not read
    "deepseek_v2": {"scoring_func": "softmax", "moe_layer_freq": 1, "aux_loss_alpha": 0.001, "seq_aux": True, "ep_size": 1},
    "dots1": {"scoring_func": "noaux_tc"},
    "minimax_m2": {"scoring_func": "sigmoid", "qk_norm_type": "per_layer", "use_qk_norm": True, "use_routing_bias": True,
                   "shared_intermediate_size": 0, "use_mtp": True, "num_mtp_modules": 3, "mtp_transformer_layers": 1},
    "deepseek_v32": {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "ep_size": 1},
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "ep_size": 1},
    "gpt_oss": {"initial_context_length": 4096},
    "starcoder2": {"mlp_type": "default", "norm_type": "layer_norm", "embedding_dropout": 0.1},
    "gemma3_text": {"cache_implementation": "hybrid"},
    "gemma3n_text": {"altup_lr_multiplier": 1.0, "query_pre_attn_scalar": 256},
    "llama4_text": {"for_llm_compressor": False},
}


class Skip(Exception):
    pass


def write(folder, plan, spelling, r, seed):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = plan.config(**plan.keys)
    if plan.wrapper:
        outer, vision, more, old = plan.wrapper
        towers = {} if vision is None else {"vision_config": vision}
        tied = plan.keys.get("tie_word_embeddings", config.tie_word_embeddings)
        config = outer(text_config=config, **towers, tie_word_embeddings=tied, image_token_index=2, **more)
    model = plan.model(config)
    case = Case(plan, r)
    mc.randomise(model, case, torch.Generator().manual_seed(seed))
    model.to(case.stored)
    for name, buffer in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            buffer.data = buffer.data.float()  # as the published files
    model.save_pretrained(folder, max_shard_size="40KB" if r.maybe(0.2) else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    if plan.wrapper:
        for path in folder.glob("*.safetensors"):
            change = cases_today.old_layout if plan.wrapper[3] else cases_today.new_layout
            if path.name != "model.safetensors":
                raise Skip("sharded wrapper")
            mc.save_file(change(mc.load_file(path)), path, metadata={"format": "pt"})
    if plan.encoder:
        config.pop("scale_decoder_outputs", None)
        if plan.head:
            config["tie_word_embeddings"] = False
            path = folder / "model.safetensors"
            if not path.exists():
                raise Skip("sharded T5 with a head")
            mc.save_file({**mc.cases.add_t5_head(mc.load_file(path))}, path, metadata={"format": "pt"})
    config = spell(config, plan, spelling, r)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def load(folder, plan):
    auto = hf.AutoModelForSeq2SeqLM if plan.encoder else hf.AutoModelForCausalLM
    auto = hf.AutoModelForImageTextToText if plan.wrapper else auto
    model, info = (auto if plan.auto or plan.wrapper else plan.model).from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation=plan.attention,
        experts_implementation="eager",
        output_loading_info=True,
    )
    if info["missing_keys"] or info["mismatched_keys"]:
        raise Skip(f"weights missing: {sorted(info['missing_keys'])[:3]}")
    if not isinstance(model, plan.model):
        raise Skip(f"read as {type(model).__name__}")
    return model.eval()


def compute(folder, plan, r, seed):
    model = load(folder, plan)
    vocab = model.config.get_text_config().vocab_size
    prompt = [r.randrange(3, vocab) for _ in range(r.randint(21, 28))]
    inputs, notes = {}, {}
    if plan.encoder:
        prompt = [0, *prompt[: r.randint(4, 12)]]
        notes["encoder_tokens"] = [r.randrange(3, vocab) for _ in range(r.randint(11, 40))]
        inputs["input_ids"] = torch.tensor([notes["encoder_tokens"]])
    mc.ROUTERS.clear()
    tokens = torch.tensor([prompt])
    logits, cache = mc.step(model, inputs, tokens, None)
    logits = logits[0]
    last, greedy, stepped, margin = logits[-1], [], [], 1.0
    # transformers' cache of a window of one token keeps all of them.
    one = 1 in (plan.keys.get("sliding_window"), plan.keys.get("attention_chunk_size"))
    for i in range(GREEDY):
        best = last.topk(2).values
        margin = min(margin, ((best[0] - best[1]) / (last.max() - last.min())).item())
        greedy.append(last.argmax().item())
        if i + 1 < GREEDY:
            if one:
                out, _ = mc.step(model, inputs, torch.tensor([prompt + greedy]), None)
            else:
                out, cache = mc.step(model, inputs, torch.tensor([greedy[-1:]]), cache)
            last = out[0, -1]
            stepped.append(last)
    span = (logits.max() - logits.min()).item()
    if not np.isfinite(span) or span < 1e-3:
        raise Skip(f"range of logits {span:.1e}")
    if margin < MARGIN:
        raise Skip("greedy near-tie")
    gap = min(mc.ROUTERS, default=1)
    if not gap >= ROUTER_GAP:
        raise Skip("router near-tie")
    whole, _ = mc.step(model, inputs, torch.tensor([prompt + greedy[:-1]]), None)
    noise = (whole[0, len(prompt) :] - torch.stack(stepped)).abs().max().item() / span
    ahead = (whole[0, : len(prompt)] - logits).abs().max().item() / span
    if max(noise, ahead) > NOISE:
        raise Skip(f"cache differs from one pass by {noise:.1e}, prompt alone {ahead:.1e}")
    notes |= dict(prompt=prompt, greedy=greedy, smallest_margin=margin, router_gap=gap, cache_difference=noise)
    np.savez(folder / "expected.npz", logits=logits.numpy())
    return notes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "stress")
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    hf.utils.logging.set_verbosity(50)
    hf.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    known = {f.__name__: f for f in FAMILIES}
    for name in options.families or known:
        for old in options.out.glob(f"{name}_[0-9]*"):
            if options.start == 0:
                shutil.rmtree(old)
        done, seed, skipped = 0, options.start, {}
        while done < options.count and seed < options.start + 40 * options.count:
            seed += 1
            r = Draw(f"{name} {seed}")
            spelling = done % 4
            folder = options.out / f"{name}_{seed}"
            try:
                plan = known[name](r, spelling >= 2)
                write(folder, plan, spelling, r, seed)
                with torch.no_grad():
                    notes = compute(folder, plan, r, seed)
            except Exception as error:
                shutil.rmtree(folder, ignore_errors=True)
                text = str(error).strip().splitlines()
                text = f"{'' if isinstance(error, Skip) else type(error).__name__ + ' '}{' '.join(text)[:150]}"
                if not isinstance(error, Skip):
                    text += " @ " + traceback.extract_tb(error.__traceback__)[-1].filename.split("/")[-1]
                if "differs" in text:
                    text = text.split(" by ")[0] + f" (e.g. seed {seed}, {text.split(' by ')[1]})" if "cache" not in skipped else text
                    skipped["cache"] = 0
                skipped[text] = skipped.get(text, 0) + 1
                continue
            notes |= dict(family=name, seed=seed, spelling=spelling, transformers=hf.__version__)
            (folder / "notes.json").write_text(json.dumps(notes) + "\n")
            done += 1
        print(f"{name}: {done} of {seed - options.start} seeds", flush=True)
        for text, count in skipped.items():
            if text not in ("greedy near-tie", "router near-tie", "cache"):
                print(f"    {count} x {text}", flush=True)


if __name__ == "__main__":
    main()
