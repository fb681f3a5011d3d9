#!/usr/bin/env python3
"""Times and memory of training steps of transformers' models on one GPU, as a CSV.

    python3 tools/gpu_training.py --hardware h100-sxm --output steps.csv --budget-s 150
    python3 tools/gpu_training.py --hardware h100-sxm --output steps.csv \\
        --case model=tinyllama-1.1b,batch=4,seq_len=2048,precision=autocast

A step is what `kvcast estimate --train --engine pytorch` forecasts: micro-batches forward and
backward, gradients clipped at norm 1, fused AdamW. Weights and tokens are random. Precisions are
`bf16` (weights, gradients and states) and `autocast` (all three in fp32; each micro-batch's forward
pass under torch.autocast to bf16, its backward pass outside). `step_s` is the median between ends of
steps on the device's clock, `step_spread` their interquartile range over it, `peak_memory_bytes`
torch.cuda.max_memory_allocated of the timed steps. A CSV that is there is continued, and
`kvcast validate --measurements` reads it.
"""

import argparse
import contextlib
import dataclasses
import gc
import math
import os
import statistics
import sys
import time
import warnings

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    sys.exit(f"gpu_training.py: {error}; expected PyTorch and transformers")

from gpu_method_passes import read_config
from gpu_rows import Rows

POINT = ["batch", "seq_len", "micro_batches", "attention", "recompute"]
RUN = ["model", "hardware", "engine", "engine_version", "dtype", "state_dtype", *POINT]
COLUMNS = [*RUN, "step_s", "step_spread", "peak_memory_bytes", "distrusted"]
IMPLEMENTATIONS = {"tiled": "sdpa", "eager": "eager"}
CHOICES = {"attention": tuple(IMPLEMENTATIONS), "recompute": ("none", "full"),
           "precision": ("bf16", "autocast")}
WARM_UPS, LEAST_STEPS, MOST_STEPS, STEPS_S = 3, 5, 40, 2.5


@dataclasses.dataclass
class Case:
    model: str  # a catalog name or a config.json
    overrides: dict  # of the config
    batch: int = 1
    seq_len: int = 2048
    micro_batches: int = 1
    attention: str = "tiled"
    recompute: str = "none"
    precision: str = "bf16"

    @staticmethod
    def parse(text):
        """Of KEY=VALUE,...: other keys than a case's override the config."""
        given = dict(pair.split("=", 1) for pair in text.split(","))
        fields = {f.name: f.type for f in dataclasses.fields(Case) if f.name != "overrides"}
        case = Case(overrides={k: number(v) for k, v in given.items() if k not in fields},
                    **{k: fields[k](v) for k, v in given.items() if k in fields})
        for key, values in CHOICES.items():
            if getattr(case, key) not in values:
                raise ValueError(f"{key}={getattr(case, key)}: expected one of {', '.join(values)}")
        if case.batch % case.micro_batches:
            raise ValueError(f"batch={case.batch}: expected a multiple of {case.micro_batches}")
        return case


def number(text):
    try:
        return int(text)
    except ValueError:
        return float(text) if "." in text else {"true": True, "false": False}.get(text, text)


# Llamas by their shape: hidden size, heads of each kind, width of MLPs, vocabulary.
SMALL = ("model=llama-7b,num_hidden_layers=12,hidden_size=768,num_attention_heads=12,"
         "num_key_value_heads=12,intermediate_size=3072,seq_len=1024")
TINY = "model=tinyllama-1.1b,seq_len=2048"
WIDE = "model=llama-3.1-8b,num_hidden_layers=4,seq_len=2048"
GPT2 = "model=gpt2,seq_len=1024"
QWEN = "model=qwen3-0.6b,seq_len=2048"
OLMOE = "model=olmoe-1b-7b,num_hidden_layers=4,seq_len=2048"

# The most informative first: a run may end anywhere.
DEFAULT_CASES = [
    f"{SMALL},batch=16",
    f"{SMALL},batch=16,precision=autocast",
    f"{SMALL},batch=8,precision=autocast,attention=eager",
    f"{TINY},batch=2,attention=eager",
    f"{TINY},batch=4,precision=autocast",
    f"{TINY},batch=8,precision=autocast,recompute=full",
    f"{OLMOE},batch=4",
    f"{GPT2},batch=16",
    f"{WIDE},batch=2,precision=autocast",
    f"{TINY},batch=8,precision=autocast,micro_batches=4",
    f"{QWEN},batch=4",
    f"{GPT2},batch=16,attention=eager",
    f"{TINY},batch=4,attention=eager,recompute=full",
    f"{WIDE},batch=2,attention=eager",
    f"{TINY},batch=1,precision=autocast,attention=eager",
    f"{GPT2},batch=16,precision=autocast",
    f"{QWEN},batch=2,precision=autocast",
    f"{SMALL},batch=16,attention=eager",
    f"{WIDE},batch=4,precision=autocast,recompute=full",
    f"{OLMOE},batch=2,precision=autocast",
    f"{TINY},batch=4",
]


# --- steps ---------------------------------------------------------------------------------------


def without_dropout(config):
    """kvcast records none, and random masks are kernels of their own."""
    return {k: 0.0 if "dropout" in k or k.endswith("_pdrop") else v for k, v in config.items()}


def config_of(case):
    raw = without_dropout(read_config(case.model))
    for key in ("architectures", "quantization_config", "torch_dtype", "dtype"):
        raw.pop(key, None)
    layers = raw.get("num_hidden_layers")
    raw |= {"max_position_embeddings": max(case.seq_len, raw.get("max_position_embeddings", 0))}
    raw |= case.overrides
    kept = raw.get("num_hidden_layers")
    for key, value in raw.items():  # lists with an entry for each layer
        if isinstance(value, list) and len(value) == layers:
            raw[key] = value[:kept]
    return AutoConfig.for_model(raw.pop("model_type"), **raw)


class Trainer:
    """A model, its optimizer and a step's tokens."""

    def __init__(self, case, device):
        self.case, self.device = case, device
        self.config = config_of(case)
        self.config.use_cache = False
        weights = torch.bfloat16 if case.precision == "bf16" else torch.float32
        with torch.device(device):
            self.model = AutoModelForCausalLM.from_config(
                self.config, dtype=weights, attn_implementation=IMPLEMENTATIONS[case.attention])
        self.model.train()
        if case.recompute == "full":
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        ids = torch.randint(self.config.vocab_size, (case.batch, case.seq_len), device=device)
        self.micro_batches = ids.chunk(case.micro_batches)

    def precision(self):
        if self.case.precision == "bf16":
            return contextlib.nullcontext()
        return torch.autocast(torch.device(self.device).type, torch.bfloat16)

    def step(self):
        for ids in self.micro_batches:
            with self.precision():  # its cache of converted weights ends with it
                loss = self.model(input_ids=ids, labels=ids).loss / len(self.micro_batches)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def seconds_of(trainer):
    """Of steps that follow each other without the host waiting between them."""
    is_cuda = trainer.device.startswith("cuda")

    def wait():
        if is_cuda:
            torch.cuda.synchronize(trainer.device)

    def now():
        if not is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    for _ in range(WARM_UPS):
        wait()
        begin = time.perf_counter()
        trainer.step()
    wait()
    about = time.perf_counter() - begin
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(trainer.device)
    marks = [now()]
    for _ in range(min(MOST_STEPS, max(LEAST_STEPS, round(STEPS_S / about)))):
        trainer.step()
        marks.append(now())
    wait()
    pairs = zip(marks, marks[1:])
    return [a.elapsed_time(b) / 1e3 if is_cuda else b - a for a, b in pairs]


def free():
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# --- rows ----------------------------------------------------------------------------------------


def identity_of(row):
    return tuple(str(row[key]) for key in (*RUN, "distrusted"))


def row_of(case, hardware):
    is_autocast = case.precision == "autocast"
    overrides = ",".join(f"{key}={value}" for key, value in case.overrides.items())
    return dict(model=f"{case.model}{{{overrides}}}" if overrides else case.model,
                hardware=hardware, engine="pytorch",
                engine_version=".".join(torch.__version__.split(".")[:2]), dtype="bf16",
                state_dtype="fp32" if is_autocast else "bf16",
                distrusted="autocast is not forecast" if is_autocast else "",
                **{key: getattr(case, key) for key in POINT})


def measure(rows, case, args):
    row = row_of(case, args.hardware)
    if identity_of(row) in rows.known:
        return
    seconds = seconds_of(Trainer(case, args.device))
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    is_cuda = args.device.startswith("cuda")
    row |= {"step_s": f"{median:.5f}", "step_spread": f"{(high - low) / median:.3g}",
            "peak_memory_bytes": torch.cuda.max_memory_allocated(args.device) if is_cuda else ""}
    rows.write(row)
    print(" ".join(str(value) for value in row.values()), file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", "-o", required=True, help="the CSV, continued if it is there")
    parser.add_argument("--hardware", required=True, help="kvcast's name of the device")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="no case begins after it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--case", action="append", type=Case.parse, metavar="KEY=VALUE,...",
                        help="instead of the program's list: model, batch, seq_len, micro_batches, "
                        "attention, recompute, precision; other keys override the model's config")
    args = parser.parse_args()
    end = time.monotonic() + args.budget_s
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit(f"--device {args.device}: PyTorch sees no such device; expected cuda or cpu")
    if not os.path.isdir(os.path.dirname(os.path.abspath(args.output))):
        sys.exit(f"--output {args.output}: its folder is not there")
    rows = Rows(args.output, COLUMNS, identity_of)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")  # of releases to come
    for case in args.case or [Case.parse(text) for text in DEFAULT_CASES]:
        if time.monotonic() > end:
            break
        try:
            measure(rows, case, args)
        except Exception as error:  # others may do
            line = (str(error).splitlines() or [""])[0]
            print(f"{case}: {type(error).__name__}: {line}", file=sys.stderr, flush=True)
        free()


if __name__ == "__main__":
    main()
