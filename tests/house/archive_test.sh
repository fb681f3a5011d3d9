#!/usr/bin/env bash
# Unpacks the archive with the static program and runs it where there is nothing else: in an empty
# root, and in an old Debian's where one is given.
# usage: archive_test.sh ARCHIVE.tar.gz [OLD_ROOT]
set -euo pipefail
fail() {
  echo "archive_test.sh: $*" >&2
  exit 1
}
archive=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tar -xzf "$archive" -C "$scratch"
unpacked=$(echo "$scratch"/kvcast-*)
name=$(basename "$unpacked")
for file in README bin/kvcast share/kvcast/data/published/errata.csv share/man/man1/kvcast.1 \
  licences/libsoxr-dev; do
  [[ -s $unpacked/$file ]] || fail "no $file in $archive"
done
[[ ! -e $unpacked/include ]] || fail "headers in the archive, expected the program alone"
if ldd "$unpacked/bin/kvcast" >/dev/null 2>&1; then fail "bin/kvcast has dynamic libraries"; fi
# Its own code needs no more than the first x86-64 processors have: what is wider is chosen when it
# runs. CPUs without AVX are not to be had here; the kernels' own limit of lanes is.
unset KVCAST_DATA
run() { (cd "$scratch" && env -i KVCAST_MAX_LANES=4 PATH=/nowhere "$@"); }
[[ $(run "$unpacked/bin/kvcast" --version | sed -n 's/^MPI *//p') == none ]] || fail "it has MPI"
ttft=$(run "$unpacked/bin/kvcast" estimate --quiet --model llama-7b --hardware a100-80gb --prompt-len 4k | grep '^TTFT ') ||
  fail "estimate does not run"

# in_root ROOT ARGS: the program, with that folder as its file system
in_root() {
  local root=$1
  shift
  chroot "$root" /usr/bin/env -i "/$name/bin/kvcast" "$@"
}
if ((EUID == 0)) && command -v chroot >/dev/null; then
  mkdir "$scratch/empty"
  cp -r "$unpacked" "$scratch/empty/"
  # It has no /proc either, which says where a program lies.
  same=$(chroot "$scratch/empty" "/$name/bin/kvcast" estimate --quiet --model llama-7b --hardware a100-80gb --prompt-len 4k |
    grep '^TTFT ') || fail "it does not run in an empty root"
  [[ $same == "$ttft" ]] || fail "in an empty root: $same, expected $ttft"
  if (($# > 1)); then
    old=$(realpath "$2")
    rm -rf "${old:?}/$name"
    cp -r "$unpacked" "$old/"
    mount -t proc proc "$old/proc"
    trap 'umount "$old/proc"; rm -rf "$scratch"' EXIT
    same=$(in_root "$old" estimate --quiet --model llama-7b --hardware a100-80gb --prompt-len 4k | grep '^TTFT ') ||
      fail "it does not run in $old"
    [[ $same == "$ttft" ]] || fail "in $old: $same, expected $ttft"
    echo "runs on $(cat "$old/etc/debian_version" 2>/dev/null || echo "$old")"
  fi
fi
echo "$(basename "$archive"): unpacks and runs: $ttft"
