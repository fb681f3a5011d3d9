#!/usr/bin/env bash
# Trains the study of this folder again: reports/studies/kvp-training/study.sh [FOLDER]
# Needs build/release/kvcast (./run build), weights/ (./run weights) and text/ (./run text). FOLDER
# takes 8 GB; what is there already is not made again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
here=reports/studies/kvp-training
kvcast=${KVCAST:-build/release/kvcast} out=${1:-build/kvp-training}
model=weights/smollm2-135m-instruct.gguf
mkdir -p "$out"

novels=(emma mansfield-park pride-and-prejudice sense-and-sensibility moby-dick)
novels=("${novels[@]/#/text/}")
texts=("${novels[@]/%/.txt}")
head -c 24577 text/persuasion.txt >"$out/held-out.txt"

# train NAME WORDS...: 65,536 tokens in 32 steps.
train() {
  local name=$1
  shift
  [[ -d $out/$name/checkpoint-000032 ]] ||
    $kvcast train -q "$@" --text "${texts[@]}" --validation-text "$out/held-out.txt" --seq-len 256 \
      --batch 8 --micro-batches 2 --steps 32 --learning-rate 3e-4 --warmup 3 --save-every 8 \
      --output "$out/$name" $([[ -d $out/$name ]] && echo --resume) >/dev/null
  rm -f "$out/$name"/checkpoint-*/optimizer.safetensors
}

# The base's own layers, alone and with maps that are fitted to a text and then trained with them.
for share in 0.50 0.25 0.75; do
  [[ -d $out/lp-$share ]] ||
    $kvcast convert prune $model "$out/lp-$share" --keep $share >/dev/null
  [[ -d $out/maps-$share ]] ||
    $kvcast convert kvp --base $model --auxiliary "$out/lp-$share" --window 256 \
      --fit reports/studies/quality/texts/log-school-house.txt "$out/maps-$share" >/dev/null
  kvp=kvp:auxiliary=$out/lp-$share,predictor=$out/maps-$share
  train "kvp-$share" --model $model --method "$kvp"
  train "alone-$share" --model "$out/lp-$share" --tokenizer $model
  if [[ $share == 0.50 ]]; then
    # The paper's Table 2: other weights of the consistency loss than 1 over the layers.
    train "kvp-$share-0" --model $model --method "$kvp" --consistency-weight 0
    train "kvp-$share-1" --model $model --method "$kvp" --consistency-weight 1
  fi
done
