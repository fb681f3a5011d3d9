#!/usr/bin/env python3
"""Gradients, losses and steps of AdamW that PyTorch computes in float64 from the tiny checkpoints.

For each case gradients/NAME.safetensors has the gradient of every stored tensor under its own name,
`loss` (the mean over all next tokens of the prompts in expected.json, with a z-loss of `z`), and
for some cases the losses and weights of five steps of AdamW on that batch. The case kvp is KV
Prediction's objective on the pair that make_kvp.py has made, with CONSISTENCY as the weight of the
difference of keys and values: gradients of the auxiliary model and of the linear maps. Models of
make_mlkv.py have a case for each meaning of "shared", NAME and NAME.released.

Usage: make_gradients.py [NAME ...]      (none: all cases)
"""

import contextlib
import json
import pathlib
import sys
import tempfile

import cases
import cases_states
import cases_today
import make_kvp
import make_mlkv
import openelm
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
CASES = """afmoe apertus arcee cohere2 cohere_qk_norm deepseek_v2 deepseek_v3 deepseek_v32 dots1
ernie4_5 ernie4_5_moe exaone4 falcon_7b falcon_h1 gemma gemma2 gemma3_text gemma3_wrapped gemma3n_text_full glm
glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt2 gpt_neox gpt_oss granite granite_swa granitemoe
granitemoehybrid hunyuan_v1_dense hunyuan_v1_moe jamba lfm2 lfm2_moe llama4_text llama_biases
llama_gqa_llama3_rope llava_wrapped minicpm3 minimax_m2 ministral3 ministral_layer_types mistral mistral3_wrapped mistral4
mixtral nemotron nemotron_h olmo olmo2 olmo3 olmoe openelm opt phi phi3_longrope phimoe qwen2
qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen3_vl_moe_wrapped qwen3_vl_wrapped seed_oss smollm3 stablelm
starcoder2""".split()
KNOWN = {**cases.all_cases(), **cases_today.all_cases(), **cases_states.all_cases()}
STEPPED = ["gpt2", "llama_gqa_llama3_rope"]
Z = 1e-3
CONSISTENCY = 0.5
# Steps of AdamW: rate, decay (not of vectors), clipping norm.
RATE, DECAY, CLIP, STEPS = 1e-2, 0.1, 0.5, 5


@contextlib.contextmanager
def float64_throughout():
    """transformers normalises, mixes states and takes softmaxes in fp32: here in float64."""
    to, as_float, softmax = torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax

    def kept_wide(x, *args, **kwargs):
        narrows = any(a is torch.float32 for a in (*args, *kwargs.values()))
        return x if narrows and x.dtype == torch.float64 else to(x, *args, **kwargs)

    def wide_softmax(x, *args, dtype=None, **kwargs):
        return softmax(x, *args, **kwargs)

    torch.Tensor.to = kept_wide
    torch.Tensor.float = lambda x: kept_wide(x, torch.float32)
    torch.nn.functional.softmax = wide_softmax
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float = to, as_float
        torch.nn.functional.softmax = softmax


def cross_entropy(logits, targets):
    lse = torch.logsumexp(logits, -1)
    picked = logits.gather(-1, targets[..., None])[..., 0]
    return (lse - picked + Z * lse**2).mean()


def loss_of(model, prompts):
    return cross_entropy(model(prompts[:, :-1], use_cache=False).logits, prompts[:, 1:])


def name_of_text(name, prefix="model."):
    """Of a tensor of the text model within one that sees images, as the text model alone has it."""
    for wrapped in ("model.language_model.", "language_model.model."):
        name = name.replace(wrapped, prefix)
    return name.replace("language_model.lm_head", "lm_head")


def stored_gradients(folder, model):
    """By the names of the file, which holds some tensors twice or only for show."""
    stored = load_file(folder / "model.safetensors")
    if any("experts" in name or "moe" in name for name in stored):
        # The file has the experts apart: a model of gradients is saved as one of weights is.
        with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
            for p in model.parameters():
                p.copy_(p.grad if p.grad is not None else torch.zeros_like(p))
            model.to(torch.float32).save_pretrained(scratch)
            saved = load_file(pathlib.Path(scratch) / "model.safetensors")
        # A router's correction is moved by other rules than gradients.
        corrections = ("correction", "expert_bias")
        kept = [n for n in stored if n in saved and not any(c in n for c in corrections)]
        # Qwen3-VL's published experts have columns where transformers has rows.
        return {n: saved[n] if saved[n].shape == stored[n].shape else saved[n].mT.contiguous() for n in kept}
    by_name = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    found = {}
    for name in stored:
        name = name.replace("backbone.", "model.")  # of Nemotron-H
        for candidate in (name, "transformer." + name, "model." + name, name_of_text(name, "model.language_model.")):
            if candidate in by_name:
                found[name] = by_name[candidate].to(torch.float32).contiguous().clone()
    return found


def write(name):
    folder = HERE / name
    prompts = torch.tensor(json.loads((folder / "expected.json").read_text())["prompt"])
    def load():
        if KNOWN[name].family is openelm:
            config = json.loads((folder / "config.json").read_text())
            return openelm.load(config, folder / "model.safetensors").double()
        model = KNOWN[name].family.from_pretrained(
            folder,
            dtype=torch.float64,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        return model.double()  # routers too, which some models keep in fp32

    model = load()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None  # its row would get no gradient
    with float64_throughout():
        loss = loss_of(model, prompts)
        loss.backward()
    tensors = {name_of_text(n): t for n, t in stored_gradients(folder, model).items()}
    tensors["loss"] = torch.tensor([loss.item()], dtype=torch.float64)
    if name in STEPPED:
        model = load()
        vectors = [p for p in model.parameters() if p.ndim < 2]
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        groups = [
            {"params": matrices, "weight_decay": DECAY},
            {"params": vectors, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
        losses, norms = [], []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, prompts)
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
            optimizer.step()
            losses.append(loss.item())
        tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
        tensors["norms"] = torch.tensor(norms, dtype=torch.float64)
        for n, p in model.named_parameters():
            if n.endswith(("embed_tokens.weight", "wte.weight", "layers.0.input_layernorm.weight", "h.0.ln_1.weight")):
                tensors["stepped." + n] = p.detach().to(torch.float32).clone()
    (HERE / "gradients").mkdir(exist_ok=True)
    save_file(tensors, HERE / "gradients" / f"{name}.safetensors")
    print(f"{name}: loss {loss.item():.6f}, {len(tensors)} tensors")


def write_kvp():
    text = torch.tensor(json.loads((HERE / "kvp" / "results.json").read_text())["text"])
    prompt, targets = text[:-1], text[1:]
    config = json.loads((HERE / "openelm" / "config.json").read_text())
    base = make_kvp.Model(config, load_file(HERE / "openelm" / "model.safetensors"))
    trained = load_file(HERE / "kvp" / "auxiliary" / "model.safetensors")
    maps = load_file(HERE / "kvp" / "predictor" / "model.safetensors")
    auxiliary = make_kvp.Model(make_kvp.AUXILIARY, trained)
    maps = {name: t.double() for name, t in maps.items()}
    leaves = auxiliary.w | maps
    for t in leaves.values():
        t.requires_grad_()
    auxiliary_logits, raw = auxiliary.run(prompt, 0)
    given = make_kvp.predicted(base, maps, raw)
    loss = cross_entropy(auxiliary_logits, targets)
    loss = loss + cross_entropy(base.run(prompt, 0, given=given)[0], targets)
    for i, (k, v) in enumerate(base.run(prompt, 0)[1]):
        for ours, target in zip(given[i], (make_kvp.rms(k, base.layer(i, "attn.k_norm")), v)):
            loss = loss + CONSISTENCY * (ours - target.detach()).abs().mean()
    loss.backward()
    tensors = {name: t.grad.to(torch.float32).contiguous() for name, t in leaves.items()}
    tensors["loss"] = torch.tensor([loss.item()], dtype=torch.float64)
    save_file(tensors, HERE / "gradients" / "kvp.safetensors")
    print(f"kvp: loss {loss.item():.6f}, {len(tensors)} tensors")


def write_mlkv(case):
    name, _, released = case.partition(".")
    folder = HERE / name
    prompts = torch.tensor(json.loads((folder / "expected.json").read_text())["prompt"])
    model = make_mlkv.Model(json.loads((folder / "config.json").read_text()), torch.Generator())
    model.w = load_file(folder / "model.safetensors")
    for t in model.w.values():
        t.requires_grad_()
    loss = cross_entropy(model.forward(prompts[:, :-1], {}, released != ""), prompts[:, 1:])
    loss.backward()
    tensors = {name: t.grad.contiguous() for name, t in model.w.items()}
    tensors["loss"] = torch.tensor([loss.item()], dtype=torch.float64)
    save_file(tensors, HERE / "gradients" / f"{case}.safetensors")
    print(f"{case}: loss {loss.item():.6f}, {len(tensors)} tensors")


MLKV = ["mlkv_llama", "mlkv_llama.released", "mlkv_neox", "mlkv_neox.released"]
for case in sys.argv[1:] or CASES + MLKV + ["kvp"]:
    write_kvp() if case == "kvp" else write_mlkv(case) if case in MLKV else write(case)
