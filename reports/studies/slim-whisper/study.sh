#!/usr/bin/env bash
# Measures the study of this folder again: reports/studies/slim-whisper/study.sh [FOLDER FOR THE CHECKPOINTS]
# Needs build/release/kvcast (./run build), or the program that KVCAST names, and weights/ (./run weights).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
kvcast=${KVCAST:-build/release/kvcast}
here=reports/studies/slim-whisper
out=${1:-$(mktemp -d)}

convert() { # NAME FLAG ...
  local name=$1
  shift
  rm -rf "${out:?}/$name"
  "$kvcast" convert slim -q weights/whisper-base "$out/$name" \
    --calibration-audio tests/oracle/whisper_base/speech.wav "$@" --csv "$here/$name.csv" \
    >"$out/$name.txt"
}

# The automatic choice for each dtype. Each file has the errors of all three.
for dtype in fp32 fp16 bf16; do
  convert "auto-$dtype" --dtype "$dtype" --plot "$here/errors-$dtype.svg"
done
# Keys alone in every layer, however large the error is.
for dtype in fp32 bf16; do
  convert "kcache-$dtype" --dtype "$dtype" --option kcache --max-error 1e9
done
