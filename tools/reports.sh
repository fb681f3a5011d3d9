#!/usr/bin/env bash
# Rebuilds the studies in reports/: CSVs, plots and manifests, but not the texts.
# Usage: tools/reports.sh KVCAST, the program; from the root of the repository.
set -euo pipefail
export LC_ALL=C
kvcast=$1

# hash_line INPUT: its entry in a manifest. A pattern's hash is that of the list of its files'
# hashes: (cd data/models && sha256sum *.json | sha256sum).
hash_line() {
  local hash
  case $1 in
    *\**) hash=$(cd "${1%/*}" && sha256sum ${1##*/} | sha256sum) ;;
    *) hash=$(sha256sum "$1") ;;
  esac
  printf '    "%s": "%s"' "$1" "${hash%% *}"
}

# manifest FOLDER: of the commands and inputs that stand in the arrays of these names.
manifest() {
  {
    printf '{\n  "kvcast": "%s",\n  "commands": [\n' "$("$kvcast" --version | sed -n 's/^kvcast //p')"
    for ((i = 0; i < ${#commands[@]}; ++i)); do
      ((i)) && printf ',\n'
      printf '    "%s"' "${commands[i]}"
    done
    printf '\n  ],\n  "seeds": "%s",\n  "inputs": {\n' "${seeds:-none: nothing is drawn at random}"
    for ((i = 0; i < ${#inputs[@]}; ++i)); do
      ((i)) && printf ',\n'
      hash_line "${inputs[i]}"
    done
    printf '\n  }\n}\n'
  } >"$1/manifest.json.partial"
  mv "$1/manifest.json.partial" "$1/manifest.json"
}

# study NAME INPUT ... -- WORDS ... [-- WORDS ...]: runs each `kvcast WORDS` and writes the manifest.
study() {
  local folder=reports/studies/$1 inputs=() commands=() words=()
  shift
  while [[ $1 != -- ]]; do
    inputs+=("$1")
    shift
  done
  while (($#)); do
    shift
    words=()
    while (($#)) && [[ $1 != -- ]]; do
      words+=("$1")
      shift
    done
    echo "reports: kvcast ${words[*]}" >&2
    "$kvcast" "${words[@]}" >/dev/null
    commands+=("kvcast ${words[*]}")
  done
  manifest "$folder"
}

# paper NAME GROUP INPUT ... [-- WORDS ...]: a paper's tables, as `kvcast reproduce GROUP` has them.
paper() {
  local name=$1 group=$2 more=()
  shift 2
  while (($#)) && [[ $1 != -- ]]; do
    more+=("$1")
    shift
  done
  study "$name" data/published/errata.csv data/published/"$group"_*.csv 'data/models/*.json' \
    "${more[@]}" -- reproduce "$group" --csv "reports/studies/$name/cells.csv" \
    --plot "reports/studies/$name/published-and-ours.svg" "$@"
}

paper kv-prediction kvp 'data/hardware/*.json'
paper slim-attention slim 'data/hardware/*.json'
parts=()
for rest in '' +kvp:auxiliary=lp-0.50; do
  for keep in 0.1 0.3 0.5 0.7 0.9; do # section 4.4 of the paper
    parts+=("--method" "specprefill:speculator=llama-3.1-8b,keep=$keep,lookahead=8,chunk=32,pool=13$rest")
  done
done
seeds="1: weights and prompts of specprefill-example, which positions do not depend on" \
  paper speculative-prefill specprefill 'data/hardware/*.json' -- \
  sweep --model llama-3.1-70b,llama-3.1-405b --hardware h200 --dtype bf16 --batch 16 --prompt-len 32k \
  --output-len 1 "${parts[@]}" --csv reports/studies/speculative-prefill/parts-rows.csv \
  --plot reports/studies/speculative-prefill/parts.svg --plot-kind parts
paper mlkv mlkv data/measurements/mlkv_rtx3060.csv
paper kv-runahead kvr 'data/hardware/*.json' -- \
  reproduce kvr-table1 kvr-table2 kvr-table3-base kvr-table3-10gbs --plot reports/studies/kv-runahead/ttft.svg
study llama-7b-a100 data/published/kvr_table3_ttft_low_bandwidth.csv data/models/llama-7b.json \
  data/hardware/a100-80gb.json -- reproduce kvr-table3-base --csv reports/studies/llama-7b-a100/cells.csv \
  --plot reports/studies/llama-7b-a100/ttft.svg
study public-measurements data/measurements/{public_llm_latency,gpu_latency,published_ttft,openelm_m2_pro}.csv \
  'data/models/*.json' 'data/hardware/*.json' 'data/engines/*.json' -- \
  validate --measurements data/measurements/{public_llm_latency,gpu_latency}.csv \
  --csv reports/studies/public-measurements/engine-rows.csv --plot reports/studies/public-measurements/engines.svg -- \
  validate --measurements data/measurements/published_ttft.csv \
  --csv reports/studies/public-measurements/paper-rows.csv --plot reports/studies/public-measurements/papers.svg -- \
  validate --measurements data/measurements/openelm_m2_pro.csv \
  --csv reports/studies/public-measurements/m2-pro-rows.csv --plot reports/studies/public-measurements/m2-pro.svg -- \
  validate coverage --measurements data/measurements/{public_llm_latency,gpu_latency,published_ttft}.csv \
  --csv reports/studies/public-measurements/coverage-rows.csv --plot reports/studies/public-measurements/coverage.svg

# llama_bench MODEL: fits two factors to all but the 128-token row of a run, and forecasts others.
llama_bench() {
  local of=(validate --rows "model=$1" --measurements)
  local fit=(--hardware $bench/machine.json --fit matrix_rate,memory_bandwidth --fit-rows 'prompt_len!=128')
  bench_words+=(-- "${of[@]}" $bench/run1.csv "${fit[@]}" --output $bench/$1.json --csv $bench/$1-run1.csv
    -- "${of[@]}" $bench/run2.csv --hardware $bench/$1.json --csv $bench/$1-run2.csv
    -- "${of[@]}" $bench/openblas.json "${fit[@]}" --output $bench/$1-openblas.json --csv $bench/$1-openblas.csv
    -- "${of[@]}" $bench/run4.csv "${fit[@]}" --output $bench/$1-run4.json --csv $bench/$1-run4.csv
    -- "${of[@]}" $bench/run5.csv --hardware $bench/$1-run4.json --csv $bench/$1-run5.csv
    -- "${of[@]}" $bench/run6.csv --hardware $bench/$1-run4.json --csv $bench/$1-run6.csv
    -- "${of[@]}" $bench/run{4,5,6}.csv "${fit[@]}" --output $bench/$1-three-runs.json
    --csv $bench/$1-three-runs.csv --plot $bench/$1-forecast.svg
    -- "${of[@]}" $bench/run{7,8,9,10}.csv --hardware $bench/$1-three-runs.json
    --csv $bench/$1-next-day.csv --plot $bench/$1-next-day-forecast.svg)
}
bench=reports/studies/llama-bench
bench_words=()
llama_bench smollm2-135m
llama_bench tinyllama-1.1b
study llama-bench $bench/{machine,openblas}.json $bench/run{1,2,4,5,6,7,8,9,10}.csv 'data/models/*.json' \
  "${bench_words[@]}"

# Each set's runs, by turn, held against the calibrations of the same hours.
validation=reports/studies/validation
inputs=('data/models/*.json')
words=()
for set in first zen3 steady turns again batches; do
  inputs+=($validation/$set.csv $validation/$set-{this-machine,two-ranks}.json)
  words+=(-- validate --measurements $validation/$set.csv --hardware $validation/$set-this-machine.json
    --rank-hardware $validation/$set-two-ranks.json --csv $validation/$set-rows.csv)
done
words+=(-- validate --measurements $validation/turns.csv --hardware $validation/turns-this-machine.json
  --rank-hardware $validation/turns-two-ranks.json --plot $validation/forecast.svg)
seeds='weights and prompts: seed 1' study validation "${inputs[@]}" "${words[@]}"

# What was measured on one machine stays, as study.sh measures it; the plot is drawn from it.
drawn() {
  local study=reports/studies/$1
  (cd "$study" && gnuplot --default-settings "$2.gp")
  local inputs=("$study/$2.csv") commands=("cd $study && gnuplot --default-settings $2.gp")
  if [[ -f $study/study.sh ]]; then
    inputs+=("$study/study.sh")
    commands=("$study/study.sh" "${commands[@]}")
  fi
  manifest "$study"
}
seeds='weights: seed 1' drawn slim-decode speedups
seeds='weights: seed 1' drawn kvp-prefill speedups
seeds='base: seed 1; uptraining: seeds 1 to 3' drawn mlkv-uptraining losses
seeds='1: the order of the text' drawn kvp-training layers
seeds='seed 1 of weights, maps and the order of the text; random pruning: seed 1 and on' drawn kvp-miniature quality
