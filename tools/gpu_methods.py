#!/usr/bin/env python3
"""Times of kvcast's methods on one GPU, as a CSV for `kvcast validate --measurements`.

    python3 tools/gpu_methods.py --hardware h100-sxm --output methods.csv --budget-s 300
    python3 tools/gpu_methods.py --hardware h100-sxm --output models.csv --transformers qwen3-8b
    kvcast validate --measurements methods.csv

Models are PyTorch with random weights and prompts, on which times hardly depend. Each pass does
what `kvcast estimate --method METHOD --breakdown` lists, kernel by kernel. TTFT is from token ids
on the device to the first new token, TPOT the mean over the steps after it. Rows of the engine
`pytorch` have kernels issued from Python, on the host's clock; those of `pytorch-graphs` the same
kernels replayed as a CUDA graph, on the device's. A CSV that is there is continued.
"""

import argparse
import dataclasses
import datetime
import functools
import gc
import math
import os
import statistics
import sys
import time
import warnings

try:
    import torch
except ImportError:
    sys.exit("gpu_methods.py: needs PyTorch; expected 'import torch' to work")

from gpu_method_passes import Llama, PlainEager, Setup, Shape, build, parse_method, read_config
from gpu_rows import Rows

COLUMNS = ["id", "model", "hardware", "engine", "attention", "dtype", "method", "batch",
           "prompt_len", "output_len", "ttft_s", "tpot_s", "ttft_spread", "tpot_spread", "rounds",
           "source", "date", "includes", "note"]
EAGER, GRAPHS = "pytorch", "pytorch-graphs"  # files of data/engines
DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
LEAST_ROUNDS, MOST_ROUNDS, ROUNDS_S = 5, 20, 0.6


@dataclasses.dataclass
class Case:
    model: str
    method: str
    prompt: int
    batch: int
    engines: tuple = (GRAPHS,)
    attention: str = "tiled"
    reads_prompt: bool = True  # false: decode steps alone


WINDOW = "streaming:sinks=4,window=1020"
METHODS_OF = {
    "llama-2-7b": ["plain", "kvp:auxiliary=lp-0.50", "slim:option=kcache", "mlkv:layers=8,heads=8",
                   WINDOW, "random-prune:keep=0.5", "slim:option=kcache,order=unoptimized",
                   "slim:option=xcache", "kvp:auxiliary=tinyllama-1.1b",
                   "specprefill:speculator=tinyllama-1.1b,keep=0.25,chunk=32,pool=13"],
    "llama-3.1-8b": ["plain", "kvp:auxiliary=llama-3.2-1b",
                     "specprefill:speculator=llama-3.2-1b,keep=0.25,chunk=32,pool=13",
                     "random-prune:keep=0.25", "mlkv:layers=8,heads=4", WINDOW,
                     "kvp:auxiliary=lp-0.25"],
}


def default_cases():
    """The most informative first: a run may end anywhere."""
    cases = []

    def add(prompts, batch, engines, kinds=None, reads_prompt=True):
        for model, methods in METHODS_OF.items():
            about = prompts.get(model, prompts["other"]), batch, engines
            kept = [m for m in methods if kinds is None or m in kinds or m.split(":")[0] in kinds]
            cases.extend(Case(model, m, *about, "tiled", reads_prompt) for m in kept)
            # Slim attention's steps are compared with steps whose attention is eager too.
            if "slim:option=kcache" in kept:
                cases.append(Case(model, "plain", *about, "eager", reads_prompt))

    add({"other": 2048}, 1, (GRAPHS, EAGER))
    add({"other": 2048}, 8, (GRAPHS,))
    of_steps = ("plain", "slim:option=kcache", "mlkv", "streaming")
    add({"other": 2048}, 32, (GRAPHS,), of_steps, reads_prompt=False)
    add({"other": 512}, 1, (GRAPHS, EAGER), ("plain", "kvp", "specprefill", "random-prune", "mlkv"))
    add({"llama-2-7b": 4032, "other": 8192}, 1, (GRAPHS,))  # Llama 2 has 4096 positions
    for model, others in (("llama-3.2-3b", METHODS_OF["llama-3.1-8b"][1:3]), ("llama-3.2-1b", [])):
        methods = ["plain", "kvp:auxiliary=lp-0.50", "random-prune:keep=0.5", WINDOW, *others]
        cases.extend(Case(model, method, 2048, 1, (GRAPHS, EAGER)) for method in methods)
    return cases


# --- clocks --------------------------------------------------------------------------------------


def synchronize(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def free():
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def rounds_of(sample):
    """Samples after one that warms up; fewer where they take long."""
    sample()
    samples, begin = [], time.perf_counter()
    while len(samples) < LEAST_ROUNDS or (time.perf_counter() - begin < ROUNDS_S
                                          and len(samples) < MOST_ROUNDS):
        samples.append(sample())
    return samples


def timed(device, work):
    """Of work that returns logits, until its token is on the host; and that token."""
    synchronize(device)
    begin = time.perf_counter()
    token = work().argmax(-1)
    token.tolist()
    return time.perf_counter() - begin, token


def eager_times(method, ids, setup):
    def sample():
        ttft, token = timed(setup.device, lambda: method.prompt(ids))
        method.settle()

        def decode():
            logits, t = None, token
            for i in range(setup.steps):
                logits = method.step(t, i)
                t = logits.argmax(-1)
            return logits
        return ttft, timed(setup.device, decode)[0] / setup.steps

    return tuple(zip(*rounds_of(sample)))


@functools.cache
def side_stream():
    """One for all graphs: cuBLAS keeps a workspace for each stream."""
    return torch.cuda.Stream()


def graph_seconds(work):
    """Of one replay, by the device's clock."""
    stream = side_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()

    def sample():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    return rounds_of(sample)


def graph_times(method, ids, setup, reads_prompt=True):
    first = torch.zeros_like(ids[:, :1])

    def decode():
        token = first
        for i in range(setup.steps):
            token = method.step(token, i).argmax(-1)

    ttft = graph_seconds(lambda: method.prompt(ids).argmax(-1)) if reads_prompt else []
    method.settle()
    free()
    return ttft, [s / setup.steps for s in graph_seconds(decode)]


# --- rows ----------------------------------------------------------------------------------------


class MethodRows(Rows):
    def __init__(self, path, hardware, note):
        super().__init__(path, COLUMNS, lambda row: row["id"])
        self.hardware, self.note = hardware, note
        self.begin = time.monotonic()

    def add(self, identity, model, method, setup, engine, attention, ttft=(), tpot=(), note=""):
        row = dict(id=identity, model=model, hardware=self.hardware, engine=engine,
                   attention=attention, dtype=DTYPE_NAMES[setup.dtype], method=method,
                   batch=setup.batch, prompt_len=setup.prompt,
                   output_len=setup.steps + 1, source="gpu_methods.py",
                   date=datetime.date.today().isoformat(),
                   includes="host" if engine == EAGER else "device steps", note=self.note + note)
        for name, samples in (("ttft", ttft), ("tpot", tpot)):
            if samples:
                low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
                row[name + "_s"] = f"{median:.6g}"
                row[name + "_spread"] = f"{(high - low) / median:.3g}"
        row["rounds"] = min(len(s) for s in (ttft, tpot) if s)
        self.write(row)
        print(f"{time.monotonic() - self.begin:5.0f} s {identity:100} {row.get('ttft_s', ''):>10} "
              f"{row.get('tpot_s', ''):>10}", file=sys.stderr, flush=True)


def say_failed(what, error):
    lines = str(error).splitlines() or [""]
    print(f"{what}: {type(error).__name__}: {lines[0]}", file=sys.stderr, flush=True)


def identity_of(case, engine):
    return (f"{case.model} {case.method} {case.attention} b{case.batch} p{case.prompt} {engine}"
            + ("" if case.reads_prompt else " decode"))


def measure_case(rows, case, engine, method, setup):
    ids = torch.randint(method.shape.vocab, (setup.batch, setup.prompt), device=setup.device)
    if engine == EAGER:
        ttft, tpot = eager_times(method, ids, setup)
    else:
        ttft, tpot = graph_times(method, ids, setup, case.reads_prompt)
    identity = identity_of(case, engine)
    about = case.model, case.method, setup, engine
    if method.attention == method.decode_attention or not ttft:
        rows.add(identity, *about, method.decode_attention, ttft, tpot)
    else:  # a row has one kind of attention
        rows.add(identity, *about, method.attention, ttft)
        rows.add(identity + " decode", *about, method.decode_attention, (), tpot)


def measure_methods(rows, cases, args):
    model = method = None
    for case in cases:
        setup = Setup(args.device, args.dtype, case.batch, case.prompt, args.steps)
        method = None
        for engine in case.engines:
            if engine == GRAPHS and not setup.device.startswith("cuda"):
                continue
            if identity_of(case, engine) in rows.known or time.monotonic() > args.end:
                continue
            try:
                kind, options = parse_method(case.method)
                shape = kind.base(Shape.read(case.model), options)
                if model is None or shape != model.shape:
                    model = None
                    free()
                    model = build(lambda: Llama(shape), setup)
                if method is None:
                    kind = PlainEager if case.attention == "eager" else kind
                    method = kind(model, setup, options)
                measure_case(rows, case, engine, method, setup)
            except Exception as error:  # others may do
                say_failed(identity_of(case, engine), error)
            free()


class WithDynamicCache:
    """A model of transformers with the cache that it makes itself."""

    def __init__(self, model):
        self.model = model

    def prompt(self, ids):
        self.cache = None
        return self.step(ids, 0)

    def settle(self):
        pass

    def step(self, ids, i):
        out = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True,
                         logits_to_keep=1)
        self.cache = out.past_key_values
        return out.logits[:, -1:]


def load_transformers(name, args):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = read_config(name)
    config.pop("architectures", None)
    config = AutoConfig.for_model(config.pop("model_type"), **config)
    with torch.device(args.device):
        return AutoModelForCausalLM.from_config(config, dtype=args.dtype).eval()


def measure_transformers(rows, models, args):
    try:
        from transformers import __version__
    except ImportError:
        sys.exit("--transformers: expected 'import transformers' to work")
    for name in models:
        if time.monotonic() > args.end:
            break
        model = method = None
        try:
            model = load_transformers(name, args)
            kernel = model.config._attn_implementation
            experts = getattr(model.config, "_experts_implementation", None)
            note = f", transformers {__version__}, attention {kernel}"
            if experts not in (None, "eager"):  # which models without experts say too
                note += f", experts {experts}"
            attention = "eager" if kernel == "eager" else "tiled"
            for size in args.sizes.split(","):
                prompt, batch = (int(n) for n in size.split("x"))
                setup = Setup(args.device, args.dtype, batch, prompt, args.steps)
                identity = f"{name} transformers b{batch} p{prompt}"
                if identity in rows.known or time.monotonic() > args.end:
                    continue
                ids = torch.randint(model.config.vocab_size, (batch, prompt), device=args.device)
                method = WithDynamicCache(model)
                finite = bool(torch.isfinite(method.prompt(ids)).all())
                ttft, tpot = eager_times(method, ids, setup)
                rows.add(identity, name, "plain", setup, EAGER, attention, ttft, tpot,
                         note + ("" if finite else ", logits are not finite"))
        except Exception as error:
            say_failed(name, error)
        del model, method
        free()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", "-o", required=True, help="the CSV, continued if it is there")
    parser.add_argument("--hardware", required=True, help="kvcast's name of the device")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="no row begins after it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--steps", type=int, default=8, help="decode steps that TPOT is a mean of")
    parser.add_argument("--case", nargs=4, action="append", default=[],
                        metavar=("MODEL", "METHOD", "PROMPT", "BATCH"),
                        help="instead of the program's list; a catalog name or a config.json")
    parser.add_argument("--transformers", metavar="MODEL,...", default="",
                        help="instead of methods: these models as transformers runs them")
    parser.add_argument("--sizes", default="2048x1,2048x8,512x1", metavar="PROMPTxBATCH,...",
                        help="of --transformers [%(default)s]")
    args = parser.parse_args()
    args.end = time.monotonic() + args.budget_s
    args.dtype = next(d for d, name in DTYPE_NAMES.items() if name == args.dtype)
    note = f"PyTorch {torch.__version__}"
    if args.device.startswith("cuda"):
        if not torch.cuda.is_available():
            sys.exit(f"--device {args.device}: PyTorch sees no such device; expected cuda or cpu")
        if ":" in args.device:  # PyTorch takes no device without an index here
            torch.cuda.set_device(args.device)
        note += f", {torch.cuda.get_device_name(args.device)}"
    if not os.path.isdir(os.path.dirname(os.path.abspath(args.output))):
        sys.exit(f"--output {args.output}: its folder is not there")
    rows = MethodRows(args.output, args.hardware, note)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")  # of releases to come
    with torch.inference_mode():
        if args.transformers:
            measure_transformers(rows, args.transformers.split(","), args)
        else:
            cases = [Case(model, method, int(prompt), int(batch), (GRAPHS, EAGER))
                     for model, method, prompt, batch in args.case]
            measure_methods(rows, cases or default_cases(), args)


if __name__ == "__main__":
    main()
