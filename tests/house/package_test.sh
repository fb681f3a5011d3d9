#!/usr/bin/env bash
# Unpacks the Debian package of a build into an empty folder and runs the program there.
# usage: package_test.sh BUILD_DIR [PACKAGE.deb]   without a package, makes one first
set -euo pipefail
fail() {
  echo "package_test.sh: $*" >&2
  exit 1
}
if ! command -v dpkg-deb >/dev/null || ! command -v dpkg-shlibdeps >/dev/null; then
  echo "package_test.sh: not run, since dpkg-deb or dpkg-shlibdeps is missing (package dpkg-dev)"
  exit 77
fi
build=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if (($# > 1)); then
  package=$(realpath "$2")
else
  cpack --config "$build/CPackConfig.cmake" -G DEB -B "$scratch/made" >/dev/null
  package=$(echo "$scratch"/made/kvcast_*.deb)
fi
dpkg-deb -x "$package" "$scratch/root"

# A clean system has no source tree, and nobody has set where the data is.
unset KVCAST_DATA
program=$scratch/root/usr/bin/kvcast
share=$scratch/root/usr/share
for file in "$program" "$share/man/man1/kvcast.1" "$share/bash-completion/completions/kvcast" \
  "$share/kvcast/data/published/errata.csv"; do
  [[ -s $file ]] || fail "no $file in the package"
done
[[ ! -e $scratch/root/usr/include ]] || fail "headers in the package, expected the program alone"
cd "$scratch"
"$program" --version | head -1
ttft=$("$program" estimate --quiet --model llama-7b --hardware a100-80gb --prompt-len 4k | grep TTFT)
# The catalog that it reads is the package's own: a new name there is a new name in its list.
mv "$share/kvcast/data/models/llama-7b.json" "$share/kvcast/data/models/renamed-7b.json"
"$program" model list --quiet | grep '^renamed-7b' >/dev/null || fail "another catalog is read"
if [[ -s $build/explorer.html ]]; then
  "$program" explore --output page.html >/dev/null
  cmp page.html "$build/explorer.html" || fail "another page is in the package"
fi
depends=$(dpkg-deb -f "$package" Depends)
for library in libc6 libstdc++6 libfmt; do
  [[ $depends == *$library* ]] || fail "Depends: $depends, expected $library among them"
done
echo "$(basename "$package"): installs and runs: $ttft"
