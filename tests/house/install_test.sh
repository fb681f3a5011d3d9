#!/usr/bin/env bash
# Installs a build and builds and runs a program that finds kvcast there.
# usage: install_test.sh BUILD_DIR CXX_COMPILER SANITIZERS
set -euo pipefail
build=$1 compiler=$2 sanitizers=$3
consumer_source=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/consumer
scratch=$build/tests/house/installed
prefix=$scratch/prefix consumer_build=$scratch/consumer

rm -rf "$scratch"
# Only a user's view counts: nothing may be found in the build tree or the environment.
unset CMAKE_PREFIX_PATH kvcast_DIR kvcast_ROOT
cmake --install "$build" --prefix "$prefix" >/dev/null
cmake -S "$consumer_source" -B "$consumer_build" -G Ninja -D CMAKE_BUILD_TYPE=Debug \
  -D CMAKE_CXX_COMPILER="$compiler" -D CMAKE_PREFIX_PATH="$prefix" \
  -D CMAKE_CXX_FLAGS="${sanitizers:+-fsanitize=$sanitizers}"
cmake --build "$consumer_build"
"$consumer_build/consumer"

"$prefix/bin/kvcast" --help >/dev/null
for file in share/man/man1/kvcast.1 share/bash-completion/completions/kvcast \
  share/zsh/vendor-completions/_kvcast share/fish/vendor_completions.d/kvcast.fish; do
  if [[ ! -s $prefix/$file ]]; then
    echo "install_test.sh: no $prefix/$file, expected what the program says of itself" >&2
    exit 1
  fi
done
if [[ -z $(find "$prefix/share/kvcast/data" -name '*.json' -print -quit) ]]; then
  echo "install_test.sh: $prefix/share/kvcast/data has no .json file, expected the catalog" >&2
  exit 1
fi
