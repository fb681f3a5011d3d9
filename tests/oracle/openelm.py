"""OpenELM, which transformers does not hold, after its public description (apple/corenet,
corenet/modeling/models/language_modeling/general_gpt.py; rotary_embeddings.py; rms_norm.py)."""

import math
import types

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

QK_EPS = 1e-6


def divisible(value, divisor):
    """The nearest multiple of `divisor`, at least one, and not below 90 % of the value."""
    nearest = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * value else nearest


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + QK_EPS) * self.weight


def rotate(x, theta):
    """Half-split rotary embedding of [batch, heads, positions, head_dim], positions from 0."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * frequencies
    low, high = x[..., :half], x[..., half:]
    return torch.cat(
        [low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1
    )


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        width = config["model_dim"]
        self.heads = config["num_query_heads"][layer]
        self.kv_heads = config["num_kv_heads"][layer]
        self.head_dim = config["head_dim"]
        self.theta = config["rope_freq_constant"]
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(width, rows, bias=False)
        self.q_norm = RmsNorm(self.head_dim)
        self.k_norm = RmsNorm(self.head_dim)
        self.out_proj = nn.Linear(self.heads * self.head_dim, width, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        rows = self.qkv_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        q, k, v = rows.split([self.heads, self.kv_heads, self.kv_heads], 1)
        q = rotate(self.q_norm(q), self.theta)
        group = self.heads // self.kv_heads
        k = rotate(self.k_norm(k), self.theta).repeat_interleave(group, 1)
        v = v.repeat_interleave(group, 1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        attended = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return self.out_proj(attended.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        width = config["model_dim"]
        inner = divisible(width * config["ffn_multipliers"][layer], config["ffn_dim_divisor"])
        self.proj_1 = nn.Linear(width, 2 * inner, bias=False)
        self.proj_2 = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        gate, up = self.proj_1(x).chunk(2, -1)
        return self.proj_2(functional.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.attn_norm = RmsNorm(config["model_dim"])
        self.attn = Attention(config, layer)
        self.ffn_norm = RmsNorm(config["model_dim"])
        self.ffn = FeedForward(config, layer)

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.token_embeddings = nn.Embedding(config["vocab_size"], config["model_dim"])
        layers = range(config["num_transformer_layers"])
        self.layers = nn.ModuleList(Layer(config, i) for i in layers)
        self.norm = RmsNorm(config["model_dim"])


class OpenElm(nn.Module):
    """Called as transformers' models are; its cache is the list of all tokens so far."""

    def __init__(self, config):
        super().__init__()
        self.transformer = Transformer(config)
        self.config = types.SimpleNamespace(
            vocab_size=config["vocab_size"], is_encoder_decoder=False
        )

    def forward(self, input_ids, past_key_values=None, use_cache=True):
        seen = input_ids
        if past_key_values is not None:
            seen = torch.cat([past_key_values, input_ids], 1)
        x = self.transformer.token_embeddings(seen)
        for layer in self.transformer.layers:
            x = layer(x)
        x = self.transformer.norm(x)
        logits = x[:, -input_ids.shape[1] :] @ self.transformer.token_embeddings.weight.T
        return types.SimpleNamespace(logits=logits, past_key_values=seen)


def stored_tensors(model, dtype):
    return {name: t.detach().to(dtype) for name, t in model.named_parameters()}


def load(config, path):
    model = OpenElm(config)
    model.load_state_dict({k: v.to(torch.float32) for k, v in load_file(path).items()})
    return model.eval()
