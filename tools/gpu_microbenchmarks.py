#!/usr/bin/env python3
"""Micro-benchmarks of one device through PyTorch, as a CSV for `kvcast calibrate --import`.

    python3 tools/gpu_microbenchmarks.py --output my-gpu.csv            # minutes, needs PyTorch
    kvcast calibrate --import my-gpu.csv --hardware a100-80gb --output my-gpu.json

One row a benchmark: what it does (FLOPs with a multiply-add as 2, bytes read and written once), and
the median and quartiles of its seconds. Columns and benchmarks: data/hardware/README.md.
"""

import argparse
import csv
import datetime
import os
import platform
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("gpu_microbenchmarks.py: needs PyTorch; expected 'import torch' to work")

COLUMNS = ["device", "kind", "driver", "software", "date", "benchmark", "dtype", "shape", "flops",
           "bytes", "median_s", "q1_s", "q3_s", "repeats"]
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16,
          "bf16": torch.bfloat16}
# Rows of a decode step and of a prompt, and the inner and outer dimensions of models from 1 to 30
# billion parameters.
ROWS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
WEIGHTS = [(4096, 4096), (11008, 4096), (4096, 11008), (8192, 8192)]  # out, in
HEADS, HEAD_DIM = 32, 128
PROMPTS = [1024, 2048, 4096, 8192]
SHORT_PROMPTS = [16, 64, 128, 256, 512]
# Sequences, key-value heads and keys of each in a decode step.
CACHES = [(b, g, n) for b in (1, 4, 16, 64) for g in (8, 32) for n in (128, 1024, 2048, 8192, 32768)]
QUEUE = 500  # kernels in a full stream: below the limit of launches that wait (1024 on CUDA)


class Device:
    """What differs between a CUDA (or ROCm) device, Apple's and the processor."""

    def __init__(self, name):
        self.name = name
        self.cuda = name.startswith("cuda")
        if self.cuda and not torch.cuda.is_available():
            sys.exit(f"--device {name}: PyTorch sees no such device; expected cuda, mps or cpu")
        if self.cuda and ":" in name:  # PyTorch takes no device without an index here
            torch.cuda.set_device(name)
        if name == "mps" and not torch.backends.mps.is_available():
            sys.exit("--device mps: PyTorch sees no such device; expected cuda, mps or cpu")

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize(self.name)
        elif self.name == "mps":
            torch.mps.synchronize()

    def repeated(self, work, loops):
        """`loops` calls: on CUDA a graph, so that small kernels do not wait for the host."""
        if not self.cuda:
            return lambda: [work() for _ in range(loops)]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(loops):
                work()
        return graph.replay

    def seconds(self, repeated, loops):
        """Of one call, the mean of `loops` that follow one another."""
        if self.cuda:
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            repeated()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3 / loops
        self.synchronize()
        begin = time.perf_counter()
        repeated()
        self.synchronize()
        return (time.perf_counter() - begin) / loops

    def facts(self):
        """Name, driver, bytes of memory and of the last-level cache (0: not known)."""
        if not self.cuda:
            name = "unknown processor"
            if os.path.exists("/proc/cpuinfo"):
                for line in open("/proc/cpuinfo"):
                    if line.startswith("model name"):
                        name = line.split(":", 1)[1].strip()
                        break
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            return name, platform.platform(terse=True), memory, 0
        p = torch.cuda.get_device_properties(self.name)
        driver = "unknown"
        try:
            driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version",
                                     "--format=csv,noheader"], capture_output=True, text=True,
                                    check=True).stdout.splitlines()[0].strip()
        except (OSError, subprocess.CalledProcessError, IndexError):
            pass
        return p.name, driver, p.total_memory, getattr(p, "L2_cache_size", 0)


def quartiles(samples):
    if len(samples) < 4:
        return min(samples), statistics.median(samples), max(samples)
    return tuple(statistics.quantiles(samples, n=4, method="inclusive"))


class Bench:
    def __init__(self, device, budget_s, scale):
        self.device = device
        self.budget_s = budget_s
        self.scale = scale  # of the large shapes, below 1 for a quick run
        self.rows = []

    def add(self, benchmark, dtype, shape, flops, moved, samples):
        q1, median, q3 = quartiles(samples)
        self.rows.append([benchmark, dtype, "x".join(str(n) for n in shape), flops, moved,
                          f"{median:.6g}", f"{q1:.6g}", f"{q3:.6g}", len(samples)])
        rate = flops / median / 1e12 if flops else moved / median / 1e9
        print(f"{benchmark:15} {dtype:5} {self.rows[-1][2]:20} {median * 1e6:12.2f} us "
              f"{rate:10.2f} {'TFLOP/s' if flops else 'GB/s'}", file=sys.stderr)

    def time(self, benchmark, dtype, shape, flops, moved, work):
        work()
        once = self.device.repeated(work, 1)
        once()
        first = self.device.seconds(once, 1)
        loops = max(1, min(1000, int(2e-3 / max(first, 1e-7))))
        repeated = self.device.repeated(work, loops)
        samples = []
        begin = time.perf_counter()
        while len(samples) < 5 or (time.perf_counter() - begin < self.budget_s
                                   and len(samples) < 200):
            samples.append(self.device.seconds(repeated, loops))
        self.add(benchmark, dtype, shape, flops, moved, samples)

    def random(self, *shape, dtype):
        # Not zeros: a device that draws less power for them runs them faster.
        return torch.randn(*shape, device=self.device.name, dtype=torch.float32).to(DTYPES[dtype])

    def matrices(self, dtype):
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        size = DTYPES[dtype].itemsize
        for rows in ROWS:
            for out, inner in WEIGHTS:
                m = min(rows, max(64, int(rows * self.scale)))
                n, k = (max(64, int(d * self.scale)) for d in (out, inner))
                x, w = self.random(m, k, dtype=dtype), self.random(n, k, dtype=dtype)
                self.time("matmul", dtype, (m, n, k), 2 * m * n * k,
                          size * (m * k + n * k + m * n), lambda: F.linear(x, w))

    def attention(self, dtype):
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        size = DTYPES[dtype].itemsize
        for full in SHORT_PROMPTS + PROMPTS:
            prompt = min(full, max(64, int(full * self.scale)))
            q, k, v = (self.random(1, HEADS, prompt, HEAD_DIM, dtype=dtype) for _ in range(3))
            # The causal half of two products.
            self.time("attention", dtype, (1, HEADS, prompt, HEAD_DIM),
                      2 * HEADS * prompt * prompt * HEAD_DIM, size * 4 * HEADS * prompt * HEAD_DIM,
                      lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        for batch, kv_heads, keys in CACHES:
            keys = min(keys, max(128, int(keys * self.scale)))
            moved = size * 2 * batch * kv_heads * keys * HEAD_DIM
            if moved > 2e9:
                continue
            q = self.random(batch, HEADS, 1, HEAD_DIM, dtype=dtype)
            k, v = (self.random(batch, kv_heads, keys, HEAD_DIM, dtype=dtype) for _ in range(2))
            self.time("decode_attention", dtype, (batch, HEADS, kv_heads, keys, HEAD_DIM),
                      4 * batch * HEADS * keys * HEAD_DIM, moved,
                      lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=kv_heads < HEADS))
        for full in PROMPTS[:2]:
            prompt = max(64, int(full * self.scale))
            q, k = (self.random(HEADS, prompt, HEAD_DIM, dtype=dtype) for _ in range(2))
            scores = self.random(HEADS, prompt, prompt, dtype=dtype)
            flops = 2 * HEADS * prompt * prompt * HEAD_DIM
            moved = size * HEADS * (2 * prompt * HEAD_DIM + prompt * prompt)
            self.time("batched_matmul", dtype, (HEADS, prompt, prompt, HEAD_DIM), flops, moved,
                      lambda: torch.bmm(q, k.transpose(1, 2)))
            self.time("batched_matmul", dtype, (HEADS, prompt, HEAD_DIM, prompt), flops, moved,
                      lambda: torch.bmm(scores, k))

    def streams(self, dtype):
        size = DTYPES[dtype].itemsize
        for full in (1 << 28, 1 << 29):  # bytes, far above any cache
            n = int(full * self.scale) // size
            x = torch.ones(n, device=self.device.name, dtype=DTYPES[dtype])
            y = torch.empty_like(x)
            self.time("copy", dtype, (n,), 0, 2 * size * n, lambda: y.copy_(x))
            self.time("elementwise", dtype, (n,), 0, 3 * size * n,
                      lambda: torch.add(x, y, out=y))
        for full in PROMPTS:
            prompt = max(64, int(full * self.scale))
            # As many bytes whatever the length, far above any cache.
            rows = (1 << 28) // 4 // full
            x = torch.randn(rows, prompt, device=self.device.name)
            # Eager attention computes it in fp32.
            self.time("softmax", "fp32", tuple(x.shape), 0, 2 * 4 * x.numel(),
                      lambda: torch.softmax(x, dim=-1))

    def small_kernels(self):
        x = torch.ones(64, device=self.device.name)
        device_s, host_s = [], []
        for _ in range(50):
            self.device.synchronize()
            if self.device.cuda:
                # The stream waits while it is filled, so that the host is not what is timed.
                torch.cuda._sleep(50_000_000)
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
            start = time.perf_counter()
            for _ in range(QUEUE):
                x.add_(1.0)
            host_s.append((time.perf_counter() - start) / QUEUE)
            if self.device.cuda:
                end.record()
            self.device.synchronize()
            device_s.append(begin.elapsed_time(end) / 1e3 / QUEUE if self.device.cuda
                            else (time.perf_counter() - start) / QUEUE)
        self.add("small_kernel", "fp32", (64,), 0, 2 * 4 * 64, device_s)
        if self.device.name != "cpu":
            self.add("host_operator", "fp32", (64,), 0, 2 * 4 * 64, host_s)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", "-o", required=True, help="the CSV")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtypes", default=None, help="of fp32,tf32,fp16,bf16 [all of the device]")
    parser.add_argument("--quick", action="store_true", help="a quarter of the sizes, less time")
    args = parser.parse_args()
    device = Device(args.device)
    dtypes = (args.dtypes or ("fp16,bf16,tf32,fp32" if device.cuda else "fp32")).split(",")
    for name in dtypes:
        if name not in DTYPES:
            sys.exit(f"--dtypes: got '{name}', expected some of {','.join(DTYPES)}")
    folder = os.path.dirname(os.path.abspath(args.output))
    if not os.path.isdir(folder):
        sys.exit(f"--output {args.output}: its folder is not there")

    bench = Bench(device, 0.1 if args.quick else 0.5, 1 / 4 if args.quick else 1)
    name, driver, memory, cache = device.facts()
    with torch.no_grad():
        for dtype in dtypes:
            bench.matrices(dtype)
            bench.attention(dtype)
        bench.streams(dtypes[0] if dtypes[0] != "tf32" else "fp32")
        bench.small_kernels()

    software = f"PyTorch {torch.__version__}"
    if device.cuda:
        software += f", {'ROCm ' + torch.version.hip if torch.version.hip else 'CUDA ' + torch.version.cuda}"
    head = [name, "cpu" if device.name == "cpu" else "gpu", driver, software,
            datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")]
    rows = [[benchmark, "", "", 0, size, "", "", "", ""]
            for benchmark, size in (("memory_capacity", memory), ("on_chip_memory", cache)) if size]
    partial = args.output + ".partial"
    with open(partial, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows + bench.rows:
            writer.writerow(head + row)
    os.replace(partial, args.output)


if __name__ == "__main__":
    main()
