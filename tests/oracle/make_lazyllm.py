"""Writes lazyllm/ and lazyllm_windowed/: progressive token pruning from a prompt to its generated tokens.

Independent of kvcast: a Llama of six layers with random weights, and a Qwen2 of eight, some with windows, in numpy
and float64, after sections 3 and 4 of Fu et al. 2024 (LazyLLM, arXiv:2407.14057), with the linear retention of Horton et al. 2024 (arXiv:2410.08391), section 5.
A token has keys and values in the layers that have seen it, and one hidden state in the Aux Cache, the
output of the last of them; both are kept in dictionaries by token. Each pass chooses anew which tokens the
next layer sees; chosen ones that it has not seen yet go through it beside the pass's own token. A window
shows tokens by their positions, and only a layer without one chooses.

    python make_lazyllm.py
"""

import json
import math
import pathlib

import make_specprefill
import numpy as np
from make_specprefill import LEAST_GAP, Model, best, softmax
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "lazyllm"
WINDOWED = HERE / "lazyllm_windowed"
SEED = 11
PROMPT = 23
GENERATED = 14
CASES = [
    {"begin": 0.6, "end": 0.6, "from": 0.3, "to": 0.9},  # one choice
    {"begin": 0.7, "end": 0.3, "from": 0.3, "to": 0.9},
    {"begin": 0.5, "end": 0.2, "from": 0.1, "to": 0.6},
    {"begin": 0.9, "end": 0.15, "from": 0.2, "to": 0.95},
]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "vocab_size": 61,
    "intermediate_size": 20, "num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 8, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "max_position_embeddings": 128,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32",
}
WINDOWED_CONFIG = CONFIG | {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 8,
    "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0,
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"] * 2,
}
WINDOWED_CASES = [
    {"begin": 0.6, "end": 0.6, "from": 0.3, "to": 0.9},
    {"begin": 0.8, "end": 0.3, "from": 0.1, "to": 0.9},
    {"begin": 0.5, "end": 0.2, "from": 0.1, "to": 0.6},
]


def write_checkpoint(rng, folder, c):
    d, f = c["hidden_size"], c["intermediate_size"]

    def weight(rows, columns, spread):
        return (rng.standard_normal((rows, columns)) * spread / math.sqrt(columns)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": weight(c["vocab_size"], d, 4.0),
               "lm_head.weight": weight(c["vocab_size"], d, 1.0),
               "model.norm.weight": np.ones(d, np.float32)}
    for i in range(c["num_hidden_layers"]):
        name = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}{norm}.weight"] = np.ones(d, np.float32)
        for part in "qkvo":
            tensors[f"{name}self_attn.{part}_proj.weight"] = weight(d, d, 1.5)
            if c["model_type"] == "qwen2" and part != "o":
                tensors[f"{name}self_attn.{part}_proj.bias"] = np.zeros(d, np.float32)
        tensors[name + "mlp.gate_proj.weight"] = weight(f, d, 1.0)
        tensors[name + "mlp.up_proj.weight"] = weight(f, d, 1.0)
        tensors[name + "mlp.down_proj.weight"] = weight(d, f, 1.0)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def retention(case, layer, layers):
    depth = (layer + 0.5) / layers
    if layer == 0 or depth < case["from"]:
        return 1.0
    if depth >= case["to"]:
        return case["end"]
    passed = (depth - case["from"]) / (case["to"] - case["from"])
    return case["begin"] + (case["end"] - case["begin"]) * passed


class Lazy:
    def __init__(self, model, case):
        self.m = model
        self.layers = model.config["num_hidden_layers"]
        kinds = model.config.get("layer_types", ["full_attention"] * self.layers)
        self.windows = [model.config["sliding_window"] if k == "sliding_attention" else math.inf for k in kinds]
        self.shares = []
        for i in range(self.layers):
            chooses = i == 0 or self.windows[i - 1] == math.inf
            self.shares.append(retention(case, i, self.layers) if chooses else self.shares[-1])
        self.cache = [{} for _ in range(self.layers)]  # by layer: token -> (key, value)
        self.aux = {}  # token -> (layer whose output it is, hidden state)

    def layer(self, i, new, seen):
        """Layer i on hidden states `new` {token: row}, attending to the tokens `seen`; what comes out, and
        the last token's mean probabilities."""
        m, name = self.m, f"model.layers.{i}."
        heads, dim = m.config["num_attention_heads"], m.config["head_dim"]
        tokens = sorted(new)
        x = np.stack([new[t] for t in tokens])
        y = m.norm(x, name + "input_layernorm")
        q, k, v = ((y @ m.w[f"{name}self_attn.{p}_proj.weight"].T).reshape(-1, heads, dim) for p in "qkv")
        positions = np.asarray(tokens, dtype=float)
        q, k = m.rotated(q, positions), m.rotated(k, positions)
        for t, key, value in zip(tokens, k, v):
            assert t not in self.cache[i]  # each layer sees each token once
            self.cache[i][t] = (key, value)
        keys = np.stack([self.cache[i][t][0] for t in seen])
        values = np.stack([self.cache[i][t][1] for t in seen])
        scores = np.einsum("thd,shd->hts", q, keys) / math.sqrt(dim)
        distance = np.asarray(tokens)[:, None] - np.asarray(seen)[None]
        hidden = (distance < 0) | (distance >= self.windows[i])
        p = softmax(np.where(hidden[None], -np.inf, scores))
        o = np.einsum("hts,shd->thd", p, values).reshape(len(tokens), -1)
        x = x + o @ m.w[name + "self_attn.o_proj.weight"].T
        y = m.norm(x, name + "post_attention_layernorm")
        gate, up, down = (m.w[f"{name}mlp.{n}_proj.weight"].T for n in ("gate", "up", "down"))
        g = y @ gate
        x = x + (g / (1 + np.exp(-g)) * (y @ up)) @ down
        return dict(zip(tokens, x)), p[:, -1].mean(0)

    def choose(self, seen, importance, count):
        """The last token and those with most of its attention."""
        order = np.argsort(-importance[:-1], kind="stable")
        if count - 1 < len(order) and count > 1:
            last, dropped = importance[order[count - 2]], importance[order[count - 1]]
            assert (last - dropped) / last > LEAST_GAP
        return sorted([seen[j] for j in order[: count - 1]] + [seen[-1]])

    def read(self, ids, first):
        """The last token's logits, and how many tokens each layer has taken back."""
        new = {first + j: self.m.w["model.embed_tokens.weight"][t] for j, t in enumerate(ids)}
        current = first + len(ids) - 1
        context = current + 1
        seen = list(range(context))
        revived = []
        for i in range(self.layers):
            new, importance = self.layer(i, new, seen)
            for t, state in new.items():
                self.aux[t] = (i, state)
            if i + 1 == self.layers:
                break
            if self.shares[i + 1] != self.shares[i]:
                seen = self.choose(seen, importance, math.ceil(context * self.shares[i + 1] - 1e-9))
            missing = [t for t in seen if t not in self.cache[i + 1]]
            assert all(self.aux[t][0] == i for t in missing)
            new = {t: self.aux[t][1] for t in missing}
            revived.append(len([t for t in missing if t < first]))
        logits = self.m.norm(new[current], "model.norm") @ self.m.w["lm_head.weight"].T
        return logits, revived


def write_cases(rng, folder, config, cases):
    write_checkpoint(rng, folder, config)
    make_specprefill.FOLDER = folder
    model = Model()
    lines = []
    for case in cases:
        prompt = [int(t) for t in rng.integers(0, config["vocab_size"], PROMPT)]
        lazy = Lazy(model, case)
        logits, _ = lazy.read(prompt, 0)
        kept = [len(c) for c in lazy.cache]
        tokens, revived = [best(logits)], []
        while len(tokens) < GENERATED:
            logits, more = lazy.read(tokens[-1:], len(prompt) + len(tokens) - 1)
            tokens.append(best(logits))
            revived.append(more)
        result = {"prompt": prompt, "kept": kept, "generated": tokens, "revived": revived,
                  "cached": [len(c) for c in lazy.cache]}
        lines.append(" " + json.dumps(case | result))
    (folder / "results.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main():
    write_cases(np.random.default_rng(SEED), FOLDER, CONFIG, CASES)
    write_cases(np.random.default_rng(SEED + 1), WINDOWED, WINDOWED_CONFIG, WINDOWED_CASES)

    # Without pruning it is the plain model, as transformers computes it.
    expected = json.loads((HERE / "llama_mha" / "expected.json").read_text())
    make_specprefill.FOLDER = HERE / "llama_mha"
    full = Lazy(Model(), {"begin": 1, "end": 1, "from": 0.3, "to": 0.9})
    tokens, prompt = [], expected["prompt"][0]
    logits, _ = full.read(prompt, 0)
    for _ in range(GENERATED):
        tokens.append(best(logits))
        logits, _ = full.read(tokens[-1:], len(prompt) + len(tokens) - 1)
    assert tokens == expected["greedy"][0][:GENERATED]


if __name__ == "__main__":
    main()
