#!/usr/bin/env python3
"""Runs kvcast on the checkpoints of stress.py and compares with transformers.

Each folder is run in eager and tiled attention, in one pass and in chunks of the prompt. A run is
  equal    logits within 1e-4 of their range, and the same greedy tokens
  wrong    other logits or tokens, or an exit status other than 0 and 2
  refused  exit status 2
The table counts checkpoints: wrong if one run is, refused if all are.

Usage: stress_check.py KVCAST [PATTERN] [--folder stress] [-v]      (PATTERN: of folder names, such as 'qwen*' or qwen3_7)
"""

import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TOLERANCE = 1e-4


def read_logits(path):
    """The tensor `logits` of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + size])["logits"]
    start, end = entry["data_offsets"]
    kind = {"F32": np.float32, "F64": np.float64}[entry["dtype"]]
    return np.frombuffer(data[8 + size + start : 8 + size + end], kind).reshape(entry["shape"])


def run(kvcast, folder, notes, truth, flags, scratch):
    """(outcome, error, message)"""
    out = pathlib.Path(scratch) / f"{folder.name}.safetensors"
    out.unlink(missing_ok=True)
    tokens = ",".join(map(str, notes["prompt"]))
    command = [kvcast, "run", "--quiet", "--model", str(folder), "--tokens", tokens, "--ignore-eos", "--threads", "1"]
    if "encoder_tokens" in notes:
        command += ["--encoder-tokens", ",".join(map(str, notes["encoder_tokens"]))]
    command += ["--output-len", str(len(notes["greedy"])), "--logits", str(out), *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "wrong", 1.0, "no answer in 120 s"
    message = ((done.stderr.strip() or done.stdout.strip()).splitlines() or ["no message"])[-1].replace(str(folder), "DIR")
    if done.returncode == 2:
        return "refused", 0.0, message
    if done.returncode != 0:
        return "wrong", 1.0, f"status {done.returncode}: {message}"
    logits = read_logits(out)
    if logits.shape != truth.shape:
        return "wrong", 1.0, f"logits {logits.shape}, not {truth.shape}"
    error = float(np.abs(logits - truth).max() / (truth.max() - truth.min()))
    if not error < TOLERANCE:
        rows = np.abs(logits - truth).max(1) / (truth.max() - truth.min()) > TOLERANCE
        first = int(np.argmax(rows))
        return "wrong", error if error == error else 9.9, f"logits off by {error:.1e}, first at position {first}"
    line = next((x for x in done.stdout.splitlines() if x and set(x) <= set("0123456789,")), "")
    greedy = [int(x) for x in line.split(",") if x]
    if greedy != notes["greedy"]:
        same = next((i for i, (a, b) in enumerate(zip(greedy, notes["greedy"])) if a != b), len(greedy))
        return "wrong", error, f"greedy token {same} of {len(notes['greedy'])}: {greedy[same:][:1]}, not {notes['greedy'][same]}"
    return "equal", error, ""


def check(kvcast, folder, scratch):
    notes = json.loads((folder / "notes.json").read_text())
    truth = np.load(folder / "expected.npz")["logits"]
    chunk = 3 + notes["seed"] % 9
    worst, answers = 0.0, []
    for attention in ("tiled", "eager"):
        for pieces in ([], ["--chunk", str(chunk)]):
            flags = ["--attention", attention, *pieces]
            outcome, error, message = run(kvcast, folder, notes, truth, flags, scratch)
            worst = max(worst, error)
            answers.append((outcome, f"{' '.join(flags[1:])}: {message}"))
            if outcome == "refused" and not pieces and attention == "tiled":
                return notes, "refused", 0.0, [message]
    wrong = [m for o, m in answers if o == "wrong"]
    if wrong:
        return notes, "wrong", worst, wrong
    refused = [m for o, m in answers if o == "refused"]
    return notes, "equal", worst, [f"REFUSED IN PART {m}" for m in refused]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvcast")
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--folder", type=pathlib.Path, default=HERE / "stress")
    parser.add_argument("-v", action="store_true", help="every message of every checkpoint")
    options = parser.parse_args()
    folders = sorted(
        (f for f in options.folder.iterdir() if (f / "notes.json").exists()),
        key=lambda f: (f.name.rsplit("_", 1)[0], int(f.name.rsplit("_", 1)[1])),
    )
    chosen = [
        f for f in folders if any(fnmatch.fnmatch(x, options.pattern) for x in (f.name, f.name.rsplit("_", 1)[0]))
    ]
    if not chosen:
        sys.exit(f"no folder of {options.folder} is named like {options.pattern}")
    families = {}
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for folder, row in zip(chosen, pool.map(lambda f: check(options.kvcast, f, scratch), chosen)):
            families.setdefault(row[0]["family"], []).append((folder, *row))
    print(f"{'family':14} {'equal':>6} {'wrong':>6} {'refused':>8} {'largest error':>14}")
    total = [0, 0, 0]
    for family, rows in families.items():
        counts = [sum(r[2] == what for r in rows) for what in ("equal", "wrong", "refused")]
        total = [a + b for a, b in zip(total, counts)]
        worst = max((r[3] for r in rows if r[2] != "refused"), default=0.0)
        print(f"{family:14} {counts[0]:6} {counts[1]:6} {counts[2]:8} {worst:14.1e}")
    print(f"{'all':14} {total[0]:6} {total[1]:6} {total[2]:8}")
    for title, what in (("wrong", "wrong"), ("refused, each message once a family", "refused"), ("refused in part", "equal")):
        lines = []
        for family, rows in families.items():
            seen = {}
            for folder, notes, outcome, _, messages in rows:
                if outcome != what or not messages:
                    continue
                if what == "wrong" or options.v:
                    for message in messages if options.v else messages[:1]:
                        more = f" (+{len(messages) - 1} runs)" if len(messages) > 1 and not options.v else ""
                        lines.append(f"  {folder.name} [spelling {notes['spelling']}] {message}{more}")
                else:
                    seen.setdefault(messages[0], []).append(folder.name)
            lines += [f"  {names[0]} x{len(names)}: {message}" for message, names in seen.items()]
        if lines:
            print(f"\n{title}:")
            print("\n".join(lines))
    sys.exit(1 if total[1] else 0)


if __name__ == "__main__":
    main()
