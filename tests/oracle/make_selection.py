"""Writes selection.json: which tokens Speculative Prefill keeps of random queries and keys.

Independent of kvcast: PyTorch in float64, after section 3 of Liu et al. 2025 (arXiv:2502.02789) and
the order of steps of the authors' code (Jingyu6/speculative_prefill,
worker/look_ahead_spec_worker.py). Queries and keys are not stored: both sides draw them from the
seed, by splitmix64, as multiples of 1/32 from -2 to 2.

    python make_selection.py
"""

import json
import math
import pathlib
import random

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
MASK = (1 << 64) - 1
CASES = 50
# Where the last kept and the first dropped score are closer, fp32 may order them differently.
LEAST_GAP = 1e-4


def numbers(state):
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        yield ((z >> 40) % 129 - 64) / 32


def draw(case):
    source = numbers(case["seed"])

    def tensor(rows, heads):
        values = [next(source) for _ in range(rows * heads * case["head_dim"])]
        return torch.tensor(values).view(rows, heads, case["head_dim"]).transpose(0, 1)

    layers = []
    for _ in range(case["layers"]):
        queries = tensor(case["queries"], case["heads"])
        layers.append((queries, tensor(case["prompt_len"], case["kv_heads"])))
    return layers


def importance(case):
    rows = []
    for queries, keys in draw(case):
        keys = keys.repeat_interleave(case["heads"] // case["kv_heads"], dim=0)
        scores = queries @ keys.transpose(1, 2) * case["head_dim"] ** -0.5
        p = torch.softmax(scores, dim=-1)
        if case["pool"]:
            p = F.avg_pool1d(p, case["pool"], stride=1, padding=case["pool"] // 2)
        rows.append(p)
    return torch.cat(rows).amax(dim=0).mean(dim=0)


def keep(case):
    """The kept positions, and how much the last kept chunk is ahead of the first dropped one."""
    scores = importance(case)
    chunk = case["chunk"] or 1
    parts = list(torch.split(torch.arange(case["prompt_len"]), chunk))
    means = torch.stack([scores[part].mean() for part in parts])
    count = math.ceil(len(parts) * case["keep"] - 1e-9)
    order = torch.sort(means, descending=True, stable=True).indices
    best = sorted(order[:count].tolist())
    gap = math.inf
    if count < len(parts):
        last, first = means[order[count - 1]], means[order[count]]
        gap = float((last - first) / last)
    return [int(i) for c in best for i in parts[c]], gap


def main():
    chooser = random.Random(227)
    cases = []
    while len(cases) < CASES:
        kv_heads = chooser.choice([1, 2, 3])
        case = {
            "seed": chooser.randrange(1 << 31),
            "layers": chooser.randint(1, 3),
            "kv_heads": kv_heads,
            "heads": kv_heads * chooser.choice([1, 2]),
            "head_dim": chooser.choice([4, 7, 8]),
            "queries": chooser.randint(1, 5),
            "prompt_len": chooser.randint(5, 75),
            "pool": chooser.choice([0, 0, 3, 5, 13]),
            "chunk": chooser.choice([0, 0, 4, 5, 8]),
            "keep": chooser.choice([0.01, 0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 1.0]),
        }
        kept, gap = keep(case)
        if gap < LEAST_GAP:
            continue
        cases.append(case | {"kept": kept})
    lines = ",\n".join(" " + json.dumps(case) for case in cases)
    path = pathlib.Path(__file__).parent / "selection.json"
    path.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
