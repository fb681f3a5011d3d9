#!/usr/bin/env bash
# Trains the study of this folder again: reports/studies/kvp-miniature/study.sh [FOLDER]
# Needs build/release/kvcast (./run build) and text/ (./run text). FOLDER takes 1 GB; a training that
# is there already is not run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
here=reports/studies/kvp-miniature
kvcast=${KVCAST:-build/release/kvcast} out=${1:-build/kvp-miniature} threads=${KVCAST_THREADS:-0}
mkdir -p "$out"

novels=(emma mansfield-park pride-and-prejudice sense-and-sensibility moby-dick)
novels=("${novels[@]/#/text/}")
texts=("${novels[@]/%/.txt}")
head -c 65537 text/persuasion.txt >"$out/held-out.txt"
# Behind it, what each model continues, as token ids: bytes.
head -c 196608 text/persuasion.txt | tail -c 131072 | od -An -v -tu1 |
  awk 'BEGIN { printf "[" } { for (i = 1; i <= NF; ++i) { printf "%s%s", n++ ? "," : "", $i } }
       END { print "]" }' >"$out/held-out.json"

# train NAME STEPS RATE WORDS...: sequences of 256 bytes, 8 a step.
train() {
  local name=$1 steps=$2 rate=$3
  shift 3
  local last=$out/$name/checkpoint-$(printf %06d "$steps")
  [[ -d $last ]] ||
    $kvcast train -q "$@" --tokenizer bytes --text "${texts[@]}" \
      --validation-text "$out/held-out.txt" --seq-len 256 --batch 8 --steps "$steps" \
      --learning-rate "$rate" --save-every 250 --threads "$threads" \
      --output "$out/$name" $([[ -d $out/$name ]] && echo --resume) >/dev/null
  rm -f "$last/optimizer.safetensors"
}

# A base model and its small sibling, each from random weights on the same text.
base=$out/base/checkpoint-002000
train base 2000 1e-3 --model reports/studies/mlkv-uptraining/nano.json --random-weights 1
train sibling 2000 1e-3 --model $here/sibling.json --random-weights 1

# auxiliary NAME MODEL: trained with the base's predicted cache, from random maps, and alone.
auxiliary() {
  train "kvp-$1" 400 1e-3 --model "$base" --method "kvp:auxiliary=$2"
  train "alone-$1" 400 1e-3 --model "$2"
}
auxiliary c "$out/sibling/checkpoint-002000"
for share in 0.25 0.50 0.75; do
  [[ -d $out/lp-$share ]] || $kvcast convert prune "$base" "$out/lp-$share" --keep $share >/dev/null
  auxiliary "lp-$share" "$out/lp-$share"
done

# What each makes of 64 bytes: the 32 bytes behind them, at 64 places of the held-out text.
quality() { # NAME MODEL METHOD
  $kvcast validate quality -q --model "$2" --method "$3" --text "$out/held-out.json" --samples 64 \
    --prompt-len 64 --continuation 32 --threads "$threads" --csv "$out/$1.csv" --restart >/dev/null
  # The plain model's rows stand beside every method's. The method's name may have commas.
  awk -F, -v OFS=, -v name="$1" -v plain=$([[ $3 == plain ]] && echo 1 || echo 0) '
    NR == 1 { for (i = 1; i <= NF; ++i) if ($i == "cross_entropy_nats") behind = NF - i; next }
    ($3 == "plain") == plain { sub(/.*@/, "", $2); print name, $2, $(NF - behind) }' "$out/$1.csv"
}
{
  echo "model,position,cross_entropy_nats"
  quality base "$base" plain
  for keep in 0.25 0.50 0.75; do
    quality random-$keep "$base" random-prune:keep=$keep
    quality static-$keep "$base" static-prune:keep=$keep
  done
  for name in c lp-0.25 lp-0.50 lp-0.75; do
    trained=$out/kvp-$name/checkpoint-000400
    quality "kvp-$name" "$base" "kvp:auxiliary=$trained,predictor=$trained/predictor"
    quality "alone-$name" "$out/alone-$name/checkpoint-000400" plain
  done
} >$here/continuations.csv

{
  echo "model,loss,auxiliary_loss"
  for name in base sibling kvp-{c,lp-0.25,lp-0.50,lp-0.75} alone-{c,lp-0.25,lp-0.50,lp-0.75}; do
    awk -F, -v OFS=, -v name="$name" 'NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
      { base = at["validation_base_loss"]
        loss = $at[base ? "validation_base_loss" : "validation_loss"]
        if (loss != "") print_line = name OFS loss OFS (base ? $at["validation_auxiliary_loss"] : "") }
      END { print print_line }' "$out/$name/metrics.csv"
  done
} >$here/losses.csv

# Means over the places, differences from the base with 95 % intervals, and what the prompt costs.
prefill_flops() { # MODEL METHOD
  $kvcast estimate -q --model "$1" --method "$2" --hardware a100-80gb --prompt-len 64 \
    --output-len 33 --json | sed -n 's/^  "prefill_flops": \([0-9]*\).*/\1/p'
}
{
  prefill_flops "$base" plain | sed 's/^/base /'
  for keep in 0.25 0.50 0.75; do
    prefill_flops "$base" random-prune:keep=$keep | sed "s/^/random-$keep /"
    prefill_flops "$base" static-prune:keep=$keep | sed "s/^/static-$keep /"
  done
  for name in c lp-0.25 lp-0.50 lp-0.75; do
    auxiliary=$out/kvp-$name/checkpoint-000400
    prefill_flops "$base" "kvp:auxiliary=$auxiliary" | sed "s/^/kvp-$name /"
    prefill_flops "$auxiliary" plain | sed "s/^/alone-$name /"
  done
} >"$out/flops.txt"
awk -v OFS=, '
  FNR == NR { flops[$1] = $2; next }
  FNR == 1 { print "method,model,prefill_flops_share,loss,difference_from_base,half_width"; next }
  { split($0, row, ","); if (!(row[1] in n)) order[++models] = row[1]
    value[row[1], ++n[row[1]]] = row[3] }
  END {
    for (i = 1; i <= models; ++i) {
      m = order[i]; places = n[m]; sum = of_base = squares = 0
      for (p = 1; p <= places; ++p) { sum += value[m, p]; of_base += value["base", p] }
      mean = (sum - of_base) / places
      for (p = 1; p <= places; ++p) squares += (value[m, p] - value["base", p] - mean) ^ 2
      half = 1.998 * sqrt(squares / (places - 1) / places)  # Student t, 63 degrees of freedom
      method = m; sub(/-[0-9.]+$/, "", method)
      printf "%s,%s,%.3f,%.4f,%.4f,%.4f\n", method, m, flops[m] / flops["base"], sum / places,
        mean, half
    }
  }' "$out/flops.txt" $here/continuations.csv >$here/quality.csv
