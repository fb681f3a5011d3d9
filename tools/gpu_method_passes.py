"""kvcast's methods as passes of a small Llama in PyTorch, which tools/gpu_methods.py times.

A pass does what kvcast records for it: the operators of `kvcast estimate --breakdown`, each as the
kernels that transformers' eager code takes for it.
"""

import dataclasses
import functools
import json
import math
import os

import torch
import torch.nn.functional as F
from torch import nn

CATALOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "models")


# --- models --------------------------------------------------------------------------------------


def read_config(name):
    path = name if os.path.exists(name) else os.path.join(CATALOG, name + ".json")
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        with open(path) as file:
            config = json.load(file)
    except OSError:
        raise ValueError(f"model {name}: no such file in data/models; expected a catalog name or "
                         "a config.json")
    config.pop("_kvcast", None)
    return config


@dataclasses.dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    theta: float
    eps: float
    owners: int = 0  # layers with keys and values of their own; 0: all

    @staticmethod
    def read(name):
        c = read_config(name)
        if c.get("model_type") != "llama" or c.get("attention_bias") or c.get("mlp_bias"):
            raise ValueError(f"model {name}: got a {c.get('model_type')}; expected a llama "
                             "without biases")
        # Scaled frequencies (rope_scaling) change no time, so they are left out.
        heads = c["num_attention_heads"]
        return Shape(hidden=c["hidden_size"], intermediate=c["intermediate_size"],
                     layers=c["num_hidden_layers"], heads=heads,
                     kv_heads=c.get("num_key_value_heads", heads),
                     head_dim=c.get("head_dim") or c["hidden_size"] // heads,
                     vocab=c["vocab_size"], tied=bool(c.get("tie_word_embeddings")),
                     theta=c.get("rope_theta", 10000.0), eps=c["rms_norm_eps"])

    def owner(self, layer):
        group = self.layers // (self.owners or self.layers)
        return layer // group * group


class RmsNorm(nn.Module):
    """Kernel by kernel as transformers' LlamaRMSNorm, and so is rotate(): `eager` in engines."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x, rope):
    cos, sin = rope
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def last_places(rope, count):
    return tuple(r[:, :, -count:] for r in rope)


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


class Layer(nn.Module):
    def __init__(self, shape, owns_keys):
        super().__init__()
        self.shape = shape
        self.attention_norm = RmsNorm(shape.hidden, shape.eps)
        self.mlp_norm = RmsNorm(shape.hidden, shape.eps)
        self.query = linear(shape.hidden, shape.heads * shape.head_dim)
        if owns_keys:
            self.key = linear(shape.hidden, shape.kv_heads * shape.head_dim)
            self.value = linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.output = linear(shape.heads * shape.head_dim, shape.hidden)
        self.gate = linear(shape.hidden, shape.intermediate)
        self.up = linear(shape.hidden, shape.intermediate)
        self.down = linear(shape.intermediate, shape.hidden)

    def by_head(self, x):
        """[batch, tokens, features] as [batch, heads, tokens, head_dim]."""
        return x.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, shape.owner(i) == i) for i in range(shape.layers))
        self.norm = RmsNorm(shape.hidden, shape.eps)
        self.head = linear(shape.hidden, shape.vocab)
        if shape.tied:
            self.head.weight = self.embedding.weight
        powers = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        self.frequencies = shape.theta ** -powers

    def rope(self, places):
        angles = places[..., None].float() * self.frequencies
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        dtype = self.norm.weight.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(self, ids, places, attend, reads_out=True):
        """`attend(index, layer, x, rope)`: [batch, tokens, heads * head_dim], by the method."""
        x = self.embedding(ids)
        rope = self.rope(places)
        for index, layer in enumerate(self.layers):
            x = x + layer.output(attend(index, layer, layer.attention_norm(x), rope))
            h = layer.mlp_norm(x)
            x = x + layer.down(F.silu(layer.gate(h)) * layer.up(h))
        return self.head(self.norm(x[:, -1:])) if reads_out else None


def build(module, setup):
    """Random weights, made where and as wide as they are needed."""
    torch.set_default_dtype(setup.dtype)
    try:
        with torch.device(setup.device):
            return module().eval()
    finally:
        torch.set_default_dtype(torch.float32)


@dataclasses.dataclass
class Setup:
    device: str
    dtype: torch.dtype
    batch: int
    prompt: int
    steps: int


# --- attention -----------------------------------------------------------------------------------


def tiled_attention(q, k, v):
    grouped = k.shape[1] < q.shape[1]
    o = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=grouped)
    return o.transpose(1, 2).flatten(2)


def causal_mask(q, k):
    queries, keys = q.shape[2], k.shape[2]
    whole = torch.full((queries, keys), -math.inf, device=q.device, dtype=q.dtype)
    return whole.triu(keys - queries + 1)


def probabilities(q, k, mask):
    """As transformers' eager attention: the mask is added and the softmax is in fp32."""
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)


def eager_attention(q, k, v, mask):
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
    return (probabilities(q, k, mask) @ v).transpose(1, 2).flatten(2)


# --- methods -------------------------------------------------------------------------------------


class Plain:
    """The unchanged model. Others change what the prompt's pass or a layer's attention does."""

    attention = decode_attention = "tiled"
    options = {}

    @classmethod
    def base(cls, shape, options):
        return shape

    def __init__(self, model, setup, options):
        self.model, self.shape, self.setup = model, model.shape, setup
        self.places = torch.arange(setup.prompt + setup.steps, device=setup.device)[None]
        self.cached = setup.prompt  # rows after the prompt
        self.make_caches(options)

    def make_caches(self, options):
        self.keys, self.values = self.caches(self.shape, self.setup.prompt + self.setup.steps)

    def caches(self, shape, rows):
        # Not zeros, for which a device draws less power: some decode steps follow no prompt.
        size = (self.setup.batch, shape.kv_heads, rows, shape.head_dim)
        return ([torch.randn(size, device=self.setup.device, dtype=self.setup.dtype)
                 if shape.owner(i) == i else None for i in range(shape.layers)] for _ in range(2))

    def attend(self, index, layer, x, rope, past):
        owner, end = self.shape.owner(index), past + x.shape[1]
        q = rotate(layer.by_head(layer.query(x)), rope)
        k, v = self.keys[owner][:, :, :end], self.values[owner][:, :, :end]
        if owner == index:
            k[:, :, past:] = rotate(layer.by_head(layer.key(x)), rope)
            v[:, :, past:] = layer.by_head(layer.value(x))
        if self.attention == "tiled":
            return tiled_attention(q, k, v)
        return eager_attention(q, k, v, self.mask(index, q, k))

    def mask(self, index, q, k):
        if index == 0:  # one for all layers
            self.causal = causal_mask(q, k)
        return self.causal

    def read(self, ids, places, past):
        return self.model(ids, places, functools.partial(self.attend, past=past))

    def prompt(self, ids):
        """TTFT's work. Returns the logits of the last position."""
        return self.read(ids, self.places[:, :self.setup.prompt], 0)

    def settle(self):
        """What a run does once after the prompt, untimed."""

    def step(self, token, i):
        place = self.setup.prompt + i
        return self.read(token, self.places[:, place:place + 1], self.cached + i)


class PlainEager(Plain):
    attention = decode_attention = "eager"


class Kvp(Plain):
    """The auxiliary reads all tokens but the last; linear maps make its cache the base's."""

    options = {"auxiliary": None}

    def make_caches(self, options):
        super().make_caches(options)
        self.predicted = self.setup.prompt - 1
        name, n = options["auxiliary"], self.shape.layers
        keeps = {"lp-0.75": lambda i: i % 4 != 3, "lp-0.50": lambda i: i % 2 == 0,
                 "lp-0.25": lambda i: i % 4 == 0}
        if name in keeps:  # each base layer has the last kept layer up to it
            kept = [keeps[name](i) for i in range(n)]
            source, shape = [sum(kept[:i + 1]) - 1 for i in range(n)], self.shape
        else:  # the first n mod m of m auxiliary layers serve one base layer more than the others
            shape = Shape.read(name)
            quotient, more = divmod(n, shape.layers)
            source = [j for j in range(shape.layers) for _ in range(quotient + (j < more))]
        shape = dataclasses.replace(shape, layers=source[-1] + 1)  # layers above it are not needed
        self.served = [[i for i in range(n) if source[i] == j] for j in range(shape.layers)]
        self.auxiliary = build(lambda: Llama(shape), self.setup)
        widths = shape.kv_heads * shape.head_dim, self.shape.kv_heads * self.shape.head_dim
        maps = [build(lambda: linear(*widths, bias=True), self.setup) for _ in range(2 * n)]
        self.key_maps, self.value_maps = maps[:n], maps[n:]

    def prompt(self, ids):
        n = self.predicted
        places = self.places[:, :n]
        predict = functools.partial(self.predict, base_rope=self.model.rope(places))
        self.auxiliary(ids[:, :-1], places, predict, reads_out=False)
        return self.read(ids[:, -1:], self.places[:, n:n + 1], n)

    def predict(self, index, layer, x, rope, base_rope):
        q = rotate(layer.by_head(layer.query(x)), rope)
        k, v = layer.key(x), layer.value(x)
        base = self.model.layers[0]
        for i in self.served[index]:
            keys, values = (c[i][:, :, :self.predicted] for c in (self.keys, self.values))
            keys.copy_(rotate(base.by_head(self.key_maps[i](k)), base_rope))
            values.copy_(base.by_head(self.value_maps[i](v)))
        return tiled_attention(q, rotate(layer.by_head(k), rope), layer.by_head(v))


class Mlkv(Plain):
    """Some layers keep keys and values, of fewer heads; MLPs are as much wider."""

    options = {"layers": None, "heads": None}

    @classmethod
    def base(cls, shape, options):
        owners, heads = int(options["layers"]), int(options["heads"])
        if shape.layers % owners or shape.kv_heads % heads:
            raise ValueError(f"mlkv: got {owners} layers and {heads} heads; expected divisors of "
                             f"{shape.layers} and {shape.kv_heads}")
        lost = shape.kv_heads * shape.layers - heads * owners
        of_layer = lost * shape.head_dim * 2 * shape.hidden // shape.layers
        added = round(of_layer / shape.hidden) // 3  # as kvcast's widen=preserve
        return dataclasses.replace(shape, owners=owners, kv_heads=heads,
                                   intermediate=shape.intermediate + added)


class Streaming(Plain):
    """The first and last rows stay. Every read rotates all keys, by their rows."""

    options = {"sinks": None, "window": None}

    def make_caches(self, options):
        super().make_caches(options)
        self.sinks = int(options["sinks"])
        self.rows = self.sinks + int(options["window"]) - 1
        if self.setup.prompt < 2 * self.rows - self.sinks:  # they would overlap as they move
            raise ValueError("streaming: got a short prompt; expected twice the window or more")
        # PyTorch does not copy rows onto overlapping ones, so steps take turns at two caches.
        self.others = [[x[:, :, :self.rows + 1].clone() for x in caches]
                       for caches in (self.keys, self.values)]

    def settle(self):  # a cache that moves in place would have its first rows
        for caches, others in zip((self.keys, self.values), self.others):
            for cache, other in zip(caches, others):
                other[:, :, :self.sinks] = cache[:, :, :self.sinks]

    def prompt(self, ids):
        self.turn = 0
        return self.read(ids, self.places[:, :self.setup.prompt], 0)

    def step(self, token, i):
        self.turn = i
        return self.read(token, self.places[:, :self.rows + 1], self.rows)

    def attend(self, index, layer, x, rope, past):
        end = past + x.shape[1]
        pairs = [(c[index], o[index]) for c, o in zip((self.keys, self.values), self.others)]
        if self.turn % 2:
            pairs = [(o, c) for c, o in pairs]
        q = rotate(layer.by_head(layer.query(x)), last_places(rope, x.shape[1]))
        (keys, _), (values, _) = pairs
        keys[:, :, past:end] = layer.by_head(layer.key(x))
        values[:, :, past:end] = layer.by_head(layer.value(x))
        o = tiled_attention(q, rotate(keys[:, :, :end], rope), values[:, :, :end])
        for cache, other in pairs:  # the prompt's rows that stay move within the cache
            to = cache if past == 0 else other
            to[:, :, self.sinks:self.rows] = cache[:, :, end - (self.rows - self.sinks):end]
        return o


class Slim(Plain):
    """One cache of keys or of inputs, of which every read makes keys and values."""

    options = {"option": None, "order": "optimized"}

    @classmethod
    def base(cls, shape, options):
        if shape.kv_heads != shape.heads or shape.heads * shape.head_dim != shape.hidden:
            raise ValueError("slim: got fewer key-value heads; expected as many as query heads")
        return shape

    def make_caches(self, options):
        if options["option"] not in ("kcache", "xcache"):
            raise ValueError(f"slim: got option={options['option']}; expected kcache or xcache")
        self.keeps_keys = options["option"] == "kcache"
        self.optimized = options["order"] == "optimized"
        # No fused kernel reads one cache as keys and as values of all heads.
        self.decode_attention = "eager" if self.optimized else "tiled"
        # By rows, so that those in use are contiguous for any batch.
        size = (self.setup.prompt + self.setup.steps, self.setup.batch, self.shape.hidden)
        self.kept = [torch.randn(size, device=self.setup.device, dtype=self.setup.dtype)
                     for _ in range(self.shape.layers)]

    def step(self, token, i):
        end = self.cached + i + 1
        return self.read(token, self.places[:, :end], end - 1)

    def attend(self, index, layer, x, rope, past):
        tokens = x.shape[1]
        rows = self.kept[index][:past + tokens]
        rows[past:] = (layer.key(x) if self.keeps_keys else x).transpose(0, 1)

        def heads(y):  # [rows, batch, features] as [batch, heads, rows, head_dim]
            return y.unflatten(-1, (-1, self.shape.head_dim)).permute(1, 2, 0, 3)

        q = rotate(layer.by_head(layer.query(x)), last_places(rope, tokens))
        keys = rotate(heads(rows if self.keeps_keys else layer.key(rows)), rope)
        if tokens > 1 or not self.optimized:  # `value` is the map from keys with kcache
            return tiled_attention(q, keys, heads(layer.value(rows)))
        p = probabilities(q, keys, self.mask(index, q, keys)).squeeze(2)
        sums = p @ rows.transpose(0, 1)  # [batch, heads, hidden]: of whole rows
        maps = layer.value.weight.unflatten(0, (-1, self.shape.head_dim)).transpose(1, 2)
        return (sums.transpose(0, 1) @ maps).transpose(0, 1).flatten(1).unsqueeze(1)


class RandomPrune(Plain):
    """A share of the tokens, at their own places."""

    options = {"keep": None}

    def make_caches(self, options):
        super().make_caches(options)
        self.cached = math.ceil(float(options["keep"]) * self.setup.prompt)
        kept = [torch.randperm(self.setup.prompt)[:self.cached].sort().values
                for _ in range(self.setup.batch)]
        self.kept = torch.stack(kept).to(self.setup.device)

    def prompt(self, ids):
        return self.read(ids.gather(1, self.kept), self.kept, 0)


class SpecPrefill(Plain):
    """A speculator reads the prompt and looks ahead; the base reads what it attended to most."""

    options = {"speculator": "", "keep": None, "lookahead": "8", "chunk": "1", "pool": "1"}

    def make_caches(self, options):
        super().make_caches(options)
        name, prompt = options["speculator"], self.setup.prompt
        self.queries, self.chunk, self.pool = (int(options[key])
                                               for key in ("lookahead", "chunk", "pool"))
        if prompt % self.chunk or self.pool % 2 == 0:
            raise ValueError("specprefill: got a shorter last chunk or an even pool; expected "
                             "whole chunks and an odd number")
        self.kept_chunks = math.ceil(prompt // self.chunk * float(options["keep"]))
        self.cached = self.kept_chunks * self.chunk
        self.speculator = self.model
        if name:
            shape = Shape.read(name)
            self.speculator = build(lambda: Llama(shape), self.setup)
        shape = self.speculator.shape
        places = prompt + max(self.setup.steps, self.queries)
        self.places = torch.arange(places, device=self.setup.device)[None]
        self.spec_keys, self.spec_values = self.caches(shape, prompt + self.queries)
        size = (self.setup.batch, shape.heads, self.queries, shape.head_dim)
        self.spec_queries = [torch.zeros(size, device=self.setup.device, dtype=self.setup.dtype)
                             for _ in range(shape.layers)]

    def speculate(self, index, layer, x, rope, step):
        end = self.setup.prompt + step
        past = end - x.shape[1]
        q = rotate(layer.by_head(layer.query(x)), rope)
        k = self.spec_keys[index][:, :, :end]
        k[:, :, past:] = rotate(layer.by_head(layer.key(x)), rope)
        v = layer.by_head(layer.value(x))
        if self.queries > 1:  # scores alone do not read values
            self.spec_values[index][:, :, past:end] = v
            v = self.spec_values[index][:, :, :end]
        o = tiled_attention(q, k, v)
        self.spec_queries[index][:, :, step] = q[:, :, -1]
        return o

    def importance(self):
        prompt, most = self.setup.prompt, None
        for q, k in zip(self.spec_queries, self.spec_keys):
            groups = k.shape[1]
            q = q.unflatten(1, (groups, -1)).flatten(2, 3)  # queries of a group side by side
            scores = q @ k[:, :, :prompt].transpose(2, 3) * q.shape[-1] ** -0.5
            p = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype).flatten(1, 2)
            if self.pool > 1:
                p = F.avg_pool1d(p, self.pool, stride=1, padding=self.pool // 2)
            p = p.unflatten(1, (-1, self.queries)).amax(1)
            most = p if most is None else torch.maximum(most, p)
        return most.mean(1)

    def prompt(self, ids):
        n = self.setup.prompt
        logits = self.speculator(ids, self.places[:, :n], functools.partial(self.speculate, step=0))
        for j in range(1, self.queries):
            logits = self.speculator(logits.argmax(-1), self.places[:, n + j - 1:n + j],
                                     functools.partial(self.speculate, step=j))
        scores = self.importance().unflatten(1, (-1, self.chunk)).mean(-1)
        chunks = scores.topk(self.kept_chunks, dim=-1).indices.sort(dim=-1).values
        self.kept = (chunks[:, :, None] * self.chunk + self.places[0, :self.chunk]).flatten(1)
        return self.read(ids.gather(1, self.kept), self.kept, 0)


METHODS = {"plain": Plain, "kvp": Kvp, "mlkv": Mlkv, "streaming": Streaming, "slim": Slim,
           "random-prune": RandomPrune, "specprefill": SpecPrefill}


def parse_method(text):
    name, _, rest = text.partition(":")
    if name not in METHODS:
        raise ValueError(f"method {text}: expected one of {', '.join(METHODS)}")
    given = dict(option.split("=", 1) for option in rest.split(",") if "=" in option)
    unknown = set(given) - set(METHODS[name].options)
    options = {**METHODS[name].options, **given}
    missing = [key for key, value in options.items() if value is None]
    if unknown or missing:
        raise ValueError(f"method {text}: expected the options {', '.join(options) or 'none'}")
    return METHODS[name], options
