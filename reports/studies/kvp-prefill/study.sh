#!/usr/bin/env bash
# Measures each method in turns with plain, one process per pair, and appends its row to speedups.csv. Skips
# pairs that are already there. Takes about 40 minutes on two idle cores.
# Usage: study.sh THIS_MACHINE.json, a file of `kvcast calibrate`
set -euo pipefail
hardware=$(realpath "${1:?usage: study.sh THIS_MACHINE.json}")
cd "$(dirname "${BASH_SOURCE[0]}")"
bench=../../../build/release/bench/prefill_bench # ./run bench prefill builds it
rows=speedups.csv

# pairs MODEL BATCH PROMPT_LEN ROUNDS UNCOUNTED METHOD ...
pairs() {
  local request=(--model "$1" --batch "$2" --prompt-len "$3" --repeats "$4" --uncounted "$5") out cell
  local key="$1" sizes="$2,$3,"
  shift 5
  for method; do
    cell=$method
    [[ $method == *,* ]] && cell="\"$method\""
    [[ -e $rows ]] && grep -qF "$key,$cell,$sizes" "$rows" && continue
    out=$("$bench" --hardware "$hardware" "${request[@]}" --method plain --method "$method")
    [[ -e $rows ]] || head -n 1 <<<"$out" >"$rows"
    tail -n 1 <<<"$out" | tee -a "$rows"
  done
}

layers=(kvp:auxiliary=lp-0.75 kvp:auxiliary=lp-0.50 kvp:auxiliary=lp-0.25)
pruned=(static-prune:keep=0.5 random-prune:keep=0.5 lazyllm:begin=0.5,end=0.1)
smaller=specprefill:speculator=openelm-270m,keep=0.3
both=static-prune:keep=0.5+kvp:auxiliary=lp-0.50
pairs smollm2-135m 1 1024 5 1 "${layers[@]}" specprefill:keep=0.3 "${pruned[@]}" $both
pairs openelm-270m 1 1024 5 1 "${layers[@]}" specprefill:keep=0.3 "${pruned[@]}"
pairs openelm-450m 1 1024 5 1 kvp:auxiliary=openelm-270m "${layers[@]}" $smaller "${pruned[@]}"
pairs openelm-1.1b 1 1024 3 1 kvp:auxiliary={openelm-450m,openelm-270m} "${layers[@]:1}" $smaller "${pruned[@]}"
# No warm-up run: the first of three rounds also compiles the products, which the median ignores.
pairs smollm2-135m 64 59 5 0 "${layers[1]}" "${pruned[@]}"
pairs openelm-270m 64 59 3 0 "${layers[@]:1}" specprefill:keep=0.3 "${pruned[@]}"
pairs openelm-450m 64 59 3 0 kvp:auxiliary=openelm-270m "${layers[1]}" $smaller "${pruned[@]}"
pairs openelm-1.1b 64 59 3 0 kvp:auxiliary=openelm-450m "${layers[1]}" $smaller
