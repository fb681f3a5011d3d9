"""Tiny MLKV checkpoints (multi-layer key-value heads, arXiv:2406.09297) and their logits.

transformers has no such model, so the forward pass is written here, in float64: GPT-NeoX and Llama
with a `key` and a `value` projection in some layers only. Two meanings of "shared" are computed:
`paper`, the owner's rotated keys, in expected.*; and `released`, what the authors' code does
(zaydzuhri/pythia-mlkv, gpt_neox_mlkv/modeling_gpt_neox.py), in released.*: the owner's rotated keys
of earlier passes and its unrotated keys of the current one.
"""

import json
import math
import pathlib

import torch
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent
BATCH, PROMPT, GREEDY, MARGIN, MIN_DISTINCT = 2, 17, 64, 2e-3, 6
NEOX = {
    "model_type": "gpt_neox",
    "architectures": ["GPTNeoXForCausalLM"],
    "vocab_size": 73,
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_key_value_layers": 2,
    "intermediate_size": 59,
    "hidden_act": "gelu",
    "rotary_pct": 0.5,
    "rotary_emb_base": 10000,
    "max_position_embeddings": 128,
    "layer_norm_eps": 1e-5,
    "use_parallel_residual": True,
    "tie_word_embeddings": False,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "num_key_value_layers": 2,
    "head_dim": 8,
    "intermediate_size": 53,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


class Model:
    def __init__(self, config, generator):
        self.c, self.g, self.w = config, generator, {}
        c = config
        self.neox = c["model_type"] == "gpt_neox"
        self.hd = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
        self.rotary = int(self.hd * c.get("rotary_pct", 1))
        group = c["num_hidden_layers"] // c["num_key_value_layers"]
        self.owner = [i // group * group for i in range(c["num_hidden_layers"])]
        self.make()

    def matrix(self, name, rows, columns, bias, std=0.3):
        self.w[name + ".weight"] = std * torch.randn(rows, columns, generator=self.g)
        if bias:
            self.w[name + ".bias"] = 0.2 * torch.randn(rows, generator=self.g)

    def norm(self, name):
        d = self.c["hidden_size"]
        self.w[name + ".weight"] = 1 + 0.2 * torch.randn(d, generator=self.g)
        if self.neox:
            self.w[name + ".bias"] = 0.2 * torch.randn(d, generator=self.g)

    def make(self):
        c, d = self.c, self.c["hidden_size"]
        kv, width = c["num_key_value_heads"] * self.hd, c["intermediate_size"]
        prefix = "gpt_neox." if self.neox else "model."
        table, final = ("embed_in", "final_layer_norm") if self.neox else ("embed_tokens", "norm")
        self.matrix(prefix + table, c["vocab_size"], d, False, 1.0)
        self.norm(prefix + final)
        self.matrix("embed_out" if self.neox else "lm_head", c["vocab_size"], d, False)
        for i, owner in enumerate(self.owner):
            layer = f"{prefix}layers.{i}."
            self.norm(layer + "input_layernorm")
            self.norm(layer + "post_attention_layernorm")
            heads = c["num_attention_heads"] * self.hd
            names = self.names(i)
            self.matrix(names["q"], heads, d, self.neox)
            if owner == i:
                self.matrix(names["k"], kv, d, self.neox)
                self.matrix(names["v"], kv, d, self.neox)
            self.matrix(names["o"], d, heads, self.neox)
            if not self.neox:
                self.matrix(names["gate"], width, d, False)
            self.matrix(names["up"], width, d, self.neox)
            self.matrix(names["down"], d, width, self.neox)

    def names(self, i):
        if self.neox:
            layer = f"gpt_neox.layers.{i}."
            parts = {"q": "attention.query", "k": "attention.key", "v": "attention.value",
                     "o": "attention.dense", "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"}
        else:
            layer = f"model.layers.{i}."
            parts = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
                     "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
                     "down": "mlp.down_proj"}
        return {part: layer + name for part, name in parts.items()}

    # ---- the forward pass

    def linear(self, name, x):
        y = x @ self.w[name + ".weight"].double().T
        return y + self.w[name + ".bias"].double() if name + ".bias" in self.w else y

    def normed(self, name, x):
        w = self.w[name + ".weight"].double()
        if self.neox:
            x = x - x.mean(-1, keepdim=True)
            x = x / (x.pow(2).mean(-1, keepdim=True) + self.c["layer_norm_eps"]).sqrt()
            return x * w + self.w[name + ".bias"].double()
        return w * x / (x.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"]).sqrt()

    def rotated(self, x, first):
        base = self.c.get("rotary_emb_base", self.c.get("rope_theta"))
        half = self.rotary // 2
        frequency = base ** (-2 * torch.arange(half, dtype=torch.float64) / self.rotary)
        angle = torch.arange(first, first + x.shape[2], dtype=torch.float64)[:, None] * frequency
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)

    def attend(self, q, k, v):
        repeats = q.shape[1] // k.shape[1]
        k, v = (y.repeat_interleave(repeats, dim=1) for y in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.hd)
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v

    def forward(self, tokens, cache, released):
        """Logits [batch, tokens, vocab]; `cache` maps an owner to its rotated keys and values."""
        prefix = "gpt_neox." if self.neox else "model."
        table = "embed_in" if self.neox else "embed_tokens"
        x = self.w[prefix + table + ".weight"].double()[tokens]
        split = lambda y: y.view(*y.shape[:2], -1, self.hd).transpose(1, 2)
        merge = lambda y: y.transpose(1, 2).flatten(2)
        past, followers_keys = 0, {}
        if 0 in cache:
            past = cache[0][0].shape[2]
        for i, owner in enumerate(self.owner):
            name, layer = self.names(i), f"{prefix}layers.{i}."
            h = self.normed(layer + "input_layernorm", x)
            q = self.rotated(split(self.linear(name["q"], h)), past)
            if owner == i:
                raw, v = split(self.linear(name["k"], h)), split(self.linear(name["v"], h))
                k = self.rotated(raw, past)
                keys_then_raw = raw
                if i in cache:
                    keys_then_raw = torch.cat([cache[i][0], raw], dim=2)
                    k = torch.cat([cache[i][0], k], dim=2)
                    v = torch.cat([cache[i][1], v], dim=2)
                cache[i] = (k, v)
                followers_keys[i] = keys_then_raw if released else k
            k = cache[owner][0] if owner == i else followers_keys[owner]
            attended = self.linear(name["o"], merge(self.attend(q, k, cache[owner][1])))
            if self.neox:
                m = self.normed(layer + "post_attention_layernorm", x)
                m = torch.nn.functional.gelu(self.linear(name["up"], m))
                x = x + attended + self.linear(name["down"], m)
            else:
                x = x + attended
                m = self.normed(layer + "post_attention_layernorm", x)
                gate = torch.nn.functional.silu(self.linear(name["gate"], m))
                x = x + self.linear(name["down"], gate * self.linear(name["up"], m))
        final = "final_layer_norm" if self.neox else "norm"
        return self.linear("embed_out" if self.neox else "lm_head", self.normed(prefix + final, x))


def run(model, prompt, released):
    """The prompt's logits, the greedy path after it and what was the last step's logits."""
    cache = {}
    logits = model.forward(prompt, cache, released)
    last, path, margin = logits[:, -1], [], float("inf")
    for i in range(GREEDY):
        best = last.topk(2).values
        gaps = (best[:, 0] - best[:, 1]) / (last.amax(-1) - last.amin(-1))
        margin = min(margin, gaps.min().item())
        path.append(last.argmax(-1))
        if i + 1 < GREEDY:
            last = model.forward(path[-1][:, None], cache, released)[:, -1]
    greedy = torch.stack(path, 1)
    if margin < MARGIN or min(len(set(row)) for row in greedy.tolist()) < MIN_DISTINCT:
        return None
    notes = {
        "prompt": prompt.tolist(),
        "greedy_prompt": prompt.tolist(),
        "greedy": greedy.tolist(),
        "smallest_margin": margin,
    }
    tensors = {"logits": logits.float().contiguous(), "last_logits": last.float().contiguous()}
    return notes, tensors


def token_by_token(model, prompt, released):
    cache = {}
    return torch.cat([model.forward(prompt[:, i : i + 1], cache, released)
                      for i in range(prompt.shape[1])], dim=1)


def make(name, config):
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    for seed in range(1, 1000):
        generator = torch.Generator().manual_seed(seed)
        model = Model(config, generator)
        prompt = torch.randint(3, config["vocab_size"], (BATCH, PROMPT), generator=generator)
        results = {"expected": run(model, prompt, False), "released": run(model, prompt, True)}
        if all(results.values()):
            break
    stepped = token_by_token(model, prompt, False).float()
    assert torch.allclose(stepped, results["expected"][1]["logits"], atol=1e-5)
    results["released"][1]["stepped_logits"] = token_by_token(model, prompt, True).float()
    save_file(model.w, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    for kind, (notes, tensors) in results.items():
        notes.update(seed=seed, torch=torch.__version__.split("+")[0])
        save_file(tensors, folder / f"{kind}.safetensors")
        lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in notes.items()]
        (folder / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(name, "seed", seed, {k: v[0]["smallest_margin"] for k, v in results.items()}, size)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        make("mlkv_neox", NEOX)
        make("mlkv_llama", LLAMA)
