"""Writes kept_windows.json: what models with windows and chunks give where tokens of the prompt were dropped.

The kept tokens are random-prune's, drawn here anew. transformers reads the whole text with masks written here: a
query sees the kept keys that are not after it and that lie within its layer's window or chunk. The same follows from
the kept tokens alone at their own positions, which is checked, but for Llama 4: its temperature would go by places.
Each step reads the whole sequence again, without a cache.

    python make_kept_windows.py
"""

import json
import math
import pathlib

import torch
import transformers

FOLDER = pathlib.Path(__file__).parent
CASES = [
    ("gemma3_text", 0.5, 0),
    ("gemma3_text", 0.3, 4),
    ("gemma2", 0.6, 1),
    ("cohere2", 0.5, 2),
    ("gpt_oss", 0.5, 0),
    ("gpt_oss", 0.25, 3),
    ("llama4_text", 0.5, 0),
    ("llama4_text", 0.7, 5),
    ("qwen2_windowed", 0.6, 0),
    ("starcoder2", 0.5, 0),
    ("mixtral", 0.5, 0),
    ("mistral", 0.6, 6),
]
STEPS = 10
MASK = (1 << 64) - 1
# Where the two best logits are closer, rounding may choose the other.
LEAST_MARGIN = 1e-4


def importance(seed, tokens):
    """splitmix64 (Steele, Lea and Flood 2014), as random-prune draws."""
    drawn = []
    for _ in range(tokens):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        drawn.append((z ^ (z >> 31)) >> 11)
    return drawn


def kept_tokens(seed, tokens, keep):
    drawn = importance(seed, tokens)
    best = sorted(range(tokens), key=lambda i: -drawn[i])[: math.ceil(tokens * keep - 1e-9)]
    return sorted(best)


def mask(positions, kept, window=None, chunk=None):
    query, key = positions[:, :, None], positions[:, None, :]
    seen = (key <= query) & kept[:, None, :]
    if window:
        seen &= query - key < window
    if chunk:
        seen &= query // chunk == key // chunk
    lowest = torch.finfo(torch.float32).min
    return torch.where(seen, 0.0, lowest)[:, None]


def masks(config, positions, kept):
    """By the kinds of layers, or one for all."""
    window = config.sliding_window if hasattr(config, "sliding_window") else None
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return mask(positions, kept, window)
    of_kind = {"full_attention": mask(positions, kept)}
    if "sliding_attention" in kinds:
        of_kind["sliding_attention"] = mask(positions, kept, window)
    if "chunked_attention" in kinds:
        of_kind["chunked_attention"] = mask(positions, kept, chunk=config.attention_chunk_size)
    return of_kind


@torch.no_grad()
def answers(name, keep, seed):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        FOLDER / name, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    prompt = torch.tensor(json.loads((FOLDER / name / "expected.json").read_text())["prompt"])
    length = prompt.shape[1]
    left = torch.tensor([kept_tokens(seed + b, length, keep) for b in range(len(prompt))])
    kept = torch.zeros_like(prompt, dtype=torch.bool).scatter(1, left, True)

    def read(tokens, positions, kept):
        inputs = {"input_ids": tokens, "position_ids": positions, "use_cache": False}
        return model(**inputs, attention_mask=masks(model.config, positions, kept)).logits

    tokens, first, greedy, margin = prompt, None, [], float("inf")
    rows, last = torch.arange(len(prompt)), left[:, -1]
    for step in range(STEPS):
        positions = torch.arange(length + step).expand_as(tokens)
        logits = read(tokens, positions, kept)[rows, last]
        if model.config.model_type != "llama4_text":
            those = torch.cat([left, positions[:, length:]], dim=1)
            alone = read(tokens.gather(1, those), those, torch.ones_like(those, dtype=torch.bool))[:, -1]
            assert (alone - logits).abs().max() < 1e-4 * (logits.max() - logits.min())
        first = logits if first is None else first
        best = logits.topk(2).values
        spread = logits.max(dim=-1).values - logits.min(dim=-1).values
        margin = min(margin, ((best[:, 0] - best[:, 1]) / spread).min().item())
        next_tokens = logits.argmax(dim=-1, keepdim=True)
        greedy.append(next_tokens)
        tokens = torch.cat([tokens, next_tokens], dim=1)
        kept = torch.cat([kept, torch.ones_like(next_tokens, dtype=torch.bool)], dim=1)
        last = torch.full_like(last, length + step)
    assert margin > LEAST_MARGIN, (name, keep, seed, margin)
    whole = model(input_ids=prompt, use_cache=False).logits[:, -1]
    return {
        "checkpoint": name,
        "method": f"random-prune:keep={keep},seed={seed}",
        "kept": left.tolist(),
        "greedy": torch.cat(greedy, dim=1).tolist(),
        "smallest_margin": round(margin, 6),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "logits": [[round(x, 7) for x in row] for row in first.tolist()],
    }, (whole - first).abs().max().item()


if __name__ == "__main__":
    lines = []
    for case in CASES:
        answer, difference = answers(*case)
        assert difference > 1e-2, (case, difference)
        lines.append(json.dumps(answer))
    (FOLDER / "kept_windows.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
