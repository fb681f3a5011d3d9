#!/usr/bin/env bash
# Measures the study of this folder again: reports/quality/study.sh [FOLDER FOR THE HELPERS]
# Needs build/release/kvcast (./run build) and weights/ (./run weights). An interrupted run goes on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
kvcast=build/release/kvcast
model=weights/smollm2-135m-instruct.gguf
here=reports/quality
helpers=${1:-build/quality}
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
done

methods="specprefill:speculator=$helpers/lp-0.50,lookahead=4;specprefill:lookahead=4"
methods+=";random-prune;static-prune;lazyllm"
methods+=";kvp:auxiliary=$helpers/lp-{keep},predictor=$helpers/maps-{keep}"
measure=($kvcast validate quality --model $model --method "$methods" --keep 0.10,0.25,0.50,0.75
  --prompt-len 512)

# The TTFTs want a machine that does nothing else.
"${measure[@]}" --text $here/texts/news-from-nowhere.txt $here/texts/historical-essays.txt \
  --samples 2 --continuation 32 --needles 4 --csv $here/samples.csv --plot $here/quality.svg
