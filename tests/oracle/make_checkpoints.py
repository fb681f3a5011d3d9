#!/usr/bin/env python3
"""Tiny random checkpoints and what transformers on PyTorch (OpenELM: the module in openelm.py)
computes from them, fp32. README.md says what the files hold.

Usage: make_checkpoints.py [NAME ...]      (none: all cases)
"""

import contextlib
import copy
import json
import pathlib
import platform
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

import cases
import cases_states
import cases_today
import openelm

HERE = pathlib.Path(__file__).resolve().parent
BATCH = 2
GREEDY = 64
# The two best logits of every greedy step differ by more than this share of the logits' range, so
# that rounding cannot change a greedy token.
MARGIN = 2e-3
# A path of fewer different tokens would compare little.
MIN_DISTINCT = 6
# A router's last chosen expert and the next one differ by more than this share of the scores' range.
ROUTER_GAP = 1e-4


@contextlib.contextmanager
def router_gaps():
    """Collects the gaps of all top-k choices between experts, groups of them or keys."""
    gaps = []
    kept = torch.topk, torch.Tensor.topk

    def watched(scores, k, dim=-1, **more):
        # Not those of the two best experts of a group, which are summed.
        if (scores.ndim == 2 or (scores.ndim == 3 and k != 2)) and k < scores.shape[-1]:
            best = kept[0](scores, k + 1, dim=-1).values
            hidden = scores <= torch.finfo(scores.dtype).min
            seen = scores.masked_fill(hidden, 0)
            gap = (best[..., k - 1] - best[..., k]) / (seen.amax(-1) - seen.amin(-1))
            # Of tokens to come none is chosen: attention masks them.
            gap[best[..., k] <= torch.finfo(scores.dtype).min] = 1
            gaps.append(gap.min().item())
        return kept[0](scores, k, dim=dim, **more)

    torch.topk = torch.Tensor.topk = watched
    try:
        yield gaps
    finally:
        torch.topk, torch.Tensor.topk = kept


def randomise(model, case, generator):
    """Norm weights about their neutral value, biases and matrices large enough to matter."""
    neutral = 0.0 if case.norm_offset else 1.0
    corrections = ("e_score_correction_bias", "expert_bias")
    buffers = [(n, b) for n, b in model.named_buffers() if n.endswith(corrections)]
    for name, tensor in [*model.named_parameters(), *buffers]:
        if "encoder.embed_positions" in name:
            continue  # Whisper's sinusoids
        noise = torch.randn(tensor.shape, generator=generator)
        is_norm = "norm" in name or ".ln_" in name
        if is_norm and name.endswith("weight"):
            value = neutral + 0.2 * noise
        elif tensor.ndim == 1:
            value = 0.2 * noise
        else:
            value = case.std_of(name) * noise
        tensor.data = value.to(case.stored).to(torch.float32)


def to_hub_form(config):
    """The config as checkpoints on the hub have it: `rope_theta`, `rope_scaling` and, in GPT-NeoX,
    `rotary_pct` in place of transformers 5's `rope_parameters`."""
    if "text_config" in config:
        to_hub_form(config["text_config"])
    rope = config.pop("rope_parameters", None)
    if config["model_type"] in ("gemma3_text", "gemma3n_text"):
        full, sliding = rope["full_attention"], rope["sliding_attention"]
        config["rope_theta"], config["rope_local_base_freq"] = full.pop("rope_theta"), sliding["rope_theta"]
        config["rope_scaling"] = None if full["rope_type"] == "default" else full
    elif config["model_type"] == "olmo3":
        full = rope["full_attention"]
        config["rope_theta"] = full.pop("rope_theta")
        config["rope_scaling"] = None if full["rope_type"] == "default" else full
    elif rope is not None:
        share = rope.pop("partial_rotary_factor", None)
        theta = rope.pop("rope_theta", 10000.0)
        if config["model_type"] == "gpt_neox":
            config["rotary_pct"] = share
            config["rotary_emb_base"] = theta
        else:
            config["rope_theta"] = theta
            if share is not None and config["model_type"] == "minimax_m2":
                config["rotary_dim"] = int(share * config["head_dim"])
            elif share is not None and (share != 1.0 or config["model_type"] != "phi3"):
                config["partial_rotary_factor"] = share
        config["rope_scaling"] = None
        if rope.get("rope_type", "default") != "default" or "mrope_section" in rope:
            if rope["rope_type"] == "longrope" and config["model_type"] == "phi3":
                key = "original_max_position_embeddings"
                config[key] = rope.pop(key)
                rope["type"] = rope.pop("rope_type")  # as Phi-3's config spells it
            elif config["model_type"].startswith("deepseek"):
                rope["type"] = rope.pop("rope_type")
            config["rope_scaling"] = rope
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    return config


def write_checkpoint(case, folder, seed):
    """Weights and config as save_pretrained writes them; then what hub files have besides."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    if case.family is openelm:
        model = openelm.OpenElm(case.config)
        randomise(model, case, generator)
        save_file(openelm.stored_tensors(model, case.stored), folder / "model.safetensors")
        config = dict(case.config)
    else:
        model = case.family(copy.deepcopy(case.config))  # saving changes a config's dtype
        randomise(model, case, generator)
        model.to(case.stored).save_pretrained(folder, max_shard_size=case.shard_size)
        (folder / "generation_config.json").unlink(missing_ok=True)
        config = json.loads((folder / "config.json").read_text())
        if not case.new_form:
            config = to_hub_form(config)
        if "text_config" in config:
            # Hub files leave out what the text model's class has by default; no image is ever read.
            text = config["text_config"]
            usual = transformers.AutoConfig.for_model(text["model_type"]).to_dict()
            config["text_config"] = {
                k: v for k, v in text.items() if k == "model_type" or k not in usual or v != usual[k]
            }
        config.pop("scale_decoder_outputs", None)  # transformers 5 derives it
        config.update(case.config_changes)
        config = {k: v for k, v in config.items() if v is not cases.REMOVED}
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    if case.change_tensors is not None:
        path = folder / "model.safetensors"
        save_file(case.change_tensors(load_file(path)), path, metadata={"format": "pt"})


def load(case, folder):
    if case.family is openelm:
        config = json.loads((folder / "config.json").read_text())
        return openelm.load(config, folder / "model.safetensors")
    model = case.family.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation=case.attention,
        experts_implementation="eager",  # the default, grouped_mm, refuses rows of odd length
    ).eval()
    assert model.config._attn_implementation == case.attention
    return model


def step(model, inputs, tokens, cache):
    """Logits [batch, tokens, vocab] of the tokens after those in `cache`, and the new cache."""
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    with router_gaps() as gaps:
        out = model(**{name: tokens}, **inputs, past_key_values=cache, use_cache=True)
    ROUTERS.extend(gaps)
    return out.logits, out.past_key_values


ROUTERS = []  # gaps of the run in progress


def run(case, model, seed):
    """The expected values, or None if a greedy path is not well posed with these weights."""
    ROUTERS.clear()
    generator = torch.Generator().manual_seed(seed + 1000)
    vocab = model.config.get_text_config().vocab_size
    draw = lambda length: torch.randint(3, vocab, (BATCH, length), generator=generator)
    prompt = draw(case.prompt_len)
    inputs, notes, features = {}, {}, {}
    start = prompt
    if model.config.is_encoder_decoder:
        prompt[:, 0] = start_id = model.config.decoder_start_token_id
        start = torch.full((BATCH, 1), start_id)
        if case.encoder_len > 0:
            inputs["input_ids"] = draw(case.encoder_len)
            notes["encoder_tokens"] = inputs["input_ids"].tolist()
        else:
            shape = (BATCH, model.config.num_mel_bins, 2 * model.config.max_source_positions)
            inputs["input_features"] = torch.randn(shape, generator=generator)
            features = {"features": inputs["input_features"][0].clone(),
                        "features_1": inputs["input_features"][1].clone()}

    logits, _ = step(model, inputs, prompt, None)
    step_logits, cache = step(model, inputs, start, None)
    path, margin = [], float("inf")
    last = step_logits[:, -1]
    stepped = [last]
    for i in range(GREEDY):
        best = last.topk(2).values
        gaps = (best[:, 0] - best[:, 1]) / (last.amax(-1) - last.amin(-1))
        margin = min(margin, gaps.min().item())
        path.append(last.argmax(-1))
        if i + 1 < GREEDY:
            step_logits, cache = step(model, inputs, path[-1][:, None], cache)
            last = step_logits[:, -1]
            stepped.append(last)
    greedy = torch.stack(path, 1)
    distinct = min(len(set(row)) for row in greedy.tolist())
    if margin < MARGIN or distinct < MIN_DISTINCT or min(ROUTERS, default=1) < ROUTER_GAP:
        return None

    # The same positions in one pass without a cache: two ways through transformers.
    whole, _ = step(model, inputs, torch.cat([start, greedy[:, :-1]], 1), None)
    difference = (whole[:, start.shape[1] - 1 :] - torch.stack(stepped, 1)).abs().max().item()
    if case.changes_with_length:
        assert difference > 1e-3 * (whole.max() - whole.min()).item(), difference
        difference = 0.0
    assert difference < 2e-4 * (whole.max() - whole.min()).item(), difference

    notes.update(
        prompt=prompt.tolist(),
        greedy_prompt=start.tolist(),
        greedy=greedy.tolist(),
        smallest_margin=margin,
        **({"smallest_router_gap": min(ROUTERS)} if ROUTERS else {}),
        largest_logit=logits.abs().max().item(),
        cache_difference=difference,
        seed=seed,
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
        },
    )
    tensors = {"logits": logits.contiguous(), "last_logits": last.contiguous()}
    return notes, tensors, features


def make(name, case, folder=None):
    folder = folder or HERE / name
    for seed in range(1, 400):
        write_checkpoint(case, folder, seed)
        with torch.no_grad():
            result = run(case, load(case, folder), seed)
        if result is not None:
            break
    else:
        sys.exit(f"{name}: no seed gives a greedy path with a clear margin")
    notes, tensors, features = result
    save_file(tensors, folder / "expected.safetensors")
    if features:
        save_file(features, folder / "features.safetensors")
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in notes.items()]
    (folder / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(
        f"{name}: seed {seed}, margin {notes['smallest_margin']:.1e}, "
        f"largest logit {notes['largest_logit']:.1f}, "
        f"cache difference {notes['cache_difference']:.1e}, {size // 1000} kB",
        flush=True,
    )


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    known = {**cases.all_cases(), **cases_today.all_cases(), **cases_states.all_cases()}
    names = sys.argv[1:] or list(known)
    for name in names:
        if name not in known:
            sys.exit(f"unknown case '{name}'; one of: {', '.join(known)}")
        make(name, known[name])


if __name__ == "__main__":
    main()
