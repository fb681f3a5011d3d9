#!/usr/bin/env python3
"""Measures prompts read by several MPI ranks on this machine and simulates the same.

Usage: measure.py KVCAST NETWORK RANKS ROUNDS CASE...
NETWORK   memory, or a rate that tc knows (1gbit, 10gbit; root): two shaped network namespaces
CASE      MODEL:PROMPT_LEN, a catalog name with random weights, or CHECKPOINT=MODEL:PROMPT_LEN

Calibrates with all ranks busy, then runs the methods in turns, ROUNDS times each, with a warm-up
run before each and one thread per rank. Appends to measurements.csv and writes the hardware file to hardware/.
"""
import csv, json, os, statistics, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = ["network", "ranks", "model", "prompt_len", "method", "partition_tokens",
           "measured_ttft_s", "measured_low_s", "measured_high_s", "simulated_ttft_s",
           "relative_error", "measured_wait_s", "simulated_wait_s", "measured_compute_s",
           "simulated_compute_s", "rounds"]


def main():
    kvcast, network, ranks, rounds = os.path.abspath(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5])
    shaped = network != "memory"
    namespaces = os.path.join(HERE, "namespaces.sh")
    if shaped:
        subprocess.run([namespaces, "up", network], check=True)
    try:
        measure(kvcast, network, ranks, rounds, shaped, namespaces)
    finally:
        if shaped:
            subprocess.run([namespaces, "down"], check=True)


def measure(kvcast, network, ranks, rounds, shaped, namespaces):
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    if shaped:
        here = "10.77.0.0/24"
        mpirun = [namespaces, "shell", "kv0", *mpirun, "--mca", "plm_rsh_agent", f"'{namespaces} shell'",
                  "--mca", "oob_tcp_if_include", here, "--mca", "btl_tcp_if_include", here,
                  "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "-H", "kv0:1,kv1:1"]

    def run(command, on_ranks):
        command = [kvcast, *command]
        if on_ranks:
            command = [*mpirun, "-n", str(ranks), *command]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout) if "--json" in command else None

    os.makedirs(os.path.join(HERE, "hardware"), exist_ok=True)
    hardware = os.path.join(HERE, "hardware", f"{network}-{ranks}.json")
    run(["calibrate", "--force", "--threads", "1", "--output", hardware], True)
    print(f"{network}, {ranks} ranks: calibrated", file=sys.stderr)

    even, search = f"kvr:p={ranks}", f"kvr:p={ranks},partition=search"
    methods = ["plain", even, search, f"tsp:p={ranks}"]
    rows = []
    for case in sys.argv[5:]:
        name, length = case.rsplit(":", 1)
        checkpoint, _, model = name.rpartition("=")
        request = ["--quiet", "--json", "--prompt-len", length]
        runs = {method: [] for method in methods}
        for _ in range(rounds):
            for method in methods:
                which = ["--model", checkpoint or model, "--method", method, "--threads", "1",
                         "--output-len", "1", "--dtype", "fp32", "--rounds", "1"]
                which += [] if checkpoint else ["--random-weights", "1"]
                which += ["--hardware", hardware] if method == search else []
                runs[method].append(run(["run", *request, *which], method != "plain"))
        for method, results in runs.items():
            rows.append(row_of(run, network, ranks, model, request, hardware, method, results))
    path = os.path.join(HERE, "measurements.csv")
    is_new = not os.path.exists(path)
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def row_of(run, network, ranks, model, request, hardware, method, results):
    ttfts = [r["ttft_s"] for r in results]
    measured = statistics.median(ttfts)
    median = results[ttfts.index(sorted(ttfts)[len(ttfts) // 2])]
    row = {"network": network, "ranks": ranks, "model": model, "prompt_len": median["prompt_len"],
           "method": method, "measured_ttft_s": measured, "measured_low_s": min(ttfts),
           "measured_high_s": max(ttfts), "rounds": len(results)}
    forecast = ["--model", model, "--hardware", hardware, "--dtype", "fp32", *request]
    if method == "plain":
        row["ranks"] = 1
        simulated = run(["estimate", *forecast], False)
    else:
        parts = ",".join(map(str, median["partition_tokens"]))
        simulated = run(["simulate", "prefill", *forecast, "--schedule", method[:3], "--devices", str(ranks),
                         "--topology", "ring", "--link", "mpi", "--partition", parts], False)
        row["partition_tokens"] = parts.replace(",", "/")
        row["measured_wait_s"] = median["ranks"][-1]["wait_s"]
        row["measured_compute_s"] = median["ranks"][-1]["compute_s"]
        row["simulated_wait_s"] = simulated["waiting_s"][-1]
        row["simulated_compute_s"] = simulated["compute_s"][-1]
    row["simulated_ttft_s"] = simulated["ttft_s"]
    row["relative_error"] = simulated["ttft_s"] / measured - 1
    print(f"{network} {model} {request[3]} {method}: measured {measured:.3f} s "
          f"({min(ttfts):.3f} to {max(ttfts):.3f}), simulated {row['simulated_ttft_s']:.3f} s, "
          f"{100 * row['relative_error']:+.1f} %", file=sys.stderr)
    return {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}


main()
