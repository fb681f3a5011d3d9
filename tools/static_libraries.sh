#!/usr/bin/env bash
# Builds the libraries that the static program needs and that Debian packages only as shared ones,
# from the sources of those packages: fmt, Oniguruma, SentencePiece, soxr.
# usage: static_libraries.sh PREFIX    leaves alone what is there already
set -euo pipefail
prefix=$(realpath -m "$1")
work=$prefix/sources
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/apt/parts"

# The system's own repositories, asked for sources; its configuration stays as it is.
list_sources() {
  local file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ ! -s $file ]] || sed -n 's/^ *deb /deb-src /p' "$file" >>"$work/apt/parts/system.list"
  done
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ ! -s $file ]] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$work/apt/parts/$(basename "$file")"
  done
}
apt() {
  apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/apt/parts" \
    -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" \
    -o APT::Sandbox::User=root "$@"
}

# get PACKAGE: its patched sources in $source
get() {
  if [[ ! -s $work/apt/parts/listed ]]; then
    rm -f "$work"/apt/parts/*
    list_sources
    apt update >/dev/null || true # of a repository without sources; get says what it cannot find
    echo done >"$work/apt/parts/listed"
  fi
  rm -rf "${work:?}/$1"
  mkdir "$work/$1"
  (cd "$work/$1" && apt source "$1" >/dev/null)
  source=$(echo "$work/$1"/*/)
}

# make SOURCE [CMAKE ARGS]: builds and installs
make() {
  local from=$1
  shift
  cmake -S "$from" -B "$from/build-static" -G Ninja -D CMAKE_BUILD_TYPE=Release \
    -D CMAKE_INSTALL_PREFIX="$prefix" -D CMAKE_INSTALL_LIBDIR=lib -D BUILD_SHARED_LIBS=OFF \
    -D CMAKE_POLICY_VERSION_MINIMUM=3.5 "$@"
  cmake --build "$from/build-static" --target install
}

missing() { [[ ! -s $prefix/lib/$1 ]]; }

if missing libfmt.a; then
  get fmtlib
  make "$source" -D FMT_TEST=OFF -D FMT_DOC=OFF
fi
if missing libonig.a; then
  get libonig
  make "$source"
fi
if missing libsoxr.a; then
  get libsoxr
  make "$source" -D BUILD_TESTS=OFF -D BUILD_EXAMPLES=OFF -D WITH_LSR_BINDINGS=OFF -D WITH_OPENMP=OFF
fi
if missing libsentencepiece.a; then
  get sentencepiece
  # Debian's own change, which leaves the static library out.
  patch --silent --reverse --strip=1 --directory="$source" <"$source/debian/patches/disable-static-library.patch"
  make "$source" -D SPM_ENABLE_SHARED=OFF -D SPM_ENABLE_TCMALLOC=OFF
fi
