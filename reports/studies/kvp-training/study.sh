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
prepare() { # SHARE
  local layers=$1
  if [[ $1 == 0.10 ]]; then layers=0,10,20; fi
  [[ -d $out/lp-$1 ]] || $kvcast convert prune $model "$out/lp-$1" --keep "$layers" >/dev/null
  [[ -d $out/maps-$1 ]] ||
    $kvcast convert kvp --base $model --auxiliary "$out/lp-$1" --window 256 \
      --fit reports/studies/quality/texts/log-school-house.txt "$out/maps-$1" >/dev/null
}
with_base() { # SHARE NAME WORDS...
  local share=$1 name=$2
  shift 2
  train "$name" --model $model \
    --method "kvp:auxiliary=$out/lp-$share,predictor=$out/maps-$share" "$@"
}
for share in 0.50 0.25 0.75; do
  prepare $share
  with_base $share kvp-$share
  train "alone-$share" --model "$out/lp-$share" --tokenizer $model
done
# For reports/studies/quality, whose grid has it.
prepare 0.10
with_base 0.10 kvp-0.10
# The paper's Table 2: other weights of the consistency loss than 1 over the layers.
with_base 0.50 kvp-0.50-0 --consistency-weight 0
with_base 0.50 kvp-0.50-1 --consistency-weight 1

# Held-out losses before the first step and at the end.
losses() { # SHARE WEIGHT NAME
  awk -F, -v OFS=, -v share="$1" -v weight="$2" '
    NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
    function of(name) { return at["validation_" name] ? $at["validation_" name] : "" }
    of("loss") != "" { auxiliary = of("auxiliary_loss")
      print share, weight, $1, of("loss"), auxiliary != "" ? auxiliary : of("loss"),
            of("base_loss"), of("key_consistency"), of("value_consistency") }' "$out/$3/metrics.csv"
}
{
  echo "share,consistency_weight,step,loss,auxiliary_loss,base_loss,key_consistency,value_consistency"
  losses 0.50 1/30 kvp-0.50
  losses 0.50 0 kvp-0.50-0
  losses 0.50 1 kvp-0.50-1
  losses 0.50 alone alone-0.50
  losses 0.10 1/30 kvp-0.10
  for share in 0.25 0.75; do
    losses $share 1/30 kvp-$share
    losses $share alone alone-$share
  done
} >$here/losses.csv

# Errors of predicted keys and values over the base's layers, half the layers trained.
trained=$out/kvp-0.50/checkpoint-000032
$kvcast validate kvp -q --base $model --auxiliary "$trained" --predictor "$trained/predictor" \
  --text "$out/held-out.txt" --window 256 --json |
  python3 -c 'import csv, json, sys
errors = json.load(sys.stdin)
rows = csv.writer(sys.stdout, lineterminator="\n")
rows.writerow(["layer", "key_l1", "value_l1"])
rows.writerows(zip(range(len(errors["key_l1"])), errors["key_l1"], errors["value_l1"]))' >$here/layers.csv
echo "$((SECONDS / 60)) minutes"
