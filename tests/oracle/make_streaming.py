"""Greedy tokens under attention sinks and a sliding window (StreamingLLM, arXiv:2309.17453).

Reads the tiny checkpoints beside it with transformers, and decodes with a cache written here: keys
are kept unrotated and rotated on every read by their place in the cache, as the released code does
(mit-han-lab/streaming-llm: pos_shift/modify_llama.py, kv_cache.py). Of latents (DeepSeek V3) only the
part of the key that is rotated turns; the latent is kept as it is. Writes streaming.json.
"""

import json
import pathlib

import torch
import transformers
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.llama.modeling_llama import rotate_half

FOLDER = pathlib.Path(__file__).parent
CASES = [
    ("llama_gqa_llama3_rope", 2, 6),
    ("llama_gqa_llama3_rope", 0, 5),
    ("llama_mha", 4, 9),
    ("llama_biases", 1, 40),
    ("deepseek_v3", 2, 6),
    ("deepseek_v3", 0, 11),
    ("deepseek_v3_half_split", 1, 9),
]
STEPS = 40


def rotated(model, x, first):
    positions = torch.arange(first, first + x.shape[2]).unsqueeze(0)
    cos, sin = model.model.rotary_emb(x, positions)
    return x * cos.unsqueeze(1) + rotate_half(x) * sin.unsqueeze(1)


def attend(model, attention, x, layer_cache, held, sinks):
    batch, tokens, _ = x.shape
    heads = lambda y: y.view(batch, tokens, -1, attention.head_dim).transpose(1, 2)
    q, k, v = (heads(p(x)) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    if layer_cache:
        k = torch.cat([layer_cache["k"], k], dim=2)
        v = torch.cat([layer_cache["v"], v], dim=2)
    length = k.shape[2]
    q = rotated(model, q, length - tokens)
    keys = rotated(model, k, 0)
    repeats = q.shape[1] // keys.shape[1]
    keys, values = (y.repeat_interleave(repeats, dim=1) for y in (keys, v))
    scores = q @ keys.transpose(2, 3) * attention.head_dim**-0.5
    visible = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
    scores = scores.masked_fill(~visible, float("-inf"))
    out = (scores.softmax(dim=-1) @ values).transpose(1, 2).reshape(batch, tokens, -1)
    if length > held:  # room for the next token
        recent = held - sinks
        keep = lambda y: torch.cat([y[:, :, :sinks], y[:, :, length - recent :]], dim=2)
        k, v = keep(k), keep(v)
    layer_cache["k"], layer_cache["v"] = k, v
    return attention.o_proj(out)


def rotated_latent(model, x, first):
    positions = torch.arange(first, first + x.shape[2]).unsqueeze(0)
    cos, sin = model.model.rotary_emb(x, positions)
    apply = modeling_deepseek_v3.apply_rotary_pos_emb
    if model.config.rope_interleave:
        apply = modeling_deepseek_v3.apply_rotary_pos_emb_interleave
    return apply(x, x, cos, sin)[0]


def attend_to_latents(model, attention, x, layer_cache, held, sinks):
    batch, tokens, _ = x.shape
    if attention.q_lora_rank is None:
        q = attention.q_proj(x)
    else:
        q = attention.q_b_proj(attention.q_a_layernorm(attention.q_a_proj(x)))
    q = q.view(batch, tokens, -1, attention.qk_head_dim).transpose(1, 2)
    q_pass, q_rot = q.split([attention.qk_nope_head_dim, attention.qk_rope_head_dim], dim=-1)
    latent, k_rot = attention.kv_a_proj_with_mqa(x).split(
        [attention.kv_lora_rank, attention.qk_rope_head_dim], dim=-1
    )
    latent, k_rot = attention.kv_a_layernorm(latent)[:, None], k_rot[:, None]
    if layer_cache:
        latent = torch.cat([layer_cache["latent"], latent], dim=2)
        k_rot = torch.cat([layer_cache["k_rot"], k_rot], dim=2)
    length = latent.shape[2]
    q = torch.cat([q_pass, rotated_latent(model, q_rot, length - tokens)], dim=-1)
    keys, values = attention.expand_kv(latent, rotated_latent(model, k_rot, 0))
    scores = q @ keys.transpose(2, 3) * attention.scaling
    visible = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
    scores = scores.masked_fill(~visible, float("-inf"))
    out = (scores.softmax(dim=-1) @ values).transpose(1, 2).reshape(batch, tokens, -1)
    if length > held:  # room for the next token
        recent = held - sinks
        keep = lambda y: torch.cat([y[:, :, :sinks], y[:, :, length - recent :]], dim=2)
        latent, k_rot = keep(latent), keep(k_rot)
    layer_cache["latent"], layer_cache["k_rot"] = latent, k_rot
    return attention.o_proj(out)


def forward(model, tokens, cache, held, sinks):
    x = model.model.embed_tokens(tokens)
    attention = attend_to_latents if model.config.model_type == "deepseek_v3" else attend
    for layer, layer_cache in zip(model.model.layers, cache):
        x = x + attention(model, layer.self_attn, layer.input_layernorm(x), layer_cache, held, sinks)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(model.model.norm(x))[:, -1]


@torch.no_grad()
def greedy(name, sinks, window):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        FOLDER / name, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    prompt = json.loads((FOLDER / name / "expected.json").read_text())["prompt"]
    cache = [{} for _ in model.model.layers]
    tokens, out, margin = torch.tensor(prompt), [], float("inf")
    for _ in range(STEPS):
        logits = forward(model, tokens, cache, sinks + window - 1, sinks)
        best = logits.topk(2).values
        spread = logits.max(dim=-1).values - logits.min(dim=-1).values
        margin = min(margin, ((best[:, 0] - best[:, 1]) / spread).min().item())
        tokens = logits.argmax(dim=-1, keepdim=True)
        out.append(tokens)
    return {
        "checkpoint": name,
        "method": f"streaming:sinks={sinks},window={window}",
        "greedy": torch.cat(out, dim=1).tolist(),
        "smallest_margin": round(margin, 6),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    cases = [json.dumps(greedy(*case)) for case in CASES]
    (FOLDER / "streaming.json").write_text("[\n" + ",\n".join(cases) + "\n]\n")
