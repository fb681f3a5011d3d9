#!/usr/bin/env python3
"""Writes specprefill.json: Speculative Prefill from a prompt to its generated tokens.

Independent of kvcast: the model llama_mha as its own speculator, in numpy and float64, after section
3 of Liu et al. 2025 (arXiv:2502.02789) and the order of steps of the authors' code
(Jingyu6/speculative_prefill, worker/look_ahead_spec_worker.py). The kept tokens keep their positions;
generated ones are counted on from the whole prompt's length.

    python make_specprefill.py
"""

import json
import math
import pathlib

import numpy as np
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "llama_mha"
GENERATED = 12
# Further apart than fp32 may order differently: the last kept from the first dropped chunk, as a
# share of its score, and the two best logits, as a share of the logits' range.
LEAST_GAP = 1e-4
LEAST_MARGIN = 1e-4
CASES = [
    {"sequence": 0, "keep": 0.5, "lookahead": 1, "pool": 1, "chunk": 0},
    {"sequence": 1, "keep": 0.3, "lookahead": 8, "pool": 1, "chunk": 0},
    {"sequence": 0, "keep": 0.4, "lookahead": 4, "pool": 5, "chunk": 0},
    {"sequence": 1, "keep": 0.5, "lookahead": 3, "pool": 3, "chunk": 4},
    {"sequence": 0, "keep": 0.25, "lookahead": 6, "pool": 13, "chunk": 5},
    {"sequence": 1, "keep": 1.0, "lookahead": 2, "pool": 1, "chunk": 0},
]


class Model:
    def __init__(self):
        self.config = json.loads((FOLDER / "config.json").read_text())
        tensors = load_file(FOLDER / "model.safetensors")
        self.w = {name: t.double().numpy() for name, t in tensors.items()}

    def norm(self, x, name):
        eps = self.config["rms_norm_eps"]
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.w[name + ".weight"]

    def rotated(self, x, positions):
        """x [tokens, heads, head_dim]; dimension d turns with d + head_dim / 2."""
        half = x.shape[-1] // 2
        angle = positions[:, None] * self.config["rope_theta"] ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def read(self, tokens, positions, cache):
        """The last token's logits, and by layer its rotated query [heads, head_dim]; the cache of
        rotated keys and values [tokens, heads, head_dim] by layer grows."""
        positions = np.asarray(positions, dtype=float)
        x = self.w["model.embed_tokens.weight"][tokens]
        heads, dim = self.config["num_attention_heads"], self.config["head_dim"]
        queries = []
        for i in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{i}."
            y = self.norm(x, name + "input_layernorm")
            q, k, v = ((y @ self.w[f"{name}self_attn.{p}_proj.weight"].T).reshape(-1, heads, dim)
                       for p in "qkv")
            q, k = self.rotated(q, positions), self.rotated(k, positions)
            queries.append(q[-1])
            past = 0
            if len(cache) > i:
                past = len(cache[i][0])
                k, v = np.concatenate([cache[i][0], k]), np.concatenate([cache[i][1], v])
                cache[i] = (k, v)
            else:
                cache.append((k, v))
            scores = np.einsum("thd,shd->hts", q, k) / math.sqrt(dim)
            later = np.arange(len(k))[None] > past + np.arange(len(tokens))[:, None]
            p = softmax(np.where(later[None], -np.inf, scores))
            o = np.einsum("hts,shd->thd", p, v).reshape(len(tokens), -1)
            x = x + o @ self.w[name + "self_attn.o_proj.weight"].T
            y = self.norm(x, name + "post_attention_layernorm")
            gate, up, down = (self.w[f"{name}mlp.{p}_proj.weight"].T for p in ("gate", "up", "down"))
            g = y @ gate
            x = x + (g / (1 + np.exp(-g)) * (y @ up)) @ down
        return self.norm(x[-1], "model.norm") @ self.w["lm_head.weight"].T, queries


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def best(logits):
    first, second = np.sort(logits)[::-1][:2]
    assert (first - second) / np.ptp(logits) > LEAST_MARGIN
    return int(np.argmax(logits))


def pooled(p, size):
    """Means over `size` neighbours; those beyond the ends count as 0."""
    half = size // 2
    padded = np.pad(p, ((0, 0), (0, 0), (half, half)))
    return sum(padded[..., s:s + p.shape[-1]] for s in range(size)) / size


def importance(model, prompt, lookahead, pool):
    n, cache = len(prompt), []
    logits, first = model.read(prompt, range(n), cache)
    prompt_keys = [k.copy() for k, _ in cache]
    queries = [[q] for q in first]
    for step in range(lookahead - 1):
        logits, more = model.read([best(logits)], [n + step], cache)
        for layer, q in zip(queries, more):
            layer.append(q)
    rows = []
    for layer, keys in zip(queries, prompt_keys):
        scores = np.einsum("jhd,shd->hjs", np.stack(layer), keys) / math.sqrt(keys.shape[-1])
        rows.append(pooled(softmax(scores), pool))  # before the maximum, as in the code
    return np.concatenate(rows).max(0).mean(0)


def choose(scores, keep, chunk):
    chunk = max(chunk, 1)
    parts = [list(range(s, min(s + chunk, len(scores)))) for s in range(0, len(scores), chunk)]
    means = np.array([scores[part].mean() for part in parts])
    count = math.ceil(len(parts) * keep - 1e-9)
    order = np.argsort(-means, kind="stable")
    if count < len(parts):
        last, dropped = means[order[count - 1]], means[order[count]]
        assert (last - dropped) / last > LEAST_GAP
    return [i for part in sorted(order[:count]) for i in parts[part]]


def generate(model, prompt, kept):
    cache = []
    logits, _ = model.read([prompt[i] for i in kept], kept, cache)
    tokens = [best(logits)]
    while len(tokens) < GENERATED:
        logits, _ = model.read(tokens[-1:], [len(prompt) + len(tokens) - 1], cache)
        tokens.append(best(logits))
    return tokens


def main():
    model = Model()
    expected = json.loads((FOLDER / "expected.json").read_text())
    lines = []
    for case in CASES:
        prompt = expected["prompt"][case["sequence"]]
        scores = importance(model, prompt, case["lookahead"], case["pool"])
        kept = choose(scores, case["keep"], case["chunk"])
        result = {"prompt": prompt, "importance": [float(f"{x:.9g}") for x in scores],
                  "kept": kept, "generated": generate(model, prompt, kept)}
        if case["keep"] == 1:  # transformers' own greedy tokens
            assert result["generated"] == expected["greedy"][case["sequence"]][:GENERATED]
        lines.append(" " + json.dumps(case | result))
    (HERE / "specprefill.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
