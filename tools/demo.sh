#!/usr/bin/env bash
# The main job on real inputs: a forecast beside published measurements, a sweep, plots.
# usage: demo.sh [FOLDER]   (./run demo builds first; results/demo by default)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-results/demo}
kvcast=build/release/kvcast
mkdir -p "$out"

echo "1. Llama 7B on one A100 80GB, eager attention, fp16: forecast beside the measurements of"
echo "   KV-Runahead (Cho et al. 2024, arXiv:2405.05329, Table 3). No factor is fitted to them."
echo
"$kvcast" reproduce kvr-table3-base --plot "$out/llama-7b-a100-ttft.svg" \
  --csv "$out/llama-7b-a100-ttft-rows.csv"

echo
echo "2. A sweep: 6 models, 4 devices, 2 methods, 3 batches, 8 prompt lengths. Prompts beyond a"
echo "   model's context are costed all the same."
models=llama-7b,llama-3.1-8b,gemma2-9b,phi-3-mini-128k,openelm-3b,falcon-7b
"$kvcast" sweep --quiet --model "$models" --hardware a100-80gb,h100-sxm,rtx-4090,rtx-3060-12gb \
  --method 'plain;random-prune:keep=0.5' --batch 1,4,16 --prompt-len 1k..128k:x2 \
  --csv "$out/sweep.csv"
"$kvcast" sweep --quiet --model llama-3.1-8b,pythia-1.4b --hardware a100-80gb,h100-sxm --batch 1 \
  --prompt-len 1k..128k:x2 --csv "$out/ttft-sweep.csv" --plot "$out/ttft.svg"
"$kvcast" sweep --quiet --model llama-7b --hardware a100-80gb --batch 8 --prompt-len 1k..32k:x2 \
  --csv "$out/memory-sweep.csv" --plot "$out/memory.svg" --plot-kind memory
"$kvcast" estimate --quiet --model llama-7b --hardware a100-80gb --attention eager \
  --prompt-len 4k --plot "$out/roofline.svg" >/dev/null

# Columns by name, so that the order in the CSV may change.
awk -F, '
  NR == 1 { for (i = 1; i <= NF; ++i) column[$i] = i; next }
  { ++rows }
  $column["fits"] == "true" { ++fits }
  $column["bound"] == "memory" { ++memory }
  END { printf "   %d design points: %d fit their device; memory bounds the request in %d.\n",
               rows, fits, memory }' "$out/sweep.csv"

echo
echo "3. A forecast is proved by running it: a small checkpoint in plain loops that count their work."
echo
"$kvcast" run --quiet --model tests/oracle/gemma2 --tokens 5,6,7,8 --output-len 8 --count
smollm2=weights/smollm2-135m-instruct.gguf
if [[ -f $smollm2 ]]; then
  echo
  echo "   SmolLM2-135M says, and where its time went:"
  "$kvcast" run --quiet --model "$smollm2" --prompt 'The capital of France is' --profile
else
  echo "   (./run weights fetches a real language model; then this runs it too)"
fi

echo
echo "Files in $out:"
echo "  sweep.csv                    every design point, a row each, base units"
echo "  llama-7b-a100-ttft.svg       forecast (line) and published measurements (marks)"
echo "  ttft.svg memory.svg          TTFT and memory over the prompt length"
echo "  roofline.svg                 every operator of Llama 7B's prefill and decode on the A100"
echo "  beside each picture its .csv and .gp: change the script, then run gnuplot on it there"
