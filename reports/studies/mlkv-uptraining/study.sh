#!/usr/bin/env bash
# Trains the study of this folder again: reports/studies/mlkv-uptraining/study.sh [FOLDER]
# Needs build/release/kvcast (./run build) and text/ (./run text). FOLDER takes 1.5 GB; a training
# that is there already is not run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
here=reports/studies/mlkv-uptraining
export kvcast=${KVCAST:-build/release/kvcast} out=${1:-build/mlkv-uptraining}
export jobs=${KVCAST_JOBS:-1} threads=${KVCAST_THREADS:-0}
mkdir -p "$out"

novels=(emma mansfield-park pride-and-prejudice sense-and-sensibility moby-dick)
novels=("${novels[@]/#/text/}")
export texts="${novels[*]/%/.txt}"
head -c 65537 text/persuasion.txt >"$out/held-out.txt"

# 6.1 million bytes from random weights.
[[ -d $out/base/checkpoint-003000 ]] ||
  $kvcast train -q --model $here/nano.json --random-weights 1 --tokenizer bytes --text $texts \
    --seq-len 256 --batch 8 --steps 3000 --learning-rate 1e-3 --save-every 500 \
    --output "$out/base" $([[ -d $out/base ]] && echo --resume) >/dev/null

# uptrain LAYERS HEADS MERGE WIDEN SEMANTICS SEED: 5 % of the base's bytes, with the paper's rate,
# warm-up and decay. LAYERS 12 and HEADS 12 is the base itself.
uptrain() {
  local name=$1x$2-$3-$4-$5 model=$out/base/checkpoint-003000
  if [[ $1x$2 != 12x12 ]]; then
    model=$out/converted-$1x$2-$3-$4-$6
    [[ -d $model ]] ||
      $kvcast convert mlkv "$out/base/checkpoint-003000" "$model" --kv-layers $1 --kv-heads $2 \
        --merge $3 --widen $4 >/dev/null 2>&1
  fi
  [[ -d $out/$name-$6/checkpoint-000150 ]] ||
    $kvcast train -q --model "$model" --tokenizer bytes --text $texts \
      --validation-text "$out/held-out.txt" --seq-len 256 --batch 8 --steps 150 \
      --learning-rate 6e-4 --last-learning-rate 0 --warmup 30 --weight-decay 0.01 --seed $6 \
      $([[ $5 == released ]] && echo --semantics released) --threads $threads \
      --output "$out/$name-$6" >/dev/null 2>&1
  rm -rf "$out/$name-$6"/checkpoint-*/optimizer.safetensors
}
export -f uptrain

# The paper's eight configurations, merged and widened as its authors do; then one change at a time.
runs() {
  for seed in 1 2 3; do
    for shape in "12 12" "12 4" "12 1" "4 12" "4 3" "6 1" "4 1" "2 1" "1 1"; do
      echo "$shape sequential copy paper $seed"
    done
  done
  for seed in 1 2 3; do
    echo "6 1 sequential copy released $seed"
    echo "4 3 sequential copy released $seed"
    echo "6 1 sequential preserve paper $seed"
    echo "4 3 mean copy paper $seed"
  done
}
runs | xargs -P "$jobs" -L 1 bash -c 'uptrain "$@"' uptrain

{
  echo "layers,heads,merge,widen,semantics,seed,converted_loss,uptrained_loss"
  runs | while read -r layers heads merge widen semantics seed; do
    metrics=$out/${layers}x$heads-$merge-$widen-$semantics-$seed/metrics.csv
    loss() { awk -F, -v step=$1 '$1 == step { print $6 }' "$metrics"; }
    echo "$layers,$heads,$merge,$widen,$semantics,$seed,$(loss 0),$(loss 150)"
  done
} >$here/losses.csv
