#!/usr/bin/env python3
"""Operators of a compute profile of microsoft/vidur, as a CSV for `kvcast calibrate --import`.

    git clone https://github.com/microsoft/vidur
    python3 tools/vidur_microbenchmarks.py vidur/data/profiling/compute/a40 \\
        --device "NVIDIA A40 48GB" --run "microsoft/vidur @ 7d475133" --date 2024-11-19 \\
        --output vidur_a40.csv
    kvcast calibrate --import vidur_a40.csv --hardware a40 --output my-a40.json

vidur timed the operators of a model's layer on a GPU 20 times each, in fp16 (vidur/profiling/mlp), and
keeps median and standard deviation: the file's quartiles are those of a normal distribution with
these. Taken are the products with weights and the residual addition of prompts of at least 1024
tokens, without tensor parallelism. Columns: data/hardware/README.md.
"""

import argparse
import csv
import pathlib
import statistics
import sys

COLUMNS = ["device", "kind", "driver", "software", "date", "benchmark", "dtype", "shape", "flops",
           "bytes", "median_s", "q1_s", "q3_s", "repeats"]
TOKENS = (1024, 2048, 4096)
BYTES = 2  # of a number in fp16
REPEATS = 20  # vidur/profiling/mlp/mlp_wrapper.py: ACTIVE_STEPS


def products(row):
    """Name of each product with weights, and its out and in."""
    hidden, inner = int(row["n_embd"]), int(row["n_expanded_embd"])
    heads, kv_heads = int(row["n_head"]), int(row["n_kv_head"])
    gated = 2 if row["use_gated_mlp"] == "True" else 1
    return [("attn_pre_proj", (heads + 2 * kv_heads) * hidden // heads, hidden),
            ("attn_post_proj", hidden, hidden),
            ("mlp_up_proj", gated * inner, hidden),
            ("mlp_down_proj", hidden, inner)]


def times(row, name):
    """Median and quartiles in seconds."""
    median, deviation = (float(row[f"time_stats.{name}.{what}"]) / 1e3 for what in ("median", "std"))
    quarter = statistics.NormalDist().inv_cdf(0.75) * deviation
    return median, median - quarter, median + quarter


def benchmarks(profile):
    """Benchmark, shape, FLOPs, bytes and times of each row, each shape once."""
    seen = set()
    for path in sorted(profile.rglob("mlp.csv")):
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                tokens = int(row["num_tokens"])
                if tokens not in TOKENS or int(row["num_tensor_parallel_workers"]) != 1:
                    continue
                hidden = int(row["n_embd"])
                found = [("matmul", (tokens, out, inner), 2 * tokens * out * inner,
                          BYTES * (tokens * inner + out * inner + tokens * out), times(row, name))
                         for name, out, inner in products(row)]
                if row.get("time_stats.post_attention_layernorm.median"):  # else "add" is two additions
                    found.append(("elementwise", (tokens, hidden), 0, BYTES * 3 * tokens * hidden,
                                  times(row, "add")))
                for benchmark in found:
                    if benchmark[:2] not in seen:
                        seen.add(benchmark[:2])
                        yield benchmark


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", type=pathlib.Path, help="folder with MODEL/mlp.csv files")
    parser.add_argument("--device", required=True, help="name of the GPU")
    parser.add_argument("--run", required=True, help="repository and commit of the profile")
    parser.add_argument("--date", required=True, help="of that commit")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    rows = list(benchmarks(args.profile))
    if not rows:
        sys.exit(f"{args.profile}: no mlp.csv with {', '.join(map(str, TOKENS))} tokens; "
                 "expected a folder of vidur's data/profiling/compute")
    with open(args.output, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, shape, flops, moved, (median, q1, q3) in rows:
            writer.writerow([args.device, "gpu", "not said", args.run, args.date, name, "fp16",
                             "x".join(map(str, shape)), flops, moved, f"{median:.6g}",
                             f"{q1:.6g}", f"{q3:.6g}", REPEATS])


if __name__ == "__main__":
    main()
