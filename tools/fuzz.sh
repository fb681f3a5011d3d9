#!/usr/bin/env bash
# usage: tools/fuzz.sh BUILD_DIR
#
# Runs the fuzz targets *_fuzz of BUILD_DIR for KVCAST_FUZZ_SECONDS (60) seconds each, two at a time.
# Each starts from the inputs in tests/fuzz/corpus/NAME and from what earlier runs kept beside them in
# BUILD_DIR/corpus/NAME. An input that fails stays in BUILD_DIR/findings/, its path is printed, and the
# exit status is 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build_dir=$1
seconds=${KVCAST_FUZZ_SECONDS:-60}

say() { echo "fuzz: $*"; }

if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
  say "KVCAST_FUZZ_SECONDS: got '$seconds', expected a whole number of seconds above 0" >&2
  exit 2
fi
targets=("$build_dir"/*_fuzz)
if [[ ! -x ${targets[0]} ]]; then
  say "$build_dir: no fuzz targets, expected programs *_fuzz" >&2
  exit 1
fi

# fuzz TARGET: one target; says in one line how it went.
fuzz() {
  local target=$1
  local name
  name=$(basename "$target" _fuzz)
  local corpus=$build_dir/corpus/$name findings=$build_dir/findings log=$build_dir/$name.log
  mkdir -p "$corpus" "$findings"
  cp -r "tests/fuzz/corpus/$name/." "$corpus/"
  # What a file claims must not be allocated: corpus and limit are far apart.
  if "$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=256 \
    -artifact_prefix="$findings/$name-" "$corpus" >"$log" 2>&1; then
    say "$name: $(sed -n 's/^Done \(.*\) second(s)$/\1 s/p' "$log"), nothing found"
    return
  fi
  local reproducer
  reproducer=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  tail -n 60 "$log" >&2
  say "$name: failed; again with: $target ${reproducer:-(no input was kept, see $log)}"
  return 1
}

failed=0
running=0
for target in "${targets[@]}"; do
  if ((running == 2)); then
    wait -n || failed=1
    running=1
  fi
  fuzz "$target" &
  running=$((running + 1))
done
while ((running > 0)); do
  wait -n || failed=1
  running=$((running - 1))
done
exit "$failed"
