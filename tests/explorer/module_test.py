#!/usr/bin/env python3
"""The explorer's module, run by Node, gives what the program gives, to the last digit.
Usage: module_test.py PROGRAM MODULE.js DATA [COUNT [SEED]]"""
import json
import pathlib
import subprocess
import sys

from configurations import Comparison, random_configurations, words_of


def main() -> int:
    program, module, data = sys.argv[1:4]
    count, seed = (int(a) for a in (sys.argv[4:] + ["60", "1"][len(sys.argv[4:]):])[:2])
    requests = [words_of(f) + ["--breakdown", "--json"]
                for f in random_configurations(count * 3 // 2, seed, pathlib.Path(data))]
    # Other sizes of what the module has kept.
    for words in requests[:60:4]:
        at = words.index("--prompt-len") + 1
        requests.append(words[:at] + ["777"] + words[at + 1:])
        requests.append(words)
    sweeps = [["sweep", "--model", "llama-3.1-8b,deepseek-v3", "--hardware", "h100-sxm", "--engine", "vllm",
               "--method", "plain;slim;random-prune:keep=0.1,seed=3", "--prompt-len", "1..64k:x4"],
              ["sweep", "--model", "mixtral-8x7b", "--hardware", "a100-80gb", "--tp", "1,8", "--batch", "1..64:x2"]]
    run = subprocess.run(["node", str(pathlib.Path(__file__).with_name("run_module.js")), module, data],
                         input="\n".join(json.dumps(r) for r in requests + sweeps), capture_output=True, text=True, check=False)
    results = [json.loads(line) for line in run.stdout.splitlines()]
    if len(results) != len(requests) + len(sweeps):
        print(f"FAILED: the module stopped at {' '.join(requests[len(results)])}\n{run.stderr[:500]}")
        return 1
    comparison = Comparison(program)
    for words, result in zip(requests, results):
        comparison.add(words, result)
    for words, result in zip(sweeps, results[len(requests):]):
        rows = subprocess.run([program, *words, "--quiet"], capture_output=True, text=True, check=True).stdout
        if result.get("text") != rows:
            comparison.failures.append(f"{' '.join(words)}: other rows\n{result.get('error')}")
    print(comparison.report())
    for failure in comparison.failures:
        print("FAILED:", failure)
    return 1 if comparison.failures or comparison.equal < count else 0


if __name__ == "__main__":
    sys.exit(main())
