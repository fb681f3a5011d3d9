#!/usr/bin/env bash
# Measures the study of this folder again:
# reports/studies/quality/study.sh [FOLDER FOR THE HELPERS] [FOLDER OF kvp-training]
# Needs build/release/kvcast (./run build), weights/ (./run weights) and what kvp-training's study.sh
# trained. An interrupted run resumes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
kvcast=build/release/kvcast
model=weights/smollm2-135m-instruct.gguf
here=reports/studies/quality
helpers=${1:-build/quality} trained=$(realpath "${2:-build/kvp-training}")
mkdir -p "$helpers"

# Layer-pruned helpers, every tenth layer for 0.10; KV Prediction's maps are fitted to a book that is
# not evaluated.
for share in 0.75 0.50 0.25 0.10; do
  layers=$share
  if [[ $share == 0.10 ]]; then layers=0,10,20; fi
  [[ -d $helpers/lp-$share ]] ||
    $kvcast convert prune $model "$helpers/lp-$share" --keep $layers >/dev/null
  [[ -d $helpers/maps-$share ]] ||
    $kvcast convert kvp --base $model --auxiliary "$helpers/lp-$share" --window 512 \
      --fit $here/texts/log-school-house.txt "$helpers/maps-$share"
  ln -sfn "$trained/kvp-$share/checkpoint-000032" "$helpers/trained-$share"
done

methods="specprefill:speculator=$helpers/lp-0.50;specprefill;random-prune;static-prune;lazyllm"
kvp=";kvp:auxiliary=$helpers/lp-{keep},predictor=$helpers/maps-{keep}"
kvp+=";kvp:auxiliary=$helpers/trained-{keep},predictor=$helpers/trained-{keep}/predictor"
kvp+=";static-prune:keep={keep}"
kvp+="+kvp:auxiliary=$helpers/trained-0.75,predictor=$helpers/trained-0.75/predictor"
texts=($here/texts/news-from-nowhere.txt $here/texts/historical-essays.txt)

# TTFTs need an idle machine.
$kvcast validate quality --model $model --text "${texts[@]}" --prompt-len 512 --continuation 32 \
  --method "$methods$kvp" --keep 0.10,0.25,0.50,0.75 --samples 4 --needles 8 \
  --csv $here/samples.csv --plot $here/quality.svg

# Prompts four times as long. kvp is left out: its maps are fitted to windows of 512 tokens.
$kvcast validate quality --model $model --text "${texts[@]}" --prompt-len 2048 --continuation 32 \
  --method "$methods" --keep 0.10,0.25,0.50 --samples 2 --needles 6 \
  --csv $here/long-samples.csv --plot $here/long.svg
