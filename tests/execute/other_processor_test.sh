#!/bin/bash
# Tests of the kernels with the vectors or without the tiles of another processor. On a processor
# that has no others itself, execute.STEM is that run already, and this one is skipped.
# Usage: other_processor_test.sh EXECUTE_TEST STEM 4_lanes|8_lanes|no_tiles
set -u
program=$1 stem=$2 kernels=$3

# has FLAG...: the processor has all of them, or this is not known.
has() {
  local flags flag
  flags=$(grep -m 1 '^flags' /proc/cpuinfo) || return 0
  for flag in "$@"; do grep -qw "$flag" <<<"$flags" || return 1; done
}

case $kernels in
  4_lanes) others=(avx2 fma) limit=KVCAST_MAX_LANES=4 ;;
  8_lanes) others=(avx512f avx512bw avx512dq avx512vl) limit=KVCAST_MAX_LANES=8 ;;
  no_tiles) others=(amx_tile) limit=KVCAST_TILES=0 ;;
  *) echo "FAILED: no kernels $kernels" && exit 1 ;;
esac
has "${others[@]}" ||
  { echo "SKIPPED: this processor has no ${others[*]}: execute.$stem runs these kernels"; exit 77; }
exec env $limit "$program" "--source-file=*/execute/$stem.cpp"
