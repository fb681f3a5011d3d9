"""Random configurations for tests of the explorer, and how its results are compared with the program's."""
import json
import pathlib
import random
import subprocess

METHODS = ["", "", "", "slim", "slim:option=kcache", "slim:option=vcache", "mlkv:layers=2,heads=1",
           "kvp:auxiliary=lp-0.50", "specprefill:keep=0.3,lookahead=4",
           "specprefill:speculator=llama-3.2-1b,keep=0.1", "random-prune:keep=0.5",
           "static-prune:keep=0.25", "lazyllm:begin=0.7,end=0.3", "streaming:window=1020,sinks=4"]
PLACEMENTS = ["kvr:p=4", "kvr:p=3,partition=search", "tsp:p=2"]
JOINED = ["a100-80gb", "h100-sxm", "h200", "b200", "a100-40gb", "h20"]  # devices with links or a platform
TYPES = ["fp8", "int8", "int4", "bf16", "q4_k_m"]


def random_configurations(count: int, seed: int, data: pathlib.Path) -> list:
    """Flags of `kvcast estimate` without their dashes. Some are refused, as the program's are."""
    source = random.Random(seed)
    names = {folder: sorted(f.stem for f in (data / folder).glob("*.json"))
             for folder in ("models", "hardware", "engines")}
    configurations = []
    for _ in range(count):
        flags = {"model": source.choice(names["models"]), "hardware": source.choice(names["hardware"]),
                 "batch": str(source.choice([1, 1, 2, 8, 33])),
                 "prompt-len": str(source.randint(1, 30000)), "output-len": str(source.randint(1, 2000)),
                 "method": source.choice(METHODS)}
        if source.random() < 0.5:
            flags["engine"] = source.choice(names["engines"])
        if source.random() < 0.15:
            flags |= {"method": source.choice(PLACEMENTS), "engine": "", "hardware": source.choice(JOINED)}
        elif source.random() < 0.2:
            flags |= {source.choice(["tp", "pp", "ep", "dp"]): source.choice(["2", "4", "8"]),
                      "hardware": source.choice(JOINED)}
        for flag, values, share in (("weight-dtype", TYPES, 0.3), ("cache-dtype", ["fp8", "int8"], 0.15),
                                    ("dtype", ["bf16", "fp32"], 0.2), ("attention", ["eager", "tiled"], 0.2),
                                    ("mode", ["speed-of-light"], 0.1)):
            if source.random() < share:
                flags[flag] = source.choice(values)
        configurations.append({k: v for k, v in flags.items() if v})
    return configurations


def words_of(flags: dict) -> list:
    return ["estimate"] + [word for k, v in flags.items() for word in (f"--{k}", v)]


def differences(ours, theirs, place: str = "") -> list:
    """Where two JSON values differ; numbers to the last digit, and 1 is 1.0 (a browser has one type)."""
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (ours, theirs))
    if numbers:
        return [] if ours == theirs else [f"{place}: {ours!r} {theirs!r}"]
    if type(ours) is not type(theirs):
        return [f"{place}: {ours!r} {theirs!r}"]
    if isinstance(ours, dict):
        found = [] if list(ours) == list(theirs) else [f"{place}: keys {list(ours)} {list(theirs)}"]
        return found + [d for k in ours if k in theirs for d in differences(ours[k], theirs[k], f"{place}/{k}")]
    if isinstance(ours, list):
        found = [] if len(ours) == len(theirs) else [f"{place}: {len(ours)} {len(theirs)} entries"]
        return found + [d for i, (a, b) in enumerate(zip(ours, theirs)) for d in differences(a, b, f"{place}/{i}")]
    return [] if ours == theirs else [f"{place}: {ours!r} {theirs!r}"]


class Comparison:
    """Of results of the page's module with those of the program."""

    def __init__(self, program: str):
        self.program = program
        self.equal = self.refused = 0
        self.failures = []

    def add(self, words: list, result: dict) -> None:
        """`result`: of the module, for the words of an estimate with --breakdown --json."""
        run = subprocess.run([self.program, *words], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            line = run.stderr.strip().splitlines()[-1]
            if line == "kvcast: " + str(result.get("error")):
                self.refused += 1
            else:
                self.failures.append(f"{' '.join(words)}\n  {line}\n  {result.get('error')}")
            return
        found = [result["error"]] if "error" in result else differences(result["document"], json.loads(run.stdout))
        if found:
            self.failures.append(f"{' '.join(words)}\n  " + "\n  ".join(found[:3]))
        else:
            self.equal += 1

    def report(self) -> str:
        return f"{self.equal} equal, {self.refused} refused alike, {len(self.failures)} different"
